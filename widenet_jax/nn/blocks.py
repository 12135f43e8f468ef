"""The sharing loop: a stack of transformer blocks that own or share their parts.

A vanilla transformer shares nothing; ALBERT shares attention, feed-forward and norms; WideNet
shares attention and a mixture of experts and gives each block its own norms. `loop` has the
grammar of these and of others.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.block_settings import DTYPES, NORMS, BlockSettings
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.loop import Loop, Step
from widenet_jax.param_names import NORM_OUT
from widenet_jax.typing import Array, Aux, FfnOutput

NOISE_STD = math.sqrt(2 / 5)  # of a state that starts as noise (arXiv:2502.05171)


class Blocks(BlockSettings):
    """A stack of blocks: x + attention(norm(x)), then x + ffn(norm(x)) (WideNet, eqs. 6 and 7).

    `loop` names the parameters of its parts; the last norm is `norm_out`. `norm_position` has other
    places of the norms.

    With a memory, a block's attention sees what came before x, too: the block's inputs of earlier
    calls, before their norm (Transformer-XL, arXiv:1901.02860).

    Attributes:
      last_norm: whether pre-norm ends with a last norm.
      some_steps: the blocks to run; (): the whole loop.
      The rest: see `BlockSettings`.
    """

    last_norm: bool = True
    some_steps: tuple[Step, ...] = ()

    exits = True

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        mask: Array | None = None,  # [B, T] True for real tokens
        segment_ids: Array | None = None,  # [B, T] int32: tokens attend to their own number only
        memory: Array | None = None,  # [B, L, M, D] inputs of each block
        memory_length: Array | None = None,  # [B] int32: rows of the memory, the latest, to see
        entry: Array | None = None,  # [B, T, D] the state before the core, for a piece of it
        loop_numbers: Array | None = None,  # [steps] int32, for a piece of the core
        loops: Array | None = None,  # int32: how often groups loop; None: as the core says
        train: bool,
    ) -> tuple[Array, Aux, Array | None]:
        """Runs the blocks.

        Returns:
          [B, T, D], or with `loop.exit` [loops B, T, D], one loop after the other; the parts' aux,
          stacked over the operations that have one; and the next memory, the latest M inputs of
          each block, without gradient, or None without a memory.
        """
        self.check()
        if memory is None:
            seen = {"mask": mask, "segment_ids": segment_ids}
        else:
            seen = {"memory_length": memory_length}
        # Parameters are initialised block by block, however the blocks run later.
        plain = bool(self.some_steps) or (self.unroll and self.remat == "none" and loops is None)
        loop = Loop.of(self.loop)
        by_step = loop.routing == "first" or (not train and loop.counts.eval)
        run = partial(self.run_blocks, entry=entry, loop_numbers=loop_numbers)
        if loop.exits or not (plain or by_step or self.is_initializing()):
            from widenet_jax.nn import loop_runs  # most models do without

            run = partial(loop_runs.run_pieces, self, loops=loops)
            run = partial(loop_runs.run_exits, self) if loop.exits else run
        x, aux, memory = run(x, memory, seen=seen, mask=mask, train=train)
        if self.last_norm and self.norm_position != "post":
            x = Parts(self).norm(NORM_OUT)(x)
        return x, aux, memory

    def run_blocks(
        self,
        x: Array,
        memory: Array | None,
        *,
        entry: Array | None,
        seen: dict,
        mask: Array | None,
        train: bool,
        loop_numbers: Array | None = None,
        steps: tuple[Step, ...] = (),
        parts: "Parts | None" = None,
    ) -> tuple[Array, Aux, Array | None]:
        """Runs one block after the other.

        Args:
          seen: which other tokens attention sees: mask and segment_ids, or memory_length.
          steps: those to run; (): all.
          parts: those that other calls built.
        """
        loop, position = Loop.of(self.loop), self.norm_position
        pre = position != "post"
        after = {"post": "norm_{}", "sandwich": "norm_{}_out"}.get(position, "")
        as_trained = train or self.is_initializing()
        if loop_numbers is None:
            loop_numbers = (loop if as_trained else loop.evaluated()).loop_numbers()
        parts = parts or Parts(self)
        some = steps or self.some_steps
        auxes, memories, routings = [], [], {}
        for step in some or self.steps(train=as_trained):
            of, number = parts.of(step), loop_numbers[step.index]
            norm = partial(parts.normed, step, number)
            with jax.named_scope(f"block_{step.index:02d}"):
                if not some and step.index == loop.prelude:
                    x, entry = begin_core(self, loop.start, x, train=train)
                x = parts.begin(step, x, entry, number)
                if memory is not None:
                    old = memory[:, step.index]
                    memories.append(updated(old, x))
                    seen = seen | {"memory": norm("norm_attention", old) if pre else old}
                y = norm("norm_attention", x) if pre else x
                if parts.due(of["attention"]):
                    values = {"values": x} if position == "peri" else {}
                    output, aux = of["attention"](y, **seen, **values, train=train)
                    x = x + scaled(output, step.scale)
                    auxes.append(aux)
                x = norm(after.format("attention"), x) if after else x
                y = norm("norm_ffn", x) if pre else x
                if parts.due(of["ffn"], of.get("router")):
                    routing = routings.get(step.source)
                    output = self.feed(of, x, y, mask=mask, train=train, routing=routing)
                    x, routings[step.index] = x + scaled(output.y, step.scale), output.routing
                    auxes.append(output.aux)
                x = norm(after.format("ffn"), x) if after else x
                x = parts.end(step, x)
                self.sow("intermediates", "state", x)  # nothing, unless an analysis asks
        aux = over_operations(jnp.stack, auxes)
        return x, aux, jnp.stack(memories, axis=1) if memories else None

    def feed(self, of: dict, x: Array, y: Array, **others: Any) -> FfnOutput:
        """Applies a step's feed-forward to the normed y; or to x, with y for the router alone."""
        if "router" in of:
            others["router"] = of["router"]
        if self.norm_position == "peri":
            y, others["selection"] = x, y
        return of["ffn"](y, **others)


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
        from widenet_jax.nn.loop_modules import LoopStart  # most models do without

        loops = self._loop.core[group][1] if self._loop.embed else 0
        return LoopStart(self._loop.inject, loops, self._dtype, name=name)

    def _condition(self, step: Step, name: str) -> nn.Module:
        from widenet_jax.nn.loop_modules import Condition  # most models do without

        sees_state = self._loop.condition == "index_state"
        init = KernelInit(self._stack.kernel_init)
        return Condition(step.loops, sees_state, init, self._dtype, name=name)


