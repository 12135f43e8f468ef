"""Starting from pretrained parameters: the backbone, and the head where the classes are the same.

The spec of a model says which parts are not its backbone (`specs.Part`), and how arrays of another
shape fit it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

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
    fit = resolve(model_spec(model["name"]).fit) or (lambda path, value, shape, model: value)
    new, old = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (fresh, pretrained))
    taken = backbone(rules, fit, new, old, model, source)
    here, there = (
        {k: x.shape for k, x in tree.items() if rules.get(part(k)) == SAME_CLASSES}
        for tree in (new, old)
    )
    if kept := same_classes and there and here == there:
        taken |= {k: old[k] for k in there}
    for scope in [name for name, rule in rules.items() if rule == WHERE_IT_FITS]:
        names = {k for k in new if part(k) == scope}
        found = {k: fit(k, old[k], new[k].shape, model) for k in names & old.keys()}
        if all(k in found and found[k].shape == new[k].shape for k in names):
            taken |= found
    missing = sorted(new.keys() - taken.keys())
    if random := [path for path in missing if frozen(path)]:
        raise BadInputError(
            f"config.optimizer.freeze would keep {part(random[0])} random, because "
            f"config.init_from={source} has none that fits; train it, too, with "
            "--config.optimizer.freeze=none, or start from a model that has it"
        )
    notes = {
        f"taken from {source}": part_names(taken),
        "new": part_names(missing) or "nothing",
        "not used": part_names(sorted(k for k in old if part(k) not in set(map(part, taken)))),
        "fitted": ", ".join(
            f"{k} {shape_text(old[k])} -> {shape_text(value)}"
            for k, value in taken.items()
            if value.shape != old[k].shape
        ),
        "the classes are the same": "the head is kept" if kept else "",
        "differs from the pretrained model in": ", ".join(differing),
    }
    line = "; ".join(f"{what}: {names}" for what, names in notes.items() if names)
    return flax.traverse_util.unflatten_dict(new | taken, sep="/"), line


def backbone(
    rules: Mapping[str, str], fit: Callable, new: Mapping, old: Mapping, model: Mapping, source: str
) -> dict[str, np.ndarray]:
    """Returns the pretrained parameters of the backbone, by path, fitted to the shapes of `new`.

    Raises:
      BadInputError: the backbones differ.
    """
    here, there = ({k for k in tree if part(k) not in rules} for tree in (new, old))
    taken = {k: fit(k, old[k], new[k].shape, model) for k in sorted(here & there)}
    odd = {k: f"{k} is in only one of the two" for k in sorted(here ^ there)} | {
        k: f"{k} is {list(value.shape)} there and {list(new[k].shape)} here"
        for k, value in taken.items()
        if value.shape != new[k].shape
    }
    for problem in odd.values():
        raise BadInputError(
            f"config.init_from={source} holds another model: {problem}; finetune with the "
            "config.model it was trained with"
        )
    return taken


def part_names(paths: Iterable[str]) -> str:
    """Lists the first parts of paths, each once."""
    return ", ".join(dict.fromkeys(map(part, paths)))


def part(path: str) -> str:
    """Returns the first part of a path: "encoder"."""
    return path.partition("/")[0]


def shape_text(array: np.ndarray) -> str:
    """Returns an array's shape as in "16x2"."""
    return "x".join(map(str, array.shape))
