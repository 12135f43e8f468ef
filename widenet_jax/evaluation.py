"""Evaluation: a model over a whole split, each image once."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from widenet_jax.data.images.sources import Source
from widenet_jax.data.pipeline import EvalTransform, eval_batches
from widenet_jax.errors import RunFailedError
from widenet_jax.experiment import Experiment
from widenet_jax.moe.balance import summarize
from widenet_jax.run.stopping import Stop
from widenet_jax.sharding import global_batch, host_positions
from widenet_jax.typing import Array, PyTree


def evaluate(
    experiment: Experiment,
    params: PyTree,
    source: Source,
    transform: EvalTransform,
    *,
    stop: Stop,
    beat: Callable[[str], None],
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Metrics of `params` over `source`; for a routed model the routing's statistics, too.

    Args:
      experiment: whose config gives batch size and workers.
      params: of its model, placed as it says.
      source: a split.
      transform: to the model's image size.
      stop: asked between batches.
      beat: told of every batch, see `watchdog`.
      note: told of every image that cannot be read, where the config allows for such.

    Raises:
      StopRequestedError: `stop` was asked to.
      RunFailedError: too large a share of the images is unreadable.
    """
    batches = placed_batches(
        experiment.config, experiment.mesh, source, transform, stop=stop, beat=beat, note=note
    )
    with closing(batches):
        sums = sum_over(partial(experiment.eval_step, params), batches)
    routing = summarize(sums) if "load" in sums else {}
    metrics = experiment.task.summarize(sums) | routing
    metrics["bad_examples"] = len(source) - metrics["images"]
    allowed = experiment.config.data.max_bad_fraction
    if metrics["bad_examples"] > allowed * len(source):
        raise RunFailedError(
            f"{metrics['bad_examples']:,} of {len(source):,} test images could not be read, more "
            f"than config.data.max_bad_fraction={allowed:g} allows; mend the data (they are named "
            "above)"
        )
    return metrics


def placed_batches(
    config: ConfigDict,
    mesh: Mesh,
    source: Source,
    transform: EvalTransform,
    *,
    stop: Stop,
    beat: Callable[[str], None],
    note: Callable[[str], None],
) -> Iterator[Mapping[str, Array]]:
    """Every image of `source` once, in batches on the devices; see `evaluate` for the arguments."""
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


def sum_over(
    eval_step: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    batches: Iterable[Mapping[str, Array]],
) -> dict[str, np.ndarray]:
    """`eval_step`'s sums added up over batches, in float64; the device works one batch ahead."""
    totals: dict[str, np.ndarray] = {}
    previous: Mapping[str, Array] = {}
    for batch in itertools.chain(batches, [None]):
        sums = eval_step(batch) if batch is not None else {}
        for key, value in jax.device_get(previous).items():
            totals[key] = totals.get(key, 0.0) + np.asarray(value, np.float64)
        previous = sums
    return totals


def result_metrics(metrics: Mapping) -> dict[str, Any]:
    """What `result.json` says of the evaluation: accuracy, and the routing over all blocks."""
    result = {
        "test_accuracy": metrics["accuracy"],
        "test_cross_entropy": metrics["cross_entropy"],
        "test_images": metrics["images"],
    }
    if "load" in metrics:
        result["drop_rate"] = float(np.mean(metrics["drop_rate"]))
        result["expert_load"] = np.mean(metrics["load"], axis=0).round(4).tolist()
    return result
