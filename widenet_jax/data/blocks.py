"""Blocks: a few examples of one step, read, transformed and stacked.

A block is a pure function of its place, and so is the treatment of an example that cannot be read:
with on_bad_example="skip" training replaces it by the next readable record, and evaluation masks
it out. Any number of hosts and workers, and a resumed run, make the same blocks.

The order of training records is a function of the seed and the position in a stream of epochs, each
a new permutation of all N records. Global position p = step * batch_size + i (example i of that
step's batch) lies in epoch p // N at place p % N, so an epoch may end inside a batch. There is no
iterator state: a resumed run computes the same batches, and the global batch does not depend on how
its positions are divided among hosts. Streams of tokens are read in order, in B rows (`stream_at`).
"""

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from widenet_jax.data.contract import ArraySpec, Example, Source, Stream, Transform
from widenet_jax.errors import BadExampleError, BadInputError, RunFailedError, choose

# Divides small batch sizes. At 224 pixels a block of images takes 9.6 MB.
EXAMPLES_PER_BLOCK = 64
# This many unreadable examples in a row mean that the disk or the set is gone.
MAX_BAD_IN_A_ROW = 16
AHEAD = 16  # examples that threads read at a time; a remote disk answers many requests at once
# So many examples of a split may be unreadable where the allowed share of it would be fewer, but no
# more than so large a share.
FEW_BAD, FEW_BAD_SHARE = 10, 0.05
# Key of a block's warnings: [(record, message)], beside its arrays.
COMPLAINTS = "complaints"

Block = dict[str, Any]
Complaints = list[tuple[int, str]]
Arrays = dict[str, np.ndarray]
Row = tuple[int, Arrays | None, Complaints]  # a record, its arrays, and what could not be read
Result = TypeVar("Result")


def tried(
    work: Callable[..., Result], *arguments: Any, kind: type[BadInputError] = BadExampleError
) -> tuple[Result | None, str]:
    """Returns what `work(*arguments)` returns, and ""; or None, and the line of its error.

    Whatever continues after an example that cannot be read asks here: training, evaluation,
    packing, checks, predictions.
    """
    try:
        return work(*arguments), ""
    except kind as error:
        return None, str(error)


def in_threads(work: Callable[[Any], Result], items: Iterable[Any]) -> Iterator[Result]:
    """Yields `work(item)` of each item in their order; threads work on at most AHEAD of them."""
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[Future] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) == AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def read_example(source: Source, record: int) -> Example:
    """Returns the example of one record, with its description under "where".

    Raises:
      BadExampleError: the example cannot be read, or is no dict. A transform raises it for one
        that cannot be decoded.
    """
    example, where = source[record], source.describe(record)
    if not isinstance(example, Mapping):
        raise BadExampleError(f"{where}: the example is {type(example).__name__}; give a dict")
    return {**example, "where": where}


def read_row(
    source: Source, record: int, transform: Callable[[Example], Result], *, skip: bool
) -> tuple[Result | None, str]:
    """Transforms one record, as `tried`; without `skip` raises where it cannot be read."""

    def row() -> Result:
        return transform(read_example(source, record))

    return tried(row) if skip else (row(), "")


def read(
    source: Source, record: int, transform: Callable[[Example], Result], *, skip: bool
) -> tuple[Result, Complaints]:
    """Transforms one record, or with `skip` the first of record, record + 1, ... that can be read.

    Args:
      source: the examples.
      record: the first record to try.
      transform: decodes and transforms one example; called for each record that is tried.
      skip: whether records that cannot be read are passed over.

    Returns:
      What `transform` returns, and what was wrong with each record passed over.

    Raises:
      BadExampleError: without `skip`, the record cannot be read.
      BadInputError: MAX_BAD_IN_A_ROW records in a row cannot be read.
    """
    attempts, complaints = min(MAX_BAD_IN_A_ROW, len(source)), []
    for candidate in range(record, record + attempts):
        arrays, problem = read_row(source, candidate % len(source), transform, skip=skip)
        if not problem:
            return arrays, complaints
        complaints.append((candidate % len(source), problem))
    raise BadInputError(
        f"{attempts} examples in a row cannot be read, too many to skip: {complaints[-1][1]}"
    )


