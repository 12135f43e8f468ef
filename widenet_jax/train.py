"""A run, top to bottom: hosts, data, experiment, restore, loop, result.

`experiment` builds what is trained (mesh, model, task, optimizer, sharded state, steps). `run/` has
what surrounds the loop: checkpoints, metrics, progress, stop requests.
"""

import copy
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from types import ModuleType
from typing import Any

import jax
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax.checkpoint.checkpoints import load_checkpoint
from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.config.files import load_config
from widenet_jax.config.imports import import_files, remember
from widenet_jax.data.contract import Data
from widenet_jax.data.foreign import try_objects
from widenet_jax.data.pipeline import check_small_splits
from widenet_jax.data.sources import open_data, overview
from widenet_jax.errors import BadExampleError, BadInputError, naming_arguments
from widenet_jax.evaluation import evaluate
from widenet_jax.experiment import Experiment, build_experiment
from widenet_jax.files import absolute
from widenet_jax.optim.build import averaged, is_frozen, restarted
from widenet_jax.run import summary
from widenet_jax.run import workdir as workdirs
from widenet_jax.run.session import (
    CallbackError,
    OnEvaluation,
    Session,
    attention_of,
    check_agreement,
    code_sha256,
    errors_in_one_line,
    on_every_host,
    read_batches,
    replay,
)
from widenet_jax.run.stopping import Stop, StopRequestedError, say
from widenet_jax.sharding import global_batch, to_host
from widenet_jax.specs import PYTHON
from widenet_jax.step import TrainState

COMPILING = (
    "compiling the training step: this can take a minute, a few seconds where this machine has "
    "compiled it before"
)


