"""What users hand over: arguments of `widenet_jax.train`, sources and streams of their own.

Each is tried once, where it enters. What a single example may be wrong with is a `BadExampleError`
of the code that reads it, so that a run can skip it.
"""

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from widenet_jax.config.fields import wrong_types
from widenet_jax.data.contract import OF_THE_RUN
from widenet_jax.data.labelled import check_class_names
from widenet_jax.errors import BadInputError, first_line, raise_first
from widenet_jax.specs import task_spec

SOURCE_PARTS = ("info", "describe", "__len__", "__getitem__")
STREAM_PARTS = ("read_windows", "bytes_per_token", "words_per_token", "text")
TAKEN = OF_THE_RUN | {"environment", "result"}  # keys of no `info`


def wrong_arguments(
    config: Any, fields: Any, on_evaluation: Any, data: Any, eval_data: Any
) -> Iterator[str]:
    """Yields a line for each argument that `widenet_jax.train` cannot take."""
    if not isinstance(config, str | ConfigDict):
        kind = type(config).__name__
        yield f"config is {kind}; give a ConfigDict, or a file as configs/digits.py"
    if isinstance(config, ConfigDict):
        yield from wrong_types(config)
    if not isinstance(fields, Mapping):
        yield f"fields is {type(fields).__name__}; give a dict, as {{'duration': '2 epochs'}}"
    try:
        inspect.signature(on_evaluation).bind(0, {})
    except (TypeError, ValueError) as error:
        yield f"on_evaluation takes a step and metrics: {error}"
    if (data is None) != (eval_data is None):
        yield "give both data and eval_data, or neither"
    for name, one in {"data": data, "eval_data": eval_data}.items() if data is not None else ():
        what = f"{name} is {type(one).__name__}"
        if isinstance(one, Mapping):
            yield f"{what}; give a list of its examples"
        if not (hasattr(one, "__len__") and hasattr(one, "__getitem__")):
            yield f"{what}, without __len__ and __getitem__; give a list, such as list({name})"
        if len(one) == sys.maxsize:
            yield f"{name} has no end; give it without repeat()"


def example_at(examples: Any, index: int, name: str) -> Any:
    """Returns an example of a user's object; raises BadInputError where its code fails."""
    try:
        return examples[index]
    except BadInputError:  # it may be a BadExampleError
        raise
    except Exception as error:
        raise BadInputError(
            f"{name}[{index}] cannot be read: {type(error).__name__}: {first_line(error)}"
        ) from error


def try_source(source: Any, where: str, config: Any) -> None:
    """Tries an object that must be a source of a run's task; raises BadInputError where it is none.

    Transforms check the examples.
    """
    raise_first(f"{where}{problem}" for problem in _wrong_with(source, where, config))


def _wrong_with(source: Any, where: str, config: Any) -> Iterator[str]:
    """Yields what is wrong with a source, after its place."""
    spec = task_spec(config.task.name)
    kind, parts = "Stream" if spec.stream else "Source", SOURCE_PARTS + STREAM_PARTS * spec.stream
    if missing := [name for name in parts if not hasattr(source, name)]:
        yield (
            f" is {type(source).__name__}, without {', '.join(missing)}; the task {spec.name} "
            f"reads a {kind} (widenet_jax.data.contract): {', '.join(parts)}"
        )
    try:
        len(source)
    except (TypeError, ValueError) as error:
        yield f": its __len__ must return a count: {error}"
    info = source.info
    if not isinstance(info, Mapping) or not info.keys() >= set(spec.info):
        keys = ", ".join(spec.info) or "what the model must know of the set, or {}"
        yield f": its info must be a dict with {keys}"
    for key, value in info.items():
        if key in TAKEN:
            yield f": info[{key!r}] is a name of the run's own; rename it"
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            yield f": info[{key!r}] is not as JSON holds it: {error}"
    if "class_names" in spec.info:
        if not isinstance(info["class_names"], list | tuple):
            yield ": info['class_names'] must be a list of names"
        check_class_names(info["class_names"], where)

    if spec.stream:
        T, shape = config.data.max_length, np.shape(source.read_windows(np.zeros(1, np.int64)))
        if shape != (1, T + 1):
            yield (
                f": read_windows of one index returns an array {list(shape)}; it must be "
                f"[1, {T + 1}], config.data.max_length={T} tokens and the one after"
            )
