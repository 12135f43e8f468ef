"""The sharing loop: a stack of transformer blocks that own or share their parts.

A vanilla transformer shares nothing; ALBERT shares attention, feed-forward and norms; WideNet
shares attention and a mixture of experts and gives each block its own norms. `loop` has the
grammar of these and of others.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.block_settings import BlockSettings
from widenet_jax.nn.loop import Loop, Step
from widenet_jax.nn.loop_modules import begin_core
from widenet_jax.nn.loop_runs import over_operations, run_exits, run_pieces
from widenet_jax.nn.parts import Parts
from widenet_jax.param_names import NORM_OUT
from widenet_jax.typing import Array, Aux, FfnOutput


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
        run = partial(run_pieces, self, loops=loops)
        if loop.exits:
            run = partial(run_exits, self)
        elif plain or by_step or self.is_initializing():
            run = partial(self.run_blocks, entry=entry, loop_numbers=loop_numbers)
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
        parts: Parts | None = None,
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


def scaled(branch: Array, scale: float) -> Array:
    """Returns a residual branch times its factor; a factor of 1 changes no bit."""
    return branch if scale == 1 else branch * scale


def updated(memory: Array, x: Array) -> Array:
    """Returns the latest M rows of memory [B, M, D] and x [B, T, D], without gradient."""
    rows = jnp.concatenate([memory, x.astype(memory.dtype)], axis=1)
    return jax.lax.stop_gradient(rows[:, x.shape[1] :])
