"""Learning rates, compared with values computed by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.optim.build import DECAYS, build_schedule


def rates(name: str, steps: list[int], *, warmup: int = 4) -> list[float]:
    schedule = build_schedule(
        name, learning_rate=0.8, end_learning_rate=0.2, warmup_steps=warmup, total_steps=12
    )
    return [float(schedule(step)) for step in steps]


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_warm_up_is_linear_from_zero_to_exactly_the_peak(name: str):
    np.testing.assert_allclose(rates(name, [0, 1, 2, 3, 4]), [0, 0.2, 0.4, 0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cosine", [0.8, 0.2 + 0.3 * (1 + np.sqrt(0.5)), 0.5, 0.2, 0.2]),
        ("linear", [0.8, 0.65, 0.5, 0.2, 0.2]),
        ("constant", [0.8, 0.8, 0.8, 0.8, 0.8]),
    ],
)
def test_decay(name: str, expected: list[float]):
    np.testing.assert_allclose(rates(name, [4, 6, 8, 12, 99]), expected, rtol=1e-6)


def test_without_warm_up_and_with_nothing_else():
    np.testing.assert_allclose(rates("linear", [0, 6, 12], warmup=0), [0.8, 0.5, 0.2], rtol=1e-6)
    np.testing.assert_allclose(rates("cosine", [0, 6, 12], warmup=12), [0, 0.4, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("decay", "words"),
    [
        (lambda t: None, r"fails on a traced t in \[0, 1\]: TypeError: unsupported"),
        (lambda t: 1 if t < 0.5 else 0, "fails on a traced t .*Tracer"),
        (lambda t: jnp.stack([t, t]), r"returns an array \[2\] of one t; return one number"),
        (lambda t: 0.5 - t, "returns -0.1 for a t in .*; return the share that is left, 0 or more"),
        (jnp.log, "returns -inf for a t"),
        (lambda t: 1 / (1 - t), "returns inf for a t"),
    ],
)
def test_an_own_decay_that_no_step_can_use(decay, words, monkeypatch: pytest.MonkeyPatch):
    """A share below 0 would make updates climb; a 0 that is rounded below 0 is one."""
    monkeypatch.setitem(DECAYS, "own", decay)
    with pytest.raises(BadInputError, match=f"schedule=own: its function {words}"):
        rates("own", [0])
    monkeypatch.setitem(DECAYS, "own", lambda t: jnp.cos(jnp.pi / 2 * t))
    assert rates("own", [12])[0] == pytest.approx(0.2)
