"""The gradient of weights that blocks share, as a step sums it, against float32 throughout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import init

from configs.variants import model_section
from widenet_jax.nn import dense
from widenet_jax.nn.build import build_model

SHARED = ("attention", "moe")


def summed_apart(copies: dict, depth: int) -> dict:
    """Sums the gradients of the blocks' separate copies in float64."""
    return {
        kind: jax.tree.map(
            lambda *leaves: sum(np.asarray(leaf, np.float64) for leaf in leaves),
            *(copies[f"block_{i:02d}_{kind}"] for i in range(depth)),
        )
        for kind in SHARED
    }


def unrounded(spec: str, x: jax.Array, dy: jax.Array) -> jax.Array:
    """Computes `dense.kernel_gradient` with float32 results of the products."""
    of_x, of_kernel, of_y = spec.replace("->", ",").split(",")
    return jnp.einsum(f"{of_x},{of_y}->{of_kernel}", x, dy, preferred_element_type=jnp.float32)


def test_sum_over_blocks_is_that_of_float32(monkeypatch: pytest.MonkeyPatch):
    """Rounding each block's product costs little; the slope on the reference gradient is 1.

    The same bfloat16 forward and backward pass, once with shared weights and once with a copy of
    them for each block, whose gradients are not rounded and are added up in float64.
    """
    fields = model_section("widenet_s,examples_per_group=1,depth=2")
    fields |= {"dropout": 0.0}
    fields["moe"]["router"]["noise_std"] = 0.0
    shared = build_model(fields, num_classes=1000)
    apart = shared.clone(loop={"core": ((2, 1),)})
    images = jax.random.normal(jax.random.key(0), (4, 64, 64, 3))
    params = init(shared, {"image": images[:1]}, seed=1)

    def unshare(params: dict) -> dict:
        encoder = {k: v for k, v in params["encoder"].items() if k not in SHARED}
        for i in range(shared.depth):
            encoder |= {f"block_{i:02d}_{kind}": params["encoder"][kind] for kind in SHARED}
        return params | {"encoder": encoder}

    def gradient(model, params: dict) -> dict:
        def loss(params: dict) -> jax.Array:
            logits, aux = model.apply({"params": params}, {"image": images}, train=True)
            return -jax.nn.log_softmax(logits)[:, 0].mean() + aux["loss"].sum()

        return jax.jit(jax.grad(loss))(params)["encoder"]

    ours = gradient(shared, params)
    monkeypatch.setattr(dense, "kernel_gradient", unrounded)
    reference = summed_apart(gradient(apart, unshare(params)), shared.depth)
    for path, exact in jax.tree_util.tree_leaves_with_path(reference):
        leaf = ours
        for key in path:
            leaf = leaf[key.key]
        got = np.asarray(leaf, np.float64)
        name = jax.tree_util.keystr(path)
        if name == "['attention']['key']['bias']":
            continue  # zero up to rounding: softmax is invariant to it
        error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        slope = (got * exact).sum() / (exact * exact).sum()
        assert leaf.dtype == jnp.float32
        assert error <= (3e-3 if name.endswith("['kernel']") else 1e-5), name
        assert abs(slope - 1) <= 1e-4, name
