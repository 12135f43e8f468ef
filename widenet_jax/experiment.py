"""What a config describes, put together: mesh, model, task, optimizer, sharded state, steps.

Needs a description of the data but no data, so that a training run, a benchmark and a plan for TPUs
that are not at hand are the same program.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax.config.durations import Interval, to_interval, to_steps
from widenet_jax.data.contract import DataInfo
from widenet_jax.errors import BadInputError, check_group, choose, refuse_value
from widenet_jax.extensions import guarded_task, parameters_of, try_parts
from widenet_jax.nn.build import (
    build_model,
    count_parameters,
    count_unrolled,
    parameter_shapes,
    with_implementation,
)
from widenet_jax.nn.loop import draw_loops, places_of
from widenet_jax.nn.rules import check_rules, packed_rules
from widenet_jax.nn.stack_settings import StackSettings, parse_model
from widenet_jax.optim.build import build_optimizer, check_freeze
from widenet_jax.param_names import ADAPTERS, part_of, path_names
from widenet_jax.sharding import BATCH, build_mesh, tree_shardings
from widenet_jax.specs import resolve, task_spec
from widenet_jax.step import Gradients, TrainState, forward, make_gradients, make_train_step
from widenet_jax.task import Evaluation, Task
from widenet_jax.typing import Array, PyTree, Shapes

TOKEN_GROUP = "config.model.moe.examples_per_group"


@dataclass(frozen=True)
class Experiment:
    """Everything of a run that follows from its config and a description of its data.

    `init`, `train_step` and `eval_step` are jitted; call them under `jax.set_mesh(mesh)`.

    Attributes:
      config: as given.
      data_info: as given.
      mesh: over the devices given.
      model: the Linen module.
      task: what a batch means.
      gradients: (params, batch, step) -> (gradients, metrics).
      total_steps: length of the run.
      eval_every: between evaluations.
      save_every: between checkpoints.
      state: shapes of the training state, with shardings.
      init: () -> the first training state, initialised on the devices where it will live; with
        parameters, the state that starts from these.
      train_step: (state, batch) -> (state, metrics); donates `state`.
      eval_step: (params, batch) -> `task.Evaluation`.
    """

    config: ConfigDict
    data_info: DataInfo
    mesh: Mesh
    model: nn.Module
    task: Task
    gradients: Gradients
    total_steps: int
    eval_every: Interval
    save_every: Interval
    state: TrainState
    init: Callable[..., TrainState]
    train_step: Callable[[TrainState, Mapping[str, Array]], tuple[TrainState, dict[str, Any]]]
    eval_step: Callable[[PyTree, Mapping[str, Array]], Evaluation]

    @cached_property
    def parameter_counts(self) -> dict[str, int]:
        """The number of parameters, stored once and as often as the blocks apply them."""
        return {
            "params": count_parameters(self.state.params),
            "params_unrolled": count_unrolled(self.model, input_spec(self.task)),
        }


def build_experiment(
    config: ConfigDict,
    data_info: DataInfo,
    devices: Sequence[jax.Device],
    *,
    attention: str | None = None,
) -> Experiment:
    """Puts an experiment together; compiles nothing.

    Args:
      attention: its implementation, in place of `config.model.attention.implementation`.

    Raises:
      BadInputError: the config does not fit itself, the data or the devices.
    """
    mesh = build_mesh(config.sharding, devices)
    task = build_task(config, data_info)
    total_steps, eval_every, save_every = lengths(config, data_info)
    model = model_of(config, task, attention)
    check_packed(model, task)
    check_batch(config, model, task, mesh)
    params = tried_parameters(model, task, mesh)
    check_freeze(config.optimizer, params, config.init_from)
    sizes = {"batch_size": config.batch_size, "num_examples": data_info.num_examples}
    sizes |= {"depth": model.depth, "total_steps": total_steps}
    sizes["places"] = places_of(model.steps())
    tx, schedule = build_optimizer(config.optimizer, params_or_shapes=params, **sizes)
    gradients = gradients_of(config, model, task, total_steps)
    init = partial(init_state, model=model, task=task, tx=tx, config=config)
    with jax.set_mesh(mesh):  # as where `init` is called: JAX traces it once for both
        shapes = jax.eval_shape(init)
    shardings = state_shardings(shapes, mesh)
    replicated, batched = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)
    skippable = max_skipped_updates(config)
    train_step = make_train_step(gradients, tx, schedule, max_skipped_updates=skippable)
    eval_step = partial(evaluate_batch, model, task)
    return Experiment(
        config=config,
        data_info=data_info,
        mesh=mesh,
        model=model,
        task=task,
        gradients=gradients,
        total_steps=total_steps,
        eval_every=eval_every,
        save_every=save_every,
        state=jax.tree.map(lambda x, place: x.update(sharding=place), shapes, shardings),
        init=jax.jit(init, out_shardings=shardings),
        train_step=jax.jit(
            train_step,
            in_shardings=(shardings, batched),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
        ),
        eval_step=jax.jit(
            eval_step,
            in_shardings=(shardings.params, batched),
            out_shardings=Evaluation(replicated, replicated, replicated, carry=batched),
        ),
    )


def tried_parameters(model: nn.Module, task: Task, mesh: Mesh) -> PyTree:
    """Returns the shapes of a model's parameters, and tries users' parts on random tokens.

    Kernels ask for the platform of the mesh, which need not be this machine's. The mesh ends before
    the trial, which runs here.
    """
    there = jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    with try_parts(causal=predicts_next(model)), there:
        params = parameter_shapes(model, input_spec(task))
    none = model.adapter.rank and ADAPTERS not in map(part_of, path_names(params))
    refuse_value("config.model.adapter.rank", (none, "finds no kernel in the blocks; give 0"))
    return params


def predicts_next(model: nn.Module) -> bool:
    """Returns whether tokens must not depend on later ones, which the model predicts."""
    return getattr(model, "causal", False) and not getattr(model, "allow_mixing", False)


def model_of(config: ConfigDict, task: Task, attention: str | None) -> nn.Module:
    """Builds the model, with an implementation of attention other than the config's, if any."""
    model = build_model(config.model, **task.model_fields)
    return with_implementation(model, attention) if attention else model


