"""The TPU compiler's schedules: what a core executes for each instruction, cycle by cycle.

libtpu dumps the final program of every fusion and kernel as bundles, one per cycle and row.
The bundles after register allocation still hold the stalls, as empty rows. The file of an
instruction has the rows of its loop, marked by ">", and the rows around it. Kernels may have loops
in their loop, marked by ">>", whose trips the file does not give. A branch may skip rows
of the loop except at one value of an index: a product's sum is written after its last block.
"""

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

_PREFIX, _NEW_SECONDS = "widenet_jax_schedules_", 60
_STAGE = "packed-bundles-post-ra"
_FILE = re.compile(rf"\d+-(.*)-\d+-{_STAGE}\.txt")
_ROW = re.compile(r"\s*(0x[0-9a-f]+|0)\s+(?:\w\w)?\s*:?\s*((?:> ?)*)\{(\s*\}|)")
_INDEX = re.compile(r"%(\w+) = [^;]*iter bound = (\d+)")
# An index plus a number; whether an index differs from a number.
_TEST = re.compile(
    r"%(\w+) = (?:sadd\.s32 (?:\(!?%\w+\), )?\d+, %(\w+)"
    r"|scmp\.ne\.s32\.totalorder (?:\(!?%\w+\), )?%(\w+), \d+)"
)
_BRANCH = re.compile(r"sbr\.rel \(%(\w+)\) target bundleno = (\d+)")


class Schedule(NamedTuple):
    """The cycles of one instruction.

    Attributes:
      once: outside its loop.
      per_trip: of its loop, 0 without one; a loop within it counts as one trip.
      nested: of loops within the loop.
      seldom: of `per_trip`, by dimension of the loop: the rows that run at one of its indices only.
    """

    once: int
    per_trip: int
    nested: int = 0
    seldom: tuple[int, ...] = ()

    @property
    def uncertain(self) -> bool:
        """Whether loops within the loop, of unknown trips, are over a tenth of its rows.

        Below that are many products on v3, a third of the calibration's steps there.
        """
        return self.nested > 0.1 * self.per_trip


Schedules = dict[str, Schedule]  # by the name of the instruction


@cache
def dump_directory() -> tempfile.TemporaryDirectory:
    """Returns this process's directory for dumps, which is removed when the process ends.

    A process that is killed cannot remove it, but loses its lock; the next one removes it then.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # locked, or another user's
            remove_unlocked(left)
    made = tempfile.TemporaryDirectory(prefix=_PREFIX)
    fcntl.flock(os.open(made.name, os.O_RDONLY), fcntl.LOCK_EX)  # until this process ends
    return made


def remove_unlocked(directory: Path) -> None:
    """Removes a directory that no process has locked; raises OSError if one has.

    One of the last minute stays: its owner may be about to lock it.
    """
    place = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(place).st_mtime > _NEW_SECONDS:
            shutil.rmtree(directory)
    finally:
        os.close(place)


def dump_flags() -> str:
    """Returns the flags with which libtpu writes schedules; it reads them when it is loaded."""
    return (
        f"--xla_jf_dump_to={dump_directory().name} --xla_jf_dump_llo_text=true "
        f"--xla_jf_dump_llo_pass_label_regex=.*{_STAGE}.*"
    )


def take_schedules() -> Schedules:
    """Reads the schedules of the programs compiled since the last call, and removes the files."""
    found = {}
    for file in Path(dump_directory().name).iterdir():
        if name := _FILE.fullmatch(file.name):
            with file.open() as rows:
                found[name[1]] = count_rows(rows)
        file.unlink()
    return found


def count_rows(rows: Iterable[str]) -> Schedule:
    """Counts the bundles of one file; an empty bundle belongs to the loop of the one before it."""
    once = per_trip = nested = 0
    inside = inner = False
    dimensions: dict[str, int] = {}  # of indices, and of numbers and tests computed from them
    seldom: dict[int, int] = {}
    dimension = end = 0  # of the rows that a branch skips
    for row in rows:
        bundle = _ROW.match(row)
        if not bundle:
            continue
        if not bundle[3]:
            inside, inner = bool(bundle[2]), bundle[2].count(">") > 1
        once, per_trip, nested = once + (not inside), per_trip + inside, nested + inner
        if (address := int(bundle[1], 16)) < end:
            seldom[dimension] = seldom.get(dimension, 0) + inside
            continue
        dimensions |= {name: int(number) for name, number in _INDEX.findall(row)}
        for name, *operand in _TEST.findall(row):
            if (source := "".join(operand)) in dimensions:
                dimensions[name] = dimensions[source]
        branch = _BRANCH.search(row)
        if branch and branch[1] in dimensions and int(branch[2]) > address:
            dimension, end = dimensions[branch[1]], int(branch[2])
    counts = tuple(seldom.get(n, 0) for n in range(max(seldom, default=-1) + 1))
    return Schedule(once, per_trip, nested, counts)
