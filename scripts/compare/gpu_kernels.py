"""On an NVIDIA GPU: cuDNN's attention for odd numbers of tokens, and products of groups of rows.

  python scripts/compare/gpu_kernels.py

A JSON line for each case: milliseconds (median of five rounds of ten calls), the compiler's
temporaries, and the difference from XLA's result in the root mean square. Attention is [B, T, N, H]
in bfloat16, forward and backward, in the shapes of ViT-B, ViT-H and ViT-L at 384 pixels. Groups are
R rows of E experts, [R, D] x [E, D, F], forward: as in WideNet-B, with many narrow experts, and as
in WT-S. JAX's own kernel for Hopper is tried with several sizes of its blocks.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

from widenet_jax.nn.attention.implementations import attend
from widenet_jax.ops.benchmark.report import median_seconds
from widenet_jax.run.kernel_trial import difference

ATTENTION = ((64, 197, 12, 64), (64, 257, 16, 80), (32, 577, 16, 64))  # B, T, N, H
GROUPS = ((25_088, 768, 4096, 4), (16_384, 1024, 128, 32), (32_768, 412, 128, 16))  # R, D, F, E
BLOCKS = ((64, 128, 64), (128, 128, 64), (128, 256, 64))  # of rows, columns, and between


def measure(case: dict[str, Any], of: Callable, *arrays: jax.Array, exact: Any = None) -> Any:
    """Prints a case's line; returns the result, None where it does not run."""
    try:
        compiled = jax.jit(of).lower(*arrays).compile()
        result = compiled(*arrays)
        ms = 1e3 * median_seconds(partial(compiled, *arrays), rounds=5, calls=10)
    except Exception as error:  # a compiler's, in whatever class
        print(json.dumps(case | {"error": str(error)[:200]}), flush=True)
        return None
    case = case | {"ms": ms}
    case["temporaries_mib"] = compiled.memory_analysis().temp_size_in_bytes / 2**20
    if exact is not None:
        case["difference"] = max(map(difference, jax.tree.leaves(result), jax.tree.leaves(exact)))
    print(json.dumps(case), flush=True)
    return result


def measure_attention(shape: tuple[int, int, int, int]) -> None:
    arrays = jax.random.normal(jax.random.key(0), (4, *shape)).astype(jnp.bfloat16)
    exact = None

    def both_ways(name: str, query: jax.Array, key: jax.Array, value: jax.Array, d_out: jax.Array):
        of = partial(attend, implementation=name)
        out, pull = jax.vjp(of, query * shape[3] ** -0.5, key, value)
        return out, *pull(d_out)

    for name in ("xla", "cudnn"):
        case = {"what": "attention", "shape": shape, "by": name}
        found = measure(case, partial(both_ways, name), *arrays, exact=exact)
        exact = found if exact is None else exact


def measure_groups(R: int, D: int, F: int, E: int) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    rows = jax.random.normal(keys[0], (R, D), jnp.bfloat16)
    kernels = jax.random.normal(keys[1], (E, D, F), jnp.bfloat16) * D**-0.5
    sizes = jnp.bincount(jax.random.randint(keys[2], (R,), 0, E), length=E).astype(jnp.int32)
    case = {"what": "groups", "shape": (R, D, F, E), "by": "ragged_dot"}
    exact = measure(case, jax.lax.ragged_dot, rows, kernels, sizes)
    for m, n, k in BLOCKS:
        how = {"block_m": m, "block_n": n, "block_k": k}
        how |= {"max_concurrent_steps": 4, "grid_block_n": 1}

        def hopper(rows: jax.Array, kernels: jax.Array, sizes: jax.Array, how: dict = how):
            return ragged_dot_mgpu.ragged_dot(rows, kernels, group_sizes=sizes, **how)

        by = {"by": "ragged_dot_mgpu", "blocks": (m, n, k)}
        measure(case | by, hopper, rows, kernels, sizes, exact=exact)


if __name__ == "__main__":
    for shape in ATTENTION:
        measure_attention(shape)
    for sizes in GROUPS:
        measure_groups(*sizes)
