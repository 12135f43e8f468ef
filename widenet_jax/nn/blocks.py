"""The sharing loop: a stack of transformer blocks that own or share their parts.

A vanilla transformer shares nothing; ALBERT shares attention, feed-forward and norms; WideNet
shares attention and a mixture of experts and gives each block its own norms. `loop` has the
grammar of these and of others.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.block_settings import DTYPES, NORMS, BlockSettings
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.loop import Loop, Step, stretches
from widenet_jax.param_names import NORM_OUT, block_part, split_block_part
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
        run = partial(self.run_pieces, loops=loops)
        if loop.exits:
            run = self.run_exits
        elif plain or by_step or self.is_initializing():
            run = partial(self.run_blocks, entry=entry, loop_numbers=loop_numbers)
        x, aux, memory = run(x, memory, seen=seen, mask=mask, train=train)
        if self.last_norm and self.norm_position != "post":
            x = self.build_norm(NORM_OUT)(x)
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
        parts = parts or Parts(initializing=self.is_initializing())
        some = steps or self.some_steps
        auxes, memories, routings = [], [], {}
        for step in some or self.steps(train=as_trained):
            of = {k: parts.get(scope, partial(self.build, k, step)) for k, scope in step.scopes}
            number = loop_numbers[step.index]
            norm = partial(self.normed, parts, step, of, number)
            with jax.named_scope(f"block_{step.index:02d}"):
                if not some and step.index == loop.prelude:
                    x, entry = self.started(x, train=train)
                x = self.begun(parts, step, x, entry, number)
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
                if step.ends is not None:
                    x = parts.get(f"core_{step.ends}_norm_state", self.build_norm)(x)
                self.sow("intermediates", "state", x)  # nothing, unless an analysis asks
        aux = over_operations(jnp.stack, auxes)
        return x, aux, jnp.stack(memories, axis=1) if memories else None

    def run_exits(
        self, x: Array, memory: Array | None, *, seen: dict, mask: Array | None, train: bool
    ) -> tuple[Array, Aux, Array | None]:
        """Runs the blocks, those after the group that loops on the state after each loop."""
        del memory  # refused
        as_trained = train or self.is_initializing()
        loop, steps = Loop.of(self.loop), self.steps(train=as_trained)
        groups = (loop if as_trained else loop.evaluated()).periods()
        # The group is the one that loops in training; evaluation may run it once.
        place = next(i for i, (_, loops) in enumerate(loop.core) if loops > 1)
        first, period, loops = groups[place]
        run = partial(self.run_blocks, memory=None, train=train)
        run = partial(run, parts=Parts(initializing=self.is_initializing()))
        auxes, states, entry = [], [], None
        ends = [loop.prelude, first] + [first + period * (k + 1) for k in range(loops)]
        for start, end in itertools.pairwise([0, *ends]):
            if start == loop.prelude and entry is None:
                x, entry = self.started(x, train=train)
            if some := steps[start:end]:
                x, aux, _ = run(x, entry=entry, seen=seen, mask=mask, steps=some)
                auxes.append(aux)
            if end > first:
                states.append(x)
        # A single example is a token group by itself, and so is each of its states.
        alone = len(x) == 1 and not train
        states = states if alone else [jnp.concatenate(states)]
        if some := steps[ends[-1] :]:
            again = lambda y: jnp.concatenate([y] * (1 if alone else loops))  # noqa: E731
            entry, seen, mask = jax.tree.map(again, (entry, seen, mask))
            for i, state in enumerate(states):
                states[i], aux, _ = run(state, entry=entry, seen=seen, mask=mask, steps=some)
            auxes.append(aux)
        return jnp.concatenate(states), over_operations(jnp.concatenate, auxes), None

    def begun(
        self, parts: "Parts", step: Step, x: Array, entry: Array | None, number: Array | int
    ) -> Array:
        """Returns the state with which a step begins: also what enters it as its loop begins."""
        if step.begins is None:
            return x
        build = partial(self.build_start, step.begins)
        return parts.get(f"core_{step.begins}_start", build)(x, entry, number)

    def feed(self, of: dict, x: Array, y: Array, **others: Any) -> FfnOutput:
        """Applies a step's feed-forward to the normed y; or to x, with y for the router alone."""
        if "router" in of:
            others["router"] = of["router"]
        if self.norm_position == "peri":
            y, others["selection"] = x, y
        return of["ffn"](y, **others)

    def normed(
        self, parts: "Parts", step: Step, of: dict, number: Array | int, part: str, x: Array
    ) -> Array:
        """Applies the norm `part` of a step, modulated by the loop's number where it knows it."""
        y = of[part](x)
        if not step.loops:
            return y
        from widenet_jax.nn.loop_modules import Condition  # most models do without

        scope = f"{dict(step.scopes)[part]}_condition"
        loop, dtype = Loop.of(self.loop), DTYPES[self.dtype]
        init = KernelInit(self.kernel_init)
        fields = (step.loops, loop.condition == "index_state", init, dtype)
        build = lambda name: Condition(*fields, parent=self, name=name)  # noqa: E731
        return parts.get(scope, build)(y, number)

    def started(self, x: Array, *, train: bool) -> tuple[Array, Array]:
        """Returns the state with which the core begins, and the entry: the state before it."""
        start = Loop.of(self.loop).start
        if start == "zeros":
            return jnp.zeros_like(x), x
        if start == "noise":
            drawn = train and self.has_rng("router")
            key = self.make_rng("router") if drawn else jax.random.key(0)
            # In evaluation of each example alike, wherever it stands in a batch.
            shape = x.shape if drawn else x.shape[1:]
            noise = NOISE_STD * jax.random.truncated_normal(key, -3.0, 3.0, shape)
            return jnp.broadcast_to(noise, x.shape).astype(x.dtype), x
        return x, x

    def build_start(self, group: int, name: str) -> nn.Module:
        """Builds what begins each loop of a group."""
        from widenet_jax.nn.loop_modules import LoopStart  # most models do without

        loop, dtype = Loop.of(self.loop), DTYPES[self.dtype]
        loops = loop.core[group][1] if loop.embed else 0
        return LoopStart(loop.inject, loops, dtype, parent=self, name=name)

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
        self,
        x: Array,
        memory: Array | None,
        *,
        loops: Array | None,
        seen: dict,
        mask: Array | None,
        train: bool,
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
        runner = partial(self.runner, shared, keys, {"mask": mask} | seen, train)

        def run_some(
            x: Array, inputs: list[tuple], some: list, entry: Array | None, **of: bool
        ) -> tuple:
            found = []
            runners = {piece: runner(piece, **of) for piece in some}
            for piece, rest in zip(some, inputs, strict=True):
                x, *output = runners[piece](x, entry, *rest)
                found.append(output)
            return x, joined(found)

        # [B, L, M, D] -> count * [B, size, M, D]
        count, loop, entry = len(pieces), Loop.of(self.loop), None
        memories = [None] * count if memory is None else jnp.split(memory, count, axis=1)
        numbers = jnp.array(loop.loop_numbers(), jnp.int32).reshape(count, size)
        inputs = list(zip(own, memories, range(count), numbers, strict=True))
        outputs, core = [], loop.prelude // size
        parts = [(0, core, 1), (core, count - core, 1)]
        if loops is not None:
            parts = [(0, core, 1), *loop.periods(), (count - loop.coda, loop.coda, 1)]
        elif not self.unroll:
            parts = [*stretches(pieces[:core]), *stretches(pieces[core:], core)]
        for first, period, repeats in (part for part in parts if part[1]):
            if first == core:
                x, entry = self.started(x, train=train)
            some, rows = pieces[first : first + period], inputs[first : first + period * repeats]
            run = partial(run_some, some=some, entry=entry, looped=repeats > 1)
            if loops is not None and repeats > 1:
                x, found = run_counted(run, x, rows[:period], *loop.learning(loops, repeats))
            else:
                x, found = repeat(run, x, [rows[i::period] for i in range(period)])
            outputs += found
        return x, *joined(outputs)

    def runner(
        self,
        shared: dict,
        keys: dict,
        seen: dict,
        train: bool,
        piece: tuple[Step, ...],
        *,
        looped: bool,
        learns: bool = True,
    ) -> Callable:
        """Returns a piece as a function (x, entry, params, memory, index, numbers) -> (x, ...).

        Args:
          shared: the parameters that the piece shares with others.
          keys: of the random streams, from which each index draws its own.
          seen: the tokens that are real, and that attention sees.
          train: with dropout and routing noise.
          piece: its steps.
          looped: whether a loop runs it.
          learns: whether gradients flow to parameters and entry.
        """
        plain = {"remat": "none", "unroll": True, "last_norm": False}
        blocks = self.clone(parent=None, name=None, some_steps=piece, **plain)
        stop = (lambda tree: tree) if learns else jax.lax.stop_gradient

        def run(
            x: Array,
            entry: Array | None,
            params: dict,
            old: Array | None,
            index: Array | int,
            numbers: Array,
        ) -> tuple:
            rngs = {name: jax.random.fold_in(key, index) for name, key in keys.items()}
            others = seen | {"memory": old, "entry": stop(entry), "loop_numbers": numbers}
            params = stop({"params": shared | params})
            return blocks.apply(params, x, **others, train=train, rngs=rngs)

        # The two passes of a loop are two loops, whose operations no compiler merges.
        remat = self.remat == "block" and learns
        return jax.checkpoint(run, prevent_cse=not looped) if remat else run

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
        """Returns a norm, whose statistics, scale and bias are float32."""
        # One pass: the variance is E[x^2] - E[x]^2, which cancels where the mean is large against
        # the deviation. A second pass is 1.6% of ViT-B's step on a TPU; see docs/NUMERICS.md.
        build = NORMS[self.norm]
        return build(epsilon=self.norm_epsilon, dtype=DTYPES[self.dtype], name=name)


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


