"""A training step of a small ViT-B on TPUs: as the code has it, and with one choice made otherwise.

  python scripts/compare/choices.py v3-256 v5e-256

4 blocks, 16 images a core, ms by schedule without collectives, and the collectives. Needs libtpu
and no TPU.
"""

import sys
from contextlib import ExitStack
from functools import partial
from unittest.mock import patch

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.cli.plan import NOTE
from widenet_jax.config.files import load_config
from widenet_jax.config.parser import exit_code_of
from widenet_jax.files import user_cache
from widenet_jax.nn import dense
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.attention.full import MultiHeadAttention
from widenet_jax.nn.mlp import ACTIVATIONS
from widenet_jax.nn.parts import NORMS
from widenet_jax.ops.plan.compile import TpuCompiler, tpu_devices
from widenet_jax.ops.plan.planner import data_info, plan_without_advice
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.typing import Array, Aux

CONFIG = "configs/imagenet.py:vit_b,depth=4"
TWO_PASSES = partial(nn.LayerNorm, use_fast_variance=False)
MIX = (0x7FEB352D, 0x846CA68B - 2**32)  # odd multipliers of a hash (Wellons, lowbias32), signed


def hashed_mask(words: dense.Words, rate: float) -> Array:
    """A mask of dropout by two products of integers an entry."""
    row, column = words
    x = jax.lax.bitcast_convert_type(row[..., None] ^ column, jnp.int32) * jnp.int32(MIX[0])
    x = (x ^ jax.lax.shift_right_logical(x, 15)) * jnp.int32(MIX[1])
    return x >= jnp.int32(round(rate * 2**32) - 2**31)


def plain_gelu(x: Array) -> Array:
    """GELU with JAX's derivative."""
    return jax.nn.gelu(x.astype(jnp.float32)).astype(x.dtype)


class OneProduct(MultiHeadAttention):
    """Attention whose queries, keys and values are one product."""

    @nn.compact
    def __call__(self, x: Array, *, train: bool, **masks: None) -> tuple[Array, Aux]:
        H = self.head_size(x.shape[-1])
        heads = self.dense(3 * self.num_heads * H, "qkv")(x)
        query, key, value = jnp.split(heads.reshape(*x.shape[:2], -1, H), 3, axis=2)
        y = self.attended(query * H**-0.5, key, value, **masks)
        return self.output(y, x.shape[-1], train=train), {}


# What is chosen otherwise -> fields of the config, and parts of the package in place of its own.
CHOICES = {
    "as it is": ({}, []),
    "LayerNorm in two passes": ({}, [patch.dict(NORMS, layer=TWO_PASSES)]),
    "dropout by a hash of two products": ({}, [patch.object(dense, "keep_mask", hashed_mask)]),
    "JAX's derivative of GELU": ({}, [patch.dict(ACTIVATIONS, gelu_tanh=plain_gelu)]),
    "q, k, v by one product": ({}, [patch.dict(ATTENTIONS, full=OneProduct)]),
    "`sharding.fsdp=1`": ({"sharding.fsdp": 1}, []),
    "`model.unroll=False`": ({"model.unroll": False}, []),
    "attention by `xla`": ({"model.attention.implementation": "xla"}, []),
    "attention by `pallas`": ({"model.attention.implementation": "pallas"}, []),
}


def times(tpu: str, choice: str) -> tuple[float, float]:
    """Returns milliseconds of a step without collectives, and of the collectives."""
    fields, patches = CHOICES[choice]
    config = load_config(CONFIG)
    config.update_from_flattened_dict(fields)
    compiler = TpuCompiler(parse_topology(tpu), cache=user_cache("plan"), note=NOTE)
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        figures = plan_without_advice(choice, config, data_info(config), compiler).figures
    return figures["step_ms"], figures["collective_ms"]


def main(tpus: list[str]) -> None:
    if "--help" in tpus:
        print(__doc__)
        return
    for tpu in tpus:  # before the table begins
        tpu_devices(parse_topology(tpu, field="TPU"))
    print(f"| | {' | '.join(tpus)} |\n|---|{'---|' * len(tpus)}")
    for choice in CHOICES:
        cells = ("{:.2f} + {:.2f}".format(*times(tpu, choice)) for tpu in tpus)
        print(f"| {choice} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(exit_code_of(partial(main, sys.argv[1:] or ["v5e-256"])))
