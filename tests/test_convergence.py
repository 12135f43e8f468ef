"""Two new seeds of each family train as its reference says, see `convergence.py`."""

import json

import pytest
from convergence import FAMILIES, FILE, prediction_interval, settings_hash, train_seeds

NEW_SEEDS = (1000, 1001)
WIDEST = 0.03  # of the loss
REFERENCE = json.loads(FILE.read_text())


def interval_of(name: str, measure: str) -> tuple[float, float]:
    values = [run[measure] for run in REFERENCE[name]["runs"]]
    return prediction_interval(values, draws=len(NEW_SEEDS))


def test_an_interval_by_hand():
    # n = 8: t of 7 degrees of freedom at 99.95% is 5.408; deviation 1, sqrt(1/8 + 1/2) = 0.7906.
    values = [0.0, 0.0, 0.0, 0.0, *[2 * (7 / 8) ** 0.5] * 4]
    mean, half = prediction_interval(values, draws=2)
    assert mean == pytest.approx((7 / 8) ** 0.5)
    assert half == pytest.approx(5.408 * 0.7906, rel=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_reference_is_narrow(name):
    mean, half = interval_of(name, "loss")
    assert len(REFERENCE[name]["runs"]) >= 8
    assert half <= WIDEST * mean
    assert REFERENCE[name]["loss"]["mean"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_convergence(name, capsys):
    runs = train_seeds(name, NEW_SEEDS)
    lines, outside = [], []
    for measure in (key for key in runs[0] if key != "seed"):
        mean, half = interval_of(name, measure)
        new = sum(run[measure] for run in runs) / len(runs)
        line = f"{name}: {measure} {new:.4f}; the reference predicts {mean:.4f} +- {half:.4f}"
        lines.append(f"{line} ({half / mean:.1%})")
        outside += [lines[-1]] if abs(new - mean) > half else []
    with capsys.disabled():
        print("", *lines, sep="\n")
    if REFERENCE[name]["settings"] != settings_hash(name):
        outside.append("the settings are not those of the reference")
    assert not outside, "; ".join(outside)
