"""WideNet-Tiny on real handwritten digits: the default, for laptops.

1,797 scans of 8x8 pixels that ship with scikit-learn; 360 of them, stratified, are the test set.

  python -m widenet_jax.main --config=configs/digits.py --workdir=runs/digits

Cost: under two minutes on 2 CPU cores. Paper: not an experiment of the paper. Ours: 97.17%
(95.83 to 98.61% over seeds 0 to 4), docs/log/digits.md.

Other models: configs/digits.py:vit_tiny, vit_moe_tiny, each with options, as in
configs/digits.py:widenet_tiny,share_norms=true.
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.variants import IMAGES, parse


def get_config(variant: str = "") -> ConfigDict:
    model = parse(variant or "widenet_tiny", IMAGES)
    config = defaults.get_config(model.section)
    config.update(
        batch_size=64,
        duration="100 epochs",
        model={"pre_logits": False, "dropout": 0.0, "dtype": "float32"},
        task={"label_smoothing": 0.1},
        data={
            "source": model.options.get("source", "digits"),
            "image_size": model.options.get("image_size", 8),
        },
        augment={
            "exif_orientation": False,  # these are no files
            "crop": "pad",
            "crop_area_min": 1.0,
            "pad_pixels": 1,
            "flip": False,  # a mirrored digit is no digit
            "randaugment_magnitude": 0.0,
        },
        optimizer={"learning_rate": 3e-3, "warmup": "5%", "weight_decay": 0.01},
        evaluation={"batch_size": 384, "every": "10 epochs"},
        checkpoint={"every": "20 epochs"},
    )
    return config
