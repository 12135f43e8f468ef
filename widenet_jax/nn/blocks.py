"""The sharing loop: a stack of transformer blocks that own or share their parts.

A vanilla transformer shares nothing; ALBERT shares attention, feed-forward and norms; WideNet
shares attention and a mixture of experts and gives each block its own norms. `loop_settings`
has the grammar of these and of others.
"""

from collections.abc import Callable, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from widenet_jax.nn.loop import Step, run_order
from widenet_jax.nn.module import Module
from widenet_jax.nn.parts import (
    NORM_PLACES,
    DropPath,
    Drops,
    Inputs,
    Outputs,
    Parts,
    begin_core,
    over_operations,
)
from widenet_jax.nn.stack_settings import StackSettings
from widenet_jax.param_names import ADAPTER, NORM_OUT
from widenet_jax.sharding import on_each_device, platform
from widenet_jax.typing import Array


class Blocks(Module):
    """A stack of blocks: x + attention(norm(x)), then x + ffn(norm(x)) (WideNet, eq. 6).

    `loop` names the parameters of its parts; the last norm is `norm_out`. `norm_position` has other
    places of the norms.

    With a memory, a block's attention sees what came before x, too: the block's inputs of earlier
    calls, before their norm (Transformer-XL, arXiv:1901.02860).

    Attributes:
      last_norm: whether pre-norm ends with a last norm.
      some_steps: the blocks to run; (): the whole loop.
    """

    settings: StackSettings
    last_norm: bool = True
    some_steps: tuple[Step, ...] = ()

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
        drops: Drops | None = None,  # for a piece of a stack with `drop_path`
        train: bool,
    ) -> Outputs:
        """Runs the blocks.

        Returns:
          [B, T, D], or with `loop.exit` [loops B, T, D], one loop after the other; the parts' aux,
          stacked over the operations that have one; and the next memory, the latest M inputs of
          each block, without gradient, or None without a memory.
        """
        seen = {"mask": mask, "segment_ids": segment_ids}
        if memory is not None:
            seen = {"memory_length": memory_length}
        if self.drop_path and train and drops is None:
            drops = DropPath(self.drop_path, name="drop_path")(*run_order(self.loop, loops))
        inputs = Inputs(seen, mask, train, loops, entry, loop_numbers, drops)
        steps = self.some_steps or self.steps(train=train or self.is_initializing())
        parts = Parts(self)
        run = self.other_way(inputs) or partial(self.run_blocks, parts, steps)
        x, aux, memory = run(x, memory, inputs)
        if self.adapter.rank and self.is_initializing():
            from widenet_jax.nn import adapters

            self.param(ADAPTER, adapters.create, self.settings, self.variables["params"])
        if self.last_norm and self.norm_position != "post":
            x = parts.norm(NORM_OUT)(x)
        return x, aux, memory

    def other_way(self, inputs: Inputs) -> Callable | None:
        """Returns another way to run the blocks than one after the other; None: there is none."""
        if self.adapter.rank and not self.is_initializing():
            from widenet_jax.nn import adapters  # most models do without

            return partial(adapters.run, self)
        # Parameters are initialised block by block, however the blocks run later.
        in_order = self.some_steps or self.is_initializing() or self.loop.routing == "first"
        in_order = in_order or (self.loop.counts.eval and not inputs.train)
        in_order = in_order or (self.unroll and self.remat == "none" and inputs.loops is None)
        if in_order and not self.loop.exits:
            return None
        from widenet_jax.nn import loop_runs  # most models do without

        return partial(loop_runs.run_exits if self.loop.exits else loop_runs.run_pieces, self)

    def run_blocks(
        self, parts: Parts, steps: Sequence[Step], x: Array, memory: Array | None, inputs: Inputs
    ) -> Outputs:
        """Runs some steps, one block after the other, with the parts of the stack."""
        seen, mask, train, _, entry, loop_numbers, drops = inputs
        norms, peri = NORM_PLACES[self.norm_position], self.norm_position == "peri"
        auxes, memories, routings = [], [], {}
        for step in steps:
            loop = step.loop if loop_numbers is None else loop_numbers[step.index]
            before, after = (partial(parts.normed, step, loop, name) for name in norms)
            attention, ffn, router = parts.of(step)
            with jax.named_scope(f"block_{step.index:02d}"):
                if entry is None and step.index == self.loop.prelude:
                    x, entry = begin_core(self, x, train=train), x
                x = parts.begin(step, loop, x, entry)
                if memory is not None:
                    old = memory[:, step.index]
                    memories.append(updated(old, x))
                    seen = seen | {"memory": before("attention", old)}
                y = before("attention", x)
                if parts.due(attention):
                    values = {"values": x} if peri else {}
                    output, aux = attention(y, **seen, **values, train=train)
                    x = by_examples(x + residual(output, x, step, drops, 0))  # eq. 6
                    auxes.append(aux)
                x = after("attention", x)
                y = before("ffn", x)
                if parts.due(ffn, router):
                    how = {"routing": routings.get(step.follows)}
                    how |= {"router": router} if router else {}
                    y, selection = (x, {"selection": y}) if peri else (y, {})
                    output = ffn(y, mask=mask, train=train, **how, **selection)
                    x = by_examples(x + residual(output.y, x, step, drops, 1))  # eq. 6
                    auxes.append(output.aux)
                    routings[step.index] = output.routing
                x = parts.end(step, after("ffn", x))
                self.sow("intermediates", "state", x)  # nothing, unless an analysis asks
        aux = over_operations(jnp.stack, auxes)
        return x, aux, jnp.stack(memories, axis=1) if memories else None


def by_examples(x: Array) -> Array:
    """Shards x [B, T, D] and its gradient over examples, in row-major layout, on a mesh of GPUs.

    Their compiler would shard the gradient as the parameters, over `fsdp`, and exchange it several
    times a block. It would also lay out both with the examples innermost, and transpose them before
    and after the products (docs/log/plans_gpu.md).
    """
    if platform() != "gpu" or jax.sharding.get_abstract_mesh().empty:
        return x
    rows = Layout((0, 1, 2))
    # On each device: the partitioner would gather x for a constraint of its layout.
    return on_each_device(lambda _, x: with_layout_constraint(x, rows), None, x)


def residual(y: Array, x: Array, step: Step, drops: Drops | None, branch: int) -> Array:
    """Returns y of a step's branch 0 or 1 times its factor, where 1 changes no bit; or dropped.

    It has the dtype of x, to which it is added: a user's part may compute in float32.
    """
    y = (y if step.scale == 1 else y * step.scale).astype(x.dtype)
    return drops(y, step.index, branch) if drops else y


def updated(memory: Array, x: Array) -> Array:
    """Returns the latest M rows of memory [B, M, D] and x [B, T, D], without gradient."""
    rows = jnp.concatenate([memory, x.astype(memory.dtype)], axis=1)
    return jax.lax.stop_gradient(rows[:, x.shape[1] :])
