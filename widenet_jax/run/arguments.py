"""The arguments of `widenet_jax.train`, where objects of Python code enter."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.errors import BadInputError

SEQUENCE = ("__len__", "__getitem__")


def check_arguments(config: Any, data: Any, eval_data: Any, on_evaluation: Any) -> None:
    """Raises BadInputError for an argument that `widenet_jax.train` cannot take."""
    for problem in problems_of(config, data, eval_data, on_evaluation):
        raise BadInputError(problem)


def problems_of(config: Any, data: Any, eval_data: Any, on_evaluation: Any) -> Iterator[str]:
    """Yields what is wrong: there are two splits or none, and each is a sequence with an end."""
    if not isinstance(config, str | ConfigDict):
        yield (
            f"config is {type(config).__name__}; give a ConfigDict, or a file as configs/digits.py"
        )
    if (data is None) != (eval_data is None):
        yield "give both data and eval_data, or neither"
    for name, split in {"data": data, "eval_data": eval_data}.items():
        kind = type(split).__name__
        if isinstance(split, Mapping):
            yield f"{name} is {kind}; give a list of its examples"
        elif split is not None and not all(map(partial(hasattr, split), SEQUENCE)):
            yield (
                f"{name} is {kind}, without __len__ and __getitem__; give a list, such as "
                f"list({name})"
            )
        elif split is not None and len(split) == sys.maxsize:
            yield f"{name} has no end; give it without repeat()"
    try:
        inspect.signature(on_evaluation).bind(0, {})
    except (TypeError, ValueError) as error:
        yield f"on_evaluation takes a step and metrics: {error}"
