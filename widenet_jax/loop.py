"""The training loop: steps, and what happens between them."""

from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath

from widenet_jax.checkpoint.checkpoints import Checkpoints
from widenet_jax.checkpoint.series import all_finite
from widenet_jax.data.images.sources import Source
from widenet_jax.data.pipeline import EvalTransform, TrainTransform, train_batches
from widenet_jax.errors import RunFailedError
from widenet_jax.evaluation import evaluate
from widenet_jax.experiment import DataFacts, Experiment, max_skipped_updates
from widenet_jax.moe.balance import summarize
from widenet_jax.run.metrics import MetricsWriter
from widenet_jax.run.progress import Progress
from widenet_jax.run.replay import records_of_step
from widenet_jax.run.stopping import Stop, StopRequestedError
from widenet_jax.run.watchdog import Watchdog
from widenet_jax.sharding import global_batch, host_positions
from widenet_jax.step import TrainState

ADVICE = (
    "--config.on_nonfinite=skip goes on without such updates; in a new --workdir a lower "
    "config.optimizer.learning_rate or a longer config.optimizer.warmup may help"
)


class Data(NamedTuple):
    """Both splits, opened, and what is done to their images."""

    train: Source
    eval: Source
    train_transform: TrainTransform
    eval_transform: EvalTransform
    facts: DataFacts


