"""Starting from pretrained parameters: the backbone, and the head where the classes are the same.

The spec of a model says which parts are not its backbone (`specs.Part`), and how arrays of another
shape fit it.
"""

from collections.abc import Callable, Mapping, Sequence

import flax.traverse_util
import numpy as np

from widenet_jax.errors import BadInputError
from widenet_jax.specs import SAME_CLASSES, WHERE_IT_FITS, model_spec, parts, resolve
from widenet_jax.typing import PyTree


def finetune_params(
    fresh: PyTree,
    pretrained: PyTree,
    *,
    model: Mapping,
    source: str,
    same_classes: bool = False,
    differing: Sequence[str] = (),
    frozen: Callable[[str], bool] = lambda path: False,
) -> tuple[PyTree, str]:
    """Returns `fresh` with the backbone of `pretrained`, and a line that says what was taken.

    Args:
      fresh: newly initialised parameters of the model to finetune (host arrays).
      pretrained: parameters that `config.init_from` names (host arrays).
      model: `config.model`.
      source: value of `config.init_from`, named in errors.
      same_classes: whether both models have the same classes.
      differing: fields that let this model compute another function, for the line.
      frozen: whether a parameter, by its path, is never trained.

    Raises:
      BadInputError: the backbones differ, or a frozen parameter would be random.
    """
    rules = {name: found.taken for name, found in parts().items()}
    fit = resolve(model_spec(model["name"]).fit) or as_it_is
    new = flax.traverse_util.flatten_dict(fresh, sep="/")
    old = flax.traverse_util.flatten_dict(pretrained, sep="/")
    taken = backbone(rules, fit, new, old, model, source)
    heads = [
        {k: x for k, x in tree.items() if rules.get(part(k)) == SAME_CLASSES} for tree in (new, old)
    ]
    shapes = [{k: leaf.shape for k, leaf in head.items()} for head in heads]
    kept = heads[1] if same_classes and shapes[0] == shapes[1] else {}
    taken |= kept
    for scope in [name for name, rule in rules.items() if rule == WHERE_IT_FITS]:
        names = {k for k in new if part(k) == scope}
        found = {k: fit(k, old[k], new[k].shape, model) for k in names & old.keys()}
        if all(k in found and found[k].shape == new[k].shape for k in names):
            taken |= found
    if random := sorted(path for path in new.keys() - taken.keys() if frozen(path)):
        raise BadInputError(
            f"config.optimizer.freeze would keep {part(random[0])} random, because "
            f"config.init_from={source} has none that fits; train it, too, with "
            "--config.optimizer.freeze=none, or start from a model that has it"
        )
    params = flax.traverse_util.unflatten_dict(new | taken, sep="/")
    line = told(taken, new.keys() - taken.keys(), old, source)
    line += fitted(old, taken)
    line += "; the classes are the same, so the head is kept" if kept else ""
    return params, "; differs from the pretrained model in: ".join(
        filter(None, [line, ", ".join(differing)])
    )


def backbone(
    rules: Mapping[str, str], fit: Callable, new: Mapping, old: Mapping, model: Mapping, source: str
) -> dict[str, np.ndarray]:
    """Returns the pretrained parameters of the backbone, by path, fitted to the shapes of `new`.

    Raises:
      BadInputError: the backbones differ.
    """
    here, there = ({k for k in tree if part(k) not in rules} for tree in (new, old))
    if odd := sorted(here ^ there):
        raise BadInputError(
            f"config.init_from={source} holds another model: {odd[0]} is in only one of the two; "
            "finetune with the config.model it was trained with"
        )
    taken = {}
    for name in sorted(here):
        value = fit(name, old[name], new[name].shape, model)
        if value.shape != new[name].shape:
            raise BadInputError(
                f"config.init_from={source} holds another model: {name} is "
                f"{list(value.shape)} there and {list(new[name].shape)} here; finetune with the "
                "config.model it was trained with"
            )
        taken[name] = value
    return taken


def told(taken: Mapping, fresh: set[str], pretrained: Mapping, source: str) -> str:
    """Returns the line on what was taken, what is new and what was not used."""
    parts = lambda names: ", ".join(dict.fromkeys(map(part, names)))  # noqa: E731
    text = f"taken from {source}: {parts(taken)}; new: {parts(sorted(fresh)) or 'nothing'}"
    unused = parts(sorted(name for name in pretrained if part(name) not in set(map(part, taken))))
    return f"{text}; not used: {unused}" if unused else text


def fitted(old: Mapping, taken: Mapping) -> str:
    """Names the arrays that were fitted to another shape, with both shapes."""
    shape = lambda array: "x".join(map(str, array.shape))  # noqa: E731
    changed = [name for name in taken if old[name].shape != taken[name].shape]
    texts = [f"{name} {shape(old[name])} -> {shape(taken[name])}" for name in changed]
    return f"; fitted: {', '.join(texts)}" if texts else ""


def part(path: str) -> str:
    """Returns the first part of a path: "encoder"."""
    return path.partition("/")[0]


def as_it_is(name: str, value: np.ndarray, shape: tuple[int, ...], model: Mapping) -> np.ndarray:
    """Returns the pretrained array."""
    del name, shape, model
    return value
