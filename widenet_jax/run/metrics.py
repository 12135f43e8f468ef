"""Sinks of metrics: JSON lines always, TensorBoard and W&B on request.

`metrics.jsonl` holds no wall times, so that a resumed run's file equals an unbroken run's byte for
byte. Times go to `timing.jsonl`, and to TensorBoard and W&B under `timing/`.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.data.blocks import in_threads
from widenet_jax.errors import BadInputError, RunFailedError, first_line, require
from widenet_jax.files import absolute, is_remote, matching, parse_json, without_nan, write_bytes
from widenet_jax.run.stopping import say

Metrics = Mapping[str, object]
Contents = dict[epath.Path, bytes]  # of the files that hold a run's records, in their order


class JsonLines:
    """A file of JSON lines that records are appended to.

    Object stores cannot append. On a gs:// path `flush` writes the pending lines to a separate
    part, `metrics.jsonl.parts/00000000.jsonl`, numbered in the order of writing.
    """

    def __init__(self, path: epath.Path):
        self.path = path
        self.parts = epath.Path(f"{path}.parts") if is_remote(path) else None
        self.pending: list[dict] = []
        self.last_part: int | None = None  # number of the part last written; None: not looked up
        self.bytes, self.sha256 = 0, hashlib.sha256()  # of everything up to now, after `resume`

    def write(self, record: Mapping) -> None:
        """Appends a record, which must hold a `step`; on gs:// it is pending until `flush`."""
        self.pending.append(dict(record))
        if self.parts is None:
            self.flush()

    def flush(self) -> None:
        if not self.pending:
            return
        text = "".join(json.dumps(without_nan(record)) + "\n" for record in self.pending)
        if self.parts is None:
            with self.path.open("a") as file:
                file.write(text)
        else:
            self.parts.mkdir(parents=True, exist_ok=True)
            if self.last_part is None:
                # One more than the last number: a bucket's rules may have deleted the first parts.
                numbers = [int(part.stem) for part in self.files() if part.stem.isdecimal()]
                self.last_part = max(numbers, default=-1)
            (self.parts / f"{self.last_part + 1:08d}.jsonl").write_text(text)
            self.last_part += 1
        self.pending = []
        self._count(text.encode())

    def _count(self, content: bytes) -> None:
        self.bytes += len(content)
        self.sha256.update(content)

    def written(self) -> dict[str, Any]:
        """Returns length and hash of the flushed records, which a checkpoint's meta keeps."""
        return {"bytes": self.bytes, "sha256": self.sha256.hexdigest()}

    def close(self) -> None:
        self.flush()

    def resume(
        self,
        last_step: int,
        *,
        again: Collection[str] = (),
        written: Mapping[str, Any] | None = None,
    ) -> None:
        """Removes records after `last_step`, and records at it whose split is in `again`.

        The resumed run writes these records again.

        Args:
          last_step: the step that was restored.
          again: splits.
          written: `written()` when that step was saved: what is to stay. A warning says how the
            file differs. None: unknown, as of older checkpoints.
        """
        contents = self._contents()
        problem = self._cut(contents, written) if written else None
        moved = [] if written and not problem else self._remove_after(contents, last_step, again)
        if problem:
            moved.insert(0, f"{problem}, compared with checkpoint {last_step}")
        if moved:
            say(
                f"warning: {self.parts or self.path} {'; '.join(moved)}: metrics of earlier steps "
                "are lost or wrong; training itself continues unchanged"
            )
        for content in contents.values():
            self._count(content)

    def _cut(self, contents: Contents, written: Mapping[str, Any]) -> str:
        """Cuts the file to what was written when a step was saved; says how it differs, or ""."""
        whole, size = b"".join(contents.values()), written["bytes"]
        if len(whole) < size:
            return f"has {len(whole):,} bytes instead of {size:,}" if contents else "is missing"
        if hashlib.sha256(whole[:size]).hexdigest() != written["sha256"]:
            return f"has changed among its first {size:,} bytes"
        for file, content in contents.items():
            kept, size = content[:size], max(0, size - len(content))
            if kept != content:
                write_bytes(file, kept)
                contents[file] = kept
        return ""

    def _remove_after(
        self, contents: Contents, last_step: int, again: Collection[str]
    ) -> list[str]:
        """As `resume`, line by line; moves damaged lines to `FILE.damaged` and says so."""
        moved = []
        for file, content in contents.items():
            lines = [(line, parse(line)) for line in content.splitlines(keepends=True)]
            damaged = [line for line, record in lines[:-1] if record is None]
            if damaged:
                aside = epath.Path(f"{file}.damaged")
                aside.write_bytes(b"".join(damaged))
                moved.append(f"had damaged lines, {len(damaged)} in all, now in {aside.name}")
            kept = [line for line, record in lines if record and is_kept(record, last_step, again)]
            if len(kept) != len(lines):
                contents[file] = b"".join(kept)
                write_bytes(file, contents[file])
        return moved

    def files(self) -> list[epath.Path]:
        if self.parts is not None:
            return matching(self.parts, "*.jsonl")
        return [self.path] if self.path.exists() else []

    def _contents(self) -> Contents:
        """Reads all files, many at a time: a run on an object store has hundreds of small ones."""
        files = self.files()
        return dict(zip(files, in_threads(epath.Path.read_bytes, files), strict=True))

    def read(self) -> list[dict]:
        """Reads every complete record; skips a line that a running run has written only in part."""
        lines = [line for content in self._contents().values() for line in content.splitlines(True)]
        return [record for record in map(parse, lines) if record is not None]


