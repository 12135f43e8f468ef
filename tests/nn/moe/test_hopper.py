"""The method `hopper`: where it is refused, and what this project adds to JAX's kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu, transposed_ragged_dot_mgpu
from refusals import refused, refuses

from widenet_jax.cli import benchmark
from widenet_jax.nn.moe.dispatch import ANYWHERE, DISPATCHERS
from widenet_jax.nn.moe.hopper import grouped_product
from widenet_jax.nn.rules import check_rules, hopper_rules

WORDS = r"dispatch=hopper needs an NVIDIA H100 or H200 and config\.model\.dtype=bfloat16, here "


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, "bfloat16") for kind in ("NVIDIA A100-SXM4-80GB", "NVIDIA B200", "TPU v3", "cpu")]
    + [("NVIDIA H100 80GB HBM3", dtype) for dtype in ("float32", "float16")],
)
def test_devices_and_dtypes_that_are_refused(kind: str, dtype: str):
    for hopper in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA GH200 480GB"):
        check_rules(hopper_rules(hopper, "bfloat16"))
    refuses(f"{WORDS}{kind} and {dtype}; use auto", check_rules, hopper_rules(kind, dtype))


def test_a_cpu_is_refused_with_one_line(capsys: pytest.CaptureFixture):
    assert set(DISPATCHERS) - set(ANYWHERE) == {"hopper"}
    argv = ["--images=2", "--tokens=4", "--examples_per_group=2", "--embed_dim=8", "--mlp_dim=8"]
    line = refused(capsys, benchmark.main, "dispatch", *argv, "--method=hopper", "--rounds=1")
    assert line.endswith("here cpu and bfloat16; use auto\n")


def by_row(sizes: jax.Array, rows: int) -> jax.Array:  # [N, E]: 1 for the row's group
    ends = jnp.cumsum(sizes)
    row = jnp.arange(rows)[:, None]
    return ((row >= ends - sizes) & (row < ends)).astype(jnp.float32)


def rows_by_kernels(x, kernel, *, group_sizes, block_n, block_k, transpose_rhs=False, **_):
    """Computes what JAX's kernel does, with its limit; NaN in rows past the last group."""
    of_group = by_row(group_sizes, len(x))
    kernel = kernel.swapaxes(1, 2) if transpose_rhs else kernel
    assert len(x) % 8 == 0 and x.shape[1] % block_k == 0 and kernel.shape[2] % block_n == 0
    y = jnp.einsum("ne,nd,edf->nf", of_group, x, kernel)
    return jnp.where(of_group.any(1, keepdims=True), y, jnp.nan)


def rows_by_rows(x, dy, *, group_sizes, block_m, block_n, **_):
    assert len(x) % 8 == 0 and x.shape[1] % block_m == 0 and dy.shape[1] % block_n == 0
    return jnp.einsum("ne,nd,nf->edf", by_row(group_sizes, len(x)), x, dy)


@pytest.mark.parametrize(("D", "F"), [(128, 256), (5, 130)])
def test_arrays_are_padded_and_cut_in_both_passes(monkeypatch, D: int, F: int):
    """Groups of 4, 0 and 3 rows, and 2 rows of padding; JAX's kernels by their definition."""
    monkeypatch.setattr(ragged_dot_mgpu, "ragged_dot", rows_by_kernels)
    monkeypatch.setattr(transposed_ragged_dot_mgpu, "transposed_ragged_dot", rows_by_rows)
    rng, sizes = np.random.default_rng(0), jnp.array([4, 0, 3], jnp.int32)
    x, kernel, dy = (jnp.float32(rng.normal(size=s)) for s in ((9, D), (3, D, F), (9, F)))

    def run(product) -> tuple:
        y, pull = jax.vjp(lambda x, kernel: product(x, kernel, sizes), x, kernel)
        return y, *pull(dy)

    ours, theirs = run(grouped_product), run(jax.lax.ragged_dot)
    for got, want in zip(ours, theirs, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got[:7], want[:7], atol=1e-4)
    assert np.isnan(ours[0][7:]).all() and not ours[2][1].any()
