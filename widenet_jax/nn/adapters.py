"""Low-rank adapters: trained products that are added to the kernels of a stack (LoRA).

    W + alpha / rank down up,   down [..., in, rank], up [..., rank, out]; up is 0 at first

for each kernel W of attention and feed-forward, not of routers; `config.model.adapter`. The kernels
themselves usually stay as they are (`config.optimizer.freeze=backbone`).

Differs from the paper (arXiv:2106.09685): the sum is formed once a forward pass, where there each
layer adds (x down) up to its output. Blocks share kernels, so one sum serves all of them, and every
kind of feed-forward can have adapters. The function is the same.

With `tie="none"` the steps of a loop share W and have adapters of their own (arXiv:2410.20672):
each has a kernel of its own while it runs, as in a stack that shares nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from widenet_jax.nn.loop import places_of
from widenet_jax.nn.module import Module
from widenet_jax.nn.parts import Inputs, Outputs
from widenet_jax.nn.settings import NO_ADAPTER
from widenet_jax.nn.stack_settings import StackSettings
from widenet_jax.param_names import ADAPTER, ENCODER, ROUTER, is_matrix
from widenet_jax.typing import Array, PyTree


def without(stack: StackSettings) -> dict[str, Any]:
    """Returns the fields in which a stack that runs with merged kernels differs from this one."""
    fields: dict[str, Any] = {"adapter": NO_ADAPTER}
    if stack.adapter.tie == "none":
        router = stack.loop.tie.router if stack.loop.own_router else "experts"
        tie = replace(stack.loop.tie, attention="none", experts="none", router=router)
        fields["loop"] = replace(stack.loop, tie=tie)
    return fields


def sources(stack: StackSettings) -> dict[str, str]:
    """Returns which scope's weights attention and feed-forwards have as the stack runs merged."""
    found = {}
    for stored, run in zip(stack.steps(), replace(stack, **without(stack)).steps(), strict=True):
        there = dict(stored.scopes)
        found |= {scope: there[part] for part, scope in run.scopes if part in ("attention", "ffn")}
    return found


def create(key: Array, stack: StackSettings, params: PyTree) -> dict:
    """Returns new adapters of a stack's parameters by scope, path of the kernel, down and up."""
    rank, found = stack.adapter.rank, {}
    kernels = {scope: params[of] for scope, of in sources(stack).items()}
    for number, (path, kernel) in enumerate(flatten_dict(kernels, sep="/").items()):
        if is_matrix(f"{ENCODER}/{path}", kernel.ndim):
            *more, rows, columns = kernel.shape
            down = jax.random.normal(jax.random.fold_in(key, number), (*more, rows, rank))
            found[f"{path}/down"] = down / math.sqrt(rows)
            found[f"{path}/up"] = jnp.zeros((*more, rank, columns))
    return unflatten_dict(found, sep="/")


def merged(stack: StackSettings, params: PyTree) -> PyTree:
    """Returns the parameters of the stack that `without` describes, which has no adapters."""
    adapters, factor = params[ADAPTER], stack.adapter.alpha / stack.adapter.rank

    def added(tree: Any, adapter: Mapping) -> Any:
        if not isinstance(tree, Mapping):
            exact = jax.lax.Precision.HIGHEST
            return tree + factor * jnp.matmul(adapter["down"], adapter["up"], precision=exact)
        changed = {name: added(tree[name], inner) for name, inner in adapter.items()}
        return {**tree, **changed}

    scopes = sources(stack)
    found = {k: v for k, v in params.items() if k not in (ADAPTER, *scopes.values())}
    routing = places_of(replace(stack, **without(stack)).steps())
    for scope, of in scopes.items():
        own = added(params[of], adapters.get(scope, {}))
        # A layer whose steps all follow another's routing has no router of its own.
        routes = f"{scope}/{ROUTER}" in routing
        found[scope] = own if routes else {k: v for k, v in own.items() if k != ROUTER}
    return found


def run(stack: Module, x: Array, memory: Array | None, inputs: Inputs) -> Outputs:
    """Runs a stack with the sums as its kernels."""
    fields = without(stack.settings) | {"parent": None, "name": None, "last_norm": False}
    rngs = {name: stack.make_rng(name) for name in ("dropout", "router") if stack.has_rng(name)}
    tokens = {name: getattr(inputs, name) for name in ("mask", "train", "loops", "drops")}
    params = {"params": merged(stack.settings, stack.variables["params"])}
    return stack.clone(**fields).apply(params, x, memory=memory, **tokens | inputs.seen, rngs=rngs)
