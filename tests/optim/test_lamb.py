"""LAMB agrees with NumPy, and does not depend on how the kernels are stored."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optimizers import train

from widenet_jax.optim.build import decay_mask
from widenet_jax.optim.lamb import lamb, scale_by_trust_ratio, trust_ratio
from widenet_jax.param_names import is_norm_or_bias, map_with_path

L, E, D, F = 2, 3, 4, 6
LR, DECAY, EPS = 0.01, 0.1, 1e-6


def apart(seed: int, *, spread: bool) -> dict:
    """Returns a tree with a leaf for each kernel; `spread` gives each a different magnitude."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        scale = 10.0 ** rng.uniform(-1, 1) if spread else 1.0
        return (scale * rng.normal(size=shape)).astype(np.float32)

    def block() -> dict:
        heads = {
            name: {"kernel": draw(D, D), "bias": draw(D)} for name in ("query", "key", "value")
        }
        experts = {
            f"expert_{e}": {
                "wi": {"kernel": draw(D, F), "bias": draw(F)},
                "wo": {"kernel": draw(F, D), "bias": draw(D)},
            }
            for e in range(E)
        }
        return {"attention": heads, "moe": experts, "norm": {"scale": draw(D), "bias": draw(D)}}

    return {f"block_{i}": block() for i in range(L)} | {"head": {"kernel": draw(D, 5)}}


def map_blocks(tree: dict, change) -> dict:
    return {name: change(sub) if name.startswith("block_") else sub for name, sub in tree.items()}


def stack_experts(tree: dict) -> dict:
    def change(block: dict) -> dict:
        experts = [block["moe"][f"expert_{e}"] for e in range(E)]
        return block | {"moe": {"experts": jax.tree.map(lambda *x: np.stack(x), *experts)}}

    return map_blocks(tree, change)


def moved(tx: optax.GradientTransformation, store) -> dict:
    """Returns parameters, stored by `store`, after three updates with random gradients."""
    return train(
        tx, store(apart(0, spread=True)), [store(apart(step, spread=False)) for step in (1, 2, 3)]
    )


def assert_close(a: dict, b: dict, tolerance: float = 1e-6) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=1e-6), a, b)


def numpy_lamb(p, grads, *, decay: float = DECAY, ratio_on: bool = True) -> np.ndarray:
    """Computes LAMB for one kernel by the paper's equations."""
    p, m, v = np.float64(p), 0.0, 0.0
    for t, g in enumerate(np.float64(grads), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        u = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + EPS) + decay * p
        norms = np.linalg.norm(p), np.linalg.norm(u)
        p = p - LR * (norms[0] / norms[1] if ratio_on and min(norms) > 0 else 1.0) * u
    return p


def test_three_steps_are_the_papers_algorithm(trained_apart: dict):
    gradients = [apart(step, spread=False) for step in (1, 2, 3)]
    expected = jax.tree.map(lambda p, *g: numpy_lamb(p, g), apart(0, spread=True), *gradients)
    assert_close(trained_apart, expected, 1e-5)


@pytest.fixture(scope="module")
def trained_apart() -> dict:
    return moved(lamb(LR, weight_decay=DECAY), lambda tree: tree)


def test_stacked_experts_do_not_change_the_update(trained_apart: dict):
    assert_close(moved(lamb(LR, weight_decay=DECAY), stack_experts), stack_experts(trained_apart))


def test_exclusions_take_ratio_and_decay_from_norms_and_biases_alone():
    decays = decay_mask(is_norm_or_bias)
    tx = lamb(LR, weight_decay=DECAY, mask=decays, exclude_trust_ratio=is_norm_or_bias)
    gradients = [apart(step, spread=False) for step in (1, 2, 3)]

    def expected(path: str, p, *g) -> np.ndarray:
        small = is_norm_or_bias(path)
        return numpy_lamb(p, g, decay=0.0 if small else DECAY, ratio_on=not small)

    want = map_with_path(expected, apart(0, spread=True), *gradients)
    assert_close(moved(tx, lambda tree: tree), want, 1e-5)


def test_ratio_per_unit_by_hand():
    param = jnp.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0], [1.0, 0.0]])
    update = jnp.array([[0.0, 1.0], [2.0, 0.0], [5.0, 0.0], [0.0, 0.0]])
    ratio = trust_ratio(param, update, (0,))
    assert ratio.shape == (4, 1)
    np.testing.assert_allclose(ratio[:, 0], [5.0, 0.5, 1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(trust_ratio(param[:2], update[:2], ()), [[np.sqrt(26 / 5)]], 1e-6)


def test_zeros():
    """A zero parameter moves by the plain rate; a zero gradient moves nothing."""
    params = {"bias": jnp.zeros(3), "kernel": jnp.ones((2, 2))}
    gradient = {"bias": jnp.array([2.0, -3.0, 4.0]), "kernel": jnp.zeros((2, 2))}
    tx = lamb(LR)
    updates, _ = tx.update(gradient, tx.init(params), params)
    np.testing.assert_allclose(updates["bias"], [-LR, LR, -LR], rtol=1e-5)
    np.testing.assert_array_equal(updates["kernel"], np.zeros((2, 2)))


def test_norms_of_bfloat16_are_float32():
    ones = jnp.ones((1000,), jnp.bfloat16)
    ratio = trust_ratio(ones, 2 * ones, ())
    assert ratio.dtype == jnp.float32
    np.testing.assert_allclose(ratio, [0.5])
    scaled, _ = scale_by_trust_ratio().update({"a": 2 * ones}, optax.EmptyState(), {"a": ones})
    assert scaled["a"].dtype == jnp.bfloat16
