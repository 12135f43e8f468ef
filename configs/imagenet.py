"""ImageNet-1K pretraining: every vision model and ablation of the WideNet paper, by name.

  python -m widenet_jax.main --config=configs/imagenet.py:widenet_b --workdir=gs://BUCKET/run \
      --config.data.path=gs://BUCKET/imagenet --distributed

Recipe (Table 6, and the authors' released code where the text is silent): 300 epochs of batch 4096,
30 of warm-up, LAMB at 0.01, weight decay 0.1, dropout 0.1, label smoothing 0.1, mixup, RandAugment,
cosine to 0. The paper used 256 TPUv3 cores: 16 images a core, which is its routing group.

Paper's top-1, and its cost in TPUv3 core-days where it states one; ours is "not run" throughout.

| variant                            | table   | params      | paper: top-1     | core-days |
|------------------------------------|---------|-------------|------------------|-----------|
| vit_b                              | 1       | 87M         | 78.6             |           |
| vit_l                              | 1, 4    | 305M        | 77.5             | 80        |
| vit_h                              |         | 633M        | not stated       |           |
| vit_moe_b (Table 3: no sharing, B) | 1, 3    | 128M        | 77.9             |           |
| vit_moe_l (Table 3: no sharing, L) | 1, 3    | 406M        | 77.4             |           |
| widenet_b                          | 1, 3    | 29M         | 77.5             |           |
| widenet_l                          | 1, 3, 4 | 40M         | 79.5             | 140       |
| widenet_h                          | 1, 3    | 63M         | 80.1             |           |
| widenet_{b,l,h},share_norms=true   | 3       | 29, 40, 63M | 76.3, 78.3, 76.6 |           |
| widenet_{b,l,h},moe=false          | 3       | 9, 15, 23M  | NaN, 76.9, 79.0  |           |
| vit_l,share=true                   | 4       | 15M         | 76.9             | 70        |
| vit_l,share=true,mlp_dim=8192      | 4       | 24M         | 75.8             | 90        |
| widenet_l,depth=12                 | 4       | 40M         | 78.2             | 70        |
| vit_moe_b,experts=8 (4 to 16)      | Fig. 2  |             | a figure         |           |
| widenet_b,routing_groups=6 (2, 3)  | Fig. 3  | 29M         | a figure         |           |

More options: images_per_group=1 (cheaper dispatch), capacity_factor, selected, moe_blocks=last_2,
preset=authors_code (what the released code does differently; see docs/ARCHITECTURE.md).

Data: ImageNet as an ArrayRecord set made by `scripts/prepare_data.py image_folder`; or
option source=image_folder with --config.data.path=DIR (DIR/train/n01440764/*.JPEG, DIR/val/...);
or option source=tfds, for imagenet2012 as TFDS keeps it.
"""

from ml_collections import ConfigDict

from widenet_jax.models.sizes import parse_variant, vision_model


def get_config(variant: str = "widenet_b") -> ConfigDict:
    family, size, options = parse_variant(variant)
    authors_code = options.get("preset") == "authors_code"
    config = ConfigDict()
    config.seed = 0
    config.init_from = ""  # a run, an export, or ViT weights (.npz, .safetensors)
    config.batch_size = 4096  # 16 images for each of 256 cores
    config.duration = "300 epochs"  # steps, examples or epochs
    config.log_every_steps = 50
    config.on_nonfinite = "stop"  # or "skip": leave out updates that are not finite
    config.max_skipped_updates = 10

    config.model = vision_model(family, size, options)

    config.task = {"name": "classification", "label_smoothing": 0.1}

    image_size = options.get("image_size", 224)
    source = options.get("source", "array_record")
    config.data = {
        "source": source,  # array_record, image_folder, tfds
        "name": "imagenet2012" if source == "tfds" else "",
        "path": "" if source == "tfds" else "data/imagenet",  # empty: where TFDS keeps its sets
        "train_split": "train",
        "eval_split": "validation" if source == "tfds" else "val",
        "image_size": image_size,
        "num_workers": 16,  # decoding processes a host; 0 reads with threads
        "prefetch": 4,  # batches
        "on_bad_example": "error",  # or "skip" images that cannot be read
        "max_bad_fraction": 0.001,
    }
    group = config.model["moe"]["images_per_group"] if config.model["moe"] else 1
    config.augment = {
        "crop": "inception",
        "crop_area_min": 0.05,
        "pad_pixels": 0,  # for crop=pad
        "flip": True,
        "randaugment_layers": 2,
        "randaugment_magnitude": 15.0,
        "randaugment_before_crop": authors_code,
        "eval_crop": "squash" if authors_code else "central",
        "eval_crop_fraction": 0.875,  # of the short side: 224 of 256
        "mixup_alpha": 0.5,  # one lambda ~ Beta(alpha, alpha) an example
        # Partners stay in a routing group; a group of one image needs another pool.
        "mixup_group_size": group if group > 1 else 16,
    }
    config.optimizer = {
        "name": "lamb",
        "learning_rate": 0.01,
        "end_learning_rate": 1e-5 if authors_code else 0.0,
        "schedule": "linear" if authors_code else "cosine",
        "warmup": "30 epochs",
        "b1": 0.9,
        "b2": 0.999,
        "eps": 1e-6,
        "momentum": 0.9,  # only for --config.optimizer.name=sgd
        "weight_decay": 0.1,  # on everything, as in the released code
        "grad_clip_norm": 1.0,
        "exclude_norm_and_bias": False,
        "decay_exclude": "",  # regex of parameter paths
        "accumulation_steps": 1,
    }
    config.evaluation = {"batch_size": 4096, "every": "10 epochs"}
    config.checkpoint = {"every": "5 epochs", "keep": 2}
    # -1: all devices but those of `expert`. Were every device to update all of ViT-L's parameters,
    # LAMB, bound by memory, would take a fifth of a step.
    config.sharding = {"fsdp": -1, "expert": 1}
    config.watchdog = {"dump_after_seconds": 900, "exit_after_seconds": 0}  # 0: never
    config.tracking = {"tensorboard": True, "wandb_project": ""}
    return config
