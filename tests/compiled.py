"""Parameters of Flax modules, their `apply` as one program, and what a program consists of.

Without `jax.jit` every operation of the module is compiled as a program: five times the work. The
initialisers take several times as long to compile as the module itself, so NumPy draws parameters.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

PROGRAMS: dict[tuple, Callable] = {}


def init(module: nn.Module, *inputs: Any, seed: int = 0, train: bool = False) -> dict:
    """Draws parameters of the module; see `draw`."""

    def run(inputs: tuple) -> dict:
        return module.init(jax.random.key(0), *inputs, train=train)["params"]

    return draw(jax.eval_shape(program(module, "init", train, run), inputs), seed=seed)


def draw(shapes: Any, *, seed: int = 0) -> Any:
    """Draws parameters of these shapes: biases 0, scales 1, others normal with 1 / fan-in."""
    rng = np.random.default_rng(seed)

    def drawn(path: tuple, spec: jax.ShapeDtypeStruct) -> jax.Array:
        known = {"bias": 0.0, "scale": 1.0}.get(path[-1].key)
        if known is not None:
            return jnp.full(spec.shape, known, spec.dtype)
        fan_in = spec.shape[-2] if len(spec.shape) > 1 else 1
        return jnp.asarray(rng.normal(scale=fan_in**-0.5, size=spec.shape), spec.dtype)

    return jax.tree_util.tree_map_with_path(drawn, shapes)


def initial(module: nn.Module, *inputs: Any) -> dict:
    """Returns the module's initial parameters, as its initialisers make them."""
    run = lambda *inputs: module.init(jax.random.key(0), *inputs, train=False)["params"]  # noqa: E731
    return jax.jit(run)(*inputs)


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
