"""Tiny-ImageNet at 24 pixels: pretraining at a scale that a laptop's CPU finishes.

200 classes of 64x64 photos. Not an experiment of the paper; what it shows is that a backbone
pretrained here and finetuned with configs/cifar10.py:widenet_s is ahead of one from scratch.

  python -m widenet_jax.main --config=configs/tiny_imagenet.py --workdir=runs/tiny_imagenet \
      --config.data.path=data/tiny_imagenet

Cost: 11 minutes on 2 CPU cores with the 30,000 images used for docs/RESULTS.md: 10.7% of 200
classes, and then 55.9% on CIFAR-10 where training from scratch gives 50.5%.
Data: `scripts/prepare_data.py npz`, or `image_folder` from SPLIT/CLASS/*.JPEG.
"""

from ml_collections import ConfigDict

from widenet_jax.models.sizes import parse_variant, vision_model


def get_config(variant: str = "widenet_s") -> ConfigDict:
    family, size, options = parse_variant(variant)
    config = ConfigDict()
    config.seed = 0
    config.init_from = ""  # a run, an export, or ViT weights (.npz, .safetensors)
    config.batch_size = 128
    config.duration = "20 epochs"  # steps, examples or epochs
    config.log_every_steps = 10
    config.on_nonfinite = "stop"  # or "skip": leave out updates that are not finite
    config.max_skipped_updates = 10

    config.model = vision_model(family, size, options)
    config.model.dropout = 0.0
    config.model.dtype = "float32"

    config.task = {"name": "classification", "label_smoothing": 0.0}

    image_size = options.get("image_size", 24)
    config.data = {
        "source": options.get("source", "array_record"),  # array_record, image_folder, tfds
        "name": "",  # of the TFDS set
        "path": "data/tiny_imagenet",
        "train_split": "train",
        "eval_split": "val",
        "image_size": image_size,
        "num_workers": 0,  # decoding processes a host; 0 reads with threads
        "prefetch": 4,  # batches
        "on_bad_example": "error",  # or "skip" images that cannot be read
        "max_bad_fraction": 0.001,
    }
    group = config.model["moe"]["images_per_group"] if config.model["moe"] else 1
    config.augment = {
        "crop": "inception",
        "crop_area_min": 0.3,
        "pad_pixels": 0,  # for crop=pad
        "flip": True,
        "randaugment_layers": 0,
        "randaugment_magnitude": 15.0,
        "randaugment_before_crop": False,
        "eval_crop": "squash",
        "eval_crop_fraction": 1.0,
        "mixup_alpha": 0.0,
        "mixup_group_size": group if group > 1 else 16,
    }
    config.optimizer = {
        "name": "adamw",
        "learning_rate": 2e-3,
        "end_learning_rate": 0.0,
        "schedule": "cosine",
        "warmup": "1 epoch",
        "b1": 0.9,
        "b2": 0.999,
        "eps": 1e-6,
        "momentum": 0.9,
        "weight_decay": 0.05,
        "grad_clip_norm": 1.0,
        "exclude_norm_and_bias": True,
        "decay_exclude": "",  # regex of parameter paths
        "accumulation_steps": 1,
    }
    config.evaluation = {"batch_size": 512, "every": "2 epochs"}
    config.checkpoint = {"every": "2 epochs", "keep": 2}
    config.sharding = {"fsdp": 1, "expert": 1}  # the data axis takes the other devices
    config.watchdog = {"dump_after_seconds": 900, "exit_after_seconds": 0}  # 0: never
    config.tracking = {"tensorboard": True, "wandb_project": ""}
    return config
