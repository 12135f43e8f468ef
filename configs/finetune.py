"""Your own photos, in folders of one class each: the only field to give is config.data.path.

photos/CLASS/*.jpg is divided by file name, a tenth for evaluation (config.data.eval_fraction), or
photos/train/CLASS/*.jpg and photos/val/CLASS/*.jpg are taken as they are. Training sees random
parts of a photo, evaluation its centre; what cannot be read is named and left out.

  python -m widenet_jax.main --config=configs/finetune.py --workdir=runs/mine \
      --config.data.path=photos

That trains widenet_s, the small model for a laptop, from scratch at 64 pixels. Other variants are
as in configs/cifar10.py: vit_s, as small; widenet_tiny, smaller; widenet_b, ... at 224 pixels,
for a GPU or TPU. `pretrained` takes the model that config.init_from names, its backbone and the
size of its images:

  python -m widenet_jax.main --config=configs/finetune.py:pretrained --workdir=runs/mine \
      --config.data.path=photos --config.init_from=runs/pretrained

That may be a ViT of Google, timm or Hugging Face, too.

Cost: 273 photos took 2 min 38 s on 2 CPU cores (2026-11-22, with the command at the top), 80
photos a second. Paper: not an experiment of the paper. Ours: depends on your photos.
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.sizes import IMAGE_SIZES, SMALL_SIZES, finetuning_rate
from configs.variants import IMAGES, parse

PRETRAINED = "pretrained"


def get_config(variant: str = "widenet_s") -> ConfigDict:
    small, options = True, {}
    if variant == PRETRAINED:
        model = {"name": PRETRAINED, "pre_logits": False}
        model |= {"image_size": 64, "learning_rate": 1e-3}  # until that model is looked up
    else:
        parsed = parse(variant, IMAGES)
        options, small = parsed.options, parsed.size in SMALL_SIZES
        model = parsed.section | {"pre_logits": False}
        if parsed.size == "tiny" and "patch_size" not in options:
            # Its own patches, for digits, would cut a photo into 1,024 tokens.
            model["patch_size"] = IMAGE_SIZES["s"]["patch_size"]
        if small:
            model.update(dropout=0.0, dtype="float32")
    source = options.get("source", "image_folder")
    config = defaults.get_config(model)
    config.update(
        batch_size=32,
        duration="50 epochs",
        task={"label_smoothing": 0.1},
        data={
            "source": source,
            "eval_split": "val",
            "eval_fraction": 0.1 if source == "image_folder" else 0.0,
            "image_size": options.get("image_size", 64 if small else 224),
            "on_bad_example": "skip",
        },
        augment={"crop_area_min": 0.3, "eval_crop": "central", "eval_crop_fraction": 0.875},
        optimizer={
            "learning_rate": finetuning_rate(model.get("embed_dim", 0)),
            "warmup": "10%",
            "weight_decay": 0.05,
        },
        evaluation={"batch_size": 128, "every": "5 epochs"},
        checkpoint={"every": "5 epochs"},
    )
    if variant == PRETRAINED:
        config.data.image_size = config.model.get_oneway_ref("image_size")
        config.optimizer.learning_rate = config.model.get_oneway_ref("learning_rate")
    else:
        config.augment.mixup_group_size = defaults.mixup_group_size(config.model)
    return config
