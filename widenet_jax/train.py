"""Training, top to bottom: mesh, data, model, optimizer, sharded state, steps, restore, loop.

The one module that imports across the package. `run` trains or evaluates what a config describes
in a workdir, and the same call again goes on where it stopped.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from clu import parameter_overview
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax import run_record
from widenet_jax.analysis.figures import draw_learning_curves
from widenet_jax.checkpoint import Checkpoints, absolute, has_checkpoint, load_params, params_sha256
from widenet_jax.data.pipeline import build_transforms, eval_batches, image_shape, train_batches
from widenet_jax.data.sources import build_source
from widenet_jax.durations import to_steps
from widenet_jax.errors import BadInputError, RunFailedError, choose
from widenet_jax.finetune import finetune_params, has_cls_row
from widenet_jax.metrics import MetricsWriter, Progress
from widenet_jax.models.vit import (
    build_model,
    count_parameters,
    count_unrolled,
    parameter_shapes,
)
from widenet_jax.moe.balance import summarize
from widenet_jax.moe.layer import check_group
from widenet_jax.optim.build import build_optimizer
from widenet_jax.sharding import BATCH, build_mesh, global_batch, host_positions, tree_shardings
from widenet_jax.step import Forward, TrainState, make_eval_step, make_train_step
from widenet_jax.tasks.classification import TASKS
from widenet_jax.typing import Array, PyTree


def run(
    config: ConfigDict,
    workdir: str,
    *,
    mode: str = "train",
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    """Trains (`mode="train"`) or only evaluates the newest checkpoint (`mode="eval"`).

    `devices` are those to use, all by default. Returns what `result.json` holds. Every host of a
    multi-host run calls this.

    Raises:
      BadInputError: the config, the data or the workdir does not fit; nothing was changed.
      RunFailedError: the loss is not finite, or no checkpoint can be read.
    """
    workdir = absolute(workdir)
    run_record.check_workdir(workdir, config, mode=mode)
    main_host = jax.process_index() == 0

    # Mesh
    mesh = build_mesh(config.sharding, devices or jax.devices())
    B, eval_B = config.batch_size, config.evaluation.batch_size
    check_batch(config, mesh)

    # Data
    sources = {
        "train": build_source(config.data, config.data.train_split),
        "eval": build_source(config.data, config.data.eval_split),
    }
    train_transform, eval_transform = build_transforms(config.augment, config.data.image_size)
    num_examples, class_names = len(sources["train"]), sources["train"].class_names
    if sources["eval"].class_names != class_names:
        raise BadInputError(
            f"splits {config.data.train_split} and {config.data.eval_split} name different classes"
        )
    steps_of = partial(to_steps, batch_size=B, num_examples=num_examples)
    total_steps = steps_of(config.duration, field="config.duration")
    eval_every = steps_of(config.evaluation.every, field="config.evaluation.every")
    save_every = steps_of(config.checkpoint.every, field="config.checkpoint.every")
    shape = image_shape(sources["eval"], eval_transform)

    # Model
    model = build_model(config.model, len(class_names))
    shapes = parameter_shapes(model, shape)
    task = choose(TASKS, config.task.name, field="config.task.name")(
        num_classes=len(class_names),
        label_smoothing=config.task.label_smoothing,
        mixup_alpha=config.augment.mixup_alpha,
        mixup_group_size=config.augment.mixup_group_size,
    )
    forward = make_forward(model)

    # Optimizer
    tx, schedule = build_optimizer(
        config.optimizer,
        params_or_shapes=shapes,
        total_steps=total_steps,
        batch_size=B,
        num_examples=num_examples,
    )

    with jax.set_mesh(mesh):
        # Sharded state: every parameter is drawn where it will live.
        init = partial(init_state, model=model, tx=tx, image_shape=shape, seed=config.seed)
        abstract = jax.eval_shape(init)
        shardings = tree_shardings(abstract, mesh)
        state = jax.jit(init, out_shardings=shardings)()

        # Steps
        replicated, batched = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)
        train_step = jax.jit(
            make_train_step(
                forward=forward,
                task=task,
                tx=tx,
                schedule=schedule,
                seed=config.seed,
                accumulation_steps=config.optimizer.accumulation_steps,
                group_size=group_size(config),
            ),
            in_shardings=(shardings, batched),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
        )
        eval_step = jax.jit(
            make_eval_step(forward=forward, task=task),
            in_shardings=(shardings.params, batched),
            out_shardings=replicated,
        )
        eval_positions = host_positions(mesh, eval_B)

        def evaluate_state(state: TrainState) -> dict[str, Any]:
            batches = eval_batches(
                sources["eval"],
                transform=eval_transform,
                batch_size=eval_B,
                positions=eval_positions,
                num_workers=config.data.num_workers,
                prefetch=config.data.prefetch,
            )
            place = partial(global_batch, mesh=mesh, batch_size=eval_B, positions=eval_positions)
            with closing(batches):
                sums = sum_over(partial(eval_step, state.params), map(place, batches))
            routing = summarize(sums) if "load" in sums else {}
            return task.summarize(sums) | routing

        # Restore
        if mode == "train":
            if config.init_from and not has_checkpoint(workdir):
                state = warm_start(state, config, shardings)
            run_record.write_run(workdir, config, class_names, main_host=main_host)
        checkpoints = Checkpoints(
            workdir,
            meta={"config": run_record.plain(config), "class_names": list(class_names)},
            keep=config.checkpoint.keep,
        )
        state, start_step = checkpoints.restore_latest(state)
        if mode == "eval" and not start_step:
            raise BadInputError(f"--workdir={workdir}: no finished checkpoint to evaluate")

        facts = {
            "params": count_parameters(shapes),
            "params_unrolled": count_unrolled(model, shape),
        }
        if mode == "eval":
            metrics = evaluate_state(state)
            return {"mode": mode, "step": start_step, **facts, **result_metrics(metrics)}

        # Loop
        writer = MetricsWriter(
            workdir,
            tracking=config.tracking,
            config=run_record.plain(config),
            main_host=main_host,
        )
        writer.resume(start_step)
        progress = Progress(
            total_steps=total_steps, start_step=start_step, batch_size=B, quiet=not main_host
        )
        if start_step < total_steps:
            progress.note(describe(config, state.params, facts, mesh, start_step, total_steps))
        else:
            progress.note(f"finished before, after step {total_steps:,}: evaluating")
        positions = host_positions(mesh, B)
        batches = train_batches(
            sources["train"],
            transform=train_transform,
            seed=config.seed,
            batch_size=B,
            positions=positions,
            start_step=start_step,
            num_steps=total_steps,
            num_workers=config.data.num_workers,
            prefetch=config.data.prefetch,
        )
        metrics = {}
        with closing(checkpoints), closing(batches), closing(progress), closing(writer):
            for step, batch in enumerate(batches, start=start_step + 1):
                batch = global_batch(batch, mesh=mesh, batch_size=B, positions=positions)
                state, step_metrics = train_step(state, batch)
                progress.advance(step, lambda m=step_metrics: float(m["loss"]))
                last = step == total_steps
                log, evaluate, save = (
                    step % every == 0 or last
                    for every in (config.log_every_steps, eval_every, save_every)
                )
                if log or evaluate or save:
                    check_finite(step_metrics, step, writer)
                if log:
                    log_step(writer, progress, step, step_metrics)
                if evaluate:
                    with progress.pause():
                        metrics = evaluate_state(state)
                        check_finite({"cross_entropy": metrics["cross_entropy"]}, step, writer)
                        checkpoints.save_best(state, step=step, accuracy=metrics["accuracy"])
                    writer.write(step, "eval", metrics)
                    progress.note(
                        f"step {step:,}: test accuracy {metrics['accuracy']:.2%}, "
                        f"cross-entropy {metrics['cross_entropy']:.4f}"
                    )
                    writer.flush()
                if save:
                    with progress.pause():
                        writer.flush()  # first the numbers, then the state that comes after them
                        checkpoints.save(state, step=step)
            checkpoints.wait()

        # Result
        if not metrics:  # a finished run, called again
            metrics = evaluate_state(state)
        result = {
            "mode": mode,
            "steps": total_steps,
            **facts,
            **result_metrics(metrics),
            "params_sha256": params_sha256(state.params),
        }
        if main_host:
            run_record.write_json(workdir / "result.json", result)
            draw_learning_curves([workdir], workdir / "learning_curve.png")
        return result


def group_size(config: ConfigDict) -> int:
    """Images that have to stay together: a routing group and a mixup group, both whole."""
    routing, mixing = group_sizes(config)
    return int(np.lcm(routing, mixing))


def group_sizes(config: ConfigDict) -> tuple[int, int]:
    """(images routed together, images that mixup pairs up); 1 where there is no such thing."""
    routing = config.model.moe.images_per_group if config.model.moe else 1
    mixing = config.augment.mixup_group_size if config.augment.mixup_alpha > 0 else 1
    return routing, mixing


def check_batch(config: ConfigDict, mesh: Mesh) -> None:
    """Raises BadInputError unless batches divide into groups, parts and devices' shares."""
    routing, mixing = group_sizes(config)
    B, eval_B = config.batch_size, config.evaluation.batch_size
    if routing > 1 and routing % mixing:
        raise BadInputError(
            f"config.augment.mixup_group_size={mixing} must divide "
            f"config.model.moe.images_per_group={routing}: partners come from the same routing "
            f"group; add --config.augment.mixup_group_size={routing}"
        )
    check_group(B, mixing, field="config.augment.mixup_group_size")
    parts = config.optimizer.accumulation_steps
    for field, size, unit in (
        ("config.batch_size", B, group_size(config) * mesh.size * parts),
        ("config.evaluation.batch_size", eval_B, routing * mesh.size),
    ):
        check_group(size, routing)
        if size % unit:
            raise BadInputError(
                f"{field}={size} must be a multiple of {unit}, such as {-(-size // unit) * unit}: "
                f"whole groups of images (routing {routing}, mixup {mixing}) on each of "
                f"{mesh.size} devices in each of {parts} accumulation steps"
            )


