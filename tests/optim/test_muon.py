"""Muon, against its iteration in float64, one matrix at a time."""

import jax
import jax.numpy as jnp
import numpy as np
from optimizers import build, train

SHAPES = {
    "embedding": (4, 3),
    "encoder": {
        "attention": {"query": {"kernel": (3, 3), "bias": (3,)}, "content_bias": (2, 3)},
        "moe": {"router": {"kernel": (3, 2)}, "experts": {"wi": {"kernel": (2, 3, 5)}}},
        "block_00_router": {"kernel": (3, 2)},
        "block_00_mlp": {"wo": {"kernel": (5, 3)}},
    },
    "head": {"kernel": (3, 4)},
}
MATRICES = ("query/kernel", "experts/wi/kernel", "block_00_mlp/wo/kernel")
FIELDS = {"momentum": 0.95, "weight_decay": 0.1, "adam_rate": 0.25}


def draw(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda s: jnp.float32(rng.normal(size=s)), SHAPES, is_leaf=is_shape)


def orthogonal(x: np.ndarray) -> np.ndarray:
    """Five steps on a matrix; of more rows than columns its transpose has the same result."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


def by_hand(p: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """Moves one matrix [in, out]; means are divided by their weights, as optax does."""
    p, m = np.float64(p), np.zeros(p.shape)
    for t, g in enumerate(gradients, 1):
        m = 0.95 * m + 0.05 * np.float64(g)
        ahead = 0.95 * m / (1 - 0.95 ** (t + 1)) + 0.05 * g / (1 - 0.95**t)
        p = p - 0.02 * (max(1, p.shape[1] / p.shape[0]) ** 0.5 * orthogonal(ahead) + 0.1 * p)
    return p


def moved(name: str, rate: float, gradients: list[dict]) -> dict:
    params = draw(0)
    tx, _ = build(params, 1, name=name, learning_rate=rate, exclude_norm_and_bias=True, **FIELDS)
    return train(tx, params, gradients)


def test_matrices_become_orthogonal_one_by_one_and_adamw_moves_the_rest():
    gradients = [draw(1), draw(2)]
    ours = moved("muon", 0.02, gradients)
    adamw = moved("adamw", 0.005, gradients)
    orthogonalised = []

    def check(path: tuple, found: np.ndarray, p: np.ndarray, theirs: np.ndarray, *g) -> None:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not name.endswith(MATRICES):
            np.testing.assert_allclose(found, theirs, rtol=1e-6, err_msg=name)
            return
        orthogonalised.append(name)
        g = [np.float64(x) for x in g]
        if found.ndim == 3:
            theirs = np.stack([by_hand(p[e], [x[e] for x in g]) for e in range(len(p))])
        else:
            theirs = by_hand(p, g)
        np.testing.assert_allclose(found, theirs, atol=1e-5, err_msg=name)

    jax.tree_util.tree_map_with_path(check, ours, draw(0), adamw, *gradients)
    assert len(orthogonalised) == len(MATRICES)


def test_a_gradient_of_zeros_moves_nothing_but_by_decay():
    after = moved("muon", 0.02, [jax.tree.map(jnp.zeros_like, draw(0))])
    query = lambda params: params["encoder"]["attention"]["query"]["kernel"]  # noqa: E731
    np.testing.assert_allclose(query(after), query(draw(0)) * (1 - 0.02 * 0.1), rtol=1e-6)