def scaled(branch: Array, scale: float) -> Array:
    """Returns a residual branch times its factor; a factor of 1 changes no bit."""
    return branch if scale == 1 else branch * scale


def repeat(run: Callable, x: Array, inputs: list[list]) -> tuple[Array, list]:
    """Runs `run(x, inputs of a period) -> (x, output)` once a period, in a loop if it is repeated.

    Args:
      inputs: each piece of a period -> the inputs of all periods.

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


def run_counted(
    run: Callable, x: Array, row: list[tuple], loops: Array, last: int
) -> tuple[Array, list]:
    """Runs a loop `loops` times, a number that is known only as the program runs.

    Args:
      run: (x, inputs of a loop's pieces, learns) -> (x, (aux, memory)).
      x: [B, T, D].
      row: the inputs of the pieces of loop 0, each (params, None, index, numbers).
      loops: int32.
      last: how many of the last loops have a gradient.

    Returns:
      The last x; and the outputs of the `last` loops, 0 of those that did not run.
    """
    silent = jnp.maximum(loops - last, 0)

    def inputs(k: Array) -> list[tuple]:
        return [
            (params, old, index + k * len(row), numbers + k) for params, old, index, numbers in row
        ]

    before = jax.lax.stop_gradient(x)
    without = jax.lax.fori_loop(0, silent, lambda k, x: run(x, inputs(k), learns=False)[0], before)
    x = jnp.where(silent > 0, without, x)
    zeros = jax.tree.map(
        lambda y: jnp.zeros(y.shape, y.dtype), jax.eval_shape(run, x, inputs(silent))[1]
    )

    def one(x: Array, j: Array) -> tuple[Array, tuple]:
        k = silent + j
        return jax.lax.cond(k < loops, lambda x: run(x, inputs(k)), lambda x: (x, zeros), x)

    x, output = jax.lax.scan(one, x, jnp.arange(last))
    return x, [jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), output)]


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
