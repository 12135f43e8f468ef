"""Replaying the step whose loss or gradient was not finite, from the state kept for that."""

from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.checkpoint.checkpoints import FAILED
from widenet_jax.checkpoint.hashes import fingerprint
from widenet_jax.checkpoint.series import Series
from widenet_jax.data.images.sources import Source
from widenet_jax.data.pipeline import TrainTransform, train_batches
from widenet_jax.data.sampler import record_at
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import Experiment
from widenet_jax.param_names import path_names
from widenet_jax.sharding import global_batch, host_positions, to_host
from widenet_jax.typing import PyTree


def records_of_step(experiment: Experiment, step: int) -> list[int]:
    """The training records of the global batch after `step` updates, in order."""
    B = experiment.config.batch_size
    _, records = record_at(
        step * B + np.arange(B),
        seed=experiment.config.seed,
        num_records=experiment.facts.num_examples,
    )
    return records.tolist()


def replay(
    experiment: Experiment, source: Source, transform: TrainTransform, workdir: epath.Path
) -> dict[str, Any]:
    """Works on that batch again, with the same parameters and randomness; changes nothing.

    Returns {step, loss, gradient_norm, not_finite: {gradients: [parameter], images: [where]},
    batch: [where]}; an image is listed as not finite if its logits are, without dropout or mixup.

    Raises:
      BadInputError: no step of this run was kept for a replay.
    """
    config, mesh = experiment.config, experiment.mesh
    with closing(Series(workdir / FAILED, keep=1)) as series:
        kept, _ = series.newest(
            {"params": experiment.state.params},
            fingerprint=fingerprint(experiment.state.params),
            finite=False,
        )
    if kept is None:
        raise BadInputError(f"--workdir={workdir}: no step of this run was kept for a replay")
    params, step = kept.items["params"], kept.meta["step"]
    positions = host_positions(mesh, config.batch_size)
    with train_batches(
        source,
        transform=transform,
        seed=config.seed,
        batch_size=config.batch_size,
        positions=positions,
        start_step=step,
        num_steps=step + 1,
        num_workers=0,
        prefetch=1,
        on_bad_example=config.data.on_bad_example,
    ) as batches:
        local = next(batches)
    batch = global_batch(local, mesh=mesh, batch_size=config.batch_size, positions=positions)

    def work(params: PyTree, batch: dict, step: jax.Array) -> dict:
        grads, (means, _) = experiment.gradients(params, batch, step)
        apply = lambda images, mask, rngs: experiment.model.apply(  # noqa: E731
            {"params": params}, images, mask=mask, train=False
        )
        logits = experiment.task.logits(apply, batch)
        return {
            "loss": means["loss"],
            "gradient_norm": optax.tree.norm(grads),
            "finite_gradients": jax.tree.map(lambda g: jnp.isfinite(g).all(), grads),
            "finite_images": jnp.isfinite(logits).all(axis=-1),
        }

    whole = NamedSharding(mesh, P())
    found = jax.jit(work, out_shardings=whole)(params, batch, jnp.int32(step))
    found = to_host(found)
    places = [source.describe(record) for record in records_of_step(experiment, step)]
    gradients = zip(
        path_names(found["finite_gradients"]),
        jax.tree.leaves(found["finite_gradients"]),
        strict=True,
    )
    return {
        "mode": "replay",
        "step": step + 1,
        "loss": str(found["loss"]),  # JSON has no number for what is not finite
        "gradient_norm": str(found["gradient_norm"]),
        "not_finite": {
            "gradients": [name for name, finite in gradients if not finite],
            "images": [places[i] for i in np.flatnonzero(~found["finite_images"])],
        },
        "batch": places,
    }
