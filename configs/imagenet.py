"""ImageNet-1K pretraining: every vision model and ablation of the WideNet paper, by name.

  python -m widenet_jax.main --config=configs/imagenet.py:widenet_b --workdir=gs://BUCKET/run \
      --config.data.path=gs://BUCKET/imagenet --distributed

Recipe (Table 6; the authors' released code where the text is silent): 300 epochs of batch 4096,
30 of them warm-up, LAMB at 0.01, weight decay 0.1, dropout 0.1, label smoothing 0.1, mixup,
RandAugment, cosine decay to 0. The paper used 256 TPUv3 cores with 16 images each, and routed those
16 together.

Cost: what the paper states, in TPUv3 core-days; our plans: docs/log/plans_256_tpuv3.md. Ours: not
run.

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

configs/sizes.py has the sizes and families as tables, configs/variants.py every option.
More options: examples_per_group=1 (cheaper dispatch), capacity_factor, selected, ffn_blocks=last_2,
preset=authors_code (what the released code does differently; see docs/why/decisions.md).

Data: ImageNet as an ArrayRecord set made by `scripts/prepare_data.py image_folder`; or
option source=image_folder with --config.data.path=DIR (DIR/train/n01440764/*.JPEG, DIR/val/...);
or option source=tfds, for imagenet2012 as TFDS keeps it.
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.variants import IMAGES, parse


def get_config(variant: str = "widenet_b") -> ConfigDict:
    model = parse(variant, IMAGES)
    options = model.options
    authors_code = options.get("preset") == "authors_code"
    source = options.get("source", "array_record")
    tfds = source == "tfds"
    config = defaults.get_config(model.section)
    config.update(
        batch_size=4096,  # 16 images for each of 256 cores
        duration="300 epochs",
        log_every_steps=50,
        task={"label_smoothing": 0.1},
        data={
            "source": source,
            "name": "imagenet2012" if tfds else "",
            "path": "" if tfds else "data/imagenet",
            "eval_split": "validation" if tfds else "val",
            "image_size": options.get("image_size", 224),
            "num_workers": 16,
        },
        augment={
            "exif_orientation": False,  # published accuracies are of the stored pixels
            "randaugment_layers": 2,
            "randaugment_before_crop": authors_code,
            "eval_crop": "squash" if authors_code else "central",
            "eval_crop_fraction": 0.875,  # 224 of 256 pixels
            "mixup_alpha": 0.5,
            "mixup_group_size": defaults.mixup_group_size(config.model),
        },
        optimizer={
            "name": "lamb",
            "learning_rate": 0.01,
            "end_learning_rate": 1e-5 if authors_code else 0.0,
            "schedule": "linear" if authors_code else "cosine",
            "warmup": "30 epochs",
            "weight_decay": 0.1,
            "exclude_norm_and_bias": False,  # as in the released code
        },
        evaluation={"batch_size": 4096, "every": "10 epochs"},
        checkpoint={"every": "5 epochs"},
        # Unsharded, LAMB's update of ViT-L would be a fifth of a step: it is bound by memory. Over
        # more than 16 devices gathers cost more than that saves (docs/log/gathers.md).
        sharding={"fsdp": -16},
    )
    return config
