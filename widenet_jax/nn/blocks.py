"""The sharing loop: a stack of transformer blocks that own or share their parts.

A vanilla transformer shares nothing; ALBERT shares attention, feed-forward and norms; WideNet
shares attention and a mixture of experts and gives each block its own norms. `loop` has the
grammar of these and of others.
"""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.block_settings import DTYPES, BlockSettings
from widenet_jax.nn.dense import Dense
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.loop import Loop, Step, stretches
from widenet_jax.param_names import NORM_OUT, block_part, split_block_part
from widenet_jax.typing import Array, Aux, Routing


class Blocks(BlockSettings):
    """A stack of blocks: x + attention(norm(x)), then x + ffn(norm(x)) (WideNet, eqs. 6 and 7).

    `loop` names the parameters of its parts; the last norm is `norm_out`.

    With a memory, a block's attention sees what came before x, too: the block's inputs of earlier
    calls, before their norm (Transformer-XL, arXiv:1901.02860).

    Attributes:
      last_norm: whether pre-norm ends with a last norm.
      some_steps: the blocks to run; (): those of the loop.
      The rest: see `BlockSettings`.
    """

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
        train: bool,
    ) -> tuple[Array, Aux, Array | None]:
        """Runs the blocks.

        Returns:
          [B, T, D]; the parts' aux, stacked over the operations that have one; and the next memory,
          the latest M inputs of each block, without gradient, or None without a memory.
        """
        self.check()
        if memory is None:
            seen = {"mask": mask, "segment_ids": segment_ids}
        else:
            seen = {"memory_length": memory_length}
        # Parameters are initialised block by block, however the blocks run later.
        plain = bool(self.some_steps) or (self.unroll and self.remat == "none")
        other_loops = not train and Loop.of(self.loop).counts.eval
        run = self.run_pieces
        if plain or other_loops or self.is_initializing():
            run = partial(self.run_blocks, entry=entry, loop_numbers=loop_numbers)
        x, aux, memory = run(x, memory, seen=seen, mask=mask, train=train)
        if self.last_norm and self.norm_position == "pre":
            x = self.build_norm(NORM_OUT)(x)
        return x, aux, memory

    def run_blocks(
        self,
        x: Array,
        memory: Array | None,
        *,
        entry: Array | None,
        loop_numbers: Array | None,
        seen: dict,
        mask: Array | None,
        train: bool,
    ) -> tuple[Array, Aux, Array | None]:
        """Runs one block after the other.

        Args:
          seen: which other tokens attention sees: mask and segment_ids, or memory_length.
        """
        loop, pre = Loop.of(self.loop), self.norm_position == "pre"
        as_trained = train or self.is_initializing()
        if loop_numbers is None:
            loop_numbers = (loop if as_trained else loop.evaluated()).loop_numbers()
        parts = Parts(initializing=self.is_initializing())
        auxes: list[Aux] = []
        memories: list[Array] = []
        routing: Routing | None = None
        for step in self.some_steps or self.steps(train=as_trained):
            of = {k: parts.get(scope, partial(self.build, k, step)) for k, scope in step.scopes}
            with jax.named_scope(f"block_{step.index:02d}"):
                if not self.some_steps and step.index == loop.prelude:
                    x, entry = started(x, loop)
                if step.begins is not None:
                    begin = partial(self.build_start, step.begins)
                    begin = parts.get(f"core_{step.begins}_start", begin)
                    x = begin(x, entry, loop_numbers[step.index])
                if memory is not None:
                    old = memory[:, step.index]
                    memories.append(updated(old, x))
                    seen = seen | {"memory": of["norm_attention"](old) if pre else old}
                y = of["norm_attention"](x) if pre else x
                if parts.due(of["attention"]):
                    output, aux = of["attention"](y, **seen, train=train)
                    x = x + scaled(output, step.scale)
                    auxes.append(aux)
                x = x if pre else of["norm_attention"](x)
                y = of["norm_ffn"](x) if pre else x
                if parts.due(of["ffn"], of.get("router")):
                    router = {"router": of["router"]} if "router" in of else {}
                    routing = None if step.routes else routing
                    output = of["ffn"](y, mask=mask, train=train, routing=routing, **router)
                    x, routing = x + scaled(output.y, step.scale), output.routing
                    auxes.append(output.aux)
                x = x if pre else of["norm_ffn"](x)
                if step.ends is not None:
                    x = parts.get(f"core_{step.ends}_norm_state", self.build_norm)(x)
        aux = over_operations(jnp.stack, auxes)
        return x, aux, jnp.stack(memories, axis=1) if memories else None

    def build_start(self, group: int, name: str) -> nn.Module:
        """Builds what begins each loop of a group."""
        loop, dtype = Loop.of(self.loop), DTYPES[self.dtype]
        loops = loop.core[group][1] if loop.embed else 0
        init = KernelInit(self.kernel_init, self.depth)
        return LoopStart(loop.inject, loops, init, dtype, parent=self, name=name)

    def build(self, part: str, step: Step, scope: str) -> nn.Module:
        """Builds a part of a step under its scope."""
        if part == "attention":
            return self.build_attention(scope)
        if part == "ffn":
            return self.build_ffn(step.ffn, scope)
        if part == "router":
            return self.build_ffn(step.ffn).build_router(parent=self, name=scope)
        return self.build_norm(scope)

    def run_pieces(
        self, x: Array, memory: Array | None, *, seen: dict, mask: Array | None, train: bool
    ) -> tuple[Array, Aux, Array | None]:
        """Runs the blocks in equal pieces, each one function of its parameters and its memory.

        Such a function can be recomputed (`remat`). A piece is one block, or those that share a
        routing. Pieces that repeat themselves can be looped over (`unroll=False`).
        """
        size, steps = self.blocks_per_routing(), self.steps()
        starts = range(0, len(steps), size)
        pieces = [tuple(s.within(i) for s in steps[i : i + size]) for i in starts]
        shared, own = self.split_parameters(size)
        keys = {name: self.make_rng(name) for name in ("dropout", "router") if self.has_rng(name)}
        plain = {"remat": "none", "unroll": True, "last_norm": False}

        def runner(piece: tuple[Step, ...], *, looped: bool) -> Callable:
            blocks = self.clone(parent=None, name=None, some_steps=piece, **plain)

            def run(
                x: Array, params: dict, old: Array | None, index: Array | int, numbers: Array
            ) -> tuple:
                rngs = {name: jax.random.fold_in(key, index) for name, key in keys.items()}
                others = {"mask": mask} | seen | {"memory": old}
                others |= {"entry": entry, "loop_numbers": numbers}
                return blocks.apply(
                    {"params": shared | params}, x, **others, train=train, rngs=rngs
                )

            # The two passes of a loop are two loops, whose operations no compiler merges.
            return jax.checkpoint(run, prevent_cse=not looped) if self.remat == "block" else run

        # [B, L, M, D] -> count * [B, size, M, D]
        count = len(pieces)
        memories = [None] * count if memory is None else jnp.split(memory, count, axis=1)
        loop, entry = Loop.of(self.loop), None
        numbers = jnp.array(loop.loop_numbers(), jnp.int32).reshape(count, size)
        inputs = list(zip(own, memories, range(count), numbers, strict=True))
        outputs = []
        core = loop.prelude // size
        parts = [(0, core, 1), (core, count - core, 1)]
        if not self.unroll:
            parts = [*stretches(pieces[:core]), *stretches(pieces[core:], core)]
        for first, period, repeats in (part for part in parts if part[1]):
            some = pieces[first : first + period]
            if first == core:
                x, entry = started(x, loop)
            runners = {piece: runner(piece, looped=repeats > 1) for piece in some}

            def run_some(x: Array, inputs: list[tuple], some=some, runners=runners) -> tuple:
                found = []
                for piece, rest in zip(some, inputs, strict=True):
                    x, *output = runners[piece](x, *rest)
                    found.append(output)
                return x, joined(found)

            rows = inputs[first : first + period * repeats]
            x, found = repeat(run_some, x, [rows[i::period] for i in range(period)])
            outputs += found
        return x, *joined(outputs)

    def split_parameters(self, size: int) -> tuple[dict, list[dict]]:
        """Returns the parameters that blocks share, and the own parameters of each `size` blocks.

        The latter have the names that they would have in a stack of `size` blocks.
        """
        shared, own = {}, [{} for _ in range(self.depth // size)]
        for name, params in self.variables["params"].items():
            index, kind = split_block_part(name)
            if index is not None:
                own[index // size][block_part(index % size, kind)] = params
            elif name != NORM_OUT:
                shared[name] = params
        return shared, own

    def build_norm(self, name: str) -> nn.Module:
        """Returns a LayerNorm, whose statistics, scale and bias are float32."""
        # One pass: the variance is E[x^2] - E[x]^2, which cancels where the mean is large against
        # the deviation. A second pass is 1.6% of ViT-B's step on a TPU; see docs/NUMERICS.md.
        return nn.LayerNorm(epsilon=self.norm_epsilon, dtype=DTYPES[self.dtype], name=name)


class Parts:
    """The parts of a stack that are built, by the scope of their parameters.

    Args:
      initializing: whether the stack's parameters are being made.
    """

    def __init__(self, *, initializing: bool):
        self._initializing = initializing
        self._built: dict[str, nn.Module] = {}
        self._ran: set[str | None] = set()

    def get(self, scope: str, build: Callable[[str], nn.Module]) -> nn.Module:
        """Returns the part with this scope; builds it the first time."""
        if scope not in self._built:
            self._built[scope] = build(scope)
        return self._built[scope]

    def due(self, *parts: nn.Module | None) -> bool:
        """Returns whether parts must run together; initialising shared ones takes a single run."""
        names = {part.name for part in parts if part}
        done = self._initializing and names <= self._ran
        self._ran |= names
        return not done


class LoopStart(nn.Module):
    """What enters the state as a loop begins: the state before the core, and the loop's vector.

    Attributes:
      inject: a name in `loop.INJECTIONS`; "linear" has a kernel [2 D, D] without bias.
      loops: number of the group's loops, each with a vector that is 0 at first; 0: no vectors.
      kernel_init: initialiser of the kernel.
      dtype: of the computation.
    """

    inject: str
    loops: int
    kernel_init: KernelInit
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, entry: Array, number: Array | int) -> Array:
        """Returns the state [B, T, D] with which loop `number` of a group begins."""
        if self.inject == "add":
            x = x + entry
        elif self.inject == "linear":
            both, zeros = jnp.concatenate([x, entry], axis=-1), nn.initializers.zeros
            init = self.kernel_init.kernel()
            x = Dense(x.shape[-1], self.dtype, init, zeros, use_bias=False, name="inject")(both)
        if self.loops:
            vectors = self.param("embedding", nn.initializers.zeros, (self.loops, x.shape[-1]))
            x = x + vectors[number].astype(x.dtype)
        return x


def started(x: Array, loop: Loop) -> tuple[Array, Array]:
    """Returns the state with which the core begins, and the entry: the state before it."""
    return (jnp.zeros_like(x) if loop.start == "zeros" else x), x


def scaled(branch: Array, scale: float) -> Array:
    """Returns a residual branch times its factor; a factor of 1 changes no bit."""
    return branch if scale == 1 else branch * scale


def repeat(run: Callable, x: Array, inputs: list[list]) -> tuple[Array, list]:
    """Runs `run(x, inputs of a period) -> (x, output)` once a period, in a loop if it is repeated.

    Args:
      inputs: those of the periods, for each piece of a period.

    Returns:
      The last x, and the output of each period.
    """
    periods = list(zip(*inputs, strict=True))
    if len(periods) == 1:
        x, output = run(x, list(periods[0]))
        return x, [output]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(list, periods))
    x, outputs = jax.lax.scan(run, x, stacked)
    return x, [jax.tree.map(lambda y, i=i: y[i], outputs) for i in range(len(periods))]


def joined(outputs: list[tuple[Aux, Array | None]]) -> tuple[Aux, Array | None]:
    """Joins the aux and the memories [B, blocks, M, D] of consecutive pieces."""
    memories = [memory for _, memory in outputs if memory is not None]
    aux = over_operations(jnp.concatenate, [aux for aux, _ in outputs])
    return aux, jnp.concatenate(memories, axis=1) if memories else None


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


def updated(memory: Array, x: Array) -> Array:
    """Returns the latest M rows of memory [B, M, D] and x [B, T, D], without gradient."""
    rows = jnp.concatenate([memory, x.astype(memory.dtype)], axis=1)
    return jax.lax.stop_gradient(rows[:, x.shape[1] :])
