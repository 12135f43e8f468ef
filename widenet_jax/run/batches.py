"""The training batches of a run: the records that they hold, and their reading."""

from typing import Any

import numpy as np

from widenet_jax.data import Data
from widenet_jax.data.pipeline import Batches, reading, train_batches
from widenet_jax.data.sampler import record_at, stream_at
from widenet_jax.experiment import Experiment
from widenet_jax.sharding import host_positions


def records_of_step(experiment: Experiment, step: int) -> list[int]:
    """Returns the training records of the global batch that follows `step` updates, in order."""
    B = experiment.config.batch_size
    N, seed = experiment.data_info.num_examples, experiment.config.seed
    positions = step * B + np.arange(B)
    if experiment.data_info.stream:
        _, records = stream_at(positions, batch_size=B, num_windows=N, whole=False)
    else:
        _, records = record_at(positions, seed=seed, num_records=N)
    return records.tolist()


def read_batches(
    experiment: Experiment, data: Data, start_step: int, num_steps: int, **options: Any
) -> Batches:
    """Returns this host's batches of steps start_step..num_steps - 1; see `train_batches`."""
    config = experiment.config
    return train_batches(
        data.train,
        transform=data.train_transform,
        seed=config.seed,
        batch_size=config.batch_size,
        positions=host_positions(experiment.mesh, config.batch_size),
        start_step=start_step,
        num_steps=num_steps,
        **reading(config.data),
        **options,
    )
