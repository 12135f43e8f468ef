"""A run, top to bottom: hosts, data, experiment, restore, loop, result.

`experiment` builds what is trained (mesh, model, task, optimizer, sharded state, steps).
`run.runtime` has what surrounds the loop: checkpoints, metrics, progress, stop requests, failures.
"""

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from types import ModuleType
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax.config.files import load_config
from widenet_jax.config.imports import import_files, remember
from widenet_jax.data.foreign import wrong_arguments
from widenet_jax.data.sources import open_data
from widenet_jax.errors import naming_arguments, raise_first
from widenet_jax.evaluation import evaluate, evaluate_newest
from widenet_jax.experiment import Experiment, build_experiment, input_spec
from widenet_jax.files import absolute, is_remote, require_store
from widenet_jax.optim.build import averaged, is_frozen
from widenet_jax.run import workdir as workdirs
from widenet_jax.run.attention import attention_of
from widenet_jax.run.hosts import agree_on_data, agree_on_start, on_every_host
from widenet_jax.run.runtime import OnEvaluation, Runtime
from widenet_jax.run.stopping import Stop
from widenet_jax.sharding import to_host
from widenet_jax.specs import PYTHON, resolve
from widenet_jax.step import TrainState

# Other modes than training: a function of experiment, data, workdir and stop request.
MODES = {"eval": evaluate_newest, "replay": "widenet_jax.run.replay:replay"}


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
      on_evaluation: see `Runtime`.

    Returns:
      What `result.json` holds, or the findings of another mode.

    Raises:
      BadInputError: the config, the data or the workdir does not fit; nothing was changed.
      RunFailedError: a number is not finite, no checkpoint is intact, or the disk is full.
      StoppedError: a stop was requested, and everything is saved.
    """
    # Hosts: all must run the same program.
    workdir, stop = on_every_host(absolute, workdir), stop or Stop()
    agree_on_start(config, workdir, mode=mode, extend=extend)
    if mode == "train" and is_remote(workdir):  # each host writes there
        on_every_host(require_store(workdir).probe, workdir)
    on_every_host(workdirs.check_workdir, workdir, config, mode=mode)
    if profile:  # imported where they are asked for: profile, replay, pretrained models
        from widenet_jax.run.profile import check_profiler

        on_every_host(check_profiler)

    # Data
    data = on_every_host(open_data, config, workdir, splits, hashed=mode != "eval")
    agree_on_data(data)

    # Experiment
    devices = devices or jax.devices()
    attention, chosen = attention_of(config, data.data_info, devices, workdir)
    experiment = build_experiment(config, data.data_info, devices, attention=attention)
    notes = [chosen]  # for the user
    if mode == "train":
        length = on_every_host(workdirs.check_length, workdir, experiment, extend=extend)
        notes += [length, on_every_host(workdirs.changed_imports, workdir, config)]

    with Runtime(experiment, data, workdir, stop, on_evaluation) as runtime:
        if mode != "train":
            return resolve(MODES[mode])(experiment, data, workdir, stop)

        # Restore
        fresh = partial(first_state, experiment, note=notes.append)
        state = runtime.restore(fresh, notes, extend=extend)
        train_step = runtime.traced(profile)

        def measure() -> Mapping[str, Any]:
            params = averaged(state.params, state.opt_state)
            return evaluate(experiment, data, params, **runtime.hooks)

        # Loop
        metrics: Mapping[str, Any] = {}
        with runtime.saving():
            if runtime.evaluation_due or runtime.finished:
                metrics = measure()
            if runtime.evaluation_due:
                runtime.record_evaluation(state, metrics)
            with closing(runtime.batches()) as batches:
                for batch in batches:
                    state, step_metrics = train_step(state, batch)
                    runtime.after_step(state, step_metrics)  # counts, checks the last one, logs
                    if runtime.evaluation_due:
                        with runtime.progress.pause():
                            metrics = measure()
                            runtime.record_evaluation(state, metrics)
                    if runtime.is_over() or experiment.save_every.ends_at(runtime.step):
                        runtime.save(state)
                    if runtime.end_step():  # failed saves and stop requests end it, too
                        break

        # Result
        return runtime.write_result(state, metrics)


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
      extend: as in `run`.
      imports: files that register parts of the model or the task.

    Returns: what `result.json` holds.

    Raises: as `run` does; never SystemExit.
    """
    from widenet_jax.inference.pretrained_config import set_fields

    raise_first(wrong_arguments(config, fields or {}, on_evaluation, data, eval_data))
    paths = import_files(imports, flag="imports")
    config = load_config(config) if isinstance(config, str) else copy.deepcopy(config)
    remember(config, paths)
    flags = [f"--config.{name}={value}" for name, value in (fields or {}).items()]
    config = set_fields(config, flags, workdir=os.fspath(workdir))
    splits = None if data is None else (data, eval_data)
    if splits:
        config.data.update(source=PYTHON, path="")
    how = {"splits": splits, "on_evaluation": on_evaluation, "extend": extend}
    return run(config, os.fspath(workdir), **how)


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
    how["frozen"] = partial(is_frozen, freeze=config.optimizer.freeze)
    how["tokens"] = lambda: experiment.model.num_tokens(input_spec(experiment.task))
    params, taken = finetune_params(to_host(fresh), stored.params, **how)
    note("; ".join(filter(None, (taken, stored.note))))
    placed = jax.device_put(params, jax.tree.map(lambda x: x.sharding, state.params))
    del state  # the next one needs its memory
    return experiment.init(placed)


class CallableModule(ModuleType):
    """This module, which is also the function `widenet_jax.train`."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = CallableModule
