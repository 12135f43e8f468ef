"""Where numbers go: JSON lines always, TensorBoard and W&B when asked.

`metrics.jsonl` holds no wall times, so that a resumed run's file equals an unbroken run's byte for
byte; times go to `timing.jsonl`.
"""

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.errors import BadInputError

Metrics = Mapping[str, object]


class JsonLines:
    """Appends one JSON object a line.

    Object stores cannot append: on a gs:// path lines are kept back until `flush`, which writes a
    part of its own, `metrics.jsonl.parts/00000000.jsonl`, numbered in the order of writing.
    """

    def __init__(self, path: epath.Path):
        self.path = path
        self.parts = epath.Path(f"{path}.parts") if str(path).startswith("gs://") else None
        self.pending: list[dict] = []

    def write(self, record: Mapping) -> None:
        """`record` holds a `step`."""
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
            (self.parts / f"{len(self.files()):08d}.jsonl").write_text(text)
        self.pending = []

    def close(self) -> None:
        self.flush()

    def resume(self, last_step: int, *, again: Collection[str] = ()) -> None:
        """Forgets what was written after `last_step`, and of that step the splits in `again`.

        The run writes it once more. Lines in the middle that are no records, as a bad disk leaves
        them, are moved to a file beside, with a warning.
        """
        for file in self.files():
            lines = file.read_bytes().splitlines(keepends=True)
            records = [parse(line) for line in lines]
            damaged = [n for n, r in zip(lines[:-1], records[:-1], strict=True) if r is None]
            if damaged:
                aside = epath.Path(f"{file}.damaged")
                aside.write_bytes(b"".join(damaged))
                print(f"warning: {file} has {len(damaged)} damaged lines; now in {aside.name}",
                      file=sys.stderr)  # fmt: skip
            kept = [
                line
                for line, record in zip(lines, records, strict=True)
                if record is not None and is_kept(record, last_step, again)
            ]
            if len(kept) != len(lines):
                beside = epath.Path(f"{file}.tmp")
                beside.write_bytes(b"".join(kept))
                beside.replace(file)

    def files(self) -> list[epath.Path]:
        if self.parts is not None:
            return sorted(self.parts.glob("*.jsonl")) if self.parts.exists() else []
        return [self.path] if self.path.exists() else []

    def read(self) -> list[dict]:
        """Every whole record: a run that is still writing may have left half a line."""
        lines = [line for file in self.files() for line in file.read_bytes().splitlines(True)]
        return [record for record in map(parse, lines) if record is not None]


