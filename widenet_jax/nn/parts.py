"""The parts of a stack of blocks, each built once under the scope of its parameters."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn

from widenet_jax.nn.block_settings import DTYPES, NORMS, BlockSettings
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.loop import Loop, Step
from widenet_jax.nn.loop_modules import Condition, LoopStart
from widenet_jax.typing import Array


class Parts:
    """The parts of a stack that its steps have used.

    Args:
      stack: the module whose submodules they are, while it is being called.
    """

    def __init__(self, stack: BlockSettings):
        self._stack, self._loop = stack, Loop.of(stack.loop)
        self._dtype = DTYPES[stack.dtype]
        self._built: dict[str, nn.Module] = {}
        self._ran: set[str | None] = set()

    def of(self, step: Step) -> dict[str, nn.Module]:
        """Returns a step's attention, ffn and norms, and its router where that stands apart."""
        return {part: self._get(scope, self._part, part, step) for part, scope in step.scopes}

    def begin(self, step: Step, x: Array, entry: Array | None, number: Array | int) -> Array:
        """Returns the state with which a step begins: also what enters it as its loop begins."""
        if step.begins is None:
            return x
        start = self._get(f"core_{step.begins}_start", self._start, step.begins)
        return start(x, entry, number)

    def normed(self, step: Step, number: Array | int, part: str, x: Array) -> Array:
        """Applies the norm `part` of a step, modulated by the loop's number where it knows it."""
        y = self.of(step)[part](x)
        if not step.loops:
            return y
        scope = f"{dict(step.scopes)[part]}_condition"
        return self._get(scope, self._condition, step)(y, number)

    def end(self, step: Step, x: Array) -> Array:
        """Returns the state with which a step ends: normed where its loop ends with a norm."""
        return x if step.ends is None else self.norm(f"core_{step.ends}_norm_state")(x)

    def due(self, *parts: nn.Module | None) -> bool:
        """Returns whether parts must run together; initialising shared ones takes a single run."""
        names = {part.name for part in parts if part}
        done = self._stack.is_initializing() and names <= self._ran
        self._ran |= names
        return not done

    def norm(self, scope: str) -> nn.Module:
        """Returns a norm, whose statistics, scale and bias are float32."""
        return self._get(scope, self._norm)

    def _get(self, scope: str, build: Callable[..., nn.Module], *of: Any) -> nn.Module:
        if scope not in self._built:
            self._built[scope] = build(*of, name=scope)
        return self._built[scope]

    def _part(self, part: str, step: Step, name: str) -> nn.Module:
        if part == "attention":
            return self._stack.build_attention(name)
        if part == "ffn":
            return self._stack.build_ffn(step.ffn, name)
        if part == "router":
            return self._stack.build_ffn(step.ffn).build_router(parent=self._stack, name=name)
        return self._norm(name)

    def _norm(self, name: str) -> nn.Module:
        # One pass: the variance is E[x^2] - E[x]^2, which cancels where the mean is large against
        # the deviation. A second pass is 1.6% of ViT-B's step on a TPU; see docs/NUMERICS.md.
        build = NORMS[self._stack.norm]
        return build(epsilon=self._stack.norm_epsilon, dtype=self._dtype, name=name)

    def _start(self, group: int, name: str) -> nn.Module:
        loops = self._loop.core[group][1] if self._loop.embed else 0
        return LoopStart(self._loop.inject, loops, self._dtype, name=name)

    def _condition(self, step: Step, name: str) -> nn.Module:
        sees_state = self._loop.condition == "index_state"
        init = KernelInit(self._stack.kernel_init)
        return Condition(step.loops, sees_state, init, self._dtype, name=name)
