"""Evaluation of a model over a whole split, each example once."""

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.sharding import Mesh, NamedSharding
from ml_collections import ConfigDict

from widenet_jax.checkpoint.checkpoints import load_checkpoint
from widenet_jax.data.blocks import check_bad
from widenet_jax.data.contract import Data, Source, Transform
from widenet_jax.data.pipeline import eval_batches, reading
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import Experiment
from widenet_jax.run.stopping import Stop, say
from widenet_jax.run.summary import result_of
from widenet_jax.run.workdir import check_info
from widenet_jax.sharding import BATCH, global_batch, host_positions
from widenet_jax.task import Evaluation, Task
from widenet_jax.typing import Array, PyTree


def evaluate(experiment: Experiment, data: Data, params: PyTree, **hooks: Any) -> dict[str, Any]:
    """Returns the metrics of `params` over the evaluation split, and the feed-forwards' statistics.

    Args:
      experiment: gives task, mesh, batch size and workers.
      data: gives the split and its transform.
      params: parameters of its model, placed as it says.
      **hooks: `stop`, `beat` and `note` of `total`.

    Raises:
      StopRequestedError: a stop was requested.
      RunFailedError: too large a share of the examples is unreadable.
    """
    config, task, source = experiment.config, experiment.task, data.eval
    step, split = partial(experiment.eval_step, params), (source, data.eval_transform)
    totals = total(step, *split, task=task, config=config, mesh=experiment.mesh, **hooks)
    metrics = task.summarize(totals.sums, totals.rows, source)
    metrics |= experiment.model.summarize(totals.layer_sums)
    metrics["bad_examples"] = len(source) - metrics[task.unit]
    what, size = f"evaluation {task.unit}", len(source)
    limit = config.data.max_bad_fraction
    check_bad(metrics["bad_examples"], size, num_examples=size, limit=limit, what=what)
    return metrics


def total(
    eval_step: Callable[[Mapping[str, Array]], Evaluation],
    source: Source,
    transform: Transform,
    *,
    task: Task,
    config: ConfigDict,
    mesh: Mesh,
    stop: Stop,
    beat: Callable[[str], None],
    note: Callable[[str], None],
) -> Evaluation:
    """Adds up the sums of `eval_step` over a source, in float64, and joins its rows.

    Every example is read once. Results are fetched one batch late, so that the device always has
    work.

    Args:
      eval_step: maps a batch, the task's carry among its arrays, to an `Evaluation`.
      source: a split.
      transform: the evaluation transform.
      task: gives the first carry: zeros, or {} of most tasks.
      config: gives batch size and workers.
      mesh: of the devices.
      stop: checked between batches.
      beat: called at every batch, see `run.stopping.Watchdog`.
      note: receives a line for every unreadable example, where the config allows for some.
    """
    B, sharding = config.evaluation.batch_size, NamedSharding(mesh, BATCH)
    spec = task.eval_carry_spec(B)
    carry = {name: jnp.zeros(x.shape, x.dtype, device=sharding) for name, x in spec.items()}
    totals, rows = Evaluation({}, {}), []
    previous: Evaluation | None = None

    def add(evaluation: Evaluation) -> None:
        found = jax.device_get(evaluation)
        for into, values in ((totals.sums, found.sums), (totals.layer_sums, found.layer_sums)):
            for name, value in values.items():
                into[name] = into.get(name, 0.0) + np.asarray(value, np.float64)
        rows.append(found.rows)

    how = {"batch_size": B, "positions": host_positions(mesh, B)}
    how["on_message"] = lambda message: note(f"skipped: {message}")
    batches = eval_batches(source, transform=transform, **how, **reading(config.data))
    with closing(stop.reading(batches)) as read:
        for number, batch in enumerate(read, 1):
            beat(f"evaluation batch {number}")
            evaluation = eval_step({**global_batch(batch, mesh, B), **carry})
            carry = evaluation.carry
            if previous is not None:
                add(previous)
            previous = evaluation.replace(carry={})
            stop.check()
    if previous is not None:
        add(previous)
    for name in rows[0] if rows else ():
        totals.rows[name] = np.concatenate([part[name] for part in rows])[: len(source)]
    return totals


def evaluate_newest(
    experiment: Experiment, data: Data, workdir: epath.Path, stop: Stop
) -> dict[str, Any]:
    """Evaluates the newest intact checkpoint; changes nothing."""
    newest = load_checkpoint(workdir, experiment.state.params)
    if newest is None:
        raise BadInputError(f"--workdir={workdir}: no finished checkpoint to evaluate")
    check_info(newest.meta, data.data_info.info, workdir=workdir)
    hooks = {"stop": stop, "beat": lambda what: None, "note": say}
    metrics = evaluate(experiment, data, newest.items["params"], **hooks)
    return result_of(experiment, metrics, mode="eval", step=newest.meta["step"])
