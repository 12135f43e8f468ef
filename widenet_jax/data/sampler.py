"""Which record comes when: a pure function of the seed and the place in the stream.

The stream of a run is one epoch after another, each a fresh permutation of all records. Global
position p = step * batch_size + i (image i of the batch of that step) lies in epoch p // N at place
p % N, so an epoch may end inside a batch. There is no iterator state: a resumed run computes the
same batches, and hosts that take different i of a batch together make the same global batch.
"""

import functools

import numpy as np

# The first word of every seed sequence of the data pipeline, so that no two uses share a stream.
# (NumPy pads short sequences with zeros: [seed, epoch] and [seed, epoch, 0] would be the same.)
PERMUTATION_STREAM = 1
AUGMENTATION_STREAM = 2


@functools.lru_cache(maxsize=3)
def permutation(seed: int, epoch: int, num_records: int) -> np.ndarray:
    """The order of one epoch: int64 [N], each record once. Read-only, as it is cached."""
    rng = np.random.default_rng([PERMUTATION_STREAM, seed, epoch])
    order = rng.permutation(num_records)
    order.flags.writeable = False
    return order


def record_at(
    positions: np.ndarray, *, seed: int, num_records: int
) -> tuple[np.ndarray, np.ndarray]:
    """The records at global positions of the training stream.

    Args:
      positions: int [b], each >= 0: step * batch_size + i.
      seed: the run's data seed, >= 0.
      num_records: N, the size of the training split.

    Returns:
      (epoch, record): int64 [b] each; record in 0..N-1.
    """
    positions = np.asarray(positions, np.int64)
    if num_records < 1 or (positions.size and positions.min() < 0):
        raise ValueError(f"need positions >= 0 and records, got N={num_records}, {positions}")
    epoch, place = np.divmod(positions, num_records)
    record = np.empty_like(place)
    for e in np.unique(epoch):
        here = epoch == e
        record[here] = permutation(seed, int(e), num_records)[place[here]]
    return epoch, record


def augmentation_rng(*, seed: int, epoch: int, record: int) -> np.random.Generator:
    """The generator that augments one record in one epoch, whoever does it and when."""
    return np.random.default_rng([AUGMENTATION_STREAM, seed, epoch, record])
