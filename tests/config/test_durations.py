"""Durations in steps, examples and epochs."""

from decimal import Decimal

import pytest

from widenet_jax.config.durations import to_interval, to_steps
from widenet_jax.errors import BadInputError

SIZES = {"field": "config.duration", "batch_size": 4096, "num_examples": 1_281_167}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("1 step", 1),
        ("93_835steps", 93_835),
        ("300 epochs", 93_835),  # 300 * 1281167 / 4096 = 93835.47...
        ("1.5 epochs", 469),  # 469.17...
        (f"{4096 * 7 + 2048} examples", 8),  # half rounds up
        ("1e6 examples", 244),  # 244.14...
        ("1 example", 1),  # above 0, so at least one step
    ],
)
def test_values(text: str, steps: int):
    got = to_steps(text, **SIZES)
    assert got == steps
    assert type(got) is int


BAD = ("", "300", "epochs", "-1 steps", "nan steps", "3 weeks", "1 2 steps", "5%s", 300)


@pytest.mark.parametrize(
    ("text", "total", "line"),
    [
        *((bad, 9, "is not a duration; .*--config.duration='10 epochs'") for bad in BAD),
        ("0 epochs", 9, "must be longer than 0"),
        ("10%", None, "only config.optimizer.warmup may be a share of the run"),
        ("30 epochs", 9383, "is 9384 steps, longer than the run of 9383; .*--config.duration=10%"),
        ("1e308 epochs", None, "is longer than 1,000,000,000,000 steps"),
    ],
)
def test_what_is_no_duration(text: str, total: int | None, line: str):
    with pytest.raises(BadInputError, match=rf"^config\.duration={text!r}:? {line}"):
        to_steps(text, **SIZES, total_steps=total)


def test_zero_and_shares_of_the_run():
    assert to_steps("0 epochs", **SIZES, may_be_zero=True) == 0
    assert to_steps("0%", **SIZES, total_steps=10, may_be_zero=True) == 0
    assert to_steps("30 epochs", **SIZES, total_steps=9384) == 9384
    for text, total, steps in (("6.25 %", 3125, 195), ("5%", 4, 1), ("100%", 7, 7)):
        assert to_steps(text, **SIZES, total_steps=total) == steps


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ("0.5 epochs", [3, 5, 8, 10, 13, 15, 18, 20]),  # 2.5 steps; half rounds up
        ("0.7 epochs", [4, 7, 11, 14, 18]),  # 3.5, 7, 10.5, 14, 17.5 steps
        ("6 examples", list(range(1, 21))),  # 0.6 steps: after every step, once
    ],
)
def test_events_follow_the_nearest_steps(every: str, steps: list[int]):
    """Of twenty steps of 10 examples; an epoch has 50."""
    interval = to_interval(every, field="config.it", batch_size=10, num_examples=50)
    assert [step for step in range(1, 21) if interval.ends_at(step)] == steps
    counts = [sum(s <= step for s in steps) for step in range(21)]
    assert [interval.count(step) for step in range(21)] == counts


@pytest.mark.parametrize(("every", "batch_size"), [("1", 32), ("0.29", 64), ("2.5", 100)])
def test_whole_multiples_of_an_interval_end_with_an_event(every: str, batch_size: int):
    """A run of k intervals has an event after its last step, and none in the steps before it."""
    sizes = {"field": "config.it", "batch_size": batch_size, "num_examples": 1437}
    interval = to_interval(f"{every} epochs", **sizes)
    for k in range(1, 60):
        last = to_steps(f"{Decimal(every) * k} epochs", **sizes)
        assert interval.ends_at(last) and interval.count(last) == k
