"""One training step and one evaluation step: pure functions, to be jitted by `train`."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from widenet_jax.typing import Array, PyTree

# (params, images, mask, rngs) -> (logits, aux)
Forward = Callable[[PyTree, Array, Array | None, dict[str, Array] | None], tuple[Array, dict]]


@flax.struct.dataclass
class TrainState:
    """All that changes. Randomness is a function of (seed, step) and the data of the step.

    Attributes:
      step: int32, completed updates.
      params: float32.
      opt_state: as optax gives it.
    """

    step: Array
    params: PyTree
    opt_state: PyTree


def make_train_step(
    *,
    forward: Forward,
    task: Any,
    tx: optax.GradientTransformation,
    schedule: optax.Schedule,
    seed: int,
    accumulation_steps: int,
    group_size: int,
) -> Callable[[TrainState, Mapping[str, Array]], tuple[TrainState, dict]]:
    """Builds (state, batch) -> (state, metrics).

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

    def gradients(params: PyTree, batch: Mapping[str, Array], rng: Array) -> tuple:
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

    def train_step(state: TrainState, batch: Mapping[str, Array]) -> tuple[TrainState, dict]:
        rng = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, (means, sums) = gradients(state.params, batch, rng)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        metrics = {
            **means,
            "learning_rate": schedule(state.step),
            "gradient_norm": optax.tree.norm(grads),
            "routing": sums,
        }
        params = optax.apply_updates(state.params, updates)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics

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
