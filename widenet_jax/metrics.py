"""Where numbers go: JSON lines always, TensorBoard and W&B when asked; and progress for people.

`metrics.jsonl` holds no wall times, so that a resumed run's file equals an unbroken run's byte for
byte; times go to `timing.jsonl`.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from etils import epath
from tqdm import tqdm

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
        text = "".join(json.dumps(record) + "\n" for record in self.pending)
        if self.parts is None:
            with self.path.open("a") as file:
                file.write(text)
        else:
            self.parts.mkdir(parents=True, exist_ok=True)
            (self.parts / f"{len(self.files()):08d}.jsonl").write_text(text)
        self.pending = []

    def close(self) -> None:
        self.flush()

    def resume(self, last_step: int) -> None:
        """Forgets what was written after `last_step`: the run writes it again."""
        for file in self.files():
            lines = file.read_text().splitlines(keepends=True)
            kept = [line for line in lines if is_up_to(line, last_step)]
            if len(kept) != len(lines):
                beside = epath.Path(f"{file}.tmp")
                beside.write_text("".join(kept))
                beside.replace(file)

    def files(self) -> list[epath.Path]:
        if self.parts is not None:
            return sorted(self.parts.glob("*.jsonl")) if self.parts.exists() else []
        return [self.path] if self.path.exists() else []

    def read(self) -> list[dict]:
        """Every whole record: a run that is still writing may have left half a line."""
        lines = [line for file in self.files() for line in file.read_text().splitlines(True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]


def is_up_to(line: str, last_step: int) -> bool:
    """Whether a line is whole (a killed run may leave half a one) and of `last_step` or before."""
    try:
        return line.endswith("\n") and json.loads(line)["step"] <= last_step
    except (ValueError, KeyError, TypeError):
        return False


class TensorBoard:
    """Scalars; an array of numbers becomes one scalar an element."""

    def __init__(self, workdir: epath.Path):
        from tensorboardX import SummaryWriter

        self.open = partial(SummaryWriter, str(workdir / "tensorboard"))
        self.writer: SummaryWriter | None = None

    def resume(self, last_step: int) -> None:
        """TensorBoard hides what an earlier start wrote after `last_step`."""
        self.writer = self.open(purge_step=last_step + 1)

    def write(self, record: Mapping) -> None:
        self.writer = self.writer or self.open()
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record["step"])

    def flush(self) -> None:
        """Sends what is queued on its way; only `close` waits for it."""
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

    def resume(self, last_step: int) -> None:
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

    def resume(self, step: int) -> None:
        """Continues after `step`."""
        for sink in [*self.sinks, self.timing] if self.main_host else []:
            sink.resume(step)

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


class Progress:
    """A bar on a terminal, a line now and then in a log: step, images/s, time left, loss.

    Args:
      total_steps: of the run.
      start_step: where it (re)starts.
      batch_size: images a step.
      quiet: print nothing (hosts other than the first).
    """

    LINE_EVERY_SECONDS = 10.0

    def __init__(self, *, total_steps: int, start_step: int, batch_size: int, quiet: bool):
        self.total, self.step, self.batch_size = total_steps, start_step, batch_size
        self.quiet = quiet
        self.bar = None
        if not quiet and sys.stderr.isatty():
            self.bar = tqdm(total=total_steps, initial=start_step, unit="step", dynamic_ncols=True)
        self.started: float | None = None  # set by the first step: compiling is not training
        self.first_step = start_step
        self.paused = 0.0
        self.last_line = 0.0

    def advance(self, step: int, loss: Callable[[], float]) -> None:
        """`loss` is called only when something is shown: it may wait for the device."""
        now = time.monotonic()
        if self.started is None:
            self.started, self.first_step, self.last_line = now, step, now
        done, self.step = step - self.step, step
        if self.quiet:
            return
        due = now - self.last_line >= (0.5 if self.bar else self.LINE_EVERY_SECONDS)
        if self.bar:
            self.bar.update(done)
        if not (due or step == self.total):
            return
        self.last_line = now
        rate = self.images_per_second()
        if self.bar:
            self.bar.set_postfix_str(f"{rate:,.0f} images/s, loss {loss():.4f}")
        else:
            left = (self.total - step) * self.batch_size / rate if rate else float("nan")
            self.note(
                f"step {step:,}/{self.total:,} ({step / self.total:.0%}), {rate:,.0f} images/s, "
                f"{duration_text(left)} left, loss {loss():.4f}"
            )

    def pause(self) -> "Pause":
        """`with progress.pause():` takes evaluation and saving out of the rate."""
        return Pause(self)

    def images_per_second(self) -> float:
        """Since the first step, which compiles; 0 before the second."""
        steps = self.step - self.first_step
        if self.started is None or not steps:
            return 0.0
        seconds = time.monotonic() - self.started - self.paused
        return steps * self.batch_size / max(seconds, 1e-9)

    def note(self, text: str) -> None:
        """A line that does not tear the bar."""
        if self.bar:
            self.bar.write(text, file=sys.stderr)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar:
            self.bar.close()


class Pause:
    def __init__(self, progress: Progress):
        self.progress = progress

    def __enter__(self) -> None:
        self.since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if self.progress.started is not None:
            self.progress.paused += time.monotonic() - self.since


def duration_text(seconds: float) -> str:
    """65 -> "1m05s"; a rate not known yet gives "?"."""
    if not np.isfinite(seconds):
        return "?"
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"
