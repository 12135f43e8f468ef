"""Low-rank adapters: trained products that are added to the kernels of a stack (LoRA).

    W + alpha / rank down up,   down [..., in, rank], up [..., rank, out]; up is 0 at first

for each kernel W of attention and feed-forward, not of routers; `config.model.adapter`. The kernels
themselves usually stay as they are (`config.optimizer.freeze=backbone`).

Differs from the paper (arXiv:2106.09685): the sum is formed once a step, where there each layer
adds (x down) up to its output. Blocks share kernels, so one sum serves all of them, and every kind
of feed-forward can have adapters. The function is the same.

With `tie="none"` the steps of a loop share W and have adapters of their own (arXiv:2410.20672):
each has a kernel of its own while it runs, as in a stack that shares nothing.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from widenet_jax.nn.module import Module
from widenet_jax.nn.parts import Inputs, Outputs
from widenet_jax.nn.settings import NO_ADAPTER
from widenet_jax.nn.stack_settings import StackSettings
from widenet_jax.param_names import ADAPTER, ENCODER, is_matrix
from widenet_jax.typing import Array, PyTree


def without(stack: StackSettings) -> dict[str, Any]:
    """Returns the fields in which a stack that runs with merged kernels differs from this one."""
    fields: dict[str, Any] = {"adapter": NO_ADAPTER}
    if stack.adapter.tie == "none":
        tie = replace(stack.loop.tie, attention="none", experts="none")
        fields["loop"] = replace(stack.loop, tie=tie)
    return fields


def sources(stack: StackSettings) -> dict[str, str]:
    """Returns which scope's weights each scope of the stack has as it runs merged."""
    found = {}
    for stored, run in zip(stack.steps(), replace(stack, **without(stack)).steps(), strict=True):
        there = dict(stored.scopes)
        found |= {scope: there[part] for part, scope in run.scopes}
    return found


def create(key: Array, stack: StackSettings, params: PyTree) -> dict:
    """Returns new adapters of a stack's parameters by scope, path of the kernel, down and up."""
    rank, number = stack.adapter.rank, itertools.count()

    def pairs(tree: Mapping, path: str) -> dict:
        found = {}
        for name, leaf in tree.items():
            inner = f"{path}/{name}"
            if isinstance(leaf, Mapping):
                found[name] = pairs(leaf, inner)
            elif is_matrix(inner, leaf.ndim):
                *more, rows, columns = leaf.shape
                own_key = jax.random.fold_in(key, next(number))
                down = jax.random.normal(own_key, (*more, rows, rank)) / math.sqrt(rows)
                found[name] = {"down": down, "up": jnp.zeros((*more, rank, columns))}
        return {name: inner for name, inner in found.items() if inner}

    return pairs({scope: params[of] for scope, of in sources(stack).items()}, ENCODER)


def merged(stack: StackSettings, params: PyTree) -> PyTree:
    """Returns the parameters of the stack that `without` describes, which has no adapters."""
    adapters, factor = params[ADAPTER], stack.adapter.alpha / stack.adapter.rank

    def added(tree: Any, adapter: Mapping) -> Any:
        if adapter.keys() == {"down", "up"}:
            exact = jax.lax.Precision.HIGHEST
            return tree + factor * jnp.matmul(adapter["down"], adapter["up"], precision=exact)
        changed = {name: added(tree[name], inner) for name, inner in adapter.items()}
        return {**tree, **changed}

    scopes = sources(stack)
    rest = {k: v for k, v in params.items() if k not in (ADAPTER, *scopes.values())}
    return rest | {k: added(params[of], adapters.get(k, {})) for k, of in scopes.items()}


def run(stack: Module, x: Array, memory: Array | None, inputs: Inputs) -> Outputs:
    """Runs a stack with the sums as its kernels."""
    fields = without(stack.settings) | {"parent": None, "name": None, "last_norm": False}
    rngs = {name: stack.make_rng(name) for name in ("dropout", "router") if stack.has_rng(name)}
    seen, mask, train, loops, *_ = inputs
    tokens = {"mask": mask, "memory": memory, "loops": loops, "drops": inputs.drops} | seen
    params = {"params": merged(stack.settings, stack.variables["params"])}
    return stack.clone(**fields).apply(params, x, **tokens, train=train, rngs=rngs)
