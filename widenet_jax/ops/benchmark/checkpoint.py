"""Benchmark of checkpoints: time that training waits, time to write and restore, size."""

import statistics
import time
import timeit
from contextlib import closing
from functools import partial

import jax
import jax.numpy as jnp
from etils import epath

from widenet_jax.checkpoint.checkpoints import LAST, Checkpoints
from widenet_jax.checkpoint.manifest import damage
from widenet_jax.checkpoint.series import directory_bytes, tree_bytes
from widenet_jax.experiment import Experiment
from widenet_jax.step import TrainState


def saving_row(name: str, experiment: Experiment, *, workdir: epath.Path, rounds: int) -> dict:
    """Saves a state `rounds` times and restores the last checkpoint; times are medians.

    Args:
      name: the config's name, for the row.
      experiment: the run.
      workdir: a new directory.
      rounds: number of checkpoints.

    Returns:
      {config, state_mb (arrays), disk_mb (one checkpoint), blocking_ms (the training loop waits),
      save_s (until the checkpoint is committed and verified), verify_s (all checksums), restore_s
      (verification, reading and placement on the devices)}.
    """
    open_series = partial(
        Checkpoints, workdir, meta={}, keep=1, primary_metric=experiment.task.primary_metric
    )
    blocking, whole = [], []
    with jax.set_mesh(experiment.mesh):
        state = jax.block_until_ready(jax.jit(with_moments)(experiment.init()))
        with closing(open_series()) as checkpoints:
            for step in range(1, rounds + 1):
                start = time.perf_counter()
                checkpoints.save(state, step=step)
                blocking.append(time.perf_counter() - start)
                checkpoints.wait()
                whole.append(time.perf_counter() - start)
        del state
        newest = workdir / LAST / str(rounds)
        verified = timeit.timeit(lambda: damage(newest), number=1)
        with closing(open_series()) as checkpoints:
            start = time.perf_counter()
            jax.block_until_ready(checkpoints.restore(experiment.state)[0])
            restored = time.perf_counter() - start
    return {
        "config": name,
        "state_mb": tree_bytes(experiment.state) / 1e6,
        "disk_mb": directory_bytes(newest) / 1e6,
        "blocking_ms": 1e3 * statistics.median(blocking),
        "save_s": statistics.median(whole),
        "verify_s": verified,
        "restore_s": restored,
    }


def with_moments(state: TrainState) -> TrainState:
    """Replaces the optimizer's zeros by noise, because zeros compress to almost nothing."""

    def noise(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return 1e-3 * jax.random.normal(jax.random.key(x.size), x.shape, x.dtype)

    return state.replace(opt_state=jax.tree.map(noise, state.opt_state))
