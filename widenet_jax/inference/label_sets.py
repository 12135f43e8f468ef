"""Sets of right classes for each example, such as ImageNet-ReaL's (arXiv:2006.07159)."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.data.contract import Source
from widenet_jax.errors import raise_first, refuse
from widenet_jax.files import absolute, read_json

IMAGENET = re.compile(r"ILSVRC2012_val_(\d{8})\.")  # numbered from 1
KIND = "give a list of lists of classes, or an object of such lists by file name"


def read_label_sets(path: str, class_names: Sequence[str], source: Source) -> list[list[int]]:
    """Reads a JSON list of sets, or an object of sets by file name.

    Files are found by name ("CLASS/FILE" or FILE) in an object, or in a list by the number of
    ImageNet's validation images. A list for examples without files is in their order.

    Args:
      path: of the JSON file, in which a class is a number or a name.
      class_names: of the model.
      source: the examples.

    Returns:
      The set of each example, in the source's order.

    Raises:
      BadInputError: the file holds something else or an unknown class, or its sets cannot be
        matched with the examples for certain.
    """
    content, place = read_json(absolute(path)), f"--labels={path}"
    refuse(place, (not isinstance(content, list | dict), KIND))
    sets = dict(enumerate(content)) if isinstance(content, list) else content
    known: dict[Any, int] = {name: label for label, name in enumerate(class_names)}
    known |= {label: label for label in range(len(class_names))}
    for key, classes in sets.items():
        refuse(f"{place}: entry {key}", (not isinstance(classes, list), f"is no list; {KIND}"))
        raise_first(
            f"{place}: entry {key} has {one!r}, no class of the model; give numbers from 0 to "
            f"{len(class_names) - 1}, or names"
            for one in classes
            if type(one) not in (int, str) or one not in known
        )
    where = [source.describe(index) for index in range(len(source))]
    keys = _keys(where, content, place)
    raise_first(
        f"{place} has no set for {one}; an object finds files by name, a list only ImageNet's, by "
        "the number, as in ILSVRC2012_val_00000001.JPEG ([] leaves an example out)"
        for one, key in zip(where, keys, strict=True)
        if key not in sets
    )
    return [[known[one] for one in sets[key]] for key in keys]


def _keys(where: Sequence[str], content: list | dict, place: str) -> Sequence[Any]:
    """Returns the key of each example, by its description, in an object or in a list."""
    if not os.path.isfile(where[0]):
        by_name = "is an object by file name, and these examples are no files; give a list"
        count = f"{len(content):,} sets for {len(where):,} examples; give one for each"
        refuse(place, (isinstance(content, dict), by_name), (len(content) != len(where), count))
        return range(len(where))
    keys = [_key(path, content) for path in where]
    key, times = Counter(keys).most_common(1)[0]
    refuse(place, (times > 1, f"{times} files of the set share its entry {key}; rename them"))
    return keys


def _key(path: str, content: list | dict) -> int | str:
    """Returns the key of a file: its number, "CLASS/FILE" or its name."""
    folder, name = os.path.split(path)
    if isinstance(content, list):
        return int(found[1]) - 1 if (found := IMAGENET.match(name)) else name
    within = f"{os.path.basename(folder)}/{name}"
    return within if within in content else name


def set_accuracy(
    sets: Sequence[Sequence[int]], rows: Mapping[str, np.ndarray], path: str
) -> dict[str, Any]:
    """Returns `in_label_set`, the share of the predictions that are in their sets.

    Also how many were `judged`, and how many were `left_out`, because their sets are empty.

    Args:
      sets: of each example.
      rows: of `classification.classify_source`.
      path: of the sets, for messages.

    Raises:
      BadInputError: all sets are empty, or fit the examples' own labels hardly better than chance.
    """
    read = np.flatnonzero(rows["mask"]).tolist()
    judged = [k for k in read if sets[k]]
    refuse(f"--labels={path}", (not judged, "every set is empty"))
    others = np.random.default_rng(0).permutation(judged)
    asked = (("label", judged), ("label", others), ("predicted", judged))
    own, guess, share = (
        float(np.mean([rows[name][i] in sets[k] for i, k in zip(of, judged, strict=True)]))
        for name, of in asked
    )
    # In ImageNet-ReaL 0.9; of sets in another order, or numbered otherwise, the share of a guess.
    problem = (
        f"only {own:.1%} of the sets hold the label that the example has, and {guess:.1%} would by "
        "chance; they are in another order, or number the classes otherwise: give files and "
        "classes by name"
    )
    refuse(f"--labels={path}", (own < (1 + guess) / 2, problem))
    return {"in_label_set": share, "judged": len(judged), "left_out": len(read) - len(judged)}