def parse(line: bytes) -> dict | None:
    """A whole record; None of half a line, which a killed run may leave, or of garbage."""
    try:
        record = json.loads(line)
        return record if line.endswith(b"\n") and isinstance(record["step"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


def is_kept(record: Mapping, last_step: int, again: Collection[str]) -> bool:
    if record["step"] == last_step:
        return record.get("split") not in again
    return record["step"] < last_step


def without_nan(value: Any) -> Any:
    """JSON has no numbers that are not finite: they become null."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoard:
    """Scalars; an array of numbers becomes one scalar an element.

    Events are written by the calling thread. (tensorboardX's own SummaryWriter has a thread that
    dies on a full disk, after which its queue fills and the run waits for ever.)
    """

    def __init__(self, workdir: epath.Path):
        self.directory = workdir / "tensorboard"
        self.writer: Any = None

    def open(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        self.directory.mkdir(parents=True, exist_ok=True)
        suffix = f".{os.getpid()}.{time.monotonic_ns()}"  # two starts may meet in one second
        self.writer = EventsWriter(str(self.directory / "events"), filename_suffix=suffix)

    def resume(self, last_step: int, *, again: Collection[str] = ()) -> None:
        """TensorBoard hides what an earlier start wrote after `last_step`."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self.open()
        session = SessionLog(status=SessionLog.START)
        self.writer.write_event(Event(step=last_step + 1, session_log=session))

    def write(self, record: Mapping) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        if self.writer is None:
            self.open()
        for name, value in scalars(record).items():
            event = Event(step=record["step"], wall_time=time.time(), summary=scalar(name, value))
            self.writer.write_event(event)

    def flush(self) -> None:
        if self.writer:
            self.writer.flush()

    def close(self) -> None:
        if self.writer:
            self.writer.close()


class WeightsAndBiases:
    """A W&B run of the project named in `config.tracking.wandb_project`."""

    def __init__(self, project: str, *, workdir: epath.Path, config: Mapping):
        try:
            import wandb
        except ImportError:
            raise BadInputError(
                f"config.tracking.wandb_project={project} needs the wandb package: "
                "pip install -e '.[wandb]', or leave the field empty"
            ) from None
        # Two workdirs may end in the same name; the same workdir is always the same run.
        whole = str(workdir) if "://" in str(workdir) else os.path.abspath(workdir)
        run_id = hashlib.sha256(whole.encode()).hexdigest()[:16]
        self.run = wandb.init(
            project=project, name=workdir.name, id=run_id, resume="allow", config=config
        )

    def resume(self, last_step: int, *, again: Collection[str] = ()) -> None:
        """W&B itself drops what it already has."""

    def write(self, record: Mapping) -> None:
        self.run.log(scalars(record), step=record["step"])

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.run.finish()


def scalars(record: Mapping) -> dict[str, float]:
    """{"split": "eval", "a": 1, "b": [[2, 3]]} -> {"eval/a": 1, "eval/b/0/0": 2, "eval/b/0/1": 3}.

    Training and evaluation keep apart: they may have a number of the same name at the same step.
    """
    flat = {}
    for name, value in record.items():
        if isinstance(value, str) or name == "step":
            continue
        array = np.asarray(value)
        for index in np.ndindex(array.shape):
            flat["/".join([record["split"], name, *map(str, index)])] = float(array[index])
    return flat


class MetricsWriter:
    """Writes each record to every sink; only host 0 has any."""

    def __init__(self, workdir: epath.Path, *, tracking: Mapping, config: Mapping, main_host: bool):
        self.metrics = JsonLines(workdir / "metrics.jsonl")
        self.timing = JsonLines(workdir / "timing.jsonl")
        self.sinks = [self.metrics] if main_host else []
        self.main_host = main_host
        if main_host and tracking["tensorboard"]:
            self.sinks.append(TensorBoard(workdir))
        if main_host and tracking["wandb_project"]:
            project = tracking["wandb_project"]
            self.sinks.append(WeightsAndBiases(project, workdir=workdir, config=config))

    def resume(self, step: int, *, again: Collection[str] = ()) -> None:
        """Continues after `step`; the splits in `again` of that step are written once more."""
        for sink in [*self.sinks, self.timing] if self.main_host else []:
            sink.resume(step, again=again)

    def write(self, step: int, split: str, metrics: Metrics) -> None:
        """Numbers keep seven significant digits: what float32 holds."""
        record = {"step": step, "split": split}
        record |= {name: rounded(value) for name, value in metrics.items()}
        for sink in self.sinks:
            sink.write(record)

    def write_timing(self, step: int, timing: Mapping[str, float]) -> None:
        if self.main_host:
            self.timing.write({"step": step} | {k: round(v, 3) for k, v in timing.items()})

    def flush(self) -> None:
        for sink in [*self.sinks, self.timing]:
            sink.flush()

    def close(self) -> None:
        """Everything written is on disk, also where a run ends early."""
        for sink in [*self.sinks, self.timing]:
            sink.close()


def rounded(value: object) -> object:
    """Plain Python numbers, or nested lists of them, with seven significant digits."""
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.integer):
        return array.tolist()
    if array.ndim:
        return [rounded(row) for row in array]
    return float(f"{float(array):.7g}")