class Loop:
    """Steps, and what happens between them: numbers, evaluation, checkpoints, stops."""

    def __init__(
        self,
        experiment: Experiment,
        data: Data,
        workdir: epath.Path,
        *,
        checkpoints: Checkpoints,
        writer: MetricsWriter,
        progress: Progress,
        stop: Stop,
        watchdog: Watchdog,
    ):
        self.experiment, self.data, self.workdir = experiment, data, workdir
        self.checkpoints, self.writer, self.progress = checkpoints, writer, progress
        self.stop, self.watchdog = stop, watchdog
        self.note_once = cache(progress.note)  # what every evaluation meets again
        self.positions = host_positions(experiment.mesh, experiment.config.batch_size)
        self.skipped = 0  # updates, as far as reported
        self.step = 0  # the last one worked on
        self.evaluation_due = False  # of that step, and not made or not written yet
        self.evaluated: dict[str, Any] = {}  # the last evaluation

    def run(
        self, state: TrainState, start_step: int, *, evaluate_first: bool
    ) -> tuple[TrainState, dict[str, Any]]:
        """Trains to the last step; returns the state and its evaluation.

        Raises:
          StoppedError: it was asked to stop, and the state is saved.
          RunFailedError: see `check_numbers`, `check_bad_examples` and `checkpoint.series`.
        """
        self.step, self.skipped = start_step, int(state.skipped_updates)
        self.evaluation_due = evaluate_first
        self.watchdog.beat("compiling the first step")
        unchecked: tuple[int, Mapping] | None = None
        try:
            if self.evaluation_due:
                self.evaluate(state)
            elif start_step == self.experiment.total_steps:  # a finished run, called again
                self.evaluated = self.measure(state)
            with closing(self.stop.reading(self.batches(start_step))) as batches:
                for batch in batches:
                    state, metrics = self.experiment.train_step(state, self.place(batch))
                    self.step += 1
                    self.stop.unsaved = True
                    self.watchdog.beat(f"step {self.step}")
                    if unchecked:  # one step late, so that the device always has work
                        self.check_numbers(state, *unchecked)
                    unchecked = self.step, metrics
                    self.progress.advance(self.step, lambda m=metrics: float(m["loss"]))
                    self.between_steps(state, metrics)
            self.checkpoints.wait()
            return state, self.evaluated
        except StopRequestedError:
            if self.step > start_step:
                self.check_numbers(state, *unchecked)
                self.save(state)
                self.checkpoints.wait()
            raise self.stop.stopped(self.step) from None

    def between_steps(self, state: TrainState, metrics: Mapping) -> None:
        """Logs, evaluates and saves where it is time to; stops where it was asked to."""
        experiment, config = self.experiment, self.experiment.config
        last = self.step == experiment.total_steps
        log, self.evaluation_due, save = (
            self.step % every == 0 or last
            for every in (config.log_every_steps, experiment.eval_every, experiment.save_every)
        )
        if log or self.evaluation_due or save:
            self.check_numbers(state, self.step, metrics)
        if log:
            self.log(metrics)
        if self.evaluation_due:
            self.evaluate(state)
        if save:
            self.save(state)
        self.checkpoints.check()
        if not last:
            self.stop.check()

    def batches(self, start_step: int) -> Any:
        config = self.experiment.config
        return train_batches(
            self.data.train,
            transform=self.data.train_transform,
            seed=config.seed,
            batch_size=config.batch_size,
            positions=self.positions,
            start_step=start_step,
            num_steps=self.experiment.total_steps,
            num_workers=config.data.num_workers,
            prefetch=config.data.prefetch,
            on_bad_example=config.data.on_bad_example,
            on_message=self.progress.note,
        )

    def place(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        return global_batch(
            batch,
            mesh=self.experiment.mesh,
            batch_size=self.experiment.config.batch_size,
            positions=self.positions,
        )

    def log(self, metrics: Mapping) -> None:
        """Writes the step's metrics; waits for the device."""
        step = self.step
        values = dict(jax.device_get(metrics))
        routing = values.pop("routing")
        if routing:
            values |= summarize(routing)
        self.writer.write(step, "train", values)
        self.writer.write_timing(step, {"images_per_second": self.progress.images_per_second()})
        self.check_bad_examples(step, int(values["bad_examples"]))

    def measure(self, state: TrainState) -> dict[str, Any]:
        """The metrics of an evaluation."""
        return evaluate(
            self.experiment,
            state.params,
            self.data.eval,
            self.data.eval_transform,
            stop=self.stop,
            beat=self.watchdog.beat,
            note=self.note_once,
        )

    def evaluate(self, state: TrainState) -> None:
        """Evaluates, writes the metrics and keeps the state if it is the best so far."""
        step = self.step
        with self.progress.pause():
            metrics = self.measure(state)
            if not np.isfinite(metrics["cross_entropy"]):
                raise RunFailedError(
                    f"the test cross-entropy is {metrics['cross_entropy']} after step {step}; "
                    f"checkpoints made before are kept. {ADVICE}"
                )
            self.checkpoints.save_best(state, step=step, accuracy=metrics["accuracy"])
        self.writer.write(step, "eval", metrics)
        self.progress.note(
            f"step {step:,}: test accuracy {metrics['accuracy']:.2%}, "
            f"cross-entropy {metrics['cross_entropy']:.4f}"
        )
        self.writer.flush()
        self.evaluated, self.evaluation_due = metrics, False

    def save(self, state: TrainState) -> None:
        """First the numbers, then the state that comes after them."""
        with self.progress.pause():
            self.watchdog.beat(f"saving after step {self.step}")
            self.writer.flush()
            if not all_finite((state.params, state.opt_state)):
                raise RunFailedError(
                    f"a parameter or a moment is not finite after step {self.step}; it is not "
                    f"saved, and checkpoints made before are kept. {ADVICE}"
                )
            self.checkpoints.save(state, step=self.step, evaluation_due=self.evaluation_due)

    def check_numbers(self, state: TrainState, step: int, metrics: Mapping) -> None:
        """Notes updates that were skipped because the loss or the gradient was not finite.

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
        allowed = max_skipped_updates(self.experiment.config)
        if skipped <= allowed:
            self.progress.note(f"{what}: update skipped, {skipped} of at most {allowed}")
            return
        records = records_of_step(self.experiment, step - 1)
        listed = ", ".join(map(str, records[:4])) + (", ..." if len(records) > 4 else "")
        self.writer.flush()
        again = "To work on that batch again: python -m widenet_jax.main --mode=replay "
        again += f"--workdir={self.workdir}"
        try:
            self.checkpoints.save_failed(state, step=step - 1)
        except RunFailedError as error:
            again = f"The state could not be kept for a replay: {error}"
        if allowed:
            what += f", one more than config.max_skipped_updates={allowed} allows"
        raise RunFailedError(
            f"{what}, in the batch of training images {listed}; checkpoints made before are kept. "
            f"{again}. {ADVICE}"
        )

    def check_bad_examples(self, step: int, bad: int) -> None:
        """Raises RunFailedError where too large a share of the training images is unreadable."""
        limit = self.experiment.config.data.max_bad_fraction
        seen = step * self.experiment.config.batch_size
        if bad > limit * max(seen, self.data.facts.num_examples):
            raise RunFailedError(
                f"{bad:,} of {seen:,} training images could not be read up to step {step:,}, more "
                f"than config.data.max_bad_fraction={limit:g} allows; mend the data (this start's "
                "and earlier starts' notes name the images) or allow more"
            )
