"""What surrounds the loop of a start: hosts, stops, watchdog, disk, metrics, notes and failures."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from fractions import Fraction
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from etils import epath

from widenet_jax.checkpoint.checkpoints import BEST, LAST, OF_LAST, Checkpoints
from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.checkpoint.series import all_finite, check_space, tree_bytes
from widenet_jax.config.durations import Interval
from widenet_jax.data.blocks import check_bad, record_at, stream_at
from widenet_jax.data.contract import Data
from widenet_jax.data.pipeline import Batches, check_small_splits, reading, train_batches
from widenet_jax.data.sources import overview
from widenet_jax.errors import BadExampleError, RunFailedError, refuse_value
from widenet_jax.experiment import Experiment, max_skipped_updates
from widenet_jax.files import is_gone, is_remote, read_object, require_store
from widenet_jax.optim.build import averaged
from widenet_jax.run import summary
from widenet_jax.run import workdir as workdirs
from widenet_jax.run.failures import CallbackError, errors_in_one_line, gone_text, not_finite
from widenet_jax.run.hosts import check_agreement, is_followed, on_every_host
from widenet_jax.run.metrics import JsonLines, MetricsWriter
from widenet_jax.run.progress import Progress
from widenet_jax.run.stopping import Stop, StopRequestedError, Watchdog, say
from widenet_jax.sharding import global_batch, host_positions
from widenet_jax.step import TrainState
from widenet_jax.typing import Array

COMPILING = (
    "compiling the training step: this can take a minute, a few seconds where this machine has "
    "compiled it before"
)
OnEvaluation = Callable[[int, Mapping[str, Any]], object]


class Runtime(ExitStack):
    """One start of a run. Inside it the mesh is set, and what ends the run is told in one line.

    `restore` locks the workdir until the end, and opens what else surrounds the loop.

    Args:
      experiment: what is trained.
      data: the examples.
      workdir: where it is trained.
      stop: may request an early end.
      on_evaluation: called on the first host with step and metrics, after each evaluation.

    Attributes:
      step: updates so far.
      evaluation_due: whether the state after `step` is still to be evaluated.
      finished: whether an earlier start has evaluated and saved the last step.
      watchdog, checkpoints, progress: see their classes.
      waiting: as `watchdog.beat`, of what reads or writes the workdir.
      note: prints a line for people, where they follow.
      note_own: prints a line that only this host knows, such as its unreadable examples: on all
        hosts, each to its own stderr; `hooks` omits repeated lines.
      hooks: of an evaluation.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: Data,
        workdir: epath.Path,
        stop: Stop,
        on_evaluation: OnEvaluation = lambda step, metrics: None,
    ):
        super().__init__()
        self.experiment, self.config, self.task = experiment, experiment.config, experiment.task
        self.data, self.workdir, self.stop = data, workdir, stop
        self.on_evaluation, self.main_host = on_evaluation, jax.process_index() == 0
        self.unchecked: tuple[int, Mapping[str, Any]] | None = None  # the last step and its metrics

    def __enter__(self) -> "Runtime":
        self.enter_context(jax.set_mesh(self.experiment.mesh))
        self.enter_context(errors_in_one_line(self.workdir, self.stop))
        return self

    def restore(
        self, start: Callable[[], TrainState], notes: list[str], *, extend: bool
    ) -> TrainState:
        """Returns the state of the newest intact checkpoint, or of `start`; tells where it begins.

        Args:
          start: makes the first state.
          notes: lines for the user, which follow those on data and model; `start` may add some.
          extend: whether the user has asked to continue on other examples.

        Raises:
          BadInputError: many examples cannot be read, the disk is too small, another process trains
            in the workdir, or it holds a run on other data.
          RunFailedError: as `Checkpoints.restore`; a run has metrics but no checkpoint.
        """
        experiment, config, info = self.experiment, self.config, self.experiment.data_info.info
        on_every_host(check_small_splits, self.data, config.data, self.task.unit, say)
        on_every_host(self._prepare_workdir)
        store = str(self.workdir) if is_remote(self.workdir) else ""
        stores = [place for place in (store, config.data.get("path", "")) if is_remote(place)]
        ask = {"ask": partial(require_store(store).ask, *stores)} if stores else {}
        self.watchdog = self.enter_context(closing(Watchdog(**config.watchdog, **ask)))
        self.waiting = partial(self.watchdog.beat, store=store)
        meta = {"config": workdirs.plain(config), **info}
        how = {"keep": config.checkpoint.keep, "primary_metric": self.task.primary_metric}
        checkpoints = Checkpoints(self.workdir, meta=meta, **how)
        self.checkpoints = self.enter_context(closing(checkpoints))

        self.waiting("restoring")
        restored = self.checkpoints.restore(experiment.state)
        if restored is None:
            self._check_history()
        self.state, meta = restored or (start(), {})
        notes.append(workdirs.check_info(meta, info, workdir=self.workdir, extend=extend))
        self.start_step = self.step = self.stop.saved = meta.get("step", 0)
        self.evaluation_due = meta.get("evaluation_due", False)
        self.evaluation_due = self.evaluation_due and not on_every_host(self._has_result)
        check_agreement({"the restored step": (self.step, self.evaluation_due)})
        self.finished = self.is_over() and not self.evaluation_due
        self.skipped = int(self.state.skipped_updates)  # as far as they were reported
        self._check_skipped()
        self._open(meta)

        splits = (
            (config.data.train_split, self.data.train),
            (config.data.eval_split, self.data.eval),
        )
        lines = [overview(splits, self.task.unit)]
        lines.append(
            f"finished before, after step {self.step:,}: evaluating"
            if self.finished
            else summary.describe(experiment, self.state.params, self.step)
        )
        for line in filter(None, [*lines, *notes, getattr(self.data.train, "note", "")]):
            self.note(line)
        if store:
            minutes = config.checkpoint.get("retry_minutes", 10.0)  # an older run's has none
            self.enter_context(require_store(store).patience(minutes))
        self.watchdog.beat("compiling the first step")
        return self.state

    def _prepare_workdir(self) -> None:
        if self.main_host:
            keep, size = self.config.checkpoint.keep, tree_bytes(self.experiment.state)
            check_space(self.workdir, (LAST, BEST), checkpoint_bytes=size, keep=keep)
            self.enter_context(workdirs.locked(self.workdir))
            # Another start may have trained there since the first check.
            workdirs.check_workdir(self.workdir, self.config, mode="train")

    def _has_result(self) -> bool:
        """Returns whether an evaluation of `step` that a stop cut off was made by a later start."""
        file = self.workdir / "result.json"
        return file.exists() and read_object(file).get("steps") == self.step

    def _check_skipped(self) -> None:
        """Refuses a run that has skipped more updates than it may, as no step would train."""
        allowed = max_skipped_updates(self.config)
        fewer = (
            f"has skipped {self.skipped} updates, and config.on_nonfinite="
            f"{self.config.on_nonfinite} allows {allowed} in a whole run; add "
            f"--config.on_nonfinite=skip --config.max_skipped_updates={self.skipped + 1}, or more"
        )
        too_many = self.skipped > allowed and not self.is_over()
        refuse_value(f"--workdir={self.workdir}", (too_many, fewer))

    def _check_history(self) -> None:
        """Raises RunFailedError where no checkpoint is left of a run that must have had some."""
        records = JsonLines(self.workdir / "metrics.jsonl").read()
        last = max((record["step"] for record in records), default=0)
        # The interval of the start that wrote them; an older run's is unknown.
        before = workdirs.last_start(self.workdir).get("save_every")
        every = Interval(Fraction(before)) if before else self.experiment.save_every
        # The second save begins only once the first is on disk.
        saved_twice = every.count(last - 1) >= 2
        if saved_twice or (self.workdir / "result.json").exists():
            raise RunFailedError(
                f"--workdir={self.workdir} has metrics up to step {last:,} and no checkpoint; "
                f"nothing was changed. Restore {LAST}/ from a copy, or start again in a new "
                "--workdir"
            )

    def _open(self, meta: Mapping[str, Any]) -> None:
        """Records the start in the workdir, and opens metrics and progress.

        Args:
          meta: of the checkpoint; {} in a new run.

        Raises: as the trackers of `MetricsWriter`, on all hosts.
        """
        experiment, config = self.experiment, self.config
        # Before config.json: all flags may be corrected until W&B accepts the run.
        place, fields = self.workdir if self.main_host else None, workdirs.plain(config)
        self.writer = on_every_host(MetricsWriter, place, config=fields)
        self.enter_context(closing(self.writer))
        if self.main_host:
            more = {"attention": getattr(experiment.model.attention, "implementation", None)}
            more["total_steps"] = experiment.total_steps
            more["save_every"] = float(experiment.save_every.steps)
            workdirs.write_run(self.workdir, config, experiment.data_info.info, **more)
        again = ("eval",) if self.evaluation_due else ()
        written = meta.get(OF_LAST)  # older checkpoints have none
        if meta.get("evaluation_due") and not self.evaluation_due:
            written = None  # the metrics have that evaluation, too
        self.writer.resume(self.step, again=again, written=written)
        length = {"total_steps": experiment.total_steps, "start_step": self.step}
        units = {"batch_size": config.batch_size, "unit": self.task.unit}
        progress = Progress(**length, **units, quiet=not is_followed())
        self.progress = self.enter_context(closing(progress))
        self.note = self.progress.note
        self.note_own = say if self.progress.quiet else self.note
        once = cache(self.note_own)  # every evaluation meets the same examples
        self.hooks = {"stop": self.stop, "beat": self.watchdog.beat, "note": once}

    def traced(self, steps: int | None) -> Callable[..., tuple[TrainState, Mapping[str, Any]]]:
        """Returns the training step, which writes a profile of some steps where they are given."""
        if not steps:
            return self.experiment.train_step
        from widenet_jax.run.profile import Profile

        of_run = (self.start_step, self.workdir, self.note, self.progress.pause)
        return self.enter_context(closing(Profile(self.experiment.train_step, steps, *of_run)))

    def batches(self) -> Iterator[dict[str, Array]]:
        """Yields the batches of the steps to come, on their devices; a stop request ends it."""
        end = self.step if self.is_over() else self.experiment.total_steps
        if self.step < end:
            self.note(COMPILING)
        tell = lambda message: self.note_own(f"skipped, another takes its place: {message}")  # noqa: E731
        own = read_batches(self.experiment, self.data, self.step, end, on_message=tell)
        with closing(self.stop.reading(own)) as read:
            for batch in read:
                yield global_batch(batch, self.experiment.mesh, self.config.batch_size)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A context in which a stop request or a bad example ends the run with a save."""
        try:
            yield
        except (StopRequestedError, BadExampleError, CallbackError) as ending:
            requested = isinstance(ending, StopRequestedError)
            # These errors end one host alone, which cannot save without the others.
            if self.step > self.start_step and (requested or jax.process_count() == 1):
                self.report_skipped(self.state, *self.unchecked)
                self.save(self.state)
                self.checkpoints.wait()
                self.note(f"saved after step {self.step:,}")
            if requested:
                raise self.stop.stopped(self.step) from None
            raise (ending.__cause__ or ending) from None

    def after_step(self, state: TrainState, metrics: Mapping[str, Any]) -> None:
        """Counts a step, tells of it, and decides whether its state is to be evaluated.

        Raises: as `report_skipped`, one step late, so that the device always has work.
        """
        experiment = self.experiment
        self.step += 1
        step, last = self.step, self.step == experiment.total_steps
        self.stop.unsaved, self.stop.last_step_done = True, last
        self.watchdog.beat(f"step {step}")
        if self.unchecked:
            self.report_skipped(state, *self.unchecked)
        self.state, self.unchecked = state, (step, metrics)
        self.progress.advance(step, partial(summary.loss_text, self.task, metrics))
        log = last or step % self.config.log_every_steps == 0
        self.evaluation_due = last or experiment.eval_every.ends_at(step)
        if log or self.evaluation_due or experiment.save_every.ends_at(step):
            self.report_skipped(state, step, metrics)
        if log:
            self.log(metrics)

    def report_skipped(self, state: TrainState, step: int, metrics: Mapping) -> None:
        """Reports updates that were skipped because the loss or the gradient was not finite.

        Raises:
          RunFailedError: more than the config allows. The state before the first one too many is
            kept for a replay.
        """
        skipped = int(metrics["skipped_updates"])
        if skipped == self.skipped:
            return
        self.skipped = skipped
        name = "gradient_norm" if np.isfinite(metrics["loss"]) else "loss"
        what = f"the {name.replace('_', ' ')} is {float(metrics[name])} at step {step}"
        allowed = max_skipped_updates(self.config)
        if skipped <= allowed:
            self.note(f"{what}: update skipped, {skipped} of at most {allowed}")
            return
        records = records_of_step(self.experiment, step - 1)
        listed = ", ".join(map(str, records[:4])) + (", ..." if len(records) > 4 else "")
        self.writer.flush()
        replay = "To repeat that step and see where: python -m widenet_jax.main --mode=replay "
        replay += f"--workdir={self.workdir}"
        try:
            self.checkpoints.save_failed(state, step=step - 1)
        except RunFailedError as error:
            replay = f"The state could not be kept for a replay: {error}"
        if allowed:
            what += f", one more than config.max_skipped_updates={allowed} allows"
        else:
            replay += ". --config.on_nonfinite=skip skips such updates"
        batch = f"in the batch of training {self.task.unit} {listed}"
        raise not_finite(f"{what}, {batch};", f"{replay}. ")

    def log(self, metrics: Mapping) -> None:
        """Writes the step's metrics; waits for the device."""
        values, unit = dict(jax.device_get(metrics)), self.task.unit
        values |= self.experiment.model.summarize(values.pop("layer_sums"))
        self.writer.write(self.step, "train", values)
        if rate := self.progress.per_second():
            times = {f"{unit}_per_second": rate, "seconds_per_step": self.config.batch_size / rate}
            self.writer.write_timing(self.step, times)
        bad, seen = int(values["bad_examples"]), self.step * self.config.batch_size
        limit, num_examples = (
            self.config.data.max_bad_fraction,
            self.experiment.data_info.num_examples,
        )
        what = f"training {unit} drawn so far"
        check_bad(bad, seen, num_examples=num_examples, limit=limit, what=what)

    def record_evaluation(self, state: TrainState, metrics: Mapping[str, Any]) -> None:
        """Writes an evaluation's metrics and keeps the state if it is the best so far.

        `on_evaluation` is called before: what it raises leaves an evaluation that a resumed run
        repeats, and not one that is recorded twice.

        Raises:
          RunFailedError: a metric is not finite, or the workdir is gone.
          CallbackError: `on_evaluation` raised an error.
        """
        step, task = self.step, self.task
        self.waiting(f"recording the evaluation after step {step}")
        self.check_kept()
        scalars = {name: value for name, value in metrics.items() if np.ndim(value) == 0}
        for name, value in scalars.items():
            if not np.isfinite(value):
                name = name.replace("_", " ")
                raise not_finite(f"evaluation {name} is {value} after step {step};")
        if self.main_host:
            try:
                self.on_evaluation(step, metrics)
            except Exception as error:
                raise CallbackError from error
        self.checkpoints.save_best(state, step=step, value=scalars[task.primary_metric.name])
        self.writer.write(step, "eval", metrics)
        remarks = {k: f" ({text})" for k, text in task.remarks.items()}
        shown = [f"{name.replace('_', ' ')} {value:.4f}{remarks.get(name, '')}"
                 for name, value in scalars.items() if isinstance(value, float)]  # fmt: skip
        self.note(f"step {step:,}: evaluation {', '.join(shown)}")
        self.writer.flush()
        self.evaluation_due = False

    def is_over(self) -> bool:
        """Returns whether a run that has evaluated as far as `step` ends there.

        It ends after its last step, or where `config.evaluation.patience` evaluations have brought
        no better primary metric. Which evaluations came after the best one follows from its step.
        """
        patience, every = self.experiment.config.evaluation.patience, self.experiment.eval_every
        if not patience or self.checkpoints.best_value is None:
            return self.step == self.experiment.total_steps
        waited = every.count(self.step) - every.count(self.checkpoints.best.step)
        return waited >= patience or self.step == self.experiment.total_steps

    def save(self, state: TrainState) -> None:
        """Writes pending metrics, then the state that comes after them."""
        with self.progress.pause():
            self.waiting(f"saving after step {self.step}")
            self.check_kept()
            self.writer.flush()
            if not all_finite((state.params, state.opt_state, state.carry)):
                what = f"a parameter, a moment or the carry is not finite after step {self.step}"
                raise not_finite(f"{what}; it is not saved, and")
            more = {"evaluation_due": self.evaluation_due, OF_LAST: self.writer.written()}
            self.checkpoints.save(state, step=self.step, **more)

    def end_step(self) -> bool:
        """Returns whether the run is over; ends it where a save failed or a stop was requested."""
        over = self.is_over()
        self.checkpoints.check()
        if self.step < self.experiment.total_steps:  # a stop was announced, also for patience's end
            self.stop.check()
        self.stop.last_step_done = over
        return over

    def check_kept(self) -> None:
        """Raises RunFailedError on the first host if the workdir is gone.

        Writing would make a new one, without the checkpoints so far and without config.json, which
        no later start accepts.
        """
        if self.main_host and is_gone(self.workdir / "config.json"):
            raise RunFailedError(gone_text(self.workdir))

    def write_result(self, state: TrainState, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Writes result.json, of the last evaluation, and says what is odd; returns the result."""
        self.checkpoints.wait()
        self.waiting("writing the result")
        result = summary.result_of(self.experiment, metrics, mode="train", steps=self.step)
        result |= summary.best_of(self.checkpoints)
        if bad := int(state.bad_examples):
            result["train_bad_examples"] = bad
        result["params_sha256"] = params_sha256(averaged(state.params, state.opt_state))
        self.check_kept()
        if self.main_host:
            summary.write_result(self.workdir, result)
        for message in (summary.unread(result), summary.unbeaten(self.task, metrics)):
            if message:
                self.note(f"warning: {message}")
        if message := summary.ended_early(self.experiment, self.checkpoints, self.step):
            self.note(message)
        return result


def records_of_step(experiment: Experiment, step: int) -> list[int]:
    """Returns the training records of the global batch that follows `step` updates, in order."""
    B = experiment.config.batch_size
    N, seed = experiment.data_info.num_examples, experiment.config.seed
    positions = step * B + np.arange(B)
    if experiment.data_info.stream:
        _, records = stream_at(positions, batch_size=B, num_windows=N, whole=False)
    else:
        _, records = record_at(positions, seed=seed, num_records=N)
    return records.tolist()


def read_batches(
    experiment: Experiment, data: Data, start_step: int, num_steps: int, **options: Any
) -> Batches:
    """Returns this host's batches of steps start_step..num_steps - 1; see `train_batches`."""
    config, B = experiment.config, experiment.config.batch_size
    how = {"seed": config.seed, "batch_size": B, "positions": host_positions(experiment.mesh, B)}
    how |= {"start_step": start_step, "num_steps": num_steps, **reading(config.data), **options}
    return train_batches(data.train, transform=data.train_transform, **how)
