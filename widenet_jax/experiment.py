"""What a config describes, put together: mesh, model, task, optimizer, sharded state, steps.

Needs only facts about the data, no data: so a plan for a TPU nobody has, a benchmark and a training
run are the same program.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax.config.durations import to_steps
from widenet_jax.errors import BadInputError, choose
from widenet_jax.models.vit import build_model, parameter_shapes
from widenet_jax.moe.layer import check_group
from widenet_jax.optim.build import build_optimizer
from widenet_jax.sharding import BATCH, build_mesh, gather_shared, tree_shardings
from widenet_jax.step import (
    Forward,
    Gradients,
    TrainState,
    make_eval_step,
    make_gradients,
    make_train_step,
    new_state,
)
from widenet_jax.tasks.classification import TASKS
from widenet_jax.typing import Array, PyTree


@dataclass(frozen=True)
class DataFacts:
    """What a model and a schedule have to know of the data.

    Attributes:
      num_examples: of the training split.
      class_names: label k is class_names[k].
      image_shape: (height, width, channels) of a batch's images.
    """

    num_examples: int
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]


@dataclass(frozen=True)
class Experiment:
    """Everything of a run that follows from its config.

    `train_step` and `eval_step` are jitted and are called, as `init` is, under
    `jax.set_mesh(mesh)`.

    Attributes:
      config: as given.
      facts: as given.
      mesh: over the devices given.
      model: the Linen module.
      task: what a batch means.
      gradients: (params, batch, step) -> (gradients, (means, sums)).
      total_steps: of the run.
      eval_every: steps.
      save_every: steps.
      state: shapes of the training state, with shardings.
      init: () -> the first training state, drawn where it will live.
      train_step: (state, batch) -> (state, metrics); takes over `state`.
      eval_step: (params, batch) -> sums.
    """

    config: ConfigDict
    facts: DataFacts
    mesh: Mesh
    model: Any
    task: Any
    gradients: Gradients
    total_steps: int
    eval_every: int
    save_every: int
    state: TrainState
    init: Any
    train_step: Any
    eval_step: Any


def build_experiment(
    config: ConfigDict, facts: DataFacts, devices: Sequence[jax.Device]
) -> Experiment:
    """Puts it together; nothing is compiled yet.

    Raises:
      BadInputError: the config does not fit itself, the data or the devices.
    """
    mesh = build_mesh(config.sharding, devices)
    check_batch(config, mesh)
    B = config.batch_size
    steps_of = partial(to_steps, batch_size=B, num_examples=facts.num_examples)
    total_steps = steps_of(config.duration, field="config.duration")

    model = build_model(config.model, len(facts.class_names))
    forward = make_forward(model)
    task = choose(TASKS, config.task.name, field="config.task.name")(
        num_classes=len(facts.class_names),
        label_smoothing=config.task.label_smoothing,
        mixup_alpha=config.augment.mixup_alpha,
        mixup_group_size=config.augment.mixup_group_size,
    )
    tx, schedule = build_optimizer(
        config.optimizer,
        params_or_shapes=parameter_shapes(model, facts.image_shape),
        total_steps=total_steps,
        batch_size=B,
        num_examples=facts.num_examples,
    )
    gradients = make_gradients(
        forward=forward,
        task=task,
        seed=config.seed,
        accumulation_steps=config.optimizer.accumulation_steps,
        group_size=group_size(config),
    )
    # Backward passes that are written out are traced here, outside the forward pass.
    gradients = in_precision_of(model)(gradients)

    init = partial(init_state, model=model, tx=tx, image_shape=facts.image_shape, seed=config.seed)
    shapes = jax.eval_shape(init)
    shardings = tree_shardings(shapes, mesh)
    replicated, batched = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)
    return Experiment(
        config=config,
        facts=facts,
        mesh=mesh,
        model=model,
        task=task,
        gradients=gradients,
        total_steps=total_steps,
        eval_every=steps_of(config.evaluation.every, field="config.evaluation.every"),
        save_every=steps_of(config.checkpoint.every, field="config.checkpoint.every"),
        state=jax.tree.map(with_sharding, shapes, shardings),
        init=jax.jit(init, out_shardings=shardings),
        train_step=jax.jit(
            make_train_step(
                gradients=gradients,
                tx=tx,
                schedule=schedule,
                max_skipped_updates=max_skipped_updates(config),
            ),
            in_shardings=(shardings, batched),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
        ),
        eval_step=jax.jit(
            make_eval_step(forward=forward, task=task),
            in_shardings=(shardings.params, batched),
            out_shardings=replicated,
        ),
    )


def train_batch_shapes(experiment: Experiment) -> dict[str, jax.ShapeDtypeStruct]:
    """The batch that `train_step` takes, for compiling it without data."""
    B, sharding = experiment.config.batch_size, NamedSharding(experiment.mesh, BATCH)
    shaped = partial(jax.ShapeDtypeStruct, sharding=sharding)
    return {
        "image": shaped((B, *experiment.facts.image_shape), jnp.uint8),
        "label": shaped((B,), jnp.int32),
        "bad": shaped((B,), jnp.bool_),
    }


def max_skipped_updates(config: ConfigDict) -> int:
    """Updates that may be left out because they are not finite; the next one ends the run."""
    allowed = {"stop": 0, "skip": config.max_skipped_updates}
    return choose(allowed, config.on_nonfinite, field="config.on_nonfinite")


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

    @in_precision_of(model)
    def forward(
        params: PyTree, images: Array, mask: Array | None, rngs: dict[str, Array] | None
    ) -> tuple[Array, dict]:
        params = gather_shared(params)
        return model.apply({"params": params}, images, mask=mask, train=bool(rngs), rngs=rngs)

    return forward


def in_precision_of(model: Any) -> Callable[[Callable], Callable]:
    """Decorates what traces `model`: with dtype "float32" every product multiplies all of float32.

    By default TPUs and recent GPUs do so in fewer bits. Products of bfloat16 are left as they are.
    """
    precision = (
        partial(jax.default_matmul_precision, "highest")
        if model.dtype == "float32"
        else contextlib.nullcontext
    )

    def decorate(function: Callable) -> Callable:
        @wraps(function)
        def traced(*args: Any) -> Any:
            with precision():
                return function(*args)

        return traced

    return decorate


def init_state(
    *, model: Any, tx: optax.GradientTransformation, image_shape: tuple[int, ...], seed: int
) -> TrainState:
    images = jnp.zeros((1, *image_shape))
    return new_state(model.init(jax.random.key(seed), images, train=False)["params"], tx)


def with_sharding(shape: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
