"""Evaluation of a model over a whole split, each example once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from ml_collections import ConfigDict

from widenet_jax.data import Source, Transform
from widenet_jax.data.pipeline import eval_batches
from widenet_jax.errors import RunFailedError
from widenet_jax.experiment import Experiment
from widenet_jax.run.stopping import Stop
from widenet_jax.sharding import BATCH, global_batch, host_positions
from widenet_jax.tasks import Evaluation, Task
from widenet_jax.typing import Array, PyTree

EvalStep = Callable[[Mapping[str, Array]], Evaluation]


class Totals(NamedTuple):
    """Results of the evaluation steps over a split.

    Attributes:
      sums, layer_sums: added up in float64.
      rows: [N, ...], row i for record i.
    """

    sums: dict[str, np.ndarray]
    layer_sums: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]


def evaluate(
    experiment: Experiment,
    params: PyTree,
    source: Source,
    transform: Transform,
    *,
    stop: Stop,
    beat: Callable[[str], None],
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Returns the metrics of `params` over `source`, and the feed-forwards' statistics.

    Args:
      experiment: gives task, mesh, batch size and workers.
      params: parameters of its model, placed as it says.
      source: a split.
      transform: the evaluation transform.
      stop: checked between batches.
      beat: called at every batch, see `run.watchdog`.
      note: receives a line for every unreadable example, where the config allows for some.

    Raises:
      StopRequestedError: a stop was requested.
      RunFailedError: too large a share of the examples is unreadable.
    """
    config, task, mesh = experiment.config, experiment.task, experiment.mesh
    batches = placed_batches(config, mesh, source, transform, stop=stop, beat=beat, note=note)
    sharding = NamedSharding(mesh, BATCH)
    carry = {
        name: jax.device_put(jnp.zeros(spec.shape, spec.dtype), sharding)
        for name, spec in task.carry_spec(config.evaluation.batch_size).items()
    }
    with closing(batches):
        totals = total(partial(experiment.eval_step, params), batches, carry)
    rows = {name: values[: len(source)] for name, values in totals.rows.items()}
    metrics = task.summarize(totals.sums, rows, source)
    metrics |= experiment.model.summarize(totals.layer_sums)
    metrics["bad_examples"] = len(source) - metrics[task.unit]
    allowed = config.data.max_bad_fraction
    if metrics["bad_examples"] > allowed * len(source):
        raise RunFailedError(
            f"{metrics['bad_examples']:,} of {len(source):,} evaluation {task.unit} could not be "
            f"read, more than config.data.max_bad_fraction={allowed:g} allows; mend the data (they "
            "are named above)"
        )
    return metrics


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
    """Yields every example of `source` once, in batches on the devices; arguments as `evaluate`."""
    B = config.evaluation.batch_size
    positions = host_positions(mesh, B)
    batches = eval_batches(
        source,
        transform=transform,
        batch_size=B,
        positions=positions,
        num_workers=config.data.num_workers,
        prefetch=config.data.prefetch,
        on_bad_example=config.data.on_bad_example,
        on_message=note,
    )
    with closing(stop.reading(batches)) as read:
        for number, batch in enumerate(read):
            beat(f"evaluation batch {number + 1}")
            yield global_batch(batch, mesh=mesh, batch_size=B, positions=positions)
            stop.check()


def total(
    eval_step: EvalStep,
    batches: Iterable[Mapping[str, Array]],
    carry: Mapping[str, Array] | None = None,
) -> Totals:
    """Adds up the sums of `eval_step` over batches and joins its rows.

    Results are fetched one batch late, so that the device always has work.

    Args:
      eval_step: maps a batch, `carry` among its arrays, to an `Evaluation`.
      batches: on the devices.
      carry: for the first batch.
    """
    totals, rows = Totals({}, {}, {}), []
    previous: Evaluation | None = None

    def add(evaluation: Evaluation) -> None:
        sums, layer_sums, new_rows = jax.device_get(
            (evaluation.sums, evaluation.layer_sums, evaluation.rows)
        )
        for into, values in ((totals.sums, sums), (totals.layer_sums, layer_sums)):
            for name, value in values.items():
                into[name] = into.get(name, 0.0) + np.asarray(value, np.float64)
        rows.append(new_rows)

    for batch in batches:
        evaluation = eval_step({**batch, **(carry or {})})
        carry = evaluation.carry
        if previous is not None:
            add(previous)
        previous = evaluation
    if previous is not None:
        add(previous)
    for name in rows[0] if rows else ():
        totals.rows[name] = np.concatenate([part[name] for part in rows])
    return totals


def result_metrics(metrics: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Returns what `result.json` says of an evaluation: `test_<metric>`, routing over all blocks.

    Args:
      metrics: of `evaluate`.
      task: gives the headline, the unit and the baseline.
    """
    scalars = {name: value for name, value in metrics.items() if np.ndim(value) == 0}
    scalars.pop("bad_examples", None)
    result = {f"test_{name}": value for name, value in scalars.items()}
    result |= {"headline": task.headline._asdict(), "unit": task.unit}
    if task.baseline:
        result["baseline"] = task.baseline._asdict()
    if "load" in metrics:
        result["drop_rate"] = float(np.mean(metrics["drop_rate"]))
        result["expert_load"] = np.mean(metrics["load"], axis=0).round(4).tolist()
    return result
