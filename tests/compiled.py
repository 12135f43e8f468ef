"""`init` and `apply` of Flax modules as one compiled program each, and what a program consists of.

Without `jax.jit` every operation of the module is compiled as a program: five times the work.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax

PROGRAMS: dict[tuple, Callable] = {}


def init(module: nn.Module, *inputs: Any, seed: int = 0, train: bool = False) -> dict:
    """Returns the module's initial parameters."""

    def run(seed: int, inputs: tuple) -> dict:
        return module.init(jax.random.key(seed), *inputs, train=train)["params"]

    return program(module, "init", train, run)(seed, inputs)


def apply(module: nn.Module, params: dict, *inputs: Any, train: bool, **options: Any) -> Any:
    """Returns the module's output; `options` such as masks and rngs are arrays or trees of them."""

    def run(params: dict, inputs: tuple, options: dict) -> Any:
        return module.apply({"params": params}, *inputs, train=train, **options)

    return program(module, "apply", train, run)(params, inputs, options)


def program(module: nn.Module, method: str, train: bool, run: Callable) -> Callable:
    """Returns `run` compiled; an earlier program if it was of an equal module.

    Modules whose fields are dicts have no hash, but all of their fields are in their `repr`.
    """
    key = (type(module), repr(module), method, train)
    return PROGRAMS.setdefault(key, jax.jit(run))


def equations_in(jaxpr: jax.extend.core.Jaxpr) -> list[jax.extend.core.JaxprEqn]:
    """Lists the operations of a program and of those in it, in order."""
    found = []
    for eqn in jaxpr.eqns:
        found.append(eqn)
        for inner in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found += equations_in(inner)
    return found
