"""WideNet-Tiny on real handwritten digits: the default, for laptops.

1,797 8x8 scans that ship with scikit-learn; 360 of them, stratified, are the test set.

  python -m widenet_jax.main --config=configs/digits.py --workdir=runs/digits

Cost: under two minutes on 2 CPU cores. Paper: not an experiment of the paper. Ours:
97.78% (98.61, 97.50, 97.22 for seeds 0, 1, 2), docs/RESULTS.md. Other models by name:
configs/digits.py:vit_tiny, vit_moe_tiny, and their options, as in
configs/digits.py:widenet_tiny,share_norms=true.
"""

from ml_collections import ConfigDict

from widenet_jax.models.sizes import parse_variant, vision_model


def get_config(variant: str = "") -> ConfigDict:
    family, size, options = parse_variant(variant or "widenet_tiny")
    config = ConfigDict()
    config.seed = 0
    config.init_from = ""  # a run, an export, or ViT weights (.npz, .safetensors)
    config.batch_size = 64
    config.duration = "100 epochs"  # steps, examples or epochs
    config.log_every_steps = 10
    config.on_nonfinite = "stop"  # or "skip": leave out updates that are not finite
    config.max_skipped_updates = 10

    config.model = vision_model(family, size, options)
    config.model.representation = False
    config.model.dropout = 0.0
    config.model.dtype = "float32"

    config.task = {"name": "classification", "label_smoothing": 0.1}

    config.data = {
        "source": "digits",
        "name": "",
        "path": "",
        "train_split": "train",
        "eval_split": "test",
        "image_size": options.get("image_size", 8),
        "num_workers": 0,  # processes; 0 reads with threads
        "prefetch": 4,  # batches
        "on_bad_example": "error",  # or "skip" images that cannot be read
        "max_bad_fraction": 0.001,
    }
    config.augment = {
        "crop": "pad",  # shifts by up to pad_pixels
        "crop_area_min": 1.0,
        "pad_pixels": 1,
        "flip": False,  # a mirrored digit is no digit
        "randaugment_layers": 0,
        "randaugment_magnitude": 0.0,
        "randaugment_before_crop": False,
        "eval_crop": "squash",
        "eval_crop_fraction": 1.0,
        "mixup_alpha": 0.0,
        "mixup_group_size": 16,
    }
    config.optimizer = {
        "name": "adamw",
        "learning_rate": 3e-3,
        "end_learning_rate": 0.0,
        "schedule": "cosine",
        "warmup": "5 epochs",
        "b1": 0.9,
        "b2": 0.999,
        "eps": 1e-6,
        "momentum": 0.9,  # only for --config.optimizer.name=sgd
        "weight_decay": 0.01,
        "grad_clip_norm": 1.0,
        "exclude_norm_and_bias": True,
        "decay_exclude": "",
        "accumulation_steps": 1,
    }
    config.evaluation = {"batch_size": 384, "every": "10 epochs"}
    config.checkpoint = {"every": "20 epochs", "keep": 2}
    config.sharding = {"fsdp": 1, "expert": 1}
    config.watchdog = {"dump_after_seconds": 900, "exit_after_seconds": 0}  # 0: never
    config.tracking = {"tensorboard": True, "wandb_project": ""}
    return config
