"""Sizes of image sets, without the sets."""

import pytest

from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan.data_info import data_info


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        ("configs/imagenet.py:widenet_h", (1_281_167, 1000, (224, 224, 3))),
        ("configs/imagenet.py:vit_b,source=tfds", (1_281_167, 1000, (224, 224, 3))),
        ("configs/cifar10.py", (50_000, 10, (224, 224, 3))),
        ("configs/digits.py", (1_437, 10, (8, 8, 1))),
    ],
)
def test_sets_of_the_configs(config: str, numbers: tuple):
    info = data_info(load_config(config))
    shape = info.example["image"].shape
    assert (info.num_examples, len(info.info["class_names"]), shape) == numbers


def test_text_sets_of_the_configs():
    """T = 512, P = 20; and a set of one's own."""
    config = load_config("configs/text_pretrain.py:widenet_4")
    info = data_info(config)
    assert (info.info, info.num_examples) == ({"vocab_size": 30_000}, 10_240_000)
    assert info.example["tokens"].shape == (512,)
    assert info.example["mlm_labels"].shape == (20,)
    config.data.path = "gs://bucket/mine"
    with pytest.raises(BadInputError, match=r"'mine'.*--num_examples=N --vocab_size=N"):
        data_info(config)
    assert data_info(config, num_examples=9, vocab_size=99).info == {"vocab_size": 99}


def test_other_sets_need_both_numbers():
    config = load_config("configs/imagenet.py:vit_b")
    config.data.path = "/data/flowers"
    with pytest.raises(BadInputError, match=r"'flowers'.*--num_examples=N --num_classes=N"):
        data_info(config, num_examples=7, num_classes=None)
    info = data_info(config, num_examples=1020, num_classes=102)
    assert (info.num_examples, len(info.info["class_names"])) == (1020, 102)
