"""On an NVIDIA GPU: cuDNN's attention for odd numbers of tokens, and products of groups of rows.

  python scripts/compare/gpu_kernels.py                   # all
  python scripts/compare/gpu_kernels.py products layers   # some

A JSON line for each case: milliseconds (median of five rounds of ten calls), the compiler's
temporaries, and the difference from XLA's result in the root mean square. Attention is [B, T, N, H]
in bfloat16, forward and backward, in the shapes of ViT-B, ViT-H and ViT-L at 384 pixels. Groups are
R rows of E experts, [R, D] x [E, D, F], forward: as in WideNet-B, with many narrow experts, and as
in WT-S. JAX's own kernel for Hopper is tried with several sizes of its blocks.

Products multiply such groups by `moe.hopper.grouped_product`, forward and backward. One group is
empty, and a sixteenth of the rows is padding. The output and the gradients of rows and kernels are
compared. Layers are as in `benchmark.py dispatch`: output and the input's gradient are compared
with the method `gather`.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

from widenet_jax.config.parser import exit_code_of
from widenet_jax.errors import choose
from widenet_jax.nn.attention.implementations import attend
from widenet_jax.nn.moe.hopper import grouped_product
from widenet_jax.ops.benchmark.feed_forward import DispatchSize, dispatch_output
from widenet_jax.ops.benchmark.report import median_seconds
from widenet_jax.run.kernel_trial import difference

ATTENTION = ((64, 197, 12, 64), (64, 257, 16, 80), (32, 577, 16, 64))  # B, T, N, H
GROUPS = ((25_088, 768, 4096, 4), (16_384, 1024, 128, 32), (32_768, 412, 128, 16))  # R, D, F, E
SMALL = ((1000, 192, 320, 5), (77, 128, 128, 64))  # odd numbers of rows, groups of a row or none
LAYERS = (DispatchSize(16, 196, 16, 4, 2, 768, 3072), DispatchSize(16, 256, 1, 32, 4, 412, 128))
BLOCKS = ((64, 128, 64), (128, 128, 64), (128, 256, 64))  # of rows, columns, and between


def measure(case: dict[str, Any], of: Callable, *arrays: jax.Array, exact: Any = None) -> Any:
    """Prints a case's line; returns the result, None where it does not run."""
    try:
        compiled = jax.jit(of).lower(*arrays).compile()
        result = compiled(*arrays)
        case = case | {"ms": 1e3 * median_seconds(partial(compiled, *arrays), rounds=5, calls=10)}
        case["temporaries_mib"] = compiled.memory_analysis().temp_size_in_bytes / 2**20
        case |= {} if exact is None else compared(result, exact)
    except Exception as error:  # a compiler's, in whatever class
        print(json.dumps(case | {"error": repr(error)[:200]}), flush=True)
        return None
    print(json.dumps(case), flush=True)
    return result


def compared(result: Any, exact: Any) -> dict[str, Any]:
    """Returns the largest difference of two trees, and the difference of each array."""
    each = list(map(difference, jax.tree.leaves(result), jax.tree.leaves(exact)))
    return {"difference": max(each), "differences": each}


def measure_attention(*shape: int) -> None:
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


def measure_products(R: int, D: int, F: int, E: int) -> None:
    keys = jax.random.split(jax.random.key(1), 4)
    kernels = jax.random.normal(keys[0], (E, D, F), jnp.bfloat16) * D**-0.5
    d_out = jax.random.normal(keys[1], (R, F), jnp.bfloat16)
    group = jax.random.randint(keys[2], (R - R // 16,), 0, E - 1)
    group += group >= E // 2  # which stays empty
    sizes = jnp.bincount(group, length=E).astype(jnp.int32)
    real = (jnp.arange(R) < len(group))[:, None]
    rows = jnp.where(real, jax.random.normal(keys[3], (R, D), jnp.bfloat16), jnp.nan)

    def both_ways(product: Callable, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        rows, kernels, sizes, real, d_out = arrays

        def masked(rows: jax.Array, kernels: jax.Array) -> jax.Array:  # as the experts do
            return jnp.where(real, product(jnp.where(real, rows, 0), kernels, sizes), 0)

        out, pull = jax.vjp(masked, rows, kernels)
        return out, *pull(d_out)

    arrays, exact = (rows, kernels, sizes, real, d_out), None
    for product in (jax.lax.ragged_dot, grouped_product):
        case = {"what": "products", "shape": (R, D, F, E), "by": product.__name__}
        found = measure(case, partial(both_ways, product), *arrays, exact=exact)
        exact = found if exact is None else exact
        if found is not None:
            empty = float(jnp.abs(found[2][E // 2]).max())
            print(json.dumps(case | {"largest_gradient_of_the_empty_group": empty}), flush=True)


def measure_layer(*size: int) -> None:
    outputs = {}
    for method in ("gather", "ragged", "hopper"):
        case = {"what": "layer", "shape": size, "by": method}
        try:
            outputs[method] = dispatch_output(method, DispatchSize(*size), dtype="bfloat16")
            case |= compared(outputs[method], outputs["gather"])
        except Exception as error:  # a compiler's, in whatever class
            case |= {"error": repr(error)[:200]}
        print(json.dumps(case), flush=True)


CASES = {
    "attention": (measure_attention, ATTENTION),
    "groups": (measure_groups, GROUPS),
    "products": (measure_products, GROUPS + SMALL),
    "layers": (measure_layer, LAYERS),
}


def main(*names: str) -> None:
    if "--help" in names:
        print(__doc__)
        return
    for of, shapes in [choose(CASES, name, field="CASE", flag="") for name in names or CASES]:
        for shape in shapes:
            of(*shape)


if __name__ == "__main__":
    raise SystemExit(exit_code_of(partial(main, *sys.argv[1:])))
