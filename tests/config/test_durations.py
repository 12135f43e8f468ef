"""Durations in steps, examples and epochs."""

import pytest

from widenet_jax.config.durations import to_steps
from widenet_jax.errors import BadInputError

SIZES = {"field": "config.duration", "batch_size": 4096, "num_examples": 1_281_167}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("100 steps", 100),
        ("1 step", 1),
        ("100steps", 100),
        ("93_835 steps", 93_835),
        ("300 epochs", 93_835),  # 300 * 1281167 / 4096 = 93835.47...
        ("1.5 epochs", 469),  # 469.17...
        (f"{4096 * 7} examples", 7),
        (f"{4096 * 7 + 2048} examples", 8),  # half rounds up
        (f"{4096 * 6 + 2048} examples", 7),
        ("1e6 examples", 244),  # 244.14...
        ("1 example", 1),  # above 0, so at least one step
    ],
)
def test_values(text: str, steps: int):
    got = to_steps(text, **SIZES)
    assert got == steps
    assert type(got) is int


def test_zero_only_where_allowed():
    assert to_steps("0 epochs", **SIZES, may_be_zero=True) == 0
    with pytest.raises(BadInputError, match="must be longer than 0"):
        to_steps("0 epochs", **SIZES)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "300",
        "epochs",
        "-1 steps",
        "nan steps",
        "inf epochs",
        "3 weeks",
        "1 2 steps",
        "%",
        "5%s",
        300,
    ],
)
def test_what_is_no_duration(bad: object):
    with pytest.raises(BadInputError, match=r"--config\.duration='10 epochs'"):
        to_steps(bad, **SIZES)


@pytest.mark.parametrize(
    ("text", "total", "steps"),
    [("10%", 1500, 150), ("6.25 %", 3125, 195), ("10%", 60, 6), ("5%", 4, 1), ("100%", 7, 7)],
)
def test_share_of_the_run(text: str, total: int, steps: int):
    assert to_steps(text, **SIZES, total_steps=total) == steps


def test_no_share_where_there_is_no_run():
    with pytest.raises(BadInputError, match=r"only config\.optimizer\.warmup may be a share"):
        to_steps("10%", **SIZES)
    assert to_steps("0%", **SIZES, total_steps=10, may_be_zero=True) == 0
    with pytest.raises(BadInputError, match="110 steps, longer than the run of 100"):
        to_steps("110%", **SIZES, total_steps=100)


def test_longer_than_the_run():
    assert to_steps("30 epochs", **SIZES, total_steps=9384) == 9384
    with pytest.raises(BadInputError, match="9384 steps, longer than the run of 9383"):
        to_steps("30 epochs", **SIZES, total_steps=9383)