def begin_core(stack: nn.Module, start: str, x: Array, *, train: bool) -> tuple[Array, Array]:
    """Returns the state with which the core of a stack begins, and the entry: the state before it.

    Args:
      stack: the module that is being called; noise in training is of its stream "router".
      start: a name in `loop.STARTS`.
    """
    if start == "prelude":
        return x, x
    if start == "zeros":
        return jnp.zeros_like(x), x
    drawn = train and stack.has_rng("router")
    key = stack.make_rng("router") if drawn else jax.random.key(0)
    # In evaluation of each example alike, wherever it stands in a batch.
    shape = x.shape if drawn else x.shape[1:]
    noise = NOISE_STD * jax.random.truncated_normal(key, -3.0, 3.0, shape)
    return jnp.broadcast_to(noise, x.shape).astype(x.dtype), x


def scaled(branch: Array, scale: float) -> Array:
    """Returns a residual branch times its factor; a factor of 1 changes no bit."""
    return branch if scale == 1 else branch * scale


def updated(memory: Array, x: Array) -> Array:
    """Returns the latest M rows of memory [B, M, D] and x [B, T, D], without gradient."""
    rows = jnp.concatenate([memory, x.astype(memory.dtype)], axis=1)
    return jax.lax.stop_gradient(rows[:, x.shape[1] :])


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
