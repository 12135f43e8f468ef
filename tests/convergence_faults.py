"""Four faults that let every run end well, and whether `convergence.py` notices them.

  .venv/bin/python tests/convergence_faults.py gates digits_widenet byte_sigma_moe

trains the new seeds of `test_convergence.py` with a fault, and prints each measure beside the
interval of the reference: "caught" where it lies outside. The runs of docs/log/convergence.md.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from convergence import FAMILIES, NEW_SEEDS, compared, train_seeds

from widenet_jax import experiment, step
from widenet_jax.nn.moe import layer
from widenet_jax.nn.moe.routers.scoring import ScoringRouter


def balance_loss_off() -> Any:
    """The balance loss is computed and logged, but does not enter the loss."""
    original = layer.balance_losses

    def unweighted(*args: Any) -> tuple[dict[str, jax.Array], jax.Array]:
        return original(*args)[0], jnp.float32(0)

    return mock.patch.object(layer, "balance_losses", unweighted)


def gates_not_multiplied() -> Any:
    """A token's experts are added up without their gates."""

    def ungated(original: Callable) -> Callable:
        def dispatch(x: jax.Array, routing: Any, *args: Any, **options: Any) -> jax.Array:
            chosen = (routing.gate > 0).astype(routing.gate.dtype)
            return original(x, routing.replace(gate=chosen), *args, **options)

        return dispatch

    ways = {name: ungated(original) for name, original in layer.DISPATCHERS.items()}
    return mock.patch.object(layer, "DISPATCHERS", ways)


def router_gradient_stopped() -> Any:
    """No gradient passes the router's scores."""
    original = ScoringRouter.scores

    def stopped(self: ScoringRouter, x: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(original(self, x))

    return mock.patch.object(ScoringRouter, "scores", stopped)


def dropout_in_evaluation() -> Any:
    """Evaluation has the dropout and the noise of training."""

    def as_in_training(model: Any, task: Any, params: Any, batch: Mapping) -> Any:
        rngs = {name: jax.random.key(i) for i, name in enumerate(step.STREAMS)}
        return task.evaluate(lambda inputs, _: step.forward(model, params, inputs, rngs), batch)

    return mock.patch.object(experiment, "evaluate_batch", as_in_training)


FAULTS = {
    "balance": balance_loss_off,
    "gates": gates_not_multiplied,
    "router": router_gradient_stopped,
    "dropout": dropout_in_evaluation,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Trains families with a fault and prints what the comparison says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("families", nargs="+", choices=FAMILIES, metavar="FAMILY")
    flags = parser.parse_args(argv)
    for name in flags.families:
        with FAULTS[flags.fault]():
            found = compared(name, train_seeds(name, NEW_SEEDS))
        for line, outside in found:
            print(f"{flags.fault}: {line}: {'caught' if outside else 'not caught'}", flush=True)


if __name__ == "__main__":
    main()
