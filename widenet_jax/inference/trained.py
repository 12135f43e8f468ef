"""Trained models: a run's workdir or an exported directory, read and opened for use."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from widenet_jax.checkpoint.checkpoints import load_checkpoint
from widenet_jax.config.fields import override
from widenet_jax.config.files import from_json
from widenet_jax.config.imports import import_remembered
from widenet_jax.data.contract import OF_THE_RUN, DataInfo
from widenet_jax.errors import raise_first, refuse
from widenet_jax.experiment import build_task, input_spec
from widenet_jax.files import EXPORT, absolute, find_model, is_text, or_shipped, read_object
from widenet_jax.inference.exported import read_exported
from widenet_jax.nn.attention.implementations import AUTO
from widenet_jax.nn.build import (
    build_model,
    count_parameters,
    count_unrolled,
    parameter_shapes,
    with_implementation,
    without_hopper,
)
from widenet_jax.param_names import ENCODER, named_leaves, without_idle_routers
from widenet_jax.run.metrics import JsonLines
from widenet_jax.sharding import to_host
from widenet_jax.specs import resolve, task_spec
from widenet_jax.task import Task
from widenet_jax.trained import Stored, Trained
from widenet_jax.typing import PyTree, Shapes

# Entries of result.json that are the same after every step.
OF_ANY_STEP = {"mode", "params", "params_unrolled", "split", "primary_metric", "unit", "baseline"}
OF_ANY_STEP |= {"remarks"}


def open_trained(
    place: str, changes: Sequence[str] = (), *, checkpoint: str | None = None
) -> Trained:
    """Opens a checkpoint of a run, or an exported model.

    Args:
      place: a workdir, also as `WORKDIR@CHECKPOINT`; or a directory that `scripts/export.py` wrote.
      changes: changes to the config, as `--config.FIELD=VALUE`.
      checkpoint: of the run: "last", the newest that is intact, "best" or a step; None: the last.

    Raises:
      BadInputError: there is no model, no such checkpoint, or a change does not fit it.
      RunFailedError: every checkpoint of the run is damaged, or the one that was asked for.
    """
    found = without_adapters(read_model(place, checkpoint=checkpoint))
    place += f"@{checkpoint}" if checkpoint else ""
    config = override(ConfigDict(from_json(found.config)), changes)
    task, model, wanted = build_for(config, found.info, found.params)
    params = without_idle_routers(found.params, wanted)
    raise_first(other_shapes(wanted, params, place))
    return Trained(params, config, found.info, found.step, place, task, model)


def build_for(
    config: ConfigDict, info: Mapping[str, Any], params: PyTree
) -> tuple[Task, nn.Module, Shapes]:
    """Returns the task and the model of a stored config, and the shapes of its parameters.

    `implementation: auto` of attention is xla: only a run measures whether a kernel is right.
    `dispatch: hopper` is ragged, of the same results: an opened model runs on any device.
    """
    example = resolve(task_spec(config.task.name).example)(config, params)
    task = build_task(config, DataInfo(0, example, info))
    model = build_model(without_hopper(config.model), **task.model_fields)
    if config.model.attention.get("implementation") == AUTO:
        model = with_implementation(model, "xla")
    return task, model, parameter_shapes(model, input_spec(task))


def read_model(
    place: str,
    sharding: jax.sharding.Sharding | None = None,
    *,
    flag: str = "--workdir",
    checkpoint: str | None = None,
) -> Stored:
    """Reads a checkpoint of a run, or an exported directory, parameters on the host.

    Adapters of stored kernels are added to them; those of each step, which have a kernel of their
    own only while it runs, stay.

    Args:
      place: as of `open_trained`.
      sharding: of a checkpoint's parameters while they are read: replicated over all devices of
        all hosts where all hosts call this; by default one local device.
      flag: where `place` was given, for messages.
      checkpoint: as of `open_trained`.

    Raises: as `open_trained`.
    """
    directory, named = find_model(place)
    path, which = absolute(directory), named or "last" if checkpoint is None else checkpoint
    is_export = (path / EXPORT).exists()
    only_runs = "is an export, and only a run has checkpoints to choose from; leave the choice of"
    of = place.removesuffix(f"@{named}")
    rows = (
        (checkpoint and named, f"{place} and --checkpoint={checkpoint} both name a checkpoint"),
        (is_export and (checkpoint or named), f"{of} {only_runs} {which} out"),
    )
    raise_first(f"{flag}={problem}" for wrong, problem in rows if wrong)
    if is_export:
        exported = read_exported(path)
        import_remembered(exported.config, place)
        return checked(exported, place)
    sharding = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    found = load_checkpoint(path, sharding, which) if path.is_dir() else None
    where = "give the workdir of a training run, or a directory that scripts/export.py wrote"
    told = f"no finished checkpoint there; {where}{or_shipped(place)}"
    refuse(f"{flag}={place}", (found is None, told))
    step, config = found.meta["step"], found.meta["config"]
    import_remembered(config, place)
    metric = resolve(task_spec(config["task"]["name"]).task).primary_metric_of(ConfigDict(config))
    apart = OF_THE_RUN | {metric.name}  # which the meta of best/ has
    params, result = to_host(found.items["params"]), result_at(path, step)
    info = {name: value for name, value in found.meta.items() if name not in apart}
    return checked(Stored(params, config, info, step, result=result), place)


def checked(model: Stored, place: str) -> Stored:
    """Returns a model with the adapters of stored kernels added to them.

    Raises:
      BadInputError: no file or screen could show a class's name.
    """
    raise_first(
        f"{place}: the class name {name!r} is no text of whole characters (UTF-8); write it again "
        "in the class_names.json of an export"
        for name in model.class_names
        if not is_text(name)
    )
    adapter = model.config["model"].get("adapter", {})
    return model if adapter.get("tie") == "none" else without_adapters(model)


def without_adapters(model: Stored) -> Stored:
    """Returns a stored model, adapters added to its kernels, which blocks may no longer share."""
    section = model.config["model"]
    if not section.get("adapter", {}).get("rank"):
        return model
    from widenet_jax.nn import adapters  # most models do without

    task, module, _ = build_for(ConfigDict(from_json(model.config)), model.info, model.params)
    fields = adapters.without(module.stack)
    changes = {"adapter": dataclasses.asdict(fields["adapter"])}
    if "loop" in fields:
        changes["loop"] = {**section["loop"], "tie": dataclasses.asdict(fields["loop"].tie)}
    encoder = jax.tree.map(np.asarray, adapters.merged(module.stack, model.params[ENCODER]))
    config = {**model.config, "model": {**section, **changes}}
    params, plain = {**model.params, ENCODER: encoder}, module.clone(**fields)
    counts = {"params": count_parameters(params)}
    counts["params_unrolled"] = count_unrolled(plain, input_spec(task))
    result = {**model.result, **counts} if model.result else {}
    return dataclasses.replace(model, params=params, config=config, result=result)


def result_at(workdir: epath.Path, step: int) -> dict[str, Any]:
    """Returns a run's result for a step: of `result.json`, with that step's evaluation.

    {} where the run has no result, or did not evaluate after this step.
    """
    path = workdir / "result.json"
    result = read_object(path) if path.exists() else {}
    if result.get("steps") == step or not result:
        return result
    records = JsonLines(workdir / "metrics.jsonl").read()
    evaluated = [r for r in records if (r["step"], r.get("split")) == (step, "eval")]
    if not evaluated:
        return {}
    measured = {f"test_{name}": value for name, value in evaluated[-1].items()}
    kept = {name: result[name] for name in result.keys() & OF_ANY_STEP}
    return kept | {name: measured[name] for name in result.keys() & measured} | {"steps": step}


def other_shapes(wanted: PyTree, params: PyTree, place: str) -> Iterator[str]:
    """Yields a line for each parameter of another shape than `wanted`."""
    here, there = (
        {name: list(leaf.shape) for name, leaf in named_leaves(tree)} for tree in (wanted, params)
    )
    for name in sorted(here | there):
        if here.get(name) != there.get(name):
            yield (
                f"{place}: {name} is {there.get(name, 'missing')} there, and its config asks for "
                f"{here.get(name, 'none')}; leave --config.model and the input size as they were"
            )
