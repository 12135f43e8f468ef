"""What all ways to run a stack of blocks share: inputs, parts, the start of a core, joined aux."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.loop import Step
from widenet_jax.nn.module import Module, build
from widenet_jax.typing import Array, Aux

NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
Outputs = tuple[Array, Aux, Array | None]  # x, aux and the next memory
NOISE_STD = math.sqrt(2 / 5)  # of a state that starts as noise (arXiv:2502.05171)
# The names of the norms before and after a branch, by `norm_position`; "" for none.
NORM_PLACES = {
    "pre": ("norm_{}", ""),
    "post": ("", "norm_{}"),
    "sandwich": ("norm_{}", "norm_{}_out"),
    "peri": ("norm_{}", ""),
}


class Drops(NamedTuple):
    """Which examples of a batch leave out which branches, in a step of training.

    Attributes:
      key: of the step.
      slope: growth of the rate from one block to the next; the first block that runs has 0.
      places: of each step, how many blocks run before it.
    """

    key: Array
    slope: Array
    places: Sequence[Array | int] | Array

    def __call__(self, y: Array, step: int, branch: int) -> Array:
        """Sets the output y [B, T, D] of a branch to 0 in dropped examples, else to y / (1 - rate).

        The key follows the place, so that recomputed and looped blocks drop as others.
        """
        place = self.places[step]
        keep = 1 - self.slope * place
        key = jax.random.fold_in(self.key, 2 * place + branch)
        kept = jax.random.bernoulli(key, keep, (y.shape[0], 1, 1))
        # In float32, as in `dense.drop`.
        larger = (y.astype(jnp.float32) / keep).astype(y.dtype)
        return jnp.where(kept, larger, jnp.zeros((), y.dtype))


class DropPath(nn.Module):
    """Draws the `Drops` of a step: stochastic depth (arXiv:1603.09382), per example and branch.

    Block t of L, from 0, has the rate t / (L - 1) of `rate`. A module, whose scope gives it a key
    that no other module draws from.

    Attributes:
      rate: of the last block.
    """

    rate: float

    @nn.compact
    def __call__(self, places: Sequence[Array | int], blocks: Array | int) -> Drops:
        """Returns the drops of steps at `places` of `blocks` that run."""
        slope = self.rate / jnp.maximum(blocks - 1, 1)
        return Drops(self.make_rng("dropout"), slope, places)


class Inputs(NamedTuple):
    """What a stack is called with beside the state and the memory.

    Attributes:
      seen: which other tokens attention sees: mask and segment_ids, or memory_length.
      mask: [B, T] True for real tokens.
      train: with dropout and routing noise.
      loops: int32: how often groups loop; None: as the core says.
      entry: [B, T, D] the state before the core, in the core.
      loop_numbers: [steps] int32, for a piece of the core.
      drops: of training with `drop_path`.
    """

    seen: dict
    mask: Array | None
    train: bool
    loops: Array | None = None
    entry: Array | None = None
    loop_numbers: Array | None = None
    drops: Drops | None = None


class Parts:
    """The parts of a stack that its steps have used.

    Args:
      stack: the module whose submodules they are, while it is being called.
    """

    def __init__(self, stack: Module):
        self._stack, self._dtype = stack, stack.float_type
        self._built: dict[str, nn.Module] = {}
        self._ran: set[str | None] = set()

    def of(self, step: Step) -> tuple[nn.Module, nn.Module, nn.Module | None]:
        """Returns a step's attention, its ffn, and its router where that stands apart."""
        stack, scopes, router = self._stack, dict(step.scopes), None
        settings = stack.feed_forwards[step.ffn]
        attention = self._get(scopes["attention"], partial(build, stack.attention, parent=stack))
        ffn = self._get(scopes["ffn"], partial(build, settings, parent=stack))
        if "router" in scopes:
            build_router = partial(build(settings, parent=None).build_router, parent=stack)
            router = self._get(scopes["router"], build_router)
        return attention, ffn, router

    def begin(self, step: Step, loop: Array | int, x: Array, entry: Array | None) -> Array:
        """Returns the state with which a step begins: also what enters it as its loop begins."""
        if step.begins is None:
            return x
        from widenet_jax.nn.loop_modules import LoopStart  # most models do without

        settings = self._stack.loop
        vectors = settings.core[step.begins][1] if settings.embed else 0
        build = partial(LoopStart, settings.inject, vectors, self._dtype)
        return self._get(f"core_{step.begins}_start", build)(x, entry, loop)

    def end(self, step: Step, x: Array) -> Array:
        """Returns the state with which a step ends: normed where its loop ends with a norm."""
        return x if step.ends is None else self.norm(f"core_{step.ends}_norm_state")(x)

    def due(self, *parts: nn.Module | None) -> bool:
        """Returns whether parts must run together; initialising shared ones takes a single run.

        Groups of blocks run whole: a layer of theirs may follow at first, and route later.
        """
        names = {part.name for part in parts if part}
        once = self._stack.is_initializing() and self._stack.blocks_per_routing() == 1
        done = once and names <= self._ran
        self._ran |= names
        return not done

    def norm(self, scope: str) -> nn.Module:
        """Returns a norm, whose statistics, scale and bias are float32."""
        # One pass: the variance is E[x^2] - E[x]^2, which cancels where the mean is large against
        # the deviation. A second pass is 1.6% of ViT-B's step on a TPU; see docs/why/numerics.md.
        build, epsilon = NORMS[self._stack.norm], self._stack.norm_epsilon
        return self._get(scope, partial(build, epsilon=epsilon, dtype=self._dtype))

    def normed(self, step: Step, loop: Array | int, name: str, branch: str, x: Array) -> Array:
        """Applies the norm before or after a branch, modulated where norms know their loop.

        Args:
          step: with the norm's scope.
          loop: k.
          name: in `NORM_PLACES`; "" leaves x as it is.
          branch: "attention" or "ffn".
          x: [B, T, D].
        """
        if not name:
            return x
        scope, stack = dict(step.scopes)[name.format(branch)], self._stack
        y = self.norm(scope)(x)
        if not step.condition_loops:
            return y
        from widenet_jax.nn.loop_modules import Condition  # most models do without

        sees_state, init = stack.loop.condition == "index_state", KernelInit(stack.kernel_init)
        build = partial(Condition, step.condition_loops, sees_state, init, self._dtype)
        return self._get(f"{scope}_condition", build)(y, loop)

    def _get(self, scope: str, build: Callable[..., nn.Module]) -> nn.Module:
        if scope not in self._built:
            self._built[scope] = build(name=scope)
        return self._built[scope]


