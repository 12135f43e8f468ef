"""Guards of the parts that users add to tables, put on where a name is resolved.

A guard names the file and the line where a part fails, and checks what it returns: of routers,
attention layers, feed-forwards, balance losses and tasks. `try_parts` runs the parts of a model on
random tokens before a run.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey

from widenet_jax.config.imports import place_of
from widenet_jax.errors import BadInputError, check_section
from widenet_jax.param_names import BALANCE_BIAS
from widenet_jax.specs import added, resolve
from widenet_jax.typing import Array, FfnOutput, PyTree, Routing

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
    check_section(kind, router.fields, place=place, decided=ROUTER, advice=f"; {router.advice}")
    taken = {field.name for field in dataclasses.fields(kind)}
    if missing := [name for name in ROUTER if name not in taken]:
        raise BadInputError(f"router {router.name} lacks the field {missing[0]}")
    try:
        inspect.signature(kind.__call__).bind("self", "x", "mask", key="key", train="train")
    except TypeError as error:
        raise BadInputError(
            f"router {router.name} is called as router(x, mask, *, key, train): {error}"
        ) from None
    return guarded(kind, f"router {router.name}", functools.partial(check_routing, moe))


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


def is_ours(part: Any) -> bool:
    """Returns whether a class or a function is this project's, which needs no guard."""
    return str(getattr(part, "__module__", "")).startswith("widenet_jax.")


def source_of(*parts: Any) -> tuple[str, str]:
    """Returns FILE and " (FILE, line N)" of the first function or class that is a user's."""
    for part in (*parts, type(parts[0])):  # an object that is called
        code = inspect.unwrap(getattr(part, "func", part))  # of a partial
        with suppress(OSError, TypeError):  # there is no file
            if not is_ours(code):
                # `getsourcelines` would also tokenize the file, which fails if it has changed.
                file, (_, above) = inspect.getfile(code), inspect.findsource(code)
                return file, f" ({file}, line {above + 1})"
    return "", ""


def guard(function: Callable, where: str, check: Callable, *of: type) -> Callable:
    """Returns a user's function with a guard.

    Args:
      function: the user's.
      where: what it is, which begins messages.
      check: (where, what it returns, *its arguments) raises BadInputError.
      *of: the class of a method.
    """
    file, line = source_of(function, *of)

    def call(*args: Any, **how: Any) -> Any:
        try:
            output = function(*args, **how)
        except BadInputError:
            raise
        except Exception as error:
            raise BadInputError(f"{where} fails: {place_of(error, file)}") from error
        check(where + line, output, *args)
        return output

    return call


def guarded(kind: type, where: str, check: Callable, method: str = "__call__") -> type:
    """Returns a subclass of a user's class with a guard of one of its methods, see `guard`."""
    function = getattr(kind, method)
    call, (_, line) = nn.nowrap(guard(function, where, check, kind)), source_of(function, kind)
    names = {method: call, "__module__": kind.__module__, "guard": where + line}
    return type(kind.__name__, (kind,), names)


@functools.cache  # equal modules are traced once, see `nn.build`
def guarded_part(kind: type[nn.Module], place: str) -> type[nn.Module]:
    """Returns the class of a user's attention or feed-forward with its guard.

    Args:
      kind: the class.
      place: its section of the config.
    """
    check = functools.partial(check_branch, place == "config.model.attention")
    return guarded(kind, f"{kind.__name__} of {place}", check)


def guarded_loss(name: str, loss: Callable) -> Callable[[Routing, Array], Array]:
    """Returns a balance loss, a user's with its guard."""
    return loss if is_ours(loss) else guard(loss, f"loss {name}", check_balance_loss)


def guarded_task(kind: type, name: str) -> type:
    """Returns the class of a task, with a guard of the methods that are a user's."""
    for method, check in (("loss", check_task_loss), ("evaluate", check_evaluation)):
        if not is_ours(getattr(kind, method)):
            kind = guarded(kind, f"task {name}: its method {method}", check, method)
    return kind


def check_array(what: str, array: Any, axes: str, shape: tuple, kind: Any = jnp.floating) -> None:
    """Raises BadInputError unless a user's array has its shape and kind."""
    found = list(array.shape) if hasattr(array, "dtype") else type(array).__name__
    if found != list(shape):
        raise BadInputError(f"{what} is {found}; must be [{axes}], here {list(shape)}")
    if not jnp.issubdtype(array.dtype, kind):
        must = "int32" if kind is jnp.integer else "float32"
        raise BadInputError(f"{what} is {array.dtype}; must be {must}")


