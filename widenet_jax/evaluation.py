"""Evaluation of a model over a whole split, each example once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from ml_collections import ConfigDict

from widenet_jax.data.blocks import check_bad
from widenet_jax.data.contract import Data, Source, Transform
from widenet_jax.data.pipeline import eval_batches, reading
from widenet_jax.experiment import Experiment
from widenet_jax.run.stopping import Stop
from widenet_jax.sharding import BATCH, global_batch, host_positions
from widenet_jax.task import Evaluation, Task
from widenet_jax.typing import Array, PyTree


def evaluate(experiment: Experiment, data: Data, params: PyTree, **hooks: Any) -> dict[str, Any]:
    """Returns the metrics of `params` over the evaluation split, and the feed-forwards' statistics.

    Args:
      experiment: gives task, mesh, batch size and workers.
      data: gives the split and its transform.
      params: parameters of its model, placed as it says.
      **hooks: `stop`, `beat` and `note` of `placed_batches`.

    Raises:
      StopRequestedError: a stop was requested.
      RunFailedError: too large a share of the examples is unreadable.
    """
    config, task, mesh, source = experiment.config, experiment.task, experiment.mesh, data.eval
    batches = placed_batches(config, mesh, source, data.eval_transform, **hooks)
    carry = first_carry(task, config.evaluation.batch_size, mesh)
    with closing(batches):
        totals = total(partial(experiment.eval_step, params), batches, carry)
    rows = {name: values[: len(source)] for name, values in totals.rows.items()}
    metrics = task.summarize(totals.sums, rows, source)
    metrics |= experiment.model.summarize(totals.layer_sums)
    metrics["bad_examples"] = len(source) - metrics[task.unit]
    what, size = f"evaluation {task.unit}", len(source)
    limit = config.data.max_bad_fraction
    check_bad(metrics["bad_examples"], size, num_examples=size, limit=limit, what=what)
    return metrics


def first_carry(task: Task, batch_size: int, mesh: Mesh) -> dict[str, Array]:
    """Returns the carry at the start of an evaluation: zeros, or {} of most tasks."""
    sharding, spec = NamedSharding(mesh, BATCH), task.eval_carry_spec(batch_size)
    return {name: jnp.zeros(x.shape, x.dtype, device=sharding) for name, x in spec.items()}


def placed_batches(
    config: ConfigDict,
    mesh: Mesh,
    source: Source,
    transform: Transform,
    *,
    stop: Stop,
    beat: Callable[[str], None],
    note: Callable[[str], None],
) -> Iterator[Mapping[str, Array]]:
    """Yields every example of `source` once, in batches on the devices.

    Args:
      config: gives batch size and workers.
      mesh: of the devices.
      source: a split.
      transform: the evaluation transform.
      stop: checked between batches.
      beat: called at every batch, see `run.stopping.Watchdog`.
      note: receives a line for every unreadable example, where the config allows for some.
    """
    B = config.evaluation.batch_size
    how = reading(config.data) | {"on_message": note}
    batches = eval_batches(
        source, transform=transform, batch_size=B, positions=host_positions(mesh, B), **how
    )
    with closing(stop.reading(batches)) as read:
        for number, batch in enumerate(read):
            beat(f"evaluation batch {number + 1}")
            yield global_batch(batch, mesh, B)
            stop.check()


def total(
    eval_step: Callable[[Mapping[str, Array]], Evaluation],
    batches: Iterable[Mapping[str, Array]],
    carry: Mapping[str, Array] | None = None,
) -> Evaluation:
    """Adds up the sums of `eval_step` over batches, in float64, and joins its rows.

    Results are fetched one batch late, so that the device always has work.

    Args:
      eval_step: maps a batch, `carry` among its arrays, to an `Evaluation`.
      batches: on the devices.
      carry: for the first batch.
    """
    totals, rows = Evaluation({}, {}), []
    previous: Evaluation | None = None

    def add(evaluation: Evaluation) -> None:
        found = jax.device_get(evaluation)
        for into, values in ((totals.sums, found.sums), (totals.layer_sums, found.layer_sums)):
            for name, value in values.items():
                into[name] = into.get(name, 0.0) + np.asarray(value, np.float64)
        rows.append(found.rows)

    for batch in batches:
        evaluation = eval_step({**batch, **(carry or {})})
        carry = evaluation.carry
        if previous is not None:
            add(previous)
        previous = evaluation.replace(carry={})
    if previous is not None:
        add(previous)
    for name in rows[0] if rows else ():
        totals.rows[name] = np.concatenate([part[name] for part in rows])
    return totals
