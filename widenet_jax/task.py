"""The task contract: the meaning of a batch, its loss and its metrics.

A task is made from the config and the `DataInfo`, and obeys `Task`: `batch_spec`, `inputs`,
`loss`, `evaluate`, `summarize`, a `primary_metric` and a `unit`. It sees the model as a function
`apply(inputs, rngs) -> (outputs, aux)`. The loop (`train`, `step`, `evaluation`, `run`) knows none
of the words image, label or accuracy. `specs` lists the tasks.
"""

import abc
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import flax.struct
import numpy as np
from ml_collections import ConfigDict

from widenet_jax.data.contract import DataInfo, Source
from widenet_jax.typing import Array, Aux, Inputs, NamedArrays, PyTree, Shapes

Rngs = Mapping[str, Array]
# (inputs, rngs) -> (outputs, aux). Rngs are given in training; None means evaluation.
Apply = Callable[[Inputs, Rngs | None], tuple[PyTree, Aux]]


class PrimaryMetric(NamedTuple):
    """The metric that best/, search, tables and pictures go by.

    Attributes:
      name: a key of the task's `summarize`.
      higher_is_better: False for losses and perplexities.
    """

    name: str
    higher_is_better: bool = True

    def better(self, new: float, old: float | None) -> bool:
        """Whether `new` beats `old`; anything but NaN beats None."""
        if old is None:
            return new == new
        return new > old if self.higher_is_better else new < old


class Baseline(NamedTuple):
    """The value of a metric that a model reaches without learning what the task is about.

    Runs and, except for classifiers, `scripts/evaluate.py` show it beside the metric, and say if
    they did not beat it.

    Attributes:
      metric: a key of the task's `summarize`, and of its training metrics.
      value: of that metric.
      name: what the value is: "unigram entropy".
      advice: what to do about a run that does not beat it.
      higher_is_better: as of `PrimaryMetric`.
    """

    metric: str
    value: float
    name: str
    advice: str
    higher_is_better: bool = False


@flax.struct.dataclass
class Metrics:
    """Metrics and next state, which a task returns with its scalar loss.

    Attributes:
      means: metrics averaged over the batch, "loss" among them.
      layer_sums: statistics of the feed-forwards, summed over the batch: `aux["sums"]`.
      carry: the state for the next step, as `Task.carry_spec` describes it.
    """

    means: NamedArrays
    layer_sums: Aux
    carry: NamedArrays = flax.struct.field(default_factory=dict)


@flax.struct.dataclass
class Evaluation:
    """The result of a task for one evaluation batch.

    Attributes:
      sums: sums over the batch's real examples.
      layer_sums: as in `Metrics`.
      rows: arrays [B, ...] for metrics that are no sums; row i belongs to example i. A task whose
        examples may be unreadable gives their `mask` as rows, too: theirs have no meaning.
      carry: the state for the next evaluation batch.
    """

    sums: NamedArrays
    layer_sums: Aux
    rows: NamedArrays = flax.struct.field(default_factory=dict)
    carry: NamedArrays = flax.struct.field(default_factory=dict)


class Task(abc.ABC):
    """Base class of tasks: model inputs of a batch, loss, metrics.

    Attributes:
      primary_metric: the metric to compare runs by.
      unit: what an example is called, in the plural: "images".
      model_fields: the model's fields that follow from the data, such as {"num_classes": 10}.
      baseline: what to compare a metric with; None if there is nothing.
      remarks: by metric, what its reader must know of the data: shown behind it.
      group_size: number of consecutive examples that the loss treats together.
      group_field: the config field that `group_size` comes from, for messages.
    """

    primary_metric: ClassVar[PrimaryMetric]
    unit: ClassVar[str]
    group_field: ClassVar[str] = ""

    @classmethod
    @abc.abstractmethod
    def build(cls, config: ConfigDict, data_info: DataInfo) -> "Task":
        """Builds the task from the config and the description of the data.

        Raises:
          BadInputError: a field is out of range.
        """

    @classmethod
    def primary_metric_of(cls, config: ConfigDict) -> PrimaryMetric:
        """Returns the primary metric of the tasks of a config, which may depend on the config."""
        return cls.primary_metric

    @property
    @abc.abstractmethod
    def model_fields(self) -> Mapping[str, int | str]: ...

    @property
    def baseline(self) -> Baseline | None:
        return None

    @property
    def remarks(self) -> Mapping[str, str]:
        return {}

    @property
    def group_size(self) -> int:
        return 1

    @abc.abstractmethod
    def batch_spec(self, batch_size: int) -> Shapes:
        """Returns shapes and dtypes of a batch's arrays as the data gives them."""

    def carry_spec(self, batch_size: int) -> Shapes:
        """Returns shapes and dtypes of the carry: arrays [B, ...] that start as zeros.

        The step adds them to the batch under their names, which `batch_spec`
        must not have, and replaces them by `Metrics.carry`. A skipped update sets them to zeros;
        the one that ends the run leaves them as they are, to repeat the step. Most tasks have none.
        """
        return {}

    def eval_carry_spec(self, batch_size: int) -> Shapes:
        """Returns the carry of an evaluation, which starts as zeros and is kept apart.

        By default the carry of training. Its arrays may have other shapes after the axis B.
        """
        return self.carry_spec(batch_size)

    @abc.abstractmethod
    def inputs(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the model's inputs for a batch as it is, without the noise of training."""

    def of_whole_batch(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Returns arrays [B, ...] that `loss` finds in its batch, beside `batch_spec`.

        For what depends on the whole batch, such as a number to divide by: under gradient
        accumulation `loss` sees only a part of the batch, and the parts' losses are averaged.
        """
        return {}

    @abc.abstractmethod
    def loss(self, apply: Apply, batch: Mapping[str, Array], rngs: Rngs) -> tuple[Array, Metrics]:
        """Returns the scalar to minimise, and metrics of the batch."""

    @abc.abstractmethod
    def evaluate(self, apply: Apply, batch: Mapping[str, Array]) -> Evaluation:
        """Evaluates the examples of a batch where its `mask` [B] is True."""

    @abc.abstractmethod
    def summarize(
        self, sums: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], source: Source
    ) -> dict[str, float]:
        """Returns the metrics of a whole split, the primary one and `unit`'s number among them.

        Args:
          sums: of `evaluate`, added up over the split in float64.
          rows: of `evaluate`, [N, ...], row i for record i of the split.
          source: the split, for metrics that need more of a record than the batch holds.
        """


def add_layer_losses(
    loss: Array, means: NamedArrays, aux: Aux, carry: NamedArrays | None = None
) -> tuple[Array, Metrics]:
    """Returns what `Task.loss` returns: the task's own loss plus the losses of the blocks' parts.

    Args:
      loss: scalar, of the task alone.
      means: metrics of the batch.
      aux: of the model, with a leading axis of operations; the total is their sum (eq. 8).
      carry: the state for the next step.
    """
    each = {}
    if aux:
        each = {f"{name}_loss": value for name, value in aux["losses"].items()}
        loss += aux["loss"].sum()  # eq. 8
    return loss, Metrics({**means, **each, "loss": loss}, aux.get("sums", {}), carry or {})
