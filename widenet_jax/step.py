"""The training step and the evaluation step: pure functions, which `experiment` jits."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from widenet_jax.optim.build import gradient_norm, stop_frozen
from widenet_jax.sharding import gather_shared, platform
from widenet_jax.task import Metrics, Rngs, Task
from widenet_jax.typing import Array, Aux, Inputs, PyTree

COUNTERS = ("skipped_updates", "bad_examples")
STREAMS = ("dropout", "router", "mixup")
LOOPS = 2**31 - 1  # the number of the key that draws loops, far beyond the numbers of parts
# (params, batch, step) -> (gradients, metrics)
Gradients = Callable[[PyTree, Mapping[str, Array], Array], tuple[PyTree, Metrics]]


@flax.struct.dataclass
class TrainState:
    """All that changes during training. Randomness and data are functions of (seed, step).

    Attributes:
      step: int32, batches worked on.
      params: float32.
      opt_state: as optax gives it.
      skipped_updates: int32, steps whose loss or gradient was not finite and which updated nothing.
      bad_examples: int32, how often training drew an example that could not be read.
      carry: arrays [B, ...] that pass from step to step beside the parameters, such as a memory of
        hidden states; see `task.Task.carry_spec`. Empty for most tasks.
    """

    step: Array
    params: PyTree
    opt_state: PyTree
    skipped_updates: Array
    bad_examples: Array
    carry: dict[str, Array] = flax.struct.field(default_factory=dict)

    @classmethod
    def create(
        cls, params: PyTree, tx: optax.GradientTransformation, carry: Mapping[str, Array]
    ) -> "TrainState":
        """Returns the state before the first step."""
        zeros = {name: jnp.int32(0) for name in ("step", *COUNTERS)}
        return cls(params=params, opt_state=tx.init(params), carry=dict(carry), **zeros)


def forward(
    model: nn.Module,
    params: PyTree,
    inputs: Inputs,
    rngs: Rngs | None = None,
    *,
    loops: Array | None = None,
) -> tuple[PyTree, Aux]:
    """Computes a model's outputs and aux from its parameters; trains where rngs are given.

    `loops`, how often groups of blocks loop where the step decides it, is one more input.
    """
    inputs = inputs if loops is None else {**inputs, "loops": loops}
    with precision_of(model):
        return model.apply({"params": gather_shared(params)}, inputs, train=bool(rngs), rngs=rngs)


def precision_of(model: Any) -> AbstractContextManager:
    """Returns a context in which models of `dtype` float32 multiply with all bits of float32.

    TPUs and recent GPUs use fewer bits by default. Products of bfloat16 are not affected.
    """
    exact = model.dtype == "float32"
    return jax.default_matmul_precision("highest") if exact else nullcontext()


def make_gradients(
    *,
    model: nn.Module,
    task: Task,
    seed: int,
    accumulation_steps: int,
    group_size: int,
    freeze: str = "none",
    draw_loops: Callable[[Array, Array], Array] | None = None,
) -> Gradients:
    """Builds (params, batch, step) -> (gradients, metrics).

    With accumulation the batch is cut into `accumulation_steps` parts that are worked on in turn,
    and their gradients are averaged: the same update (dropout and noise apart) in less memory.
    Parts consist of whole groups of `group_size` consecutive examples, dealt out in turn, so that
    neither routing nor mixup nor the devices' shares of the batch change. What spans a whole batch
    spans a part then: router=sinkhorn's offsets, and balance losses of losses.over=batch. `freeze`
    is `config.optimizer.freeze`. `draw_loops` of (key, step) decides how often the whole batch
    loops.
    """

    def part_gradients(
        params: PyTree, part: Mapping[str, Array], key: Array, loops: Array | None
    ) -> tuple:
        apply = partial(forward, model, loops=loops)
        rngs = dict(zip(STREAMS, jax.random.split(key, len(STREAMS)), strict=True))

        def loss(params: PyTree) -> tuple[Array, Metrics]:
            return task.loss(partial(apply, stop_frozen(params, freeze)), part, rngs)

        with precision_of(model):  # hand-written backward passes are traced outside `forward`
            (_, metrics), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return grads, metrics

    def gradients(params: PyTree, batch: Mapping[str, Array], step: Array) -> tuple:
        key = jax.random.fold_in(jax.random.key(seed), step)
        batch = {**batch, **task.of_whole_batch(batch)}
        loops = draw_loops(jax.random.fold_in(key, LOOPS), step) if draw_loops else None
        if accumulation_steps == 1:
            return part_gradients(params, batch, key, loops)
        parts = {name: deal(x, accumulation_steps, group_size) for name, x in batch.items()}
        keys = jax.random.split(key, accumulation_steps)

        def body(total: PyTree, part_and_key: tuple) -> tuple[PyTree, PyTree]:
            grads, metrics = part_gradients(params, *part_and_key, loops)
            total = jax.tree.map(jnp.add, total, (grads, metrics.replace(carry={})))
            return total, metrics.carry

        first = jax.tree.map(lambda x: x[0], (parts, keys))
        grads, metrics = jax.eval_shape(part_gradients, params, *first, loops)
        shapes = (grads, metrics.replace(carry={}))
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        (grads, metrics), carry = jax.lax.scan(body, zeros, (parts, keys))
        grads, means = jax.tree.map(lambda x: x / accumulation_steps, (grads, metrics.means))
        carry = {name: collect(x, group_size) for name, x in carry.items()}
        return grads, metrics.replace(means=means, carry=carry)

    return gradients


def make_train_step(
    gradients: Gradients,
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    max_skipped_updates: int,
) -> Callable[[TrainState, Mapping[str, Array]], tuple[TrainState, dict[str, Any]]]:
    """Builds (state, batch) -> (state, metrics).

    A loss or gradient that is not finite never reaches the parameters: such a step updates nothing
    and counts in `skipped_updates`. Once more than `max_skipped_updates` are skipped, no step
    changes anything. The loop looks at the counter one step late, and so still finds the
    parameters and the carry that met the non-finite number.

    A skipped step empties the carry (zeros, as before the first step): the old one lacks what this
    step read, and may belong to the epoch before.
    """

    def train_step(state: TrainState, batch: Mapping[str, Array]) -> tuple[TrainState, dict]:
        grads, result = gradients(state.params, {**batch, **state.carry}, state.step)
        norm = gradient_norm(grads)
        finite = jnp.isfinite(result.means["loss"]) & jnp.isfinite(norm)
        update = finite & (state.skipped_updates <= max_skipped_updates)
        updates_before = state.step - state.skipped_updates

        def apply(before: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            params, opt_state = before
            updates, opt_state = tx.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        skipped = state.skipped_updates + ~finite
        carry = jax.tree.map(
            lambda old: jnp.where(skipped > max_skipped_updates, old, 0).astype(old.dtype),
            state.carry,
        )
        keep = lambda new, old: jnp.where(update, new, old)  # noqa: E731
        before = (state.params, state.opt_state)
        if platform() == "cpu":  # where selects copy the moments and compute the update twice
            params, opt_state = jax.lax.cond(update, apply, lambda same: same, before)
        else:
            params, opt_state = jax.tree.map(keep, apply(before), before)
        state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            skipped_updates=skipped,
            bad_examples=state.bad_examples + batch["bad"].sum(dtype=jnp.int32),
            carry=jax.tree.map(keep, result.carry, carry),
        )
        metrics = {
            **result.means,
            "learning_rate": schedule(updates_before),
            "gradient_norm": norm,
            **{name: getattr(state, name) for name in COUNTERS},
            "layer_sums": result.layer_sums,
        }
        return state, metrics

    return train_step


def deal(x: Array, parts: int, group_size: int) -> Array:
    """[B, ...] -> [parts, B/parts, ...]: group j of `group_size` rows goes to part j % parts."""
    rest = x.shape[1:]
    dealt = x.reshape(-1, parts, group_size, *rest).swapaxes(0, 1)
    return dealt.reshape(parts, x.shape[0] // parts, *rest)


def collect(x: Array, group_size: int) -> Array:
    """[parts, B/parts, ...] -> [B, ...]: the inverse of `deal`."""
    parts, rest = x.shape[0], x.shape[2:]
    groups = x.reshape(parts, -1, group_size, *rest).swapaxes(0, 1)
    return groups.reshape(-1, *rest)
