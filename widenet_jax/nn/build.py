"""Models: stacks of blocks with an embedding before and a head after them.

A model is a Linen module, built from `config.model` by `build_model`. Its contract:

    model(inputs, *, train) -> (outputs, aux)
      inputs   mapping of arrays by name, each [B, ...]; the model's docstring names them
      train    True: dropout and routing noise, from the random streams "dropout" and "router"
      outputs  what the task makes of them: logits [B, V] of a classifier
      aux      {} or {"losses": {name: [operations]}, "loss": [operations], "sums": {name:
               [operations, ...]}}: of the blocks' parts, see `feed_forwards`

and, from `block_settings.BlockSettings`: the fields of its blocks; `check()`, which refuses fields
that do not fit each other; `summarize(sums)`, metrics from the sums of aux added up over batches;
and `examples_per_group`, how many consecutive examples of a batch belong together. A model that is
to have experts, or to be planned, also defines `num_tokens(input_spec)`, T of an example; and for a
plan `outside_flops(input_spec)`, the FLOPs of an example outside the blocks.

Fields `unroll` and `remat` change neither the parameters nor the results, but the random numbers of
dropout and noise. A caller that wants the intermediate results of single blocks
(`capture_intermediates`) clones the model with unroll=True and remat="none".

To add a model: one file, and its `specs.ModelSpec`.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict

from widenet_jax.extensions import parameters_of
from widenet_jax.nn.loop_settings import Counts, Tie
from widenet_jax.nn.moe.dispatch import method_of
from widenet_jax.nn.stack_settings import UserPart, read_model
from widenet_jax.sharding import platform
from widenet_jax.specs import resolve
from widenet_jax.typing import PyTree, Shapes


def build_model(model: Mapping, **decided: int | str) -> nn.Module:
    """Builds the module of `config.model`; arguments and errors as of `parse_model`."""
    spec, made = read_model(model, **decided)
    module = made if isinstance(made, nn.Module) else resolve(spec.module)(made)
    module.check()
    return module


def with_implementation(model: nn.Module, implementation: str) -> nn.Module:
    """Returns the model with another implementation of attention."""
    if isinstance(model.attention, UserPart):
        return model
    attention = dataclasses.replace(model.attention, implementation=implementation)
    return model.clone(attention=attention)


def without_hopper(model: ConfigDict) -> ConfigDict:
    """Returns the config of an equal model that runs on any device."""
    anywhere = ConfigDict(model.to_dict())
    if (anywhere.get("moe") or {}).get("dispatch") == "hopper":
        anywhere.moe.dispatch = "ragged"
    return anywhere


def for_vmap(model: nn.Module, input_spec: Shapes) -> nn.Module:
    """Returns the model as `jax.vmap` takes it over single examples: it refuses `ragged_dot`."""
    moe = model.stack.feed_forwards["moe"] if model.stack.ffn == "moe" else None
    if not moe:
        return model
    group = {"platform": platform(), "group_tokens": model.num_tokens(input_spec)}
    if method_of(moe, **group, train=False) not in ("ragged", "hopper"):
        return model
    masked = dataclasses.replace(moe, dispatch="masked")
    return model.clone(feed_forwards={**model.stack.feed_forwards, "moe": masked})


def parameter_shapes(model: nn.Module, input_spec: Shapes) -> PyTree:
    """Returns shapes and dtypes of a model's parameters, without allocating any."""
    init = partial(model.init, train=False)
    with nn.intercept_methods(traced_once()):
        return parameters_of(jax.eval_shape(init, jax.random.key(0), dict(input_spec)))


def traced_once() -> Callable[..., Any]:
    """Returns an interceptor for `init` under `eval_shape` that runs equal modules once.

    A deep model takes seconds to trace otherwise. A module with the settings and the shapes of
    inputs of an earlier one gets parameters and outputs of its shapes. So do modules among its
    inputs, such as a router that stands apart.
    """
    known: dict[Any, tuple[list[PyTree], PyTree]] = {}  # parameters and outputs by `asked`

    def call(run: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext):
        if context.method_name != "__call__":
            return run(*args, **kwargs)
        inputs, form = jax.tree.flatten((args, kwargs))
        modules = [context.module, *(x for x in inputs if isinstance(x, nn.Module))]
        begun = [[*one.variables.get("params", ())] for one in modules]  # shared, and ran before
        others = [x for x in inputs if not isinstance(x, nn.Module)]
        values, fields = jax.tree.flatten(shapes_of((begun, list(map(fields_of, modules)), others)))
        asked = form, *map(type, modules), fields, *values
        if not all(isinstance(value, Hashable) for value in values):
            return run(*args, **kwargs)
        if asked in known:
            params, outputs = known[asked]
            for module, had, of_module in zip(modules, begun, params, strict=True):
                for name in [name for name in of_module if name not in had]:
                    module.put_variable("params", name, arrays_like(of_module[name]))
            return arrays_like(outputs)
        outputs = run(*args, **kwargs)
        params = [shapes_of(one.variables.get("params", {})) for one in modules]
        known[asked] = params, shapes_of(outputs)
        return outputs

    return call


def fields_of(module: nn.Module) -> dict[str, Any]:
    """Returns the fields of a module without its name and place."""
    names = {field.name for field in dataclasses.fields(module)} - {"name", "parent"}
    return {name: getattr(module, name) for name in names}


def shapes_of(tree: PyTree) -> PyTree:
    """Returns a tree with the shape and dtype of each array, and its other leaves as they are."""

    def shape(x: Any) -> Any:
        is_array = isinstance(x, jax.Array | np.ndarray)
        return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array else x

    return jax.tree.map(shape, tree)


def arrays_like(shapes: PyTree) -> PyTree:
    """Returns an array for each shape in a tree, of any values, and its other leaves as they are.

    Tracing `lax.empty` takes a seventh of the time of `jnp.zeros`.
    """

    def array(x: Any) -> Any:
        return jax.lax.empty(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x

    return jax.tree.map(array, shapes)


def count_parameters(shapes: PyTree) -> int:
    """Returns the number of scalars in a tree of arrays or shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def count_unrolled(model: nn.Module, input_spec: Shapes) -> int:
    """Counts the parameters of the same model with nothing shared: all that its blocks apply."""
    tie = Tie(attention="none", experts="none", norms="none")
    plain = {"tie": tie, "condition": "none", "routing": "own", "counts": Counts()}
    apart = model.clone(loop=dataclasses.replace(model.loop, **plain))
    return count_parameters(parameter_shapes(apart, input_spec))