def run(
    config: ConfigDict,
    workdir: str,
    *,
    mode: str = "train",
    extend: bool = False,
    devices: Sequence[jax.Device] | None = None,
    stop: Stop | None = None,
    profile: int | None = None,
    splits: tuple[Any, Any] | None = None,
    on_evaluation: OnEvaluation = lambda step, metrics: None,
) -> dict[str, Any]:
    """Trains what a config describes in a workdir; the same call again resumes it.

    Every host of a multi-host run calls this.

    Args:
      config: the run's.
      workdir: local or gs://.
      mode: "train"; "eval", to evaluate the newest checkpoint; or "replay", to repeat the step
        whose numbers were not finite.
      extend: a longer config.duration may change the learning rate of a run, see `check_length`;
        and the examples may be others.
      devices: the devices to use; all by default.
      stop: may request an early end.
      profile: number of steps to trace with JAX's profiler.
      splits: see `open_data`.
      on_evaluation: see `Session`.

    Returns:
      What `result.json` holds, or the findings of another mode.

    Raises:
      BadInputError: the config, the data or the workdir does not fit; nothing was changed.
      RunFailedError: a number is not finite, no checkpoint is intact, or the disk is full.
      StoppedError: a stop was requested, and everything is saved.
    """
    workdir, stop = on_every_host(partial(absolute, workdir)), stop or Stop()

    # Hosts: all must run the same program.
    check_agreement(same_on_all_hosts(config, workdir, mode) | {"--extend": extend})

    # Data
    on_every_host(partial(workdirs.check_workdir, workdir, config, mode=mode))
    if profile:  # imported where they are asked for: profile, pretrained models
        from widenet_jax.run.profile import Profile, check_profiler

        on_every_host(check_profiler)
    hashed = mode == "train"
    data = on_every_host(partial(open_data, config, workdir, splits, hashed=hashed))
    check_agreement(same_data(data))

    # Experiment
    devices = devices or jax.devices()
    attention, chosen = attention_of(config, data.data_info, devices, workdir)
    experiment = build_experiment(config, data.data_info, devices, attention=attention)
    total_steps, mesh, task = experiment.total_steps, experiment.mesh, experiment.task
    lines = [chosen]  # notes for the user
    if mode == "train":
        length = partial(workdirs.check_length, workdir, experiment, extend=extend)
        lines += map(on_every_host, (length, partial(workdirs.changed_imports, workdir, config)))

    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(mesh))
        stack.enter_context(errors_in_one_line(workdir, stop))
        if mode == "replay":
            return replay(experiment, data, workdir)
        if mode == "eval":
            return evaluate_newest(experiment, data, workdir, stop)
        on_every_host(partial(check_small_splits, data, config.data, task.unit, say))

        # Restore
        session = Session(experiment, workdir, stack, on_evaluation)
        state, meta = session.restore(partial(first_state, experiment, note=lines.append))
        here = data.data_info.info
        lines.append(workdirs.check_info(meta, here, workdir=workdir, extend=extend))
        start_step = step = stop.saved = meta.get("step", 0)
        check_agreement({"the restored step": step})
        evaluation_due = meta.get("evaluation_due", False)  # a stop cut the evaluation off
        session.open(state, step, evaluation_due=evaluation_due)
        finished = session.is_over(step) and not evaluation_due
        splits = (config.data.train_split, data.train), (config.data.eval_split, data.eval)
        session.note(overview(splits, task.unit))
        session.note(
            f"finished before, after step {step:,}: evaluating"
            if finished
            else summary.describe(experiment, state.params, step)
        )
        for line in filter(None, [*lines, getattr(data.train, "note", "")]):
            session.note(line)

        # Loop
        train_step = experiment.train_step
        if profile:
            pause = session.progress.pause
            trace = Profile(train_step, profile, start_step, workdir, session.note, pause)
            train_step = stack.enter_context(closing(trace))
        beat = session.watchdog.beat
        hooks = {"stop": stop, "beat": beat, "note": session.note_own_once}
        measure = partial(evaluate, experiment, data, **hooks)
        place = partial(global_batch, mesh=mesh, batch_size=config.batch_size)
        beat("compiling the first step")
        metrics: Mapping[str, Any] = {}
        unchecked: tuple[int, Mapping[str, Any]] | None = None
        try:
            if evaluation_due or finished:
                metrics = measure(averaged(state.params, state.opt_state))
            if evaluation_due:
                session.record_evaluation(state, step, metrics)
                evaluation_due = False
            end = step if session.is_over(step) else total_steps
            if step < end:
                session.note(COMPILING)
            batches = read_batches(experiment, data, step, end, on_message=session.note_own)
            with closing(stop.reading(batches)) as reading:
                for batch in reading:
                    state, step_metrics = train_step(state, place(batch))
                    step += 1
                    stop.unsaved, stop.last_step_done = True, step == total_steps
                    beat(f"step {step}")
                    if unchecked:  # one step late, so that the device always has work
                        session.check_numbers(state, *unchecked)
                    unchecked = step, step_metrics
                    shown = partial(summary.loss_text, task, step_metrics)
                    session.progress.advance(step, shown)

                    last = step == total_steps
                    log = last or step % config.log_every_steps == 0
                    evaluation_due = last or experiment.eval_every.ends_at(step)
                    save = last or experiment.save_every.ends_at(step)
                    if log or evaluation_due or save:
                        session.check_numbers(state, step, step_metrics)
                    if log:
                        session.log(step, step_metrics)
                    if evaluation_due:
                        with session.progress.pause():
                            metrics = measure(averaged(state.params, state.opt_state))
                            session.record_evaluation(state, step, metrics)
                        evaluation_due = False
                    last = session.is_over(step)
                    if last or save:
                        with session.progress.pause():
                            session.save(state, step, evaluation_due=False)
                    session.checkpoints.check()
                    if step < total_steps:  # a stop was announced, also where patience ends the run
                        stop.check()
                    stop.last_step_done = last
                    if last:
                        break
            session.checkpoints.wait()
        except (StopRequestedError, BadExampleError, CallbackError) as ending:
            requested = isinstance(ending, StopRequestedError)
            # These errors end one host alone, which cannot save without the others.
            if step > start_step and (requested or jax.process_count() == 1):
                session.check_numbers(state, *unchecked)
                session.save(state, step, evaluation_due=evaluation_due)
                session.checkpoints.wait()
                session.note(f"saved after step {step:,}")
            if requested:
                raise stop.stopped(step) from None
            raise (ending.__cause__ or ending) from None

        # Result
        session.waiting("writing the result")
        result = summary.result_of(experiment, metrics, mode="train", steps=step)
        result |= summary.best_of(session.checkpoints)
        result["params_sha256"] = params_sha256(averaged(state.params, state.opt_state))
        session.check_kept()
        if session.main_host:
            summary.write_result(workdir, result)
        if message := summary.unbeaten(task, metrics):
            session.note(f"warning: {message}")
        if message := summary.ended_early(experiment, session.checkpoints, step):
            session.note(message)
        return result