def gradients_of(config: ConfigDict, model: nn.Module, task: Task, total_steps: int) -> Gradients:
    """Builds the gradients of a batch, or of its parts one after the other."""

    def draw(key: Array, step: Array) -> Array:
        return draw_loops(model.loop, key, step / total_steps)

    return make_gradients(
        model=model,
        task=task,
        seed=config.seed,
        accumulation_steps=config.optimizer.accumulation_steps,
        group_size=group_size(model, task),
        freeze=config.optimizer.freeze,
        draw_loops=None if model.loop.counts.train == "fixed" else draw,
    )


def evaluate_batch(
    model: nn.Module, task: Task, params: PyTree, batch: Mapping[str, Array]
) -> Evaluation:
    """Evaluates a model on one batch."""
    return task.evaluate(partial(forward, model, params), batch)


def lengths(config: ConfigDict, data_info: DataInfo) -> tuple[int, Interval, Interval]:
    """Returns the steps of the run, and the intervals of evaluations and of checkpoints."""
    sizes = {"batch_size": config.batch_size, "num_examples": data_info.num_examples}
    return (
        to_steps(config.duration, field="config.duration", **sizes),
        to_interval(config.evaluation.every, field="config.evaluation.every", **sizes),
        to_interval(config.checkpoint.every, field="config.checkpoint.every", **sizes),
    )


def check_config(config: ConfigDict, data_info: DataInfo) -> None:
    """Checks a config as `build_experiment` does, except checks that need devices or parameters.

    It uses no device, which would then be taken from other processes.

    Raises:
      BadInputError: the config does not fit itself or the data.
    """
    task = build_task(config, data_info)
    model = parse_model(config.model, **task.model_fields)
    check_packed(model, task)
    sizes = {"batch_size": config.batch_size, "num_examples": data_info.num_examples}
    # Which parameters decay_exclude matches is known once there are some.
    optimizer = dict(config.optimizer) | {"decay_exclude": ""}
    total_steps, *_ = lengths(config, data_info)
    build_optimizer(
        optimizer, params_or_shapes={}, depth=model.depth, total_steps=total_steps, **sizes
    )