@dataclasses.dataclass(frozen=True)
class Blocks:
    """A random-access sequence of blocks; element k is block k % C of step start + k // C.

    Attributes:
      source: the examples.
      positions: this host's positions in the global batch, sorted.
      batch_size: examples in the global batch.
      start_step: step of the first block.
      num_steps: the step after the last.
      skip: whether examples that cannot be read are skipped; otherwise they raise.
      transform: maps (example, generator) to arrays.
    """

    source: Source
    positions: np.ndarray
    batch_size: int
    start_step: int
    num_steps: int
    skip: bool
    transform: Transform

    @property
    def blocks_per_step(self) -> int:
        return -(-len(self.positions) // EXAMPLES_PER_BLOCK)

    def __len__(self) -> int:
        return max(0, self.num_steps - self.start_step) * self.blocks_per_step

    def global_positions(self, index: int) -> np.ndarray:
        """Positions of block `index` in the stream of all batches: int64 [c]."""
        step, block = divmod(index, self.blocks_per_step)
        first = block * EXAMPLES_PER_BLOCK
        chosen = self.positions[first : first + EXAMPLES_PER_BLOCK]
        return (self.start_step + step) * self.batch_size + chosen


@dataclasses.dataclass(frozen=True)
class TrainBlocks(Blocks):
    """Blocks of shuffled, augmented records.

    Attributes:
      seed: of the shuffling and the augmentation.
    """

    seed: int

    def __getitem__(self, index: int) -> Block:
        epochs, records = record_at(
            self.global_positions(index), seed=self.seed, num_records=len(self.source)
        )

        def row(epoch: int, record: int) -> Row:
            # Augment a replacement with the skipped record's generator, so that it differs from
            # the replacement's own appearance in this epoch.
            transform = with_draws(self.transform, seed=self.seed, epoch=epoch, record=record)
            return record, *read(self.source, record, transform, skip=self.skip)

        begin(self.source, records)
        # A generator, because `map` would end without an error where a source raises StopIteration.
        places = enumerate(zip(epochs.tolist(), records.tolist(), strict=True))
        rows = ((i, row(*place)) for i, place in places)
        return stacked(self.source, len(records), rows) | {"record": records}


@dataclasses.dataclass(frozen=True)
class EvalBlocks(Blocks):
    """Blocks of every record once, in order; padding and bad examples are zeros and masked out."""

    def __getitem__(self, index: int) -> Block:
        records = self.global_positions(index)
        inside = records < len(self.source)

        def row(record: int) -> Row:
            # The same draws for every run and model.
            transform = with_draws(self.transform, seed=0, epoch=0, record=record)
            arrays, problem = read_row(self.source, record, transform, skip=self.skip)
            return record, arrays, [(record, problem)] if problem else []

        begin(self.source, records[inside])
        rows = ((i, row(int(records[i]))) for i in np.flatnonzero(inside).tolist())
        block = stacked(self.source, len(records), rows)
        if block.keys() == {"bad", COMPLAINTS}:  # no arrays: a readable example has their shapes
            spec = example_spec(self.source, self.transform, skip=self.skip)
            block |= {name: np.zeros((len(records), *x.shape), x.dtype) for name, x in spec.items()}
        mask = inside & ~block["bad"]
        return block | {"record": np.where(inside, records, -1), "mask": mask}


@dataclasses.dataclass(frozen=True)
class StreamBlocks(Blocks):
    """Blocks of a stream, in which each row of a batch continues that row of the batch before.

    "fresh" is True at the rows' first windows in an epoch.

    Attributes:
      whole: for evaluation: every window once. Rows that have ended are zeros and masked out.
        Otherwise epoch follows epoch, without the last windows that would not fill a batch.
    """

    source: Stream
    whole: bool

    def __getitem__(self, index: int) -> Block:
        positions = self.global_positions(index)
        place, windows = stream_at(
            positions, batch_size=self.batch_size, num_windows=len(self.source), whole=self.whole
        )
        mask = windows < len(self.source)
        tokens = self.source.read_windows(np.where(mask, windows, 0))
        tokens[~mask] = 0
        block = {"tokens": tokens, "fresh": place == 0, "record": np.where(mask, windows, -1)}
        block |= {"bad": np.zeros(len(tokens), bool), COMPLAINTS: []}
        return {**block, "mask": mask} if self.whole else block


def begin(source: Source, records: np.ndarray) -> None:
    """Lets a source begin to read records, if it can read several at a time."""
    if ahead := getattr(source, "ahead", None):
        ahead(records)


def stacked(source: Source, count: int, rows: Iterable[tuple[int, Row]]) -> Block:
    """Stacks the arrays of at most `count` examples, each with its place, as they come.

    The first example allocates the whole block. Stacking a list of arrays would return that memory
    to the system after every block and page-fault it in again.

    Raises:
      BadInputError: the arrays of an example are not as those before.
    """
    arrays: Arrays = {}
    bad, complaints = np.zeros(count, bool), []
    for index, (record, example, wrong) in rows:
        bad[index] = bool(wrong)
        complaints += wrong
        values = {name: np.asarray(value) for name, value in (example or {}).items()}
        arrays = arrays or {n: np.zeros((count, *x.shape), x.dtype) for n, x in values.items()}
        before = {name: array[index] for name, array in arrays.items()}
        if example is not None and not alike(values, before):
            found, others = (
                ", ".join(f"{name} {x.dtype}{list(x.shape)}" for name, x in some.items())
                for some in (values, before)
            )
            raise BadInputError(
                f"{source.describe(record)}: the transform gives {found}, and for others {others}; "
                "all must be alike"
            )
        for name, value in values.items():
            arrays[name][index] = value
    return {**arrays, "bad": bad, COMPLAINTS: complaints}


def alike(values: Arrays, others: Arrays) -> bool:
    """Returns whether arrays have the names and shapes of others, and fit their dtypes."""
    return values.keys() == others.keys() and all(
        x.shape == others[name].shape and np.can_cast(x.dtype, others[name].dtype, "same_kind")
        for name, x in values.items()
    )


def example_spec(source: Source, transform: Transform, *, skip: bool) -> dict[str, ArraySpec]:
    """Returns shape and dtype of each array of one example.

    It is the source's first, or with `skip` the first that can be read.
    """
    drawing = with_draws(transform, seed=0, epoch=0, record=0)
    example, _ = read(source, 0, drawing, skip=skip)
    return {key: ArraySpec(np.shape(x), str(np.asarray(x).dtype)) for key, x in example.items()}


def skips(on_bad_example: str) -> bool:
    """Returns whether `config.data.on_bad_example` is to skip examples that cannot be read.

    Raises:
      BadInputError: neither "error" nor "skip".
    """
    choices = {"error": False, "skip": True}
    return choose(choices, on_bad_example, field="config.data.on_bad_example")


def check_bad(*counts: int, **split: Any) -> None:
    """Raises RunFailedError for the line of `too_many_bad`."""
    if problem := too_many_bad(*counts, **split):
        raise RunFailedError(problem)


def too_many_bad(bad: int, seen: int, *, num_examples: int, limit: float, what: str) -> str:
    """Returns a line where too large a share of the examples of a split is unreadable, else "".

    Args:
      bad: how many were unreadable.
      seen: how many were read, in one pass or several.
      num_examples: of the split. A thousandth of a small set would be less than one example.
      limit: `config.data.max_bad_fraction`; 0 allows none.
      what: what they are, as in "training images".
    """
    few = min(FEW_BAD, FEW_BAD_SHARE * num_examples)
    allowed = max(limit * num_examples, few) if limit else 0.0
    if bad <= allowed * max(seen / num_examples, 1):
        return ""
    why = f"; of small sets {FEW_BAD}, but no more than {FEW_BAD_SHARE:.0%}"
    setting = f"config.data.max_bad_fraction={limit:g}"
    setting += why if allowed > limit * num_examples else ""
    return (
        f"{bad:,} of {seen:,} {what} could not be read; in each pass at most {int(allowed):,} of "
        f"{num_examples:,} may be ({setting}); mend the data (notes name them, also those of a "
        "run's earlier starts; each host names its own) or allow them: "
        f"--config.data.max_bad_fraction={math.ceil(1000 * bad / max(seen, num_examples)) / 1000:g}"
    )


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Joins the blocks of one step, and empties them.

    The arrays are copies: a worker's lie in shared memory, which is freed when they are deleted.
    """
    names = [key for key in blocks[0] if key != COMPLAINTS]
    joined = {key: np.concatenate([block.pop(key) for block in blocks]) for key in names}
    complaints = [complaint for block in blocks for complaint in block.pop(COMPLAINTS)]
    return {**joined, COMPLAINTS: complaints}


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
    epoch, place = np.divmod(np.asarray(positions, np.int64), num_records)
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
    step, row = np.divmod(np.asarray(positions, np.int64), batch_size)
    place = step % steps
    return place, row * steps + place


def with_draws(transform: Transform, **place: int) -> Callable[[Example], Arrays]:
    """Returns a transform of an example, which draws anew at each call; see `augmentation_rng`."""
    return lambda example: transform(example, augmentation_rng(**place))


def augmentation_rng(*, seed: int, epoch: int, record: int) -> np.random.Generator:
    """Returns the generator that augments a record in an epoch, the same in every process."""
    return np.random.default_rng([AUGMENTATION_STREAM, seed, epoch, record])
