"""Replay of the step whose loss or gradient was not finite, from the state kept for it."""

from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.checkpoint.checkpoints import FAILED, arrays_of
from widenet_jax.checkpoint.manifest import fingerprint
from widenet_jax.checkpoint.series import Series
from widenet_jax.data.contract import Data
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import Experiment
from widenet_jax.param_names import named_leaves
from widenet_jax.run.session import read_batches, records_of_step
from widenet_jax.sharding import global_batch, to_host
from widenet_jax.step import forward
from widenet_jax.typing import Array, PyTree


def replay(experiment: Experiment, data: Data, workdir: epath.Path) -> dict[str, Any]:
    """Repeats that step with the same parameters, carry and randomness; changes nothing.

    Returns {step, unit, loss, gradient_norm, not_finite: {gradients: [parameter], examples:
    [description]}, batch: [description]}. An example counts as not finite if an output of the
    model is, without dropout or mixup.

    Raises:
      BadInputError: no step of this run was kept for a replay.
    """
    task, target = experiment.task, experiment.state
    items = {name: item for name, item in arrays_of(target).items() if name != "opt_state"}
    with closing(Series(workdir / FAILED, keep=1)) as series:
        kept, _ = series.newest(items, fingerprint=fingerprint(target.params), finite=False)
    if kept is None:
        raise BadInputError(f"--workdir={workdir}: no step of this run was kept for a replay")
    params, step = kept.items["params"], kept.meta["step"]
    with read_batches(experiment, data, step, step + 1) as batches:
        batch = global_batch(next(batches), experiment.mesh, experiment.config.batch_size)
    batch |= kept.items.get("carry", {})

    def work(params: PyTree, batch: dict[str, Array], step: Array) -> dict[str, PyTree]:
        grads, metrics = experiment.gradients(params, batch, step)
        outputs, _ = forward(experiment.model, params, task.inputs(batch))
        finite = [jnp.isfinite(x).all(axis=range(1, x.ndim)) for x in jax.tree.leaves(outputs)]
        return {
            "loss": metrics.means["loss"],
            "gradient_norm": optax.tree.norm(grads),
            "finite_gradients": jax.tree.map(lambda g: jnp.isfinite(g).all(), grads),
            "finite_examples": jnp.stack(finite).all(axis=0),
        }

    replicated = NamedSharding(experiment.mesh, P())
    found = to_host(jax.jit(work, out_shardings=replicated)(params, batch, jnp.int32(step)))
    places = [data.train.describe(record) for record in records_of_step(experiment, step)]
    named = named_leaves(found["finite_gradients"])
    return {
        "mode": "replay",
        "step": step + 1,
        "unit": task.unit,
        "loss": str(found["loss"]),  # JSON has no number that is not finite
        "gradient_norm": str(found["gradient_norm"]),
        "not_finite": {
            "gradients": [name for name, finite in named if not finite],
            "examples": [places[i] for i in np.flatnonzero(~found["finite_examples"])],
        },
        "batch": places,
    }
