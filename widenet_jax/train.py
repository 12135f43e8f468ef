"""Training, top to bottom: hosts, data, experiment, restore, loop, result.

`run` trains or evaluates what a config describes in a workdir, and the same call again goes on
where it stopped. What is trained (mesh, model, optimizer, sharded state, steps) is put together in
`experiment`.
"""

import errno
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import jax
from clu import parameter_overview
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax.checkpoint.checkpoints import (
    BEST,
    LAST,
    Checkpoints,
    absolute,
    load_newest,
)
from widenet_jax.checkpoint.hashes import params_sha256
from widenet_jax.checkpoint.space import check_space, space_text, tree_bytes
from widenet_jax.data.images.sources import build_source
from widenet_jax.data.pipeline import build_transforms, image_shape
from widenet_jax.errors import BadExampleError, BadInputError, RunFailedError
from widenet_jax.evaluation import evaluate, result_metrics
from widenet_jax.experiment import DataFacts, Experiment, build_experiment
from widenet_jax.loop import Data, Loop
from widenet_jax.models.vit import count_parameters, count_unrolled, dispatch_methods, dispatch_text
from widenet_jax.run import workdir as run_record
from widenet_jax.run.agreement import check_agreement, code_sha256, on_every_host
from widenet_jax.run.metrics import JsonLines, MetricsWriter
from widenet_jax.run.progress import Progress
from widenet_jax.run.replay import replay
from widenet_jax.run.stopping import Stop, StopRequestedError
from widenet_jax.run.watchdog import Watchdog
from widenet_jax.sharding import platform, to_host
from widenet_jax.step import TrainState
from widenet_jax.typing import PyTree
from widenet_jax.weights.finetune import finetune_params, has_cls_row
from widenet_jax.weights.pretrained import load_pretrained


