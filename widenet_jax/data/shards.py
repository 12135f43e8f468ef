"""What sources that read ArrayRecord shards have in common.

A shard that is missing or damaged as a whole raises BadInputError; a damaged record raises
BadExampleError. Both messages name the file.
"""

import copy
import dataclasses
import functools
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module
from google.protobuf.message import DecodeError

from widenet_jax.data import records
from widenet_jax.data.blocks import in_threads
from widenet_jax.data.input_files import bytes_in
from widenet_jax.data.splits import check_split
from widenet_jax.errors import (
    BadExampleError,
    BadInputError,
    NoAccessError,
    NoAnswerError,
    first_line,
    reason_of,
    refuse,
)
from widenet_jax.files import is_remote

# Raised by ArrayRecord for a record or a shard that it cannot read, and when a record that could be
# read has another content than an image and a label.
READ_ERRORS = (RuntimeError, OSError, ValueError, IndexError, struct.error, DecodeError, TypeError)


@dataclasses.dataclass(frozen=True)
class Shards:
    """The shards of a split, in order, and the range of records that it takes from each.

    Attributes:
      paths: path of each shard.
      sizes: records in each shard.
      skips: first record of each shard that belongs to the split.
      takes: number of consecutive records from there that belong to the split.
      remedy: advice to the user about a damaged shard.
      unit: what a record is called in messages.
    """

    paths: Sequence[str]
    sizes: Sequence[int]
    skips: Sequence[int]
    takes: Sequence[int]
    remedy: str
    unit: str = "image"

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self.takes)

    def locate(self, index: int) -> tuple[int, int]:
        """Returns (shard, record in the shard) of a record of the split."""
        shard = int(np.searchsorted(self._ends, index, side="right"))
        return shard, index - int(self._ends[shard]) + self.takes[shard] + self.skips[shard]

    def describe(self, index: int) -> str:
        """Returns the file and record of an example, for messages."""
        shard, record = self.locate(index)
        return f"{self.paths[shard]} record {record} ({self.unit} {index})"

    def check(self, shard: int) -> None:
        """Raises BadInputError unless the shard can be opened and holds all its records."""
        problem = _shard_problem(self.paths[shard], self.sizes[shard])
        refuse(self.paths[shard], (problem, f"shard is {problem}; {self.remedy}"))

    def check_all(self) -> None:
        """Checks every shard; raises BadInputError for the first bad one."""
        list(in_threads(self.check, range(len(self.paths))))

    def unreadable(self, index: int, error: Exception) -> BadInputError:
        """Returns the error for an unreadable record; raises another if its shard is bad."""
        self.check(self.locate(index)[0])
        reason = f"unreadable ({first_line(error)}); {self.remedy}"
        return BadExampleError(f"{self.describe(index)}: {reason}")


def _shard_problem(path: str, size: int) -> str | None:
    try:
        if not bytes_in(path):
            return "empty (0 bytes)"
        reader = array_record_module.ArrayRecordReader(path)
        found = reader.num_records()
        reader.close()  # raises the errors of the calls before
    except (NoAccessError, NoAnswerError):
        raise
    except FileNotFoundError:
        return "missing"
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) or is_remote(path):  # the connection may have failed
            return f"unreadable ({reason_of(error)})"
        found = 0
    # The index is at the end of a shard, so no record is found in one that is cut short.
    return None if found == size else f"cut short or damaged ({found} of {size} records found)"


class Packed:
    """The examples in `_records`, which lie in the files of `_shards`; subclasses parse them."""

    _records: Sequence[Any]
    _shards: Shards
    _example: Callable[[Any], dict[str, Any]]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        # A store that has refused a read may answer the next one; ArrayRecord does not ask again.
        whole = not is_remote(self._shards.paths[0]) or hasattr(self, "ahead")
        for last in (whole, True):
            try:
                return self._example(self._records[index])
            except (NoAccessError, NoAnswerError):
                raise
            except READ_ERRORS as error:
                problem = self._shards.unreadable(index, error)
                if last:
                    raise problem from None
                self._records = copy.copy(self._records)  # opens its shards again

    def describe(self, index: int) -> str:
        return self._shards.describe(index)

    def files(self) -> list[str]:
        """Returns name, records and bytes of each shard; see `contract.Source`."""
        paths = self._shards.paths
        shards = zip(paths, self._shards.sizes, in_threads(bytes_in, paths), strict=True)
        return [f"{os.path.basename(path)} {size} {count}" for path, size, count in shards]


class PackedSet(Packed):
    """A split of a set written by `scripts/prepare_data.py` (see `records`).

    Attributes:
      manifest: the content of dataset.json.
    """

    def __init__(self, directory: str, split: str, *, kind: str, unit: str):
        """Opens the split.

        Args:
          directory: of the set.
          split: its name.
          kind: of the set, as dataset.json says.
          unit: what a record is called in messages.

        Raises:
          BadInputError: there is no such set or split, or a shard is missing or cut.
        """
        from array_record.python import array_record_data_source

        self.manifest = records.read_manifest(directory, kind)
        check_split(split, tuple(self.manifest["splits"]), f"config.data.path={directory}")
        shards = self.manifest["splits"][split]["shards"]
        paths = records.shard_paths(directory, split, shards)
        # An input without a document of this split has made a shard without records.
        held = {path: s["records"] for path, s in zip(paths, shards, strict=True) if s["records"]}
        sizes, remedy = [*held.values()], "copy the shard again or prepare the set with --overwrite"
        self._shards = Shards([*held], sizes, [0] * len(sizes), sizes, remedy, unit)
        if is_remote(directory):
            from widenet_jax.data.ranges import Ranges

            self._records = Ranges(self._shards, [s["bytes"] for s in shards if s["records"]])
            self.ahead = self._records.ahead
            return
        # Opens no file yet. Given "path[first:last]", ArrayRecord does not count the records. It
        # opens a shard at the first read, and a pickled copy opens its own. A process that has read
        # must not fork and read in the child: ArrayRecord's threads do not survive the fork.
        self._records = array_record_data_source.ArrayRecordDataSource(
            [f"{path}[0:{size}]" for path, size in held.items()]
        )
