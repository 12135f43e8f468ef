"""Tasks: the meaning of a batch, its loss and its metrics.

A task is made from the config and facts about the data, and obeys `contract.Task`: `batch_spec`,
`inputs`, `loss`, `evaluate`, `summarize`, a `headline` metric and a `unit`. It sees the model as a
function `apply(inputs, rngs) -> (outputs, aux)`. No other package knows the words image, label or
accuracy.

To add a task, write a module with such a class, add it to `TASKS`, and name the transforms that
make its batches in `data.sources.TRANSFORMS`.
"""

from widenet_jax.tasks.classification import Classification
from widenet_jax.tasks.contract import Apply, Baseline, Evaluation, Headline, Metrics, Task
from widenet_jax.tasks.language_modeling import LanguageModeling
from widenet_jax.tasks.masked_lm import MaskedLm
from widenet_jax.tasks.span import Span
from widenet_jax.tasks.text_classification import TextClassification

TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "masked_lm": MaskedLm,
    "language_modeling": LanguageModeling,
    "text_classification": TextClassification,
    "span": Span,
}

__all__ = ["TASKS", "Apply", "Baseline", "Evaluation", "Headline", "Metrics", "Task"]
