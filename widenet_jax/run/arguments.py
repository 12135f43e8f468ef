"""The arguments of `widenet_jax.train`; `data.foreign` tries the examples that it is given."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from widenet_jax.config.fields import wrong_types
from widenet_jax.errors import raise_first


def check_arguments(config: Any, fields: Any, on_evaluation: Any) -> None:
    """Raises BadInputError for an argument that `widenet_jax.train` cannot take."""
    raise_first(_wrong_with(config, fields, on_evaluation))


def _wrong_with(config: Any, fields: Any, on_evaluation: Any) -> Iterator[str]:
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
