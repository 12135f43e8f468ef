"""CIFAR-10: the paper's finetuning, and small models from scratch.

Finetuning (Table 6): backbone from a pretraining run, positions resized to the new grid, the
representation layer dropped, a new head; 100 epochs of batch 512, SGD with momentum at 0.03,
cosine, no warm-up, no decay, dropout 0.1, mixup, images at 224.

  python -m widenet_jax.main --config=configs/cifar10.py:widenet_b --workdir=runs/cifar10 \
      --config.init_from=gs://BUCKET/widenet_b --config.data.path=data/cifar10

| variant   | params (paper) | params (ours) | paper's top-1 | ours    |
|-----------|----------------|---------------|---------------|---------|
| vit_b     | 85M            | 85.8M         | 98.3          | not run |
| vit_l     | 305M (a slip)  | 303.3M        | 98.2          | not run |
| vit_moe_b | 126M           | 126.7M        | 98.5          | not run |
| vit_moe_l | 404M           | 404.0M        | 98.5          | not run |
| widenet_b | 27M (a slip)   | 28.3M         | 98.4          | not run |
| widenet_l | 38M            | 38.8M         | 98.8          | not run |

Small models from scratch or after `configs/tiny_imagenet.py`, at 32 pixels, on a laptop's CPU:

  python -m widenet_jax.main --config=configs/cifar10.py:widenet_s --workdir=runs/cifar10_s

Ours, 50.5% from scratch in 17 minutes on 2 cores, 55.9% after configs/tiny_imagenet.py
(docs/RESULTS.md).

Data: `scripts/prepare_data.py cifar10_binary` from the official archive (or `npz`), or
option source=tfds (`prepare_data.py tfds cifar10`).
"""

from ml_collections import ConfigDict

from widenet_jax.models.sizes import SMALL_SIZES, parse_variant, vision_model


def get_config(variant: str = "widenet_b") -> ConfigDict:
    family, size, options = parse_variant(variant)
    small = size in SMALL_SIZES
    authors_code = options.get("preset") == "authors_code"
    config = ConfigDict()
    config.seed = 0
    config.init_from = ""  # a run, an export, or ViT weights (.npz, .safetensors)
    config.batch_size = 128 if small else 512
    config.duration = "8 epochs" if small else "100 epochs"  # steps, examples or epochs
    config.log_every_steps = 10
    config.on_nonfinite = "stop"  # or "skip": leave out updates that are not finite
    config.max_skipped_updates = 10

    config.model = vision_model(family, size, options)
    config.model.representation = False
    if small:
        config.model.dropout = 0.0
        config.model.dtype = "float32"

    config.task = {"name": "classification", "label_smoothing": 0.0}

    image_size = options.get("image_size", 32 if small else 224)
    source = options.get("source", "array_record")
    config.data = {
        "source": source,  # array_record, image_folder, tfds
        "name": "cifar10" if source == "tfds" else "",
        "path": "" if source == "tfds" else "data/cifar10",  # empty: where TFDS keeps its sets
        "train_split": "train",
        "eval_split": "test",
        "image_size": image_size,
        "num_workers": 0 if small else 8,  # decoding processes a host; 0 reads with threads
        "prefetch": 4,  # batches
        "on_bad_example": "error",  # or "skip" images that cannot be read
        "max_bad_fraction": 0.001,
    }
    group = config.model["moe"]["images_per_group"] if config.model["moe"] else 1
    config.augment = {
        "crop": "pad" if small else "inception",
        "crop_area_min": 0.05,
        "pad_pixels": 4,  # for crop=pad
        "flip": True,
        "randaugment_layers": 0 if small else 2,
        "randaugment_magnitude": 15.0,
        "randaugment_before_crop": authors_code,
        "eval_crop": "squash",
        "eval_crop_fraction": 1.0,
        "mixup_alpha": 0.0 if small else 0.2 if authors_code else 0.5,
        "mixup_group_size": group if group > 1 else 16,
    }
    config.optimizer = {
        "name": "adamw" if small else "sgd",
        "learning_rate": 2e-3 if small else 0.03,
        "end_learning_rate": 0.0,
        "schedule": "cosine",
        "warmup": "0.5 epochs" if small else "0 steps",
        "b1": 0.9,
        "b2": 0.999,
        "eps": 1e-6,
        "momentum": 0.9,
        "weight_decay": 0.05 if small else 0.0,
        "grad_clip_norm": 1.0,
        "exclude_norm_and_bias": small,
        "decay_exclude": "",  # regex of parameter paths
        "accumulation_steps": 1,
    }
    config.evaluation = {"batch_size": 512, "every": "1 epoch"}
    config.checkpoint = {"every": "1 epoch", "keep": 2}
    config.sharding = {"fsdp": 1, "expert": 1}  # the data axis takes the other devices
    config.watchdog = {"dump_after_seconds": 900, "exit_after_seconds": 0}  # 0: never
    config.tracking = {"tensorboard": True, "wandb_project": ""}
    return config