def build_task(config: ConfigDict, data_info: DataInfo) -> Task:
    """Builds the task that `config.task` names.

    Raises:
      BadInputError: unknown name, or a field out of range.
    """
    kind = resolve(task_spec(config.task.name).task)
    return guarded_task(kind, config.task.name).build(config, data_info)


def input_spec(task: Task) -> Shapes:
    """Returns shapes of the model's inputs for a batch of one example."""
    return jax.eval_shape(task.inputs, {**task.batch_spec(1), **task.carry_spec(1)})


def train_batch_shapes(experiment: Experiment) -> Shapes:
    """Returns the batch that `train_step` takes, for compiling it without data."""
    B, sharding = experiment.config.batch_size, NamedSharding(experiment.mesh, BATCH)
    spec = experiment.task.batch_spec(B) | {"bad": jax.ShapeDtypeStruct((B,), jnp.bool_)}
    return {name: shape.update(sharding=sharding) for name, shape in spec.items()}


def state_shardings(state: TrainState, mesh: Mesh) -> TrainState:
    """Returns where each array of a state lives: the carry as a batch, the rest as parameters."""
    batched = NamedSharding(mesh, BATCH)
    carry = dict.fromkeys(state.carry, batched)
    return tree_shardings(state.replace(carry={}), mesh).replace(carry=carry)


def max_skipped_updates(config: ConfigDict) -> int:
    """Returns how many non-finite updates a run may skip; one more ends it."""
    allowed = {"stop": 0, "skip": config.max_skipped_updates}
    return choose(allowed, config.on_nonfinite, field="config.on_nonfinite")


def group_size(model: nn.Module, task: Task) -> int:
    """Returns how many consecutive examples must stay together: whole token and task groups."""
    return math.lcm(model.examples_per_group, task.group_size)


def check_packed(model: nn.Module | StackSettings, task: Task) -> None:
    """Raises BadInputError where a packed row's documents would see each other."""
    if "segment_ids" in task.batch_spec(1):
        check_rules(packed_rules(model))


def check_batch(config: ConfigDict, model: nn.Module, task: Task, mesh: Mesh) -> None:
    """Raises BadInputError unless batches divide into groups, parts and devices' shares."""
    routing, own = model.examples_per_group, task.group_size
    if routing > 1 and routing % own:
        raise BadInputError(
            f"{task.group_field}={own} must divide {TOKEN_GROUP}={routing}: "
            f"such a group lies within a token group; add --{task.group_field}={routing}"
        )
    check_group(config.batch_size, own, field=task.group_field)
    parts, devices = config.optimizer.accumulation_steps, f"on each of {mesh.size} devices"
    eval_unit, eval_whole = routing * mesh.size, f"(routing {routing}) {devices}"
    train_unit = group_size(model, task) * mesh.size * parts
    train_whole = f"(routing {routing}, task {own}) {devices} in each of {parts} accumulation steps"
    for field, size, unit, groups in (
        ("config.batch_size", config.batch_size, train_unit, train_whole),
        ("config.evaluation.batch_size", config.evaluation.batch_size, eval_unit, eval_whole),
    ):
        check_group(size, routing, field=TOKEN_GROUP)
        if size % unit:
            raise BadInputError(
                f"{field}={size} must be a multiple of {unit}, such as {-(-size // unit) * unit}: "
                f"whole groups of {task.unit} {groups}"
            )


def init_state(
    params: PyTree | None = None,
    *,
    model: nn.Module,
    task: Task,
    tx: optax.GradientTransformation,
    config: ConfigDict,
) -> TrainState:
    """Initialises parameters from `config.seed`, unless given, the optimizer and a zero carry."""
    inputs, carry = input_spec(task), task.carry_spec(config.batch_size)
    zeros = partial(jax.tree.map, lambda spec: jnp.zeros(spec.shape, spec.dtype))
    if params is None:
        key = jax.random.key(config.seed)
        params = parameters_of(model.init(key, zeros(inputs), train=False))
    return TrainState.create(params, tx, zeros(carry))
