"""What checkpoints cost: how long training waits, how long writing and reading take, how large."""

import os
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from ml_collections import ConfigDict

from widenet_jax.checkpoint.checkpoints import LAST, Checkpoints
from widenet_jax.checkpoint.manifest import damage
from widenet_jax.checkpoint.space import tree_bytes
from widenet_jax.experiment import DataFacts, build_experiment
from widenet_jax.step import TrainState


def checkpoint_row(
    name: str,
    config: ConfigDict,
    data: DataFacts,
    devices: Sequence[jax.Device],
    *,
    workdir: epath.Path,
    rounds: int,
) -> dict[str, Any]:
    """Saves a state like a trained one `rounds` times, restores the last one; medians.

    Returns:
      {config, state_mb: of the arrays, disk_mb: of one checkpoint, blocking_ms: the loop waits,
      save_s: until it is committed, read back and found whole, verify_s: checking all checksums,
      restore_s: checking, reading and placing}.
    """
    experiment = build_experiment(config, data, devices)
    blocking, whole = [], []
    with jax.set_mesh(experiment.mesh):
        state = jax.block_until_ready(jax.jit(with_moments)(experiment.init()))
        with closing(Checkpoints(workdir, meta={}, keep=1)) as checkpoints:
            for step in range(1, rounds + 1):
                start = time.perf_counter()
                checkpoints.save(state, step=step)
                blocking.append(time.perf_counter() - start)
                checkpoints.wait()
                whole.append(time.perf_counter() - start)
        del state
        newest = workdir / LAST / str(rounds)
        start = time.perf_counter()
        damage(newest)
        verified = time.perf_counter() - start
        with closing(Checkpoints(workdir, meta={}, keep=1)) as checkpoints:
            start = time.perf_counter()
            jax.block_until_ready(checkpoints.restore(experiment.state)[0])
            restored = time.perf_counter() - start
    return {
        "config": name,
        "state_mb": tree_bytes(experiment.state) / 1e6,
        "disk_mb": directory_bytes(newest) / 1e6,
        "blocking_ms": 1e3 * sorted(blocking)[rounds // 2],
        "save_s": sorted(whole)[rounds // 2],
        "verify_s": verified,
        "restore_s": restored,
    }


def with_moments(state: TrainState) -> TrainState:
    """Moments as training leaves them: the zeros of a fresh state would compress to nothing."""

    def noise(x: jax.Array) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return 1e-3 * jax.random.normal(jax.random.key(x.size), x.shape, x.dtype)

    return state.replace(opt_state=jax.tree.map(noise, state.opt_state))


def directory_bytes(directory: epath.Path) -> int:
    return sum(
        os.path.getsize(os.path.join(place, name))
        for place, _, names in os.walk(directory)
        for name in names
    )
