"""Optimizers that `config.optimizer` describes, and a few of their updates."""

from collections.abc import Callable

import jax
import optax

from widenet_jax.config.imports import configs_module
from widenet_jax.optim.build import build_optimizer

USUAL = {name: row[0] for name, row in configs_module("defaults").RUN["optimizer"].items()} | {
    "schedule": "constant", "learning_rate": 0.1, "grad_clip_norm": 0.0,
    "exclude_norm_and_bias": False,
}  # fmt: skip


def build(
    params: dict, depth: int = 2, **changes: object
) -> tuple[optax.GradientTransformation, Callable]:
    """Builds the optimizer of the defaults with some changes, and its learning rate.

    A run has ten steps, or `total_steps`; an epoch is two. `places` as of `build_optimizer`.
    """
    of_run = {name: changes.pop(name) for name in ("places", "total_steps") if name in changes}
    sizes = {"depth": depth, "total_steps": 10, "batch_size": 4, "num_examples": 8} | of_run
    return build_optimizer({**USUAL, **changes}, params_or_shapes=params, **sizes)


def train(tx: optax.GradientTransformation, params: dict, gradients: list[dict]) -> dict:
    """Returns the parameters after an update with each of the gradients."""
    state, update = tx.init(params), jax.jit(tx.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params
