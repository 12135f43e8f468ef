"""Chunks: a few images of one step, read and transformed, each a pure function of its place.

So is what happens to an image that cannot be read. With on_bad_example="skip" training takes the
next record that can be, and evaluation masks the image out: on any number of hosts or workers and
in a resumed run the same.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from widenet_jax.data import sampler
from widenet_jax.data.images import files
from widenet_jax.data.images.sources import Source
from widenet_jax.data.images.transforms import EvalTransform, TrainTransform
from widenet_jax.errors import BadExampleError, BadInputError

# Multiple of small batch sizes; at 224 pixels a chunk is 9.6 MB.
IMAGES_PER_CHUNK = 64
ON_BAD_EXAMPLE = dict.fromkeys(("error", "skip"))
# So many unreadable images one after the other are no accident: the disk, or the set, is gone.
MAX_BAD_IN_A_ROW = 16
# Beside its arrays a chunk carries a list of what there is to say: (record, message).
COMPLAINTS = "complaints"

Batch = dict[str, np.ndarray]
Chunk = dict[str, Any]
Complaints = list[tuple[int, str]]
Transform = Callable[[files.Image], np.ndarray]


def read_image(source: Source, record: int) -> tuple[files.Image, int]:
    """(uint8 [H, W, C] or a file that transforms will decode, label) of one record.

    Raises:
      BadExampleError: it cannot be read; a transform raises it if it cannot be decoded.
    """
    example = source[record]
    image = example["image"]
    if isinstance(image, bytes):
        image = files.EncodedImage(image, source.describe(record))
    return image, example["label"]


def read_next_good(
    source: Source, record: int, transform: Transform, complaints: Complaints
) -> tuple[np.ndarray, int]:
    """(transform(image), label) of the first of record, record + 1, ... (mod N) that can be read.

    Args:
      source: the images.
      record: where to begin.
      transform: which decodes; called for each record that is tried.
      complaints: what was wrong with the records passed over is added to it.

    Raises:
      BadInputError: MAX_BAD_IN_A_ROW in a row cannot be read.
    """
    attempts = min(MAX_BAD_IN_A_ROW, len(source))
    for candidate in range(record, record + attempts):
        candidate %= len(source)
        try:
            image, label = read_image(source, candidate)
            return transform(image), label
        except BadExampleError as error:
            complaints.append((candidate, str(error)))
    raise BadInputError(
        f"{attempts} images in a row cannot be read, too many to skip: {complaints[-1][1]}"
    )


@dataclasses.dataclass(frozen=True)
class Chunks:
    """A random-access sequence of chunks; element k is chunk k % C of step start + k // C.

    Attributes:
      source: the images.
      positions: this host's positions of the global batch, sorted.
      batch_size: images of the global batch.
      start_step: step of the first chunk.
      num_steps: the step after the last.
      skip: go on without images that cannot be read.
    """

    source: Source
    positions: np.ndarray
    batch_size: int
    start_step: int
    num_steps: int
    skip: bool

    @property
    def chunks_a_step(self) -> int:
        return -(-len(self.positions) // IMAGES_PER_CHUNK)

    def __len__(self) -> int:
        return max(0, self.num_steps - self.start_step) * self.chunks_a_step

    def global_positions(self, index: int) -> np.ndarray:
        """Positions in the stream of all batches of chunk `index`: int64 [c]."""
        step, chunk = divmod(index, self.chunks_a_step)
        first = chunk * IMAGES_PER_CHUNK
        chosen = self.positions[first : first + IMAGES_PER_CHUNK]
        return (self.start_step + step) * self.batch_size + chosen


@dataclasses.dataclass(frozen=True)
class TrainChunks(Chunks):
    transform: TrainTransform
    seed: int

    def __getitem__(self, index: int) -> Chunk:
        epochs, records = sampler.record_at(
            self.global_positions(index), seed=self.seed, num_records=len(self.source)
        )
        bad = np.zeros(len(records), bool)
        complaints: Complaints = []
        labels = np.zeros(len(records), np.int32)
        # Written where they belong: a list to stack would be so much memory that the allocator
        # gives it back after every chunk, to fault it in anew.
        pictures = None
        for i, (epoch, record) in enumerate(zip(epochs.tolist(), records.tolist(), strict=True)):
            before = len(complaints)
            picture, labels[i] = self._read(epoch, record, complaints)
            bad[i] = len(complaints) > before
            if pictures is None:
                pictures = np.empty((len(records), *picture.shape), np.uint8)
            pictures[i] = picture
        return {
            "image": pictures,
            "label": labels,
            "record": records,
            "bad": bad,
            COMPLAINTS: complaints,
        }

    def _read(self, epoch: int, record: int, complaints: Complaints) -> tuple[np.ndarray, int]:
        """(picture, label) of the record, or where it is bad and may be skipped of a stand-in."""

        def transform(image: files.Image) -> np.ndarray:
            # A stand-in is augmented as what it stands for: the neighbour's own picture is another.
            rng = sampler.augmentation_rng(seed=self.seed, epoch=epoch, record=record)
            return self.transform(image, rng)

        if self.skip:
            return read_next_good(self.source, record, transform, complaints)
        image, label = read_image(self.source, record)
        return transform(image), label


@dataclasses.dataclass(frozen=True)
class EvalChunks(Chunks):
    transform: EvalTransform

    def __getitem__(self, index: int) -> Chunk:
        records = self.global_positions(index)
        inside = records < len(self.source)
        bad = np.zeros(len(records), bool)
        complaints: Complaints = []
        labels = np.zeros(len(records), np.int32)
        pictures = None
        for i in np.flatnonzero(inside).tolist():
            try:
                image, label = read_image(self.source, int(records[i]))
                picture = self.transform(image)
            except BadExampleError as error:
                if not self.skip:
                    raise
                bad[i] = True
                complaints.append((int(records[i]), str(error)))
                continue
            if pictures is None:
                pictures = np.zeros((len(records), *picture.shape), np.uint8)
            pictures[i], labels[i] = picture, label
        if pictures is None:
            shape = shape_of_images(self.source, self.transform, skip=self.skip)
            pictures = np.zeros((len(records), *shape), np.uint8)
        return {
            "image": pictures,
            "label": labels,
            "record": np.where(inside, records, -1),
            "mask": inside & ~bad,
            "bad": bad,
            COMPLAINTS: complaints,
        }


def shape_of_images(
    source: Source, transform: EvalTransform, *, skip: bool
) -> tuple[int, int, int]:
    """(height, width, channels) of every image of a batch, from the source's first (readable)."""
    if skip:
        return read_next_good(source, 0, transform, [])[0].shape
    return transform(read_image(source, 0)[0]).shape


def put_together(chunks: Sequence[Chunk]) -> Chunk:
    """The chunks of one step as one."""
    if len(chunks) == 1:
        return chunks[0]
    joined: Chunk = {
        key: np.concatenate([chunk[key] for chunk in chunks])
        for key in chunks[0]
        if key != COMPLAINTS
    }
    return {**joined, COMPLAINTS: [said for chunk in chunks for said in chunk[COMPLAINTS]]}