def begin_core(stack: Module, x: Array, *, train: bool) -> Array:
    """Returns the state with which the core of a stack begins, given the state before it.

    Noise in training is of the random stream "router".
    """
    if stack.loop.start != "noise":
        return x if stack.loop.start == "prelude" else jnp.zeros_like(x)
    drawn = train and stack.has_rng("router")
    key = stack.make_rng("router") if drawn else jax.random.key(0)
    # In evaluation of each example alike, wherever it stands in a batch.
    shape = x.shape if drawn else x.shape[1:]
    noise = NOISE_STD * jax.random.truncated_normal(key, -3.0, 3.0, shape)
    return jnp.broadcast_to(noise, x.shape).astype(x.dtype)


def over_operations(join: Callable, auxes: list[Aux]) -> Aux:
    """Joins the aux of several operations; each loss and sum over the operations that have it."""
    auxes = [aux for aux in auxes if aux]
    if not auxes:
        return {}

    def by_name(field: str) -> dict[str, Array]:
        names = dict.fromkeys(name for aux in auxes for name in aux[field])
        return {name: join([x[field][name] for x in auxes if name in x[field]]) for name in names}

    loss = join([aux["loss"] for aux in auxes])
    return {"loss": loss, "losses": by_name("losses"), "sums": by_name("sums")}
