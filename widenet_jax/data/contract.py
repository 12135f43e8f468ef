"""Data: sources of examples, transforms of one example, batches for one host.

- A **source** gives examples by index (`Source`).
- A **transform** maps (example, generator) to a dict of arrays (`Transform`).
  `specs` names the sources and the transforms of each task.
- **Blocks** stack the arrays of a few examples of one step, whatever their keys; `pipeline` reads
  blocks with threads or processes and joins them into batches.

The record at (step, position) is a pure function of (seed, step); augmentation and masking are pure
functions of (seed, epoch, record). So nothing about the data is stored in a checkpoint, and any
number of hosts and workers sees the same global batches.

Imports neither JAX nor OpenCV: worker processes load it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

# Entries of a checkpoint's meta that do not describe the data.
OF_THE_RUN = {"format_version", "step", "fingerprint", "counters", "config", "evaluation_due"}
OF_THE_RUN |= {"metrics_file", "content_sha256"}

Example = Mapping[str, Any]
Batch = dict[str, np.ndarray]


class Source(Protocol):
    """Examples of one split, readable in any order.

    A source is small to pickle: worker processes receive a copy and open files at the first read.

    Attributes:
      info: the facts about the set that tasks and models need, as JSON: {"class_names": [...]}
        for labelled images. Both splits of a run must agree on it. Each entry becomes a file of the
        workdir, `class_names.json`, and an entry of a checkpoint's meta, so that no key may be one
        that the run uses itself, such as config, environment or result.
      note: optional: a line about the set for the user of a run.
      problems: optional: a line for each example that cannot be read, where the source knows all.
      files: optional: a function that returns lines on the files of the split, with names and
        sizes, but not with the directory: hosts must agree on them.
      ahead: optional: a function that begins to read several examples, by index, which are then
        asked for one by one. Sources on an object store have it.
    """

    @property
    def info(self) -> Mapping[str, Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Returns one example as stored; the transform of the run's task knows its keys.

        Raises:
          BadExampleError: this example cannot be read, and others of the set can.
        """

    def describe(self, index: int) -> str:
        """The example's file or set and its index, for messages."""


@runtime_checkable
class Stream(Source, Protocol):
    """A source whose examples are consecutive windows of a text, read in order, in B rows.

    Its batches have "tokens" and "fresh"; no transform is applied to them. It has the attributes
    `bytes_per_token` and `words_per_token`, None where words were not counted, and `text`, the
    text's name. It may have `losses`, shares of the text that its tokenizer loses.
    """

    def read_windows(self, indices: np.ndarray) -> np.ndarray:
        """Returns windows, each with the token after it: int32 [n, T + 1]."""


class Transform(Protocol):
    """A picklable function of one example and its random generator."""

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Returns one array for each key of a batch, of the same shape for every example.

        The keys "record", "bad" and "mask" (True for real examples) are the pipeline's own.

        Args:
          example: as the source gives it, and "where", the source's description of it.
          rng: a generator that depends on (seed, epoch, record) alone. Evaluation uses seed 0 and
            epoch 0, so that every run and model sees the same draws.

        Raises:
          BadExampleError: the example cannot be decoded.
        """


class ArraySpec(NamedTuple):
    """Shape and dtype name of one array of one example, without the batch axis."""

    shape: tuple[int, ...]
    dtype: str


class StreamInfo(NamedTuple):
    """Text statistics that turn a loss per token into bits per byte.

    Attributes:
      bytes_per_token: of the training split.
      unigram_bits: `sources.unigram_bits` of the evaluation split; None where it is unknown.
      losses: of the evaluation split.
    """

    bytes_per_token: float = 1.0
    unigram_bits: float | None = None
    losses: Mapping[str, float] = {}


class DataInfo(NamedTuple):
    """What a model, a task and a schedule must know of the data, so that the data can be absent.

    Attributes:
      num_examples: examples of an epoch: the size of the training split; of a stream, the windows
        in its whole batches.
      example: what the transforms make of one example.
      info: the training source's `info`, with what `sources.OF_EITHER_SPLIT` adds to it.
      stream: of a `Stream`; None where the training split is none.
      class_counts: training examples of each class, where the task weights classes; else ().
      largest_share: of the evaluation examples, in the most frequent class; None where the classes
        are unknown.
    """

    num_examples: int
    example: Mapping[str, ArraySpec]
    info: Mapping[str, Any]
    stream: StreamInfo | None = None
    class_counts: tuple[int, ...] = ()
    largest_share: float | None = None


class Data(NamedTuple):
    """Both splits of a run, opened, with their transforms."""

    train: Source
    eval: Source
    train_transform: Transform
    eval_transform: Transform
    data_info: DataInfo
