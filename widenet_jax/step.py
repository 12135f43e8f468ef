"""One training step and one evaluation step: pure functions, to be jitted by `train`."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from widenet_jax.typing import Array, PyTree

COUNTERS = ("skipped_updates", "bad_examples")
# (params, images, mask, rngs) -> (logits, aux)
Forward = Callable[[PyTree, Array, Array | None, dict[str, Array] | None], tuple[Array, dict]]


@flax.struct.dataclass
class TrainState:
    """All that changes. Randomness is a function of (seed, step) and the data of the step.

    Attributes:
      step: int32, batches worked on.
      params: float32.
      opt_state: as optax gives it.
      skipped_updates: int32, steps whose loss or gradient was not finite: nothing was updated.
      bad_examples: int32, training images that could not be read and were replaced.
    """

    step: Array
    params: PyTree
    opt_state: PyTree
    skipped_updates: Array
    bad_examples: Array


def new_state(params: PyTree, tx: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    zeros = {name: jnp.int32(0) for name in ("step", *COUNTERS)}
    return TrainState(params=params, opt_state=tx.init(params), **zeros)


Gradients = Callable[[PyTree, Mapping[str, Array], Array], tuple[PyTree, tuple[dict, dict]]]


def make_gradients(
    *, forward: Forward, task: Any, seed: int, accumulation_steps: int, group_size: int
) -> Gradients:
    """Builds (params, batch, step) -> (gradients, (means, sums)).

    With accumulation the batch is cut into `accumulation_steps` parts worked on one after the
    other, their gradients averaged: the same update (dropout and noise apart) in less memory.
    Parts are made of whole groups of `group_size` consecutive images, dealt out in turn, so that
    neither routing nor mixup nor the devices' shares of the batch change.
    """

    def part_gradients(params: PyTree, part: Mapping[str, Array], rng: Array) -> tuple:
        streams = dict(zip(("dropout", "router", "mixup"), jax.random.split(rng, 3), strict=True))

        def loss_fn(params: PyTree) -> tuple[Array, tuple[dict, dict]]:
            apply = lambda images, mask, rngs: forward(params, images, mask, rngs)  # noqa: E731
            return task.loss(apply, part, streams)

        (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        return grads, metrics

    def gradients(params: PyTree, batch: Mapping[str, Array], step: Array) -> tuple:
        rng = jax.random.fold_in(jax.random.key(seed), step)
        if accumulation_steps == 1:
            return part_gradients(params, batch, rng)
        parts = {key: deal(x, accumulation_steps, group_size) for key, x in batch.items()}
        rngs = jax.random.split(rng, accumulation_steps)

        def body(total: PyTree, part_and_rng: tuple) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, part_gradients(params, *part_and_rng)), None

        first = jax.tree.map(lambda x: x[0], (parts, rngs))
        shapes = jax.eval_shape(part_gradients, params, *first)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        (grads, (means, sums)), _ = jax.lax.scan(body, zeros, (parts, rngs))
        grads, means = jax.tree.map(lambda x: x / accumulation_steps, (grads, means))
        return grads, (means, sums)

    return gradients


def make_train_step(
    *,
    gradients: Gradients,
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
    max_skipped_updates: int,
) -> Callable[[TrainState, Mapping[str, Array]], tuple[TrainState, dict]]:
    """Builds (state, batch) -> (state, metrics).

    A loss or gradient that is not finite never reaches the parameters: such a step updates nothing
    and counts in `skipped_updates`. Beyond `max_skipped_updates` of them nothing is updated any
    more, so that the parameters stay those that met the trouble until the loop has noticed.
    """

    def train_step(state: TrainState, batch: Mapping[str, Array]) -> tuple[TrainState, dict]:
        grads, (means, sums) = gradients(state.params, batch, state.step)
        gradient_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(means["loss"]) & jnp.isfinite(gradient_norm)
        update = finite & (state.skipped_updates <= max_skipped_updates)
        updates_before = state.step - state.skipped_updates

        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        keep = lambda new, old: jnp.where(update, new, old)  # noqa: E731
        state = TrainState(
            step=state.step + 1,
            params=jax.tree.map(keep, params, state.params),
            opt_state=jax.tree.map(keep, opt_state, state.opt_state),
            skipped_updates=state.skipped_updates + ~finite,
            bad_examples=state.bad_examples + batch["bad"].sum(dtype=jnp.int32),
        )
        metrics = {
            **means,
            "learning_rate": schedule(updates_before),
            "gradient_norm": gradient_norm,
            **{name: getattr(state, name) for name in COUNTERS},
            "routing": sums,
        }
        return state, metrics

    return train_step


def deal(x: Array, parts: int, group_size: int) -> Array:
    """[B, ...] -> [parts, B/parts, ...]: group j of `group_size` rows goes to part j % parts."""
    rest = x.shape[1:]
    dealt = x.reshape(-1, parts, group_size, *rest).swapaxes(0, 1)
    return dealt.reshape(parts, x.shape[0] // parts, *rest)


def make_eval_step(
    *, forward: Forward, task: Any
) -> Callable[[PyTree, Mapping[str, Array]], dict[str, Array]]:
    """Builds (params, batch) -> sums over the batch's real images, see the task's `evaluate`."""

    def eval_step(params: PyTree, batch: Mapping[str, Array]) -> dict[str, Array]:
        apply = lambda images, mask, rngs: forward(params, images, mask, rngs)  # noqa: E731
        return task.evaluate(apply, batch)

    return eval_step
