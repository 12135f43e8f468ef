"""CIFAR-10: the paper's finetuning, and small models from scratch.

Finetuning (Table 6): takes the backbone of a pretraining run, resizes its position embedding, drops
its pre-logits layer and gives it a new head. 100 epochs of batch 512, SGD with momentum at
0.03, cosine decay, no warm-up, no weight decay, dropout 0.1, mixup, images of 224 pixels.

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

`pretrained` takes the model that config.init_from names, and the size of its images.
"A slip": no setting that gives the table's other rows gives this one. Cost: the paper states none.

Small models, from scratch or after configs/tiny_imagenet.py, at 32 pixels on a laptop's CPU:

  python -m widenet_jax.main --config=configs/cifar10.py:widenet_s --workdir=runs/cifar10_s

Cost: 17 minutes on 2 CPU cores. Ours, with a warm-up of 200 steps: 50.5% from scratch, 55.9% after
configs/tiny_imagenet.py (docs/log/photos_laptop.md).

Data: `scripts/prepare_data.py cifar10_binary` from the official archive (or `npz`), or
option source=tfds (`prepare_data.py tfds cifar10`).
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.sizes import SMALL_SIZES
from configs.variants import IMAGES, parse

PRETRAINED = "pretrained"


def get_config(variant: str = "widenet_b") -> ConfigDict:
    small, options = False, {}
    if variant == PRETRAINED:
        model = {"name": PRETRAINED, "dropout": 0.1, "moe": {"examples_per_group": 16}}
        model["image_size"] = 224  # until that model is looked up
    else:
        parsed = parse(variant, IMAGES)
        model, options, small = parsed.section, parsed.options, parsed.size in SMALL_SIZES
    authors_code = options.get("preset") == "authors_code"
    source = options.get("source", "array_record")
    config = defaults.get_config(model | {"pre_logits": False})
    config.data.update(
        source=source,
        name="cifar10" if source == "tfds" else "",
        path="" if source == "tfds" else "data/cifar10",
    )
    config.augment.update(
        exif_orientation=False,  # its files have none
        pad_pixels=4,
        randaugment_before_crop=authors_code,
        mixup_group_size=defaults.mixup_group_size(config.model),
    )
    if small:
        config.update(
            duration="8 epochs",
            model={"dropout": 0.0, "dtype": "float32"},
            data={"image_size": options.get("image_size", 32)},
            augment={"crop": "pad"},
            optimizer={"learning_rate": 2e-3, "warmup": "6.25%", "weight_decay": 0.05},
        )
        return config
    config.update(
        batch_size=512,
        duration="100 epochs",
        data={"image_size": options.get("image_size", 224), "num_workers": 8},
        augment={"randaugment_layers": 2, "mixup_alpha": 0.2 if authors_code else 0.5},
        optimizer={"name": "sgd", "learning_rate": 0.03, "exclude_norm_and_bias": False},
    )
    if variant == PRETRAINED:
        config.data.image_size = config.model.get_oneway_ref("image_size")
    return config