def make_forward(model: Any) -> Forward:
    """(params, images, mask, rngs) -> (logits, aux); training where there are rngs."""

    def forward(
        params: PyTree, images: Array, mask: Array | None, rngs: dict[str, Array] | None
    ) -> tuple[Array, dict]:
        return model.apply({"params": params}, images, mask=mask, train=bool(rngs), rngs=rngs)

    return forward


def init_state(*, model: Any, tx: Any, image_shape: tuple[int, ...], seed: int) -> TrainState:
    images = jnp.zeros((1, *image_shape))
    params = model.init(jax.random.key(seed), images, train=False)["params"]
    return TrainState(step=jnp.int32(0), params=params, opt_state=tx.init(params))


def warm_start(state: TrainState, config: ConfigDict, shardings: TrainState) -> TrainState:
    """`state` with the backbone of the run in `config.init_from`."""
    whole = NamedSharding(jax.tree.leaves(shardings.params)[0].mesh, P())
    fresh = jax.jit(lambda params: params, out_shardings=whole)(state.params)
    params = finetune_params(
        to_host(fresh),
        to_host(load_params(config.init_from, whole)),
        cls_token=has_cls_row(config.model),
        source=config.init_from,
    )
    return state.replace(params=jax.device_put(params, shardings.params))


def to_host(replicated: PyTree) -> PyTree:
    """NumPy copies of arrays that every device holds whole, on one host of any number."""
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), replicated)


