"""Two new seeds of each family train as its reference says, see `convergence.py`."""

import json
import os

import pytest
from convergence import (
    FAMILIES,
    FILE,
    NEW_SEEDS,
    compared,
    prediction_interval,
    settings_hash,
    train_seeds,
)

WIDEST = 0.03  # of the loss
REFERENCE = json.loads(FILE.read_text())


def test_an_interval_by_hand():
    # n = 8: t of 7 degrees of freedom at 99.95% is 5.408; deviation 1, sqrt(1/8 + 1/2) = 0.7906.
    values = [0.0, 0.0, 0.0, 0.0, *[2 * (7 / 8) ** 0.5] * 4]
    mean, half = prediction_interval(values, draws=2)
    assert mean == pytest.approx((7 / 8) ** 0.5)
    assert half == pytest.approx(5.408 * 0.7906, rel=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_reference_is_narrow(name):
    losses = [run["loss"] for run in REFERENCE[name]["runs"]]
    mean, half = prediction_interval(losses, draws=len(NEW_SEEDS))
    assert len(losses) >= 8
    assert half <= WIDEST * mean
    assert REFERENCE[name]["loss"]["mean"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_settings_are_those_of_the_reference(name):
    """A field added with a value that changes nothing belongs in `convergence.ADDED`."""
    assert settings_hash(name) == REFERENCE[name]["settings"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_convergence(name, capsys):
    if FAMILIES[name].reads and "WIDENET_DATA_DIR" not in os.environ:
        pytest.skip("needs WIDENET_DATA_DIR")
    found = compared(name, train_seeds(name, NEW_SEEDS))
    with capsys.disabled():
        print("", *(line for line, _ in found), sep="\n")
    assert not any(outside for _, outside in found)
