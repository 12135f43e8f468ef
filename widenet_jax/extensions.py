"""Guards of the parts that users add to tables, put on where a name is resolved.

A guard names the file and the line where a part fails, and checks what it returns. `try_parts` runs
them once on small random inputs before a run.
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.tree_util import DictKey

from widenet_jax.config.imports import place_of
from widenet_jax.errors import BadInputError, UnknownNameError, check_section
from widenet_jax.param_names import BALANCE_BIAS
from widenet_jax.specs import resolve
from widenet_jax.typing import Array, PyTree, Routing

ROUTER = ("num_experts", "num_selected_experts", "kernel_init")  # the fields of every router


def router_class(moe: Any) -> type[nn.Module]:
    """Returns the class of a router, a user's with its guard.

    Args:
      moe: `settings.MoeSettings`.

    Raises:
      BadInputError: a user's class is not as `nn.moe.routers` says, or a field is unknown or
        missing.
    """
    router, kind = moe.router, moe.router.kind
    if router.own_fields is not None:
        return resolve(kind.module)
    place = "config.model.moe.router"
    try:
        check_section(kind, router.fields, section=place, decided=ROUTER)
    except UnknownNameError as error:
        raise UnknownNameError(f"{error}; {router.advice}") from None
    taken = {field.name for field in dataclasses.fields(kind)}
    if missing := [name for name in ROUTER if name not in taken]:
        raise BadInputError(f"router {router.name} lacks the field {missing[0]}")
    try:
        inspect.signature(kind.__call__).bind("self", "x", "mask", key="key", train="train")
    except TypeError as error:
        raise BadInputError(
            f"router {router.name} is called as router(x, mask, *, key, train): {error}"
        ) from None
    return guarded_router(kind, moe)


def parameters_of(variables: Mapping[str, PyTree]) -> PyTree:
    """Returns the parameters of a model's variables.

    Raises:
      BadInputError: a part, perhaps a user's own, keeps other arrays, which no step would carry on.
    """
    for collection in variables.keys() - {"params"}:
        for path, _ in jax.tree_util.tree_leaves_with_path(variables[collection]):
            # What a part sows is in tuples, and no step reads it.
            if all(isinstance(key, DictKey) for key in path):
                name = "/".join(key.key for key in path)
                raise BadInputError(
                    f"{name} is a variable of the collection {collection!r}; parts of a model may "
                    "keep parameters alone: use self.param (statistics: see nn/moe/routers)"
                )
    return variables["params"]


def guarded_router(kind: type[nn.Module], moe: Any) -> type[nn.Module]:
    """Returns a subclass of a user's router that checks what it returns."""
    where = f"router {moe.router.name}"

    def call(self: nn.Module, x: Array, mask: Array, *, key: Array | None, train: bool) -> Routing:
        try:
            routing = kind.__call__(self, x, mask, key=key, train=train)
        except BadInputError:
            raise
        except Exception as error:
            file = inspect.getsourcefile(inspect.unwrap(kind.__call__)) or ""
            raise BadInputError(f"{where} fails: {place_of(error, file)}") from error
        check_routing(routing, mask.shape, moe)
        if self.has_variable("params", BALANCE_BIAS) != (routing.balance_bias is not None):
            raise BadInputError(
                f"{where}: the parameter {BALANCE_BIAS} must be what it returns as "
                f"Routing.{BALANCE_BIAS}; rename the one, or return the other"
            )
        return routing

    fields = {"__call__": nn.nowrap(call), "__module__": kind.__module__, "guard": where}
    return type(kind.__name__, (kind,), fields)


def check_routing(routing: object, groups: tuple[int, int], moe: Any) -> None:
    """Raises BadInputError where a user's router returns other arrays than a `Routing`'s.

    Args:
      routing: what it returns.
      groups: G and S.
      moe: the settings of its layer.
    """
    where, sizes = f"router {moe.router.name}", {"K": moe.num_selected_experts}
    chosen, sizes["E"] = "E" if moe.router.experts_choose else "K", moe.num_experts
    if not isinstance(routing, Routing):
        raise BadInputError(f"{where} returns {type(routing).__name__}; return a Routing")
    last_axes = {"expert_index": chosen, "gate": chosen, "router_probs": "E", "router_logits": "E"}
    for field, last in last_axes.items():
        array, shape = getattr(routing, field), (*groups, sizes[last])
        if jnp.shape(array) != shape:
            raise BadInputError(
                f"{where}: {field} is {list(jnp.shape(array))}; must be [G, S, {last}], here "
                f"{list(shape)}"
            )
        kind = jnp.integer if field == "expert_index" else jnp.floating
        if not jnp.issubdtype(array.dtype, kind):
            must = "int32" if kind is jnp.integer else "float32"
            raise BadInputError(f"{where}: {field} is {array.dtype}; must be {must}")
    if moe.losses.get("load") and "load_probability" not in routing.extra:
        raise BadInputError(moe.without_load)


def try_router(router: nn.Module, embed_dim: int) -> None:
    """Raises BadInputError where a user's router, run on random tokens, gives no probabilities.

    A run, which only traces its router, cannot see their values.
    """
    if not hasattr(router, "guard"):
        return
    x, mask = jax.random.normal(jax.random.key(0), (1, 16, embed_dim)), jnp.ones((1, 16), bool)
    for key in (None, jax.random.key(1)):
        run = functools.partial(
            type(router).__call__, x=x, mask=mask, key=key, train=key is not None
        )
        probs = nn.init_with_output(run, router)(jax.random.key(0))[0].router_probs
        sums = probs.astype(jnp.float32).sum(axis=-1)
        if not (jnp.all(probs >= 0) and jnp.allclose(sums, 1, atol=0.01)):
            raise BadInputError(
                f"{router.guard}: router_probs of a token must be a distribution over the experts, "
                f"such as a softmax; the least is {probs.min():.3g}, the sum {sums.min():.3g} to "
                f"{sums.max():.3g}"
            )