def run(
    config: ConfigDict,
    workdir: str,
    *,
    mode: str = "train",
    devices: Sequence[jax.Device] | None = None,
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Trains (`mode="train"`), evaluates the newest checkpoint ("eval"), or works once more on the
    batch whose numbers were not finite ("replay").

    `devices` are those to use, all by default; `stop` may ask for an early end. Returns what
    `result.json` holds. Every host of a multi-host run calls this.

    Raises:
      BadInputError: the config, the data or the workdir does not fit; nothing was changed.
      RunFailedError: a number is not finite, no checkpoint is whole, or the disk is full.
      StoppedError: `stop` was asked to, and everything is saved.
    """
    workdir = absolute(workdir)
    check_agreement(
        {f"config.{name}": value for name, value in run_record.shared_fields(config).items()}
        | {"--workdir": str(workdir), "--mode": mode, "the code": code_sha256()}
        | {f"the version of {name}": run_record.version(name) for name in run_record.PACKAGES}
    )
    stop = stop or Stop()

    def begin() -> Data:
        run_record.check_workdir(workdir, config, mode=mode)
        return open_data(config)

    data = on_every_host(begin)
    check_agreement({"the data": data.facts})
    experiment = build_experiment(config, data.facts, devices or jax.devices())
    with jax.set_mesh(experiment.mesh):
        if mode == "replay":
            return replay(experiment, data.train, data.train_transform, workdir)
        try:
            if mode == "eval":
                return evaluate_newest(experiment, data, workdir, stop)
            return train(experiment, data, workdir, stop)
        except StopRequestedError:
            raise stop.stopped(0) from None
        except BadExampleError as error:
            raise BadInputError(
                f"{error}, or go on without it: --config.data.on_bad_example=skip"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise RunFailedError(
                f"--workdir={workdir}: {error.strerror}{space_text(workdir, 0)}; make room, and "
                "the same command goes on from the last checkpoint"
            ) from error


def open_data(config: ConfigDict) -> Data:
    """Raises BadInputError where a split cannot be opened, or does not fit the other."""
    train = build_source(config.data, config.data.train_split)
    evaluation = build_source(config.data, config.data.eval_split)
    if train.class_names != evaluation.class_names:
        raise BadInputError(
            f"splits {config.data.train_split} and {config.data.eval_split} name different classes"
        )
    train_transform, eval_transform = build_transforms(config.augment, config.data.image_size)
    shape = image_shape(evaluation, eval_transform, on_bad_example=config.data.on_bad_example)
    facts = DataFacts(len(train), tuple(train.class_names), shape)
    return Data(train, evaluation, train_transform, eval_transform, facts)


def evaluate_newest(
    experiment: Experiment, data: Data, workdir: epath.Path, stop: Stop
) -> dict[str, Any]:
    """Metrics of the newest whole checkpoint; changes nothing."""
    newest = load_newest(workdir, experiment.state.params)
    if newest is None:
        raise BadInputError(f"--workdir={workdir}: no finished checkpoint to evaluate")
    metrics = evaluate(
        experiment,
        newest.items["params"],
        data.eval,
        data.eval_transform,
        stop=stop,
        beat=lambda what: None,
        note=partial(print, file=sys.stderr),
    )
    facts = parameter_facts(experiment)
    return {"mode": "eval", "step": newest.meta["step"], **facts, **result_metrics(metrics)}


def train(experiment: Experiment, data: Data, workdir: epath.Path, stop: Stop) -> dict[str, Any]:
    """Trains from the newest whole checkpoint, or from the start, to the end."""
    config, total_steps = experiment.config, experiment.total_steps
    main_host = jax.process_index() == 0
    plain_config = run_record.plain(config)
    watchdog = Watchdog(
        dump_after_seconds=config.watchdog.dump_after_seconds,
        exit_after_seconds=config.watchdog.exit_after_seconds,
    )
    checkpoints = Checkpoints(
        workdir,
        meta={"config": plain_config, "class_names": list(data.facts.class_names)},
        keep=config.checkpoint.keep,
    )
    with ExitStack() as stack:
        stack.enter_context(closing(watchdog))
        stack.enter_context(closing(checkpoints))
        on_every_host(partial(prepare_workdir, experiment, workdir, stack))

        # Restore
        watchdog.beat("restoring")
        restored = checkpoints.restore(experiment.state)
        if restored is None:
            check_history(workdir, experiment.save_every)
        state, meta = restored or (first_state(experiment), {})
        start_step = meta.get("step", 0)
        evaluate_first = meta.get("evaluation_due", False)
        check_agreement({"the restored step": start_step})
        run_record.write_run(workdir, config, data.facts.class_names, main_host=main_host)

        # Loop
        writer = MetricsWriter(
            workdir, tracking=config.tracking, config=plain_config, main_host=main_host
        )
        stack.enter_context(closing(writer))
        writer.resume(start_step, again=("eval",) if evaluate_first else ())
        progress = Progress(
            total_steps=total_steps,
            start_step=start_step,
            batch_size=config.batch_size,
            quiet=not main_host,
        )
        stack.enter_context(closing(progress))
        if start_step < total_steps:
            progress.note(describe(experiment, state.params, start_step))
        else:
            progress.note(f"finished before, after step {total_steps:,}: evaluating")
        loop = Loop(
            experiment,
            data,
            workdir,
            checkpoints=checkpoints,
            writer=writer,
            progress=progress,
            stop=stop,
            watchdog=watchdog,
        )
        state, metrics = loop.run(state, start_step, evaluate_first=evaluate_first)

        # Result
        watchdog.beat("writing the result")
        return write_result(workdir, experiment, state, metrics)


def write_result(
    workdir: epath.Path, experiment: Experiment, state: TrainState, metrics: dict[str, Any]
) -> dict[str, Any]:
    """result.json and the learning curve of a finished run; returns the former."""
    result = {
        "mode": "train",
        "steps": experiment.total_steps,
        **parameter_facts(experiment),
        **result_metrics(metrics),
        "params_sha256": params_sha256(state.params),
    }
    if jax.process_index() == 0:
        from widenet_jax.tools.analysis.figures import draw_learning_curves  # a second to import

        run_record.write_json(workdir / "result.json", result)
        draw_learning_curves([workdir], workdir / "learning_curve.png")
    return result


def prepare_workdir(experiment: Experiment, workdir: epath.Path, stack: ExitStack) -> None:
    """Locks the workdir for as long as `stack` is open, on the first host.

    Raises:
      BadInputError: its disk is too small, or another process is training there.
    """
    if jax.process_index():
        return
    check_space(
        workdir,
        (LAST, BEST),
        checkpoint_bytes=tree_bytes(experiment.state),
        keep=experiment.config.checkpoint.keep,
    )
    stack.enter_context(run_record.locked(workdir))


def check_history(workdir: epath.Path, save_every: int) -> None:
    """Raises RunFailedError where no checkpoint is left of a run that must have had some."""
    records = JsonLines(workdir / "metrics.jsonl").read()
    last = max((record["step"] for record in records), default=0)
    # The second save begins once the first is on disk.
    if last > 2 * save_every or (workdir / "result.json").exists():
        raise RunFailedError(
            f"--workdir={workdir} has metrics up to step {last:,} and no checkpoint; nothing was "
            f"changed. Restore {LAST}/ from a copy, or start again in a new --workdir"
        )


def first_state(experiment: Experiment) -> TrainState:
    """Freshly drawn, or with the backbone that `config.init_from` names."""
    config, state = experiment.config, experiment.init()
    if not config.init_from:
        return state
    whole = NamedSharding(experiment.mesh, P())
    fresh = jax.jit(lambda params: params, out_shardings=whole)(state.params)
    params = finetune_params(
        to_host(fresh),
        load_pretrained(config.init_from, whole),
        cls_token=has_cls_row(config.model),
        source=config.init_from,
    )
    shardings = jax.tree.map(lambda x: x.sharding, state.params)
    return state.replace(params=jax.device_put(params, shardings))


def parameter_facts(experiment: Experiment) -> dict[str, int]:
    """Parameters, unique and as often as they are applied."""
    return {
        "params": count_parameters(experiment.state.params),
        "params_unrolled": count_unrolled(experiment.model, experiment.facts.image_shape),
    }


def describe(experiment: Experiment, params: PyTree, start_step: int) -> str:
    """What is about to run, in a table and a few lines."""
    mesh, facts = experiment.mesh, parameter_facts(experiment)
    table = parameter_overview.get_parameter_overview(params, include_stats=False)
    places = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
    config, num_examples = experiment.config, experiment.facts.num_examples
    begin = "starting"
    if start_step:
        begin = f"resuming after step {start_step:,}"
    elif config.init_from:
        begin = f"starting from {config.init_from} with a new head"
    lines = [
        table,
        f"{facts['params']:,} parameters, applied as {facts['params_unrolled']:,}; "
        f"{mesh.size} {mesh.devices.flat[0].device_kind} devices ({places}), "
        f"{jax.process_count()} hosts",
        f"{begin}: {experiment.total_steps:,} steps of {config.batch_size} images",
    ]
    if num_examples < config.batch_size:
        lines.append(
            f"all {num_examples:,} training images are less than one batch: an epoch is no whole "
            "step; config.batch_size and config.duration say how much is trained"
        )
    shape = experiment.facts.image_shape
    methods = dispatch_methods(config.model, shape, platform=platform())
    if methods:
        lines.insert(2, f"dispatch: {dispatch_text(methods)}")
    return "\n".join(lines)
