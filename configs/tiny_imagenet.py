"""Tiny-ImageNet at 24 pixels: pretraining at a scale that a laptop's CPU finishes.

200 classes of 64x64 photos. It shows that a backbone pretrained here and finetuned with
configs/cifar10.py:widenet_s is more accurate than one trained from scratch.

  python -m widenet_jax.main --config=configs/tiny_imagenet.py --workdir=runs/tiny_imagenet \
      --config.data.path=data/tiny_imagenet

Cost: 11 minutes on 2 CPU cores with 30,000 images (docs/log/photos_laptop.md), about 37 with all
100,000. Paper: not an experiment of the paper. Ours, with 30,000 images and warm-ups of 200 steps:
10.7% of 200 classes, then 55.9% on CIFAR-10, where training from scratch gives 50.5%.

Data: docs/start/cifar10.md packs the official archive.
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.variants import IMAGES, parse


def get_config(variant: str = "widenet_s") -> ConfigDict:
    model = parse(variant, IMAGES)
    config = defaults.get_config(model.section)
    config.update(
        duration="20 epochs",
        model={"dropout": 0.0, "dtype": "float32"},
        data={
            "source": model.options.get("source", "array_record"),
            "path": "data/tiny_imagenet",
            "eval_split": "val",
            "image_size": model.options.get("image_size", 24),
        },
        augment={
            "exif_orientation": False,  # its files have none
            "crop_area_min": 0.3,
            "mixup_group_size": defaults.mixup_group_size(config.model),
        },
        optimizer={"learning_rate": 2e-3, "warmup": "5%", "weight_decay": 0.05},
        evaluation={"every": "2 epochs"},
        checkpoint={"every": "2 epochs"},
    )
    return config
