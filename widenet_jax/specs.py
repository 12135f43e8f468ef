"""The tasks by name, with dotted names of all that the project asks about them."""

import importlib
from typing import TYPE_CHECKING, Any

from widenet_jax.errors import choose

if TYPE_CHECKING:
    from widenet_jax.task import Task

# config.task.name -> its class, or where it is
TASKS: dict[str, Any] = {
    "classification": "widenet_jax.vision.task:Classification",
    "masked_lm": "widenet_jax.text.masked_lm:MaskedLm",
    "language_modeling": "widenet_jax.language.task:LanguageModeling",
    "text_classification": "widenet_jax.text.classification:TextClassification",
    "span": "widenet_jax.text.span:Span",
}


def resolve(name: Any) -> Any:
    """Imports what a dotted name "package.module:attribute" says; returns all else as it is."""
    if not isinstance(name, str):
        return name
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def task_class(name: str) -> "type[Task]":
    """Returns the class of the task `config.task.name`.

    Raises:
      BadInputError: there is no such task.
    """
    return resolve(choose(TASKS, name, field="config.task.name"))
