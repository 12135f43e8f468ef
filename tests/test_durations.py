"""Durations in steps, examples and epochs."""

import math

import ml_collections
import pytest

from widenet_jax.durations import to_steps
from widenet_jax.errors import BadInputError

SIZES = {"batch_size": 4096, "num_examples": 1_281_167}


@pytest.mark.parametrize(
    ("section", "steps"),
    [
        ({"train_steps": 100}, 100),
        ({"train_epochs": 300}, 93_835),  # 300 * 1281167 / 4096 = 93835.47...
        ({"train_epochs": 1.5}, 469),  # 469.17...
        ({"train_examples": 4096 * 7}, 7),
        ({"train_examples": 4096 * 7 + 2048}, 8),  # half rounds up
        ({"train_examples": 4096 * 6 + 2048}, 7),
        ({"train_examples": 1}, 1),  # set, so never nothing
        ({"train_steps": 5, "train_epochs": 0, "train_examples": None}, 5),
    ],
)
def test_values(section: dict, steps: int):
    got = to_steps(section, "train", **SIZES)
    assert got == steps
    assert type(got) is int


def test_reads_a_config_dict_and_only_its_prefix():
    section = ml_collections.ConfigDict({"warmup_epochs": 30, "train_steps": 9})
    assert to_steps(section, "warmup", **SIZES) == 9384
    assert to_steps(section, "train", **SIZES) == 9


def test_unset_is_zero_only_where_allowed():
    assert to_steps({"warmup_steps": 0}, "warmup", **SIZES, required=False) == 0
    with pytest.raises(BadInputError) as caught:
        to_steps({}, "train", **SIZES)
    for field in ("config.train_steps", "config.train_examples", "config.train_epochs"):
        assert field in str(caught.value)


def test_several_set_gives_the_flag_to_add():
    section = {"train_epochs": 300, "train_steps": 100}
    with pytest.raises(BadInputError) as caught:
        to_steps(section, "train", **SIZES)
    assert str(caught.value).endswith("--config.train_epochs=0")
    assert "\n" not in str(caught.value)
    flags = {"train_epochs": 0, "train_steps": 100}
    assert to_steps(flags, "train", **SIZES) == 100


def test_three_set_zeroes_all_but_the_first():
    section = {"a_epochs": 1, "a_steps": 2, "a_examples": 3}
    with pytest.raises(BadInputError, match=r"--c\.o\.a_examples=0 --c\.o\.a_epochs=0$"):
        to_steps(section, "a", **SIZES, where="c.o")


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "300 epochs", True])
@pytest.mark.parametrize("field", ["train_steps", "train_epochs", "train_examples"])
def test_values_that_are_no_length(field: str, bad: object):
    with pytest.raises(BadInputError, match=f"config.{field}="):
        to_steps({field: bad}, "train", **SIZES)


def test_steps_are_whole():
    assert to_steps({"train_steps": 3.0}, "train", **SIZES) == 3
    with pytest.raises(BadInputError, match="whole"):
        to_steps({"train_steps": 3.5}, "train", **SIZES)


def test_longer_than_the_run():
    section = {"warmup_epochs": 30}
    assert to_steps(section, "warmup", **SIZES, total_steps=9384) == 9384
    with pytest.raises(BadInputError, match="9384 steps, longer than the run of 9383"):
        to_steps(section, "warmup", **SIZES, total_steps=9383)


@pytest.mark.parametrize(
    "sizes", [{"batch_size": 0, "num_examples": 5}, {"batch_size": 5, "num_examples": 0}]
)
def test_epochs_need_a_batch_and_a_data_set(sizes: dict):
    with pytest.raises(BadInputError, match="batch"):
        to_steps({"train_epochs": 1}, "train", **sizes)


def test_steps_need_no_data_set():
    assert to_steps({"train_steps": 2}, "train", batch_size=1, num_examples=0) == 2