def sum_over(
    eval_step: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    batches: Iterable[Mapping[str, Array]],
) -> dict[str, np.ndarray]:
    """`eval_step`'s sums added up over batches, in float64; the device works one batch ahead."""
    totals: dict[str, np.ndarray] = {}
    previous: Mapping[str, Array] = {}
    for batch in itertools.chain(batches, [None]):
        sums = eval_step(batch) if batch is not None else {}
        for key, value in jax.device_get(previous).items():
            totals[key] = totals.get(key, 0.0) + np.asarray(value, np.float64)
        previous = sums
    return totals


def check_finite(metrics: Mapping, step: int, writer: MetricsWriter) -> None:
    """Raises RunFailedError where the loss or the gradient, or the evaluation, is not finite."""
    for name in ("loss", "gradient_norm", "cross_entropy"):
        value = float(metrics.get(name, 0.0))
        if not np.isfinite(value):
            writer.flush()
            raise RunFailedError(
                f"the {name.replace('_', ' ')} is {value} at step {step}; checkpoints made before "
                "are kept. A lower config.optimizer.learning_rate or a longer "
                "config.optimizer.warmup may help"
            )


def log_step(writer: MetricsWriter, progress: Progress, step: int, metrics: Mapping) -> None:
    """Writes one step's metrics; waits for the device."""
    values = dict(jax.device_get(metrics))
    routing = values.pop("routing")
    if routing:
        values |= summarize(routing)
    writer.write(step, "train", values)
    writer.write_timing(step, {"images_per_second": progress.images_per_second()})


def result_metrics(metrics: Mapping) -> dict[str, Any]:
    """What `result.json` says of the evaluation: accuracy, and the routing over all blocks."""
    result = {
        "test_accuracy": metrics["accuracy"],
        "test_cross_entropy": metrics["cross_entropy"],
        "test_images": metrics["images"],
    }
    if "load" in metrics:
        result["drop_rate"] = float(np.mean(metrics["drop_rate"]))
        result["expert_load"] = np.mean(metrics["load"], axis=0).round(4).tolist()
    return result


def describe(
    config: ConfigDict,
    params: PyTree,
    facts: Mapping[str, int],
    mesh: Mesh,
    start_step: int,
    total_steps: int,
) -> str:
    """What is about to run, in a table and two lines."""
    table = parameter_overview.get_parameter_overview(params, include_stats=False)
    places = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
    begin = f"resuming after step {start_step:,}" if start_step else "starting"
    return (
        f"{table}\n{facts['params']:,} parameters, applied as {facts['params_unrolled']:,}; "
        f"{mesh.size} {mesh.devices.flat[0].device_kind} devices ({places}), "
        f"{jax.process_count()} hosts\n{begin}: {total_steps:,} steps of {config.batch_size} images"
    )
