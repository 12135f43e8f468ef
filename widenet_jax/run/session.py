"""What surrounds the loop of a start: watchdog, checkpoints, metrics, progress, checks, replay."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict
from orbax.checkpoint import multihost

from widenet_jax.checkpoint.checkpoints import BEST, FAILED, LAST, OF_LAST, Checkpoints, arrays_of
from widenet_jax.checkpoint.manifest import fingerprint
from widenet_jax.checkpoint.series import (
    CannotWriteError,
    Series,
    all_finite,
    check_space,
    is_full,
    space_text,
    tree_bytes,
)
from widenet_jax.data.blocks import check_bad, record_at, stream_at
from widenet_jax.data.contract import Data, DataInfo
from widenet_jax.data.pipeline import Batches, reading, train_batches
from widenet_jax.errors import BadExampleError, BadInputError, RunFailedError, choose, first_line
from widenet_jax.experiment import Experiment, max_skipped_updates
from widenet_jax.files import NO_ANSWER, STARTS, is_gone, is_remote, is_stall, may_replace
from widenet_jax.nn.attention.implementations import AUTO, FIELD, IMPLEMENTATIONS, candidate_for
from widenet_jax.optim.build import gradient_norm
from widenet_jax.param_names import named_leaves
from widenet_jax.run import workdir as workdirs
from widenet_jax.run.metrics import JsonLines, MetricsWriter
from widenet_jax.run.progress import Progress
from widenet_jax.run.stopping import Stop, StopRequestedError, Watchdog, say
from widenet_jax.sharding import gather_shared, global_batch, host_positions, to_host
from widenet_jax.step import TrainState, precision_of
from widenet_jax.typing import Array, Inputs, PyTree

ADVICE = (
    "In a new --workdir a lower config.optimizer.learning_rate or a longer config.optimizer.warmup "
    "may help"
)


OnEvaluation = Callable[[int, Mapping[str, Any]], object]


class CallbackError(Exception):
    """Carries what `on_evaluation` raised to the place where the run saves its state."""


class Session:
    """One start of a run in its workdir, locked until `stack` closes.

    Args:
      experiment: what is trained.
      workdir: where it is trained.
      stack: receives everything that must be closed at the end.
      on_evaluation: called on the first host with step and metrics, after each evaluation.

    Attributes:
      watchdog, checkpoints, progress: see their classes.
      waiting: as `watchdog.beat`, of what reads or writes the workdir.
      note: prints a line for people, where they follow.
      note_own: prints a line that only this host knows, such as its unreadable examples: on all
        hosts, each to its own stderr; `note_own_once` omits repeated lines.

    Raises:
      BadInputError: the disk is too small, or another process trains in the workdir.
    """

    def __init__(
        self,
        experiment: Experiment,
        workdir: epath.Path,
        stack: ExitStack,
        on_evaluation: OnEvaluation = lambda step, metrics: None,
    ):
        self.experiment, self.workdir, self.stack = experiment, workdir, stack
        self.on_evaluation = on_evaluation
        config, self.main_host = experiment.config, jax.process_index() == 0
        on_every_host(self._prepare_workdir)
        self.watchdog = stack.enter_context(closing(Watchdog(**config.watchdog)))
        meta = {"config": workdirs.plain(config), **experiment.data_info.info}
        primary_metric, keep = experiment.task.primary_metric, config.checkpoint.keep
        checkpoints = Checkpoints(workdir, meta=meta, keep=keep, primary_metric=primary_metric)
        self.checkpoints = stack.enter_context(closing(checkpoints))
        store = str(workdir) if is_remote(workdir) else ""
        self.waiting = partial(self.watchdog.beat, store=store)
        self.skipped = 0  # updates skipped so far, as far as they were reported

    def _prepare_workdir(self) -> None:
        if self.main_host:
            keep, size = self.experiment.config.checkpoint.keep, tree_bytes(self.experiment.state)
            check_space(self.workdir, (LAST, BEST), checkpoint_bytes=size, keep=keep)
            self.stack.enter_context(workdirs.locked(self.workdir))
            # Another start may have trained there since the first check.
            workdirs.check_workdir(self.workdir, self.experiment.config, mode="train")

    def restore(self, start: Callable[[], TrainState]) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state and meta of the newest intact checkpoint, or `start()` and {}.

        Raises: as `Checkpoints.restore`; RunFailedError where a run has metrics but no checkpoint.
        """
        self.waiting("restoring")
        restored = self.checkpoints.restore(self.experiment.state)
        if restored is None:
            self._check_history()
        state, meta = restored or (start(), {})
        self.metrics_file = meta.get(OF_LAST)  # older checkpoints have none
        return state, meta

    def _check_history(self) -> None:
        """Raises RunFailedError where no checkpoint is left of a run that must have had some."""
        records = JsonLines(self.workdir / "metrics.jsonl").read()
        last = max((record["step"] for record in records), default=0)
        # The second save begins only once the first is on disk.
        saved_twice = self.experiment.save_every.count(last - 1) >= 2
        if saved_twice or (self.workdir / "result.json").exists():
            raise RunFailedError(
                f"--workdir={self.workdir} has metrics up to step {last:,} and no checkpoint; "
                f"nothing was changed. Restore {LAST}/ from a copy, or start again in a new "
                "--workdir"
            )

    def open(self, state: TrainState, start_step: int, *, evaluation_due: bool) -> None:
        """Records the start in the workdir, and opens metrics and progress at `start_step`.

        Raises: as the trackers of `MetricsWriter`, on all hosts.
        """
        experiment, config = self.experiment, self.experiment.config
        self.skipped = int(state.skipped_updates)
        # Before config.json: all flags may be corrected until W&B accepts the run.
        place, fields = self.workdir if self.main_host else None, workdirs.plain(config)
        writer = on_every_host(partial(MetricsWriter, place, config=fields))
        self.writer = self.stack.enter_context(closing(writer))
        if self.main_host:
            attention = getattr(experiment.model, "attention", {}).get("implementation")
            info = experiment.data_info.info
            workdirs.write_run(self.workdir, config, info, attention)
        again = ("eval",) if evaluation_due else ()
        self.writer.resume(start_step, again=again, written=self.metrics_file)
        self.progress = Progress(
            total_steps=experiment.total_steps,
            start_step=start_step,
            batch_size=config.batch_size,
            unit=experiment.task.unit,
            quiet=not is_followed(),
        )
        self.stack.enter_context(closing(self.progress))
        self.note = self.progress.note
        self.note_own = say if self.progress.quiet else self.note
        self.note_own_once = cache(self.note_own)  # every evaluation meets the same examples

    def log(self, step: int, metrics: Mapping) -> None:
        """Writes the step's metrics; waits for the device."""
        values = dict(jax.device_get(metrics))
        values |= self.experiment.model.summarize(values.pop("layer_sums"))
        self.writer.write(step, "train", values)
        if rate := self.progress.per_second():
            per_step = self.experiment.config.batch_size / rate
            unit = self.experiment.task.unit
            times = {f"{unit}_per_second": rate, "seconds_per_step": per_step}
            self.writer.write_timing(step, times)
        config, num_examples = self.experiment.config, self.experiment.data_info.num_examples
        bad, seen = int(values["bad_examples"]), step * config.batch_size
        limit = config.data.max_bad_fraction
        what = f"training {self.experiment.task.unit} drawn so far"
        check_bad(bad, seen, num_examples=num_examples, limit=limit, what=what)

    def record_evaluation(self, state: TrainState, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes an evaluation's metrics and keeps the state if it is the best so far.

        `on_evaluation` is called before: what it raises leaves an evaluation that a resumed run
        repeats, and not one that is recorded twice.

        Raises:
          RunFailedError: a metric is not finite, or the workdir is gone.
          CallbackError: `on_evaluation` raised an error.
        """
        self.waiting(f"recording the evaluation after step {step}")
        self.check_kept()
        primary_metric = self.experiment.task.primary_metric.name
        scalars = {name: value for name, value in metrics.items() if np.ndim(value) == 0}
        for name, value in scalars.items():
            if not np.isfinite(value):
                raise RunFailedError(
                    f"evaluation {name.replace('_', ' ')} is {value} after step {step}; earlier "
                    f"checkpoints are kept. {ADVICE}"
                )
        if self.main_host:
            try:
                self.on_evaluation(step, metrics)
            except Exception as error:
                raise CallbackError from error
        self.checkpoints.save_best(state, step=step, value=scalars[primary_metric])
        self.writer.write(step, "eval", metrics)
        remarks = {k: f" ({text})" for k, text in self.experiment.task.remarks.items()}
        shown = [f"{name.replace('_', ' ')} {value:.4f}{remarks.get(name, '')}"
                 for name, value in scalars.items() if isinstance(value, float)]  # fmt: skip
        self.note(f"step {step:,}: evaluation {', '.join(shown)}")
        self.writer.flush()

    def is_over(self, step: int) -> bool:
        """Returns whether a run that has evaluated as far as `step` ends there.

        It ends after its last step, or where `config.evaluation.patience` evaluations have brought
        no better primary metric. Which evaluations came after the best one follows from its step.
        """
        patience, every = self.experiment.config.evaluation.patience, self.experiment.eval_every
        if not patience or self.checkpoints.best_value is None:
            return step == self.experiment.total_steps
        waited = every.count(step) - every.count(self.checkpoints.best.step)
        return waited >= patience or step == self.experiment.total_steps

    def save(self, state: TrainState, step: int, *, evaluation_due: bool) -> None:
        """Writes pending metrics, then the state that comes after them."""
        self.waiting(f"saving after step {step}")
        self.check_kept()
        self.writer.flush()
        if not all_finite((state.params, state.opt_state, state.carry)):
            raise RunFailedError(
                f"a parameter, a moment or the carry is not finite after step {step}; it is not "
                f"saved, and earlier checkpoints are kept. {ADVICE}"
            )
        more = {"evaluation_due": evaluation_due, OF_LAST: self.writer.written()}
        self.checkpoints.save(state, step=step, **more)

    def check_kept(self) -> None:
        """Raises RunFailedError on the first host if the workdir is gone.

        Writing would make a new one, without the checkpoints so far and without config.json, which
        no later start accepts.
        """
        if self.main_host and is_gone(self.workdir / "config.json"):
            raise RunFailedError(gone_text(self.workdir))

    def check_numbers(self, state: TrainState, step: int, metrics: Mapping) -> None:
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
        allowed = max_skipped_updates(self.experiment.config)
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
        raise RunFailedError(
            f"{what}, in the batch of training {self.experiment.task.unit} {listed}; earlier "
            f"checkpoints are kept. {replay}. {ADVICE}"
        )


def is_followed() -> bool:
    """Returns whether this process joined as process 0, whose output people follow.

    On a TPU that is worker 0, whose log launchers show. The first host, which writes the files, may
    be another worker: libtpu numbers `jax.process_index()` by the place in the slice. All hosts
    call this at the same place.
    """
    if not jax.distributed.is_initialized():
        return True
    if not multihost.is_runtime_to_distributed_ids_initialized():
        multihost.initialize_runtime_to_distributed_ids()
    return multihost.runtime_to_distributed_ids()[jax.process_index()] == 0


@contextmanager
def errors_in_one_line(workdir: epath.Path, stop: Stop) -> Iterator[None]:
    """Turns what can end a run early into errors that `main` prints as one line."""
    try:
        yield
    except StopRequestedError:
        raise stop.stopped(0) from None
    except BadExampleError as error:
        raise BadInputError(
            f"{error}; or skip such examples: --config.data.on_bad_example=skip (up to a share of "
            "config.data.max_bad_fraction; a few of a small set)"
        ) from None
    except (CannotWriteError, FileNotFoundError) as error:
        ours = str(getattr(error, "filename", workdir)).startswith(str(workdir))
        if not (ours and is_gone(workdir / "config.json")):
            raise
        raise RunFailedError(gone_text(workdir)) from error
    except OSError as error:
        if is_stall(error):
            again = "then run the same command again to resume"
            raise RunFailedError(f"{NO_ANSWER}; {again}") from error
        if not (full := is_full(error)):
            raise
        lack, mend = space_text(workdir)
        raise RunFailedError(
            f"--workdir={workdir}: {full}{lack}; {mend}, and run the same command again to resume "
            "from the last checkpoint"
        ) from error
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise RunFailedError(
            f"a device is out of memory ({first_line(error)}); give it less at a time: "
            "--config.optimizer.accumulation_steps=2, --config.model.remat=block, or a smaller "
            "--config.batch_size (in evaluation --config.evaluation.batch_size)"
        ) from error


def gone_text(workdir: epath.Path) -> str:
    """Returns the message of a run whose workdir was taken away."""
    return (
        f"--workdir={workdir}: its config.json is gone, so the directory or this file was deleted "
        "or moved during the run; put it back (every checkpoint's meta/metadata has the config) "
        "and run the same command again to resume, or start again in a new --workdir"
    )


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
    config = experiment.config
    return train_batches(
        data.train,
        transform=data.train_transform,
        seed=config.seed,
        batch_size=config.batch_size,
        positions=host_positions(experiment.mesh, config.batch_size),
        start_step=start_step,
        num_steps=num_steps,
        **reading(config.data),
        **options,
    )


def replay(experiment: Experiment, data: Data, workdir: epath.Path) -> dict[str, Any]:
    """Repeats the step whose loss or gradient was not finite, from the state kept for it.

    Parameters, carry and randomness are the same; nothing is changed.

    Returns {step, unit, loss, gradient_norm, first_module, not_finite: {gradients: [parameter],
    examples: [description]}, batch: [description]}. An example counts as not finite if an output of
    the model is, and a module if its output is, without dropout or mixup.

    Raises:
      BadInputError: no step of this run was kept for a replay.
    """
    task, target = experiment.task, experiment.state
    items = {name: item for name, item in arrays_of(target).items() if name != "opt_state"}
    with closing(Series(workdir / FAILED, keep=1)) as series:
        kept, _ = series.newest(items, fingerprint=fingerprint(target.params), finite=False)
    if kept is None:
        raise BadInputError(f"--workdir={workdir}: no step of this run was kept for a replay")
    params, step = kept.items["params"], kept.meta["step"]
    with read_batches(experiment, data, step, step + 1) as batches:
        batch = global_batch(next(batches), experiment.mesh, experiment.config.batch_size)
    batch |= kept.items.get("carry", {})

    def work(params: PyTree, batch: dict[str, Array], step: Array) -> dict[str, PyTree]:
        grads, metrics = experiment.gradients(params, batch, step)
        outputs, modules = forward_noting(experiment.model, params, task.inputs(batch))
        finite = [jnp.isfinite(x).all(axis=range(1, x.ndim)) for x in jax.tree.leaves(outputs)]
        return {
            "loss": metrics.means["loss"],
            "gradient_norm": gradient_norm(grads),
            "finite_gradients": jax.tree.map(lambda g: jnp.isfinite(g).all(), grads),
            "finite_examples": jnp.stack(finite).all(axis=0),
            "finite_modules": modules,
        }

    replicated = NamedSharding(experiment.mesh, P())
    result = to_host(jax.jit(work, out_shardings=replicated)(params, batch, jnp.int32(step)))
    places = [data.train.describe(record) for record in records_of_step(experiment, step)]
    named = named_leaves(result["finite_gradients"])
    return {
        "mode": "replay",
        "step": step + 1,
        "unit": task.unit,
        "loss": str(result["loss"]),  # JSON has no number that is not finite
        "gradient_norm": str(result["gradient_norm"]),
        "first_module": first_not_finite(result["finite_modules"]),
        "not_finite": {
            "gradients": [name for name, finite in named if not finite],
            "examples": [places[i] for i in np.flatnonzero(~result["finite_examples"])],
        },
        "batch": places,
    }


def forward_noting(
    model: nn.Module, params: PyTree, inputs: Inputs
) -> tuple[PyTree, dict[str, Array]]:
    """Returns a model's outputs in evaluation, and whether each module's are finite.

    The names, such as "000007 encoder/moe, call 2", sort by the order in which the calls end.
    """
    calls: list[str] = []

    def note(call: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext):
        output = call(*args, **kwargs)
        if context.method_name == "__call__":
            path = "/".join(context.module.path) or "the model"
            again = f", call {calls.count(path) + 1}" if path in calls else ""
            finite = jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(output)]).all()
            context.module.sow("finite", f"{len(calls):06d} {path}{again}", finite)
            calls.append(path)
        return output

    # Linen notes nothing inside a loop or a recomputed block.
    plain = {k: v for k, v in {"unroll": True, "remat": "none"}.items() if hasattr(model, k)}
    apply = partial(model.clone(**plain).apply, train=False, mutable=["finite"])
    with nn.intercept_methods(note), precision_of(model):
        (outputs, _), found = apply({"params": gather_shared(params)}, inputs)
    return outputs, {path[-1]: finite for path, (finite,) in flatten_dict(found["finite"]).items()}


def first_not_finite(finite: Mapping[str, bool]) -> str:
    """Returns the first module that `forward_noting` names as not finite, or "none"."""
    return next((name.split(" ", 1)[1] for name in sorted(finite) if not finite[name]), "none")


T = TypeVar("T")


def check_agreement(values: Mapping[str, object]) -> None:
    """Compares named values over all hosts. Every host calls this at the same place.

    Raises:
      BadInputError: on all hosts, if names or values differ; says which, and on which hosts.
    """
    if jax.process_count() == 1:
        return
    names = sorted(values)
    for named, own in ((["the names of the fields"], [names]), (names, map(values.get, names))):
        digests = np.array([digest(value) for value in own], np.uint32)
        table = np.asarray(multihost_utils.process_allgather(digests))  # [hosts, names]
        if complaint := disagreement(named, table.reshape(-1, len(named))):
            raise BadInputError(complaint)


def on_every_host(begin: Callable[[], T]) -> T:
    """Returns `begin()`, which must not communicate; if it fails on one host, all hosts fail.

    Otherwise the other hosts would wait for the one that has ended.

    Raises:
      BadInputError, RunFailedError: `begin` raised it here or on another host.
    """
    kinds = (None, BadInputError, RunFailedError)
    try:
        result, error = begin(), None
    except kinds[1:] as caught:
        result, error = None, caught
    if jax.process_count() > 1:
        own = 0 if error is None else 1 + isinstance(error, RunFailedError)  # an index of `kinds`
        all_kinds = np.asarray(multihost_utils.process_allgather(np.int32(own)))
        if error is None and all_kinds.any():
            odd = ", ".join(map(str, np.flatnonzero(all_kinds)))
            error = kinds[all_kinds.max()](f"process {odd} cannot begin; its own message says why")
    if error:
        raise error
    return result


def attention_of(
    config: ConfigDict, data_info: DataInfo, devices: Sequence[jax.Device], workdir: epath.Path
) -> tuple[str | None, str]:
    """Returns the implementation of attention, the same on all hosts, and a line for the user.

    None, for attention that has no choice. A run that is resumed keeps its implementation, so that
    its numbers stay the same to the byte, unless the config names another, the devices lack it, or
    it is wrong on other devices or with other versions than before.

    Raises:
      BadInputError: an unknown implementation.
    """
    asked = config.model.attention.get("implementation")
    if asked is None:
        return None, ""
    choose(IMPLEMENTATIONS | {AUTO: None}, asked, field=FIELD)
    # A start that saved nothing may have had another model.
    starts = [] if may_replace(workdir) else workdirs.earlier_starts(workdir / STARTS)
    before = starts[-1].get("attention") if starts else None
    candidate = candidate_for(config.model.attention, devices[0].platform)

    def decide() -> tuple[str, str]:
        if asked != AUTO:
            return asked, ""
        if candidate is None or before == "xla":
            return "xla", ""
        if before == candidate:
            here = workdirs.environment()
            if all(starts[-1].get(of) == here[of] for of in ("packages", "devices")):
                return before, ""
        from widenet_jax.run.attention import chosen_by_measuring

        by_time = before != candidate
        name, line = chosen_by_measuring(config, data_info, devices, candidate, by_time=by_time)
        return name, "" if name == before else line

    chosen, line = on_every_host(decide)  # one host's failure ends all, also where others measure
    if jax.process_count() > 1 and candidate and asked == AUTO:
        takes_it = multihost_utils.process_allgather(np.bool_(chosen == candidate))
        chosen, line = agreed(np.asarray(takes_it), candidate, line)
    if before and chosen != before:
        line = (
            f"{line or f'attention: {chosen}'}; {before} until now: from here on "
            "numbers differ from an unbroken run's by rounding"
        )
    return chosen, line


def agreed(takes_it: np.ndarray, candidate: str, line: str) -> tuple[str, str]:
    """Returns the implementation for all hosts, and this host's line.

    Args:
      takes_it: [hosts] bool; a host on which the candidate is wrong or slow decides for all.
      candidate: the kernel.
      line: what this host says of its own choice.
    """
    if takes_it.all() or not takes_it.any():
        return candidate if takes_it.all() else "xla", line
    against = ", ".join(map(str, np.flatnonzero(~takes_it)))
    here = line or f"{candidate} is right"
    return "xla", f"attention: xla, the choice of process {against}; here {here}"


def disagreement(names: list[str], table: np.ndarray) -> str | None:
    """Describes the first value that hosts differ in and names the odd hosts; None if all agree.

    Args:
      names: names of the values.
      table: uint32 [hosts, names], digests. The odd hosts are the minority; in a tie, those that
        differ from host 0.
    """
    for name, column in zip(names, table.T, strict=True):
        usual, _ = Counter(column.tolist()).most_common(1)[0]  # in a tie the one of host 0
        odd = np.flatnonzero(column != usual)
        if len(odd):
            return (
                f"hosts do not agree on {name}: process {', '.join(map(str, odd))} of "
                f"{len(column)} differs from the others; start the same command with the same "
                "code and data on every host"
            )
    return None


def digest(value: object) -> int:
    """Returns 32 bits of the SHA-256 of a value's repr."""
    return int(hashlib.sha256(repr(value).encode()).hexdigest()[:8], 16)


def code_sha256() -> str:
    """Returns the SHA-256 of this package's source files, names included."""
    package = Path(__file__).parents[1]
    sha = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sha.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()
