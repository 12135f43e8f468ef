"""The method `hopper`: where it is refused, and what this project adds to JAX's kernels."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu, transposed_ragged_dot_mgpu
from ml_collections import ConfigDict
from refusals import refused, refuses

from widenet_jax.cli import benchmark
from widenet_jax.config.files import from_json
from widenet_jax.inference.trained import build_for, read_model
from widenet_jax.nn.moe import dispatch, hopper
from widenet_jax.nn.moe.dispatch import ANYWHERE, DISPATCHERS
from widenet_jax.nn.moe.experts import ExpertFfn
from widenet_jax.nn.moe.hopper import grouped_product
from widenet_jax.nn.rules import check_rules, hopper_rules
from widenet_jax.typing import Routing

WORDS = r"dispatch=hopper needs an NVIDIA H100 or H200 and config\.model\.dtype=bfloat16, here "


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, "bfloat16") for kind in ("NVIDIA A100-SXM4-80GB", "NVIDIA B200", "TPU v3", "cpu")]
    + [("NVIDIA H100 80GB HBM3", dtype) for dtype in ("float32", "float16")],
)
def test_devices_and_dtypes_that_are_refused(kind: str, dtype: str):
    for right in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB"):
        check_rules(hopper_rules(right, "bfloat16"))
    refuses(
        f"{WORDS}{kind} and {dtype}; use ragged or auto", check_rules, hopper_rules(kind, dtype)
    )


def test_a_cpu_is_refused_with_one_line(capsys: pytest.CaptureFixture):
    assert set(DISPATCHERS) - set(ANYWHERE) == {"hopper"}
    argv = ["--images=2", "--tokens=4", "--examples_per_group=2", "--embed_dim=8", "--mlp_dim=8"]
    line = refused(capsys, benchmark.main, "dispatch", *argv, "--method=hopper", "--rounds=1")
    assert line.endswith("here cpu and bfloat16; use ragged or auto\n")


def by_row(sizes: jax.Array, rows: int) -> jax.Array:  # [N, E]: 1 for the row's group
    ends = jnp.cumsum(sizes)
    row = jnp.arange(rows)[:, None]
    return ((row >= ends - sizes) & (row < ends)).astype(jnp.float32)


def rows_by_kernels(x, kernel, *, group_sizes, block_m, block_n, block_k, transpose_rhs=False, **_):
    """Computes what JAX's kernel does, on whole blocks; NaN in rows past the last group."""
    of_group = by_row(group_sizes, len(x))
    kernel = kernel.swapaxes(1, 2) if transpose_rhs else kernel
    sizes = (len(x), x.shape[1], kernel.shape[2])
    assert not any(s % b for s, b in zip(sizes, (block_m, block_k, block_n), strict=True)), sizes
    y = jnp.einsum("ne,nd,edf->nf", of_group, x, kernel)
    return jnp.where(of_group.any(1, keepdims=True), y, jnp.nan)


def rows_by_rows(x, dy, *, group_sizes, block_m, block_n, block_k, **_):
    sizes = (len(x), x.shape[1], dy.shape[1])
    assert not any(s % b for s, b in zip(sizes, (block_k, block_m, block_n), strict=True)), sizes
    return jnp.einsum("ne,nd,nf->edf", by_row(group_sizes, len(x)), x, dy)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch):
    """JAX's kernels by their definition."""
    monkeypatch.setattr(ragged_dot_mgpu, "ragged_dot", rows_by_kernels)
    monkeypatch.setattr(transposed_ragged_dot_mgpu, "transposed_ragged_dot", rows_by_rows)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("D", "F"), [(128, 256), (5, 130)])
def test_arrays_are_padded_and_cut_in_both_passes(D: int, F: int):
    """Groups of 4, 0 and 3 rows, and 2 rows of padding."""
    rng, sizes = np.random.default_rng(0), jnp.array([4, 0, 3], jnp.int32)
    x, kernel, dy = (jnp.float32(rng.normal(size=s)) for s in ((9, D), (3, D, F), (9, F)))

    def run(product) -> tuple:
        y, pull = jax.vjp(lambda x, kernel: product(x, kernel, sizes), x, kernel)
        return y, *pull(dy)

    ours, theirs = run(grouped_product), run(jax.lax.ragged_dot)
    for got, want in zip(ours, theirs, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got[:7], want[:7], atol=1e-4)
    assert not ours[2][1].any()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("F", [4, 12])  # below D the gates multiply the hidden entries
def test_a_layer_by_hopper_is_the_layer_by_ragged(monkeypatch: pytest.MonkeyPatch, F: int):
    """Output and all gradients, with dropped choices, whose rows are padding."""
    monkeypatch.setattr(dispatch, "device_kind", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(dispatch, "check_rules", lambda rules: None)  # a test in float32
    rng, (G, S, D, E, K) = np.random.default_rng(0), (1, 6, 8, 3, 2)
    x, wi, wo, gate = (
        jnp.float32(rng.normal(size=s)) for s in ((G, S, D), (E, D, F), (E, F, D), (G, S, K))
    )
    index = jnp.int32([[[0, 2], [2, 0], [0, 2], [2, 0], [0, 2], [0, 2]]])  # expert 1 has no rows
    slot = jnp.int32([[[0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 5]]])  # five of each are kept
    probs = jnp.zeros((G, S, E))
    routing = Routing(index, gate, probs, probs, slot=slot)

    def output(method: str, x, wi, wo, gate):
        experts = ExpertFfn(wi, None, wo, None, None, 0.0, False, False, "gelu", False)
        return DISPATCHERS[method](x, routing.replace(gate=gate), experts, capacity=5)

    found = {}
    for method in ("hopper", "ragged"):
        y, pull = jax.vjp(partial(output, method), x, wi, wo, gate)
        found[method] = (y, *pull(jnp.ones_like(y)))
    for got, want in zip(found["hopper"], found["ragged"], strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
    monkeypatch.setattr(hopper, "grouped_product", lambda x, kernel, sizes: 0 * x @ kernel[0])
    assert not output("hopper", x, wi, wo, gate).any()  # so it is this product that is used


def test_a_model_trained_by_hopper_opens_anywhere():
    """By ragged, of the same results on any device."""
    stored = read_model("widenet_tiny_digits")
    config = ConfigDict(from_json(stored.config))
    config.model.moe.dispatch = "hopper"
    _, model, _ = build_for(config, stored.info, stored.params)
    assert model.stack.feed_forwards["moe"].dispatch == "ragged"
    assert config.model.moe.dispatch == "hopper"