def check_routing(moe: Any, where: str, routing: Any, router: Any, x: Array, mask: Array) -> None:
    """Raises BadInputError where a user's router returns other arrays than a `Routing`'s.

    Args:
      moe: the settings of its layer.
      where: begins messages.
      routing: what it returns.
      router: the module.
      x: its tokens [G, S, D].
      mask: [G, S].
    """
    sizes = {"K": moe.num_selected_experts, "E": moe.num_experts}
    chosen = "E" if moe.router.experts_choose else "K"
    if not isinstance(routing, Routing):
        raise BadInputError(f"{where} returns {type(routing).__name__}; return a Routing")
    last_axes = {"expert_index": chosen, "gate": chosen, "router_probs": "E", "router_logits": "E"}
    for field, last in last_axes.items():
        kind = jnp.integer if field == "expert_index" else jnp.float32
        shape = *mask.shape, sizes[last]
        check_array(f"{where}: {field}", getattr(routing, field), f"G, S, {last}", shape, kind)
    if moe.losses.get("load") and "load_probability" not in routing.extra:
        raise BadInputError(f"{where}: {moe.without_load}")
    if router.has_variable("params", BALANCE_BIAS) != (routing.balance_bias is not None):
        raise BadInputError(
            f"{where}: the parameter {BALANCE_BIAS} must be what it returns as "
            f"Routing.{BALANCE_BIAS}; rename the one, or return the other"
        )


def check_branch(attends: bool, where: str, output: Any, _: nn.Module, x: Array) -> None:
    """Raises BadInputError where a user's attention or feed-forward returns another type."""
    kind, what = (tuple, "(y, aux)") if attends else (FfnOutput, "an FfnOutput")
    if not isinstance(output, kind) or (kind is tuple and len(output) != 2):
        found = "an array" if hasattr(output, "dtype") else type(output).__name__
        raise BadInputError(f"{where} returns {found}; return {what}")
    y, aux = output if attends else (output.y, output.aux)
    check_array(f"{where}: y", y, "B, T, D", x.shape)
    if not aux:
        return
    whole = isinstance(aux, Mapping) and aux.keys() >= {"losses", "loss", "sums"}
    if not whole or any(np.shape(loss) for loss in (aux["loss"], *aux["losses"].values())):
        raise BadInputError(f"{where}: aux must be {{}} or have loss, losses, sums; losses scalar")


def check_balance_loss(where: str, value: object, routing: Routing, mask: Array) -> None:
    """Raises BadInputError unless a user's balance loss returns a number for each group."""
    check_array(f"{where}: what it returns", value, "G", mask.shape[:1])


def check_task_loss(where: str, output: object, *_: Any) -> None:
    """Raises BadInputError unless a user's task returns a loss and `task.Metrics` with it."""
    is_pair = isinstance(output, tuple) and len(output) == 2
    if "loss" not in getattr(output[1] if is_pair else None, "means", {}):
        raise BadInputError(f"{where} must return (loss, Metrics), with the loss in its means, too")
    check_array(f"{where}: the loss", output[0], "", ())


def check_evaluation(where: str, output: object, *_: Any) -> None:
    """Raises BadInputError unless a user's task returns a `task.Evaluation`."""
    if not hasattr(output, "rows"):
        raise BadInputError(f"{where} returns {type(output).__name__}; return an Evaluation")


