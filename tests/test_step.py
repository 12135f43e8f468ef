"""Parts of the train step; test_train tests whole steps."""

from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from widenet_jax.step import TrainState, collect, deal, make_train_step
from widenet_jax.task import Metrics


def test_groups_are_dealt_out_in_turn():
    """Four groups of two rows in two parts: whole groups 0 and 2, then 1 and 3."""
    rows = jnp.arange(8)
    assert deal(rows, 2, 2).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert deal(rows[:, None], 4, 1).shape == (4, 2, 1)
    assert collect(deal(rows, 2, 2), 2).tolist() == rows.tolist()


def gradients(params: dict, batch: dict, step: jax.Array) -> tuple:
    """Returns loss w * x and its gradients; the batch may make either of them non-finite."""
    del step

    def loss_fn(params: dict) -> tuple:
        w = params["w"]
        # The square root has no derivative at 0, where its value is a harmless 0.
        root = jnp.sqrt(jnp.where(batch["spoil_gradient"], 0.0, 1.0) * w)
        loss = w * batch["x"] + root - root + jnp.where(batch["spoil_loss"], jnp.nan, 0.0)
        return loss, {"loss": loss}

    (_, means), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return grads, Metrics(means=means, layer_sums={})


FINE = {"x": 1.0, "spoil_loss": False, "spoil_gradient": False, "bad": np.zeros(2, bool)}
NO_LOSS, NO_GRADIENT = FINE | {"spoil_loss": True}, FINE | {"spoil_gradient": True}


schedule = lambda count: 0.5 ** (count + 1.0)  # noqa: E731
TX = optax.sgd(schedule)


@cache
def step_of(max_skipped_updates: int) -> Callable:
    step = make_train_step(gradients, TX, schedule, max_skipped_updates=max_skipped_updates)
    return jax.jit(step)


def train(batches: list[dict], *, max_skipped_updates: int) -> tuple[list, dict]:
    """Returns w after every step, from w = 2 with rates 0.5, 0.25, 0.125, ..., and all metrics."""
    step = step_of(max_skipped_updates)
    state = TrainState.create({"w": jnp.float32(2.0)}, TX, {})
    metrics, weights = [], []
    for batch in batches:
        state, found = step(state, batch)
        weights.append(float(state.params["w"]))
        metrics.append(found)
    return weights, {
        key: [float(m[key]) for m in metrics] for key in metrics[0] if key != "layer_sums"
    }


@pytest.mark.parametrize("trouble", [NO_LOSS, NO_GRADIENT])
def test_what_is_not_finite_is_skipped(trouble: dict):
    """w: 2 - 0.5, unchanged, - 0.25: the schedule and the logged rate count only updates."""
    weights, metrics = train([FINE, trouble, FINE], max_skipped_updates=1)
    assert weights == [1.5, 1.5, 1.25]
    assert metrics["skipped_updates"] == [0, 1, 1]
    assert metrics["learning_rate"] == [0.5, 0.25, 0.25]
    odd = [np.isnan(metrics[name][1]) for name in ("loss", "gradient_norm")]
    assert odd == [trouble["spoil_loss"], trouble["spoil_gradient"]]


@pytest.mark.parametrize(("allowed", "moves"), [(0, 1), (1, 2)])
def test_beyond_the_allowed_number_nothing_moves(allowed: int, moves: int):
    """The state before the non-finite step must survive until the loop notices."""
    batches = [FINE, NO_LOSS, FINE, NO_GRADIENT, FINE, FINE]
    weights, _ = train(batches, max_skipped_updates=allowed)
    assert len(set(weights)) == moves


def test_unreadable_images_are_counted():
    bad = [FINE | {"bad": np.array(which)} for which in ([False] * 2, [True] * 2, [True, False])]
    _, metrics = train(bad, max_skipped_updates=0)
    assert metrics["bad_examples"] == [0, 2, 3]
