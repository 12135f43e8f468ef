"""The order of training records: a pure function of the seed and the position in the stream.

The stream of a run is a sequence of epochs, each a new permutation of all N records. Global
position p = step * batch_size + i (example i of that step's batch) lies in epoch p // N at place
p % N, so an epoch may end inside a batch. There is no iterator state: a resumed run computes the
same batches, and the global batch does not depend on how its positions are divided among hosts.

Streams of tokens are read in order, in B rows (`stream_at`).
"""

import functools

import numpy as np

# The first word of each seed sequence in the data pipeline: it keeps the random streams of
# different uses apart. NumPy pads short sequences with zeros, so without it [seed, epoch] and
# [seed, epoch, 0] would give the same stream.
PERMUTATION_STREAM = 1
AUGMENTATION_STREAM = 2


@functools.lru_cache(maxsize=3)
def permutation(seed: int, epoch: int, num_records: int) -> np.ndarray:
    """Draws the order of one epoch: int64 [N], each record once; read-only (cached)."""
    rng = np.random.default_rng([PERMUTATION_STREAM, seed, epoch])
    order = rng.permutation(num_records)
    order.flags.writeable = False
    return order


def record_at(
    positions: np.ndarray, *, seed: int, num_records: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the records at global positions of the training stream.

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


def stream_at(
    positions: np.ndarray, *, batch_size: int, num_windows: int, whole: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the windows of a stream at global positions, for rows that continue each other.

    A stream of n windows makes S batches an epoch. Row b of step s holds window b * S + s mod S,
    so that it continues row b of the step before, except where an epoch begins.

    Args:
      positions: int [b], each >= 0: step * batch_size + row.
      batch_size: B, rows of the global batch.
      num_windows: n.
      whole: False, S = n // B: the last n mod B windows are left out. True, S = n / B, rounded up:
        every window occurs in an epoch, and the last rows end early.

    Returns:
      (place, window): int64 [b] each; s mod S, and the window, n or more where a row has ended.
    """
    steps = -(-num_windows // batch_size) if whole else num_windows // batch_size
    if steps < 1:
        raise ValueError(f"{num_windows} windows are fewer than {batch_size} rows")
    step, row = np.divmod(np.asarray(positions, np.int64), batch_size)
    place = step % steps
    return place, row * steps + place


def augmentation_rng(*, seed: int, epoch: int, record: int) -> np.random.Generator:
    """Returns the generator that augments a record in an epoch, the same in every process."""
    return np.random.default_rng([AUGMENTATION_STREAM, seed, epoch, record])