@contextmanager
def try_parts(*, causal: bool = False) -> Iterator[None]:
    """Notes calls of users' parts while a model is traced, then runs each part on random tokens.

    A run, which only traces its parts, cannot see their values. Lengths are the model's, which
    fields of a part may have to fit. A user's balance loss is tried by its layer.

    Args:
      causal: whether the model predicts the next token.

    Raises:
      BadInputError: a value is not finite; a router's probabilities are no distribution, or masked
        tokens have gates; with `causal`, a token's output or routing changes with later tokens.
    """
    calls: dict[str, tuple[nn.Module, tuple, dict]] = {}
    losses = added("widenet_jax.nn.moe.losses", "LOSSES").items()
    foreign = {name for name, loss in losses if not is_ours(loss)}

    def note(run: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        weights = getattr(getattr(context.module, "settings", None), "losses", {})
        whole = "config.model.moe" if foreign & weights.keys() else ""
        where = getattr(context.module, "guard", whole)
        if where and where not in calls and context.method_name == "__call__":
            small = {"examples_per_group": 1} if where == whole else {}
            calls[where] = context.module.clone(parent=None, **small), args, kwargs
        return run(*args, **kwargs)

    with nn.intercept_methods(note):
        yield
    for where, call in reversed(calls.items()):  # a router before its layer
        for train in (False, True):
            try_part(where, call, train=train, causal=causal and not train)


def try_part(where: str, call: tuple, *, train: bool, causal: bool) -> None:
    """Runs a module on random arrays like those of a call, whose batch is one example.

    Args:
      where: begins messages.
      call: the module, its arguments and its keyword arguments.
      train: as of the module.
      causal: as of `try_parts`; False in training, where a router may balance all tokens.
    """
    module, args, kwargs = call
    key, other = jax.random.split(jax.random.key(int(train)))
    B = getattr(module, "examples_per_group", 1) if train else 1

    def like(x: Any) -> Any:
        if not isinstance(x, jax.Array):
            return x
        shape = x.shape[0] * B, *x.shape[1:]
        if jnp.issubdtype(x.dtype, jnp.floating):
            return jax.random.normal(key, shape, x.dtype)
        return jnp.full(shape, x.dtype == bool, x.dtype)

    # A router that stands apart is tried by itself.
    given = {name: x for name, x in kwargs.items() if not isinstance(x, nn.Module | bool)}
    (x, *rest), given = jax.tree.map(like, (args, given))
    given |= {"key": key} if train and "key" in given else {}
    streams = dict.fromkeys(("params", "dropout", "router"), key)

    def run(x: Array, *rest: Array) -> tuple[Any, list[Array]]:
        # Not compiled as a whole, which takes longer than such a run.
        output, _ = module.init_with_output(streams, x, *rest, **given, train=train)
        if isinstance(output, Routing):
            return output, [output.expert_index, output.gate]
        y, aux = (output.y, output.aux) if isinstance(output, FfnOutput) else output
        return aux or {}, [y]

    output, arrays = run(x, *rest)
    early = (jnp.arange(x.shape[1]) <= (x.shape[1] - 1) // 2)[:, None]
    if isinstance(output, Routing):
        check_probs(where, output.router_probs)
        _, (_, gate) = run(x, jnp.broadcast_to(early[:, 0], x.shape[:2]))
        if not getattr(module, "mixes", False) and jnp.where(early, 0, gate).any():
            raise BadInputError(f"{where}: masked tokens must have gate 0: gate * mask[..., None]")
    else:
        check_finite(where, arrays[0], output.get("losses", {}))
    if causal:
        later = jnp.where(early, x, jax.random.normal(other, x.shape, x.dtype))
        for was, now in zip(arrays, run(later, *rest)[1], strict=True):
            if not jnp.allclose(*(jnp.where(early, y, 0) for y in (was, now)), 0.01, 0.001):
                raise BadInputError(
                    f"{where}: a token's output or routing changes with later tokens, which the "
                    "model has to predict; compute it from this token and earlier ones alone"
                )


def check_probs(where: str, probs: Array) -> None:
    """Refuses probabilities of a router that are no distribution over the experts."""
    sums = probs.astype(jnp.float32).sum(axis=-1)
    if not (jnp.all(probs >= 0) and jnp.allclose(sums, 1, atol=0.01)):
        raise BadInputError(
            f"{where}: router_probs of a token must be a distribution over the experts, such "
            f"as a softmax; the least is {probs.min():.3g}, the sum {sums.min():.3g} to "
            f"{sums.max():.3g}"
        )


def check_finite(where: str, y: Array, losses: dict[str, Array]) -> None:
    """Refuses an output or a loss that is not finite."""
    own = added("widenet_jax.nn.moe.losses", "LOSSES")
    named = {f"the loss {name}{source_of(own.get(name))[1]}": x for name, x in losses.items()}
    for what, value in {"y": y, **named}.items():
        if not jnp.isfinite(value).all():
            raise BadInputError(f"{where}: {what} must be finite; for random tokens it is not")