@naming_arguments(extend="extend=True")
def train(
    config: ConfigDict | str,
    workdir: str | os.PathLike[str],
    *,
    data: Any = None,
    eval_data: Any = None,
    fields: Mapping[str, Any] | None = None,
    on_evaluation: OnEvaluation = lambda step, metrics: None,
    extend: bool = False,
    imports: Sequence[str | os.PathLike[str]] = (),
) -> dict[str, Any]:
    """Trains in a workdir; the same call again resumes. Also `widenet_jax.train(...)`.

    Args:
      config: a config, or its file and variant, as "configs/digits.py:vit_tiny".
      workdir: local or gs://.
      data: the training examples, an object with `__len__` and `__getitem__`, instead of those that
        the config names. An image classifier's are (image, label), see `vision.data.objects`, a
        text classifier's (text, label) or (text, second text, label); of other tasks data is a
        `data.contract.Source`. An index gives the same example at every read.
      eval_data: the evaluation examples, as `data`.
      fields: of the config, by name: {"duration": "2 epochs"}.
      on_evaluation: called with step and metrics after each evaluation, on the first host. What it
        raises ends the run, whose state is saved first; a resumed run evaluates and calls it again.
      extend: as of `run`.
      imports: files that register parts of the model or the task.

    Returns: what `result.json` holds.

    Raises: as `run`; never SystemExit.
    """
    if not isinstance(config, str | ConfigDict):
        raise BadInputError(
            f"config is {type(config).__name__}; give a ConfigDict, or a file as configs/digits.py"
        )
    paths = import_files(imports, flag="imports")
    config = load_config(config) if isinstance(config, str) else copy.deepcopy(config)
    remember(config, paths)
    flags = [f"--config.{name}={value}" for name, value in (fields or {}).items()]
    from widenet_jax.inference.pretrained_config import set_fields

    config, splits = set_fields(config, flags, workdir=os.fspath(workdir)), None
    try_objects(data, eval_data)
    try:
        inspect.signature(on_evaluation).bind(0, {})
    except (TypeError, ValueError) as error:
        raise BadInputError(f"on_evaluation takes a step and metrics: {error}") from None
    if data is not None:
        config.data.update(source=PYTHON, path="")
        splits = data, eval_data
    how = {"splits": splits, "on_evaluation": on_evaluation, "extend": extend}
    return run(config, os.fspath(workdir), **how)


def same_on_all_hosts(config: ConfigDict, workdir: epath.Path, mode: str) -> dict[str, object]:
    """Returns what must agree on all hosts, by name."""
    fields = {f"config.{name}": value for name, value in workdirs.shared_fields(config).items()}
    versions = {f"the version of {name}": workdirs.version(name) for name in workdirs.PACKAGES}
    code = {"--workdir": str(workdir), "--mode": mode, "the code": code_sha256()}
    return fields | versions | code


def same_data(data: Data) -> dict[str, object]:
    """Returns what must agree of the data on all hosts, by name."""
    info = dict(data.data_info.info)
    contents = info.pop("content_sha256", "")
    halves = contents[: len(contents) // 2], contents[len(contents) // 2 :]
    facts = {"the data": data.data_info._replace(info=info)}
    return facts | dict(zip(("the training data", "the evaluation data"), halves, strict=True))


def evaluate_newest(
    experiment: Experiment, data: Data, workdir: epath.Path, stop: Stop
) -> dict[str, Any]:
    """Evaluates the newest intact checkpoint; changes nothing."""
    newest = load_checkpoint(workdir, experiment.state.params)
    if newest is None:
        raise BadInputError(f"--workdir={workdir}: no finished checkpoint to evaluate")
    workdirs.check_info(newest.meta, data.data_info.info, workdir=workdir)
    metrics = evaluate(
        experiment, data, newest.items["params"], stop=stop, beat=lambda what: None, note=say
    )
    return summary.result_of(experiment, metrics, mode="eval", step=newest.meta["step"])


def first_state(experiment: Experiment, note: Callable[[str], None]) -> TrainState:
    """Returns a freshly initialised state, with what it takes from `config.init_from`.

    Args:
      experiment: of the run.
      note: receives a line that says what was taken from there and what is new.
    """
    config, state = experiment.config, experiment.init()
    if not config.init_from:
        return state
    from widenet_jax.inference.pretrained import finetune_params, load_pretrained

    replicated = NamedSharding(experiment.mesh, P())
    fresh = jax.jit(lambda params: params, out_shardings=replicated)(state.params)
    source, info = config.init_from, experiment.data_info.info
    stored = load_pretrained(source, replicated, model=config.model, info=info)
    how = {"model": config.model, "source": source, "same_classes": stored.same_classes}
    how["differing"] = stored.differing
    how["frozen"] = partial(is_frozen, freeze=config.optimizer.get("freeze", "none"))
    params, taken = finetune_params(to_host(fresh), stored.params, **how)
    note("; ".join(filter(None, (taken, stored.note))))
    placed = jax.device_put(params, jax.tree.map(lambda x: x.sharding, state.params))
    return state.replace(params=placed, opt_state=restarted(state.opt_state, placed))


class CallableModule(ModuleType):
    """This module, which is also the function `widenet_jax.train`."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = CallableModule