def parse(line: bytes) -> dict | None:
    """Parses one record; returns None for an incomplete line (left by a killed run) or garbage."""
    try:
        record = parse_json(line)
        return record if line.endswith(b"\n") and isinstance(record["step"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def is_kept(record: Mapping, last_step: int, again: Collection[str]) -> bool:
    if record["step"] == last_step:
        return record.get("split") not in again
    return record["step"] < last_step


class TensorBoard:
    """Scalars written as TensorBoard events; an array becomes one scalar per element.

    The calling thread writes the events. tensorboardX's SummaryWriter uses a thread that dies on a
    full disk, after which its queue fills up and the run waits forever.

    For a gs:// workdir the files are in a temporary directory. `flush` uploads the events since the
    last one as a file; tensorboardX would upload all of them each time.
    """

    def __init__(self, workdir: epath.Path):
        self.directory = workdir / "tensorboard"
        self.local = TemporaryDirectory(prefix="tensorboard-") if is_remote(workdir) else None
        self._open()

    def _open(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        place = epath.Path(self.local.name) if self.local else self.directory
        place.mkdir(parents=True, exist_ok=True)
        suffix = f".{os.getpid()}.{time.monotonic_ns():020d}"  # unique, and sorted by time
        self.writer = EventsWriter(str(place / "events"), filename_suffix=suffix)
        self.new = False

    def resume(self, last_step: int, *, again: Collection[str] = ()) -> None:
        """Makes TensorBoard hide the events that an earlier start wrote after `last_step`."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        session = SessionLog(status=SessionLog.START)
        self.writer.write_event(Event(step=last_step + 1, session_log=session))
        self.new = True

    def write(self, record: Mapping) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in scalars(record).items():
            event = Event(step=record["step"], wall_time=time.time(), summary=scalar(name, value))
            self.writer.write_event(event)
            self.new = True

    def flush(self) -> None:
        self.writer.flush()
        if not (self.local and self.new):
            return
        self.writer.close()
        files = matching(epath.Path(self.local.name), "*")  # also from an upload that failed
        self._open()
        for file in files:
            write_bytes(self.directory / file.name, file.read_bytes())
            file.unlink()

    def close(self) -> None:
        self.flush()
        self.writer.close()
        if self.local:
            self.local.cleanup()


class WeightsAndBiases:
    """A W&B run of the project named in `config.tracking.wandb_project`.

    Its local files are in `WORKDIR/wandb`; for a gs:// workdir, where W&B puts them by default.

    Raises:
      BadInputError: wandb is not installed, there are no valid credentials, or W&B refuses the
        project's name.
      RunFailedError: W&B cannot be reached.
    """

    def __init__(self, project: str, *, workdir: epath.Path, config: Mapping):
        field = f"config.tracking.wandb_project={project}"
        wandb = require("wandb", extra="wandb", what=field)
        # Derive the id from the whole path, because two workdirs may have the same last part.
        run_id = hashlib.sha256(str(absolute(str(workdir))).encode()).hexdigest()[:16]
        place = None if is_remote(workdir) else str(workdir)
        terminal = sys.stdin
        try:
            # W&B would ask for a key at a terminal; the run may have no one to answer.
            with open(os.devnull) as sys.stdin:
                self.run = wandb.init(
                    project=project,
                    name=workdir.name,
                    config=config,
                    id=run_id,
                    resume="allow",
                    dir=place,
                )
        except (wandb.errors.UsageError, wandb.errors.AuthenticationError) as error:
            raise BadInputError(
                f"{field}: W&B refuses the run: {first_line(error)} (correct what this names; to "
                "log in run `wandb login` or set WANDB_API_KEY, to do without a login set "
                "WANDB_MODE=offline, which logs to the workdir only)"
            ) from None
        except wandb.errors.Error as error:
            raise RunFailedError(
                f"{field}: {first_line(error)}; set WANDB_MODE=offline to log to the workdir only"
            ) from None
        finally:
            sys.stdin = terminal

    def resume(self, last_step: int, *, again: Collection[str] = ()) -> None:
        """Does nothing: W&B itself drops steps that it already has."""

    def write(self, record: Mapping) -> None:
        self.run.log(scalars(record), step=record["step"])

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.run.finish()


def scalars(record: Mapping) -> dict[str, float]:
    """Flattens a record to scalars.

    {"split": "eval", "a": 1, "b": [[2, 3]]} becomes
    {"eval/a": 1, "eval/b/0/0": 2, "eval/b/0/1": 3}.

    The split is part of the name, because training and evaluation have metrics of the same name.
    NaN in an array, of a loop that did not run, is left out.
    """
    flat = {}
    for name, value in record.items():
        if isinstance(value, str) or name == "step":
            continue
        array = np.asarray(value)
        for index in np.ndindex(array.shape):
            if not (index and np.isnan(array[index])):
                flat["/".join([record["split"], name, *map(str, index)])] = float(array[index])
    return flat


@contextmanager
def warned(tracker: TensorBoard | WeightsAndBiases) -> Iterator[None]:
    """Turns errors of a tracker into a warning: a run can do without it."""
    try:
        yield
    except Exception as error:
        tell_of_tracker(type(tracker).__name__, first_line(error))


@cache  # a line for each reason
def tell_of_tracker(name: str, reason: str) -> None:
    """Prints that a tracker may miss metrics."""
    lost = "it may miss metrics, and metrics.jsonl has them all; the run continues"
    say(f"warning: {name}: {reason}: {lost}")


class MetricsWriter:
    """All sinks of a run; only metrics.jsonl and timing.jsonl can end it.

    Metrics go to metrics.jsonl, times to timing.jsonl, and both to the trackers.

    Args:
      workdir: of the run; None on all hosts but the first, which have no sinks.
      config: of the run.
    """

    def __init__(self, workdir: epath.Path | None, *, config: Mapping):
        self.files: list[JsonLines] = []
        self.trackers: list[Any] = []
        if workdir is None:
            return
        self.files = [JsonLines(workdir / name) for name in ("metrics.jsonl", "timing.jsonl")]
        if project := config["tracking"]["wandb_project"]:  # first, because W&B may refuse the run
            self.trackers.append(WeightsAndBiases(project, workdir=workdir, config=config))
        if config["tracking"]["tensorboard"]:
            self.trackers.append(TensorBoard(workdir))

    def resume(
        self, step: int, *, again: Collection[str] = (), written: Mapping[str, Any] | None = None
    ) -> None:
        """Continues after `step`; the splits in `again` of that step will be written again.

        `written` is what `self.written` was when the step was saved, None if that is unknown.
        """
        for file in self.files[:1]:
            file.resume(step, again=again, written=written)
        for file in self.files[1:]:
            file.resume(step, again=again)
        self._track("resume", step, again=again)

    def written(self) -> dict[str, Any] | None:
        """Returns `JsonLines.written` of metrics.jsonl; None on all hosts but the first."""
        return self.files[0].written() if self.files else None

    def write(self, step: int, split: str, metrics: Metrics) -> None:
        """Writes one record; numbers keep the seven significant digits that float32 holds."""
        record = {"step": step, "split": split}
        record |= {name: rounded(value) for name, value in metrics.items()}
        for file in self.files[:1]:
            file.write(record)
        self._track("write", record)

    def write_timing(self, step: int, timing: Mapping[str, float]) -> None:
        """Writes how fast the run is."""
        record = {"step": step} | {name: rounded(value) for name, value in timing.items()}
        for file in self.files[1:]:
            file.write(record)
        self._track("write", record | {"split": "timing"})

    def flush(self) -> None:
        for file in self.files:
            file.flush()
        self._track("flush")

    def close(self) -> None:
        """Flushes and closes every sink."""
        for file in self.files:
            file.close()
        self._track("close")

    def _track(self, method: str, *args: Any, **options: Any) -> None:
        """Calls a method of each tracker."""
        for tracker in self.trackers:
            with warned(tracker):
                getattr(tracker, method)(*args, **options)


def rounded(value: object) -> object:
    """Returns plain Python numbers, or nested lists of them, with seven significant digits."""
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.integer):
        return array.tolist()
    if array.ndim:
        return [rounded(row) for row in array]
    return float(f"{float(array):.7g}")
