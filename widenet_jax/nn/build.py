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
from jax.tree_util import DictKey

from widenet_jax.errors import BadInputError, check_section, choose
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.feed_forwards import COMMON, FEED_FORWARDS, PLAIN
from widenet_jax.nn.loop_settings import Counts, Tie, parse_loop
from widenet_jax.specs import model_spec, resolve
from widenet_jax.typing import PyTree, Shapes


def build_model(model: Mapping, **model_fields: int | str) -> nn.Module:
    """Builds the module of `config.model`.

    Args:
      model: `name`, a key of `specs.MODELS`; the fields of that module; the section `attention`; a
        section of fields for each feed-forward, by its name in `FEED_FORWARDS`, or None; and
        `mlp_dim`, which is the plain feed-forward's.
      **model_fields: the fields that the task decides, such as num_classes=10.

    Raises:
      BadInputError: a name or a value that does not exist, or a field that is unknown or missing.
    """
    fields = {k: plain(v) for k, v in model.items()}
    build = resolve(model_spec(fields.pop("name", "")).module)
    sections = {name: fields.pop(name) for name in FEED_FORWARDS if name in fields}
    sections[PLAIN] = {"mlp_dim": fields.pop("mlp_dim")} if "mlp_dim" in fields else {}
    sections = {name: section for name, section in sections.items() if section is not None}
    decided = {"feed_forwards", "causal", *model_fields}
    check_section(build, fields, section="config.model", decided=decided)
    for name, section in sections.items():
        place = "config.model" if name == PLAIN else f"config.model.{name}"
        check_section(resolve(FEED_FORWARDS[name]), section, section=place, common=COMMON)
    place, section = "config.model.attention", dict(fields["attention"])
    attention = choose(ATTENTIONS, section.pop("name", ""), field=f"{place}.name")
    check_section(resolve(attention), section, section=place, decided=("causal",), common=COMMON)
    fields["loop"] = parse_loop(fields["loop"])
    module = build(feed_forwards=sections, **fields, **model_fields)
    module.check()
    return module


def plain(value: Any) -> Any:
    """Returns a section of a config as dicts; other values as they are."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return value


def parameter_shapes(model: nn.Module, input_spec: Shapes) -> PyTree:
    """Returns shapes and dtypes of a model's parameters, without allocating any."""
    init = partial(model.init, train=False)
    with nn.intercept_methods(traced_once()):
        return parameters_of(jax.eval_shape(init, jax.random.key(0), dict(input_spec)))


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
        begun = [bool(one.variables.get("params")) for one in modules]  # shared, and ran before
        others = [x for x in inputs if not isinstance(x, nn.Module)]
        values, fields = jax.tree.flatten(shapes_of((begun, list(map(fields_of, modules)), others)))
        asked = form, *map(type, modules), fields, *values
        if not all(isinstance(value, Hashable) for value in values):
            return run(*args, **kwargs)
        if asked in known:
            params, outputs = known[asked]
            for module, ran, of_module in zip(modules, begun, params, strict=True):
                for name, value in ({} if ran else arrays_like(of_module)).items():
                    module.put_variable("params", name, value)
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
