"""Ways to run a stack of blocks other than one block after the other.

In equal pieces, which can be recomputed, looped over, or looped over a drawn number of times; and
with an exit after each loop.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from widenet_jax.nn.loop import Step, loops_of
from widenet_jax.nn.module import Module
from widenet_jax.nn.parts import Inputs, Outputs, Parts, begin_core, over_operations
from widenet_jax.param_names import NORM_OUT, block_part, split_block_part
from widenet_jax.typing import Array, Aux


class PieceInputs(NamedTuple):
    """What a piece is called with beside the state and the entry.

    Attributes:
      params: its own parameters, by the names that they have in a stack of its size.
      memory: [B, size, M, D], or None.
      index: its place among the pieces, from which random numbers come.
      loop_numbers: [size] int32, k of each step.
      places: [size] int32, how many blocks run before each step; None without `drop_path`.
    """

    params: dict
    memory: Array | None
    index: Array | int
    loop_numbers: Array
    places: Array | None = None


def run_exits(stack: Module, x: Array, memory: None, inputs: Inputs) -> Outputs:
    """Runs the blocks, those after the group that loops on the state after each loop."""
    loop, as_trained = stack.loop, inputs.train or stack.is_initializing()
    steps = stack.steps(train=as_trained)
    # The group is the one that loops in training; evaluation may run it once.
    trained = [group.loops for group in loop.groups()]
    group = loop.groups(train=as_trained)[trained.index(max(trained))]
    run, auxes, states = partial(stack.run_blocks, Parts(stack)), [], []
    ends = [loop.prelude, *range(group.first, group.end + 1, group.period)]
    for start, end in itertools.pairwise([0, *ends]):
        if start == loop.prelude and inputs.entry is None:
            inputs = inputs._replace(entry=x)
            x = begin_core(stack, x, train=inputs.train)
        if some := steps[start:end]:
            x, aux, _ = run(some, x, None, inputs)
            auxes.append(aux)
        if end > group.first:
            states.append(x)
    # A single example is a token group by itself, and so is each of its states.
    alone = len(x) == 1 and not inputs.train
    states = states if alone else [jnp.concatenate(states)]
    if some := steps[group.end :]:
        again = lambda y: jnp.concatenate([y] * (1 if alone else group.loops))  # noqa: E731
        tokens = {name: getattr(inputs, name) for name in ("entry", "seen", "mask")}
        inputs = inputs._replace(**jax.tree.map(again, tokens))
        for i, state in enumerate(states):
            states[i], aux, _ = run(some, state, None, inputs)
        auxes.append(aux)
    return jnp.concatenate(states), over_operations(jnp.concatenate, auxes), None


def run_pieces(stack: Module, x: Array, memory: Array | None, inputs: Inputs) -> Outputs:
    """Runs the blocks in equal pieces, each one function of its parameters and its memory.

    Such a function can be recomputed (`remat`). A piece is one block, or those that share a
    routing. Pieces that repeat themselves can be looped over (`unroll=False`).
    """
    loop, size, steps = stack.loop, stack.blocks_per_routing(), stack.steps()
    firsts = range(0, len(steps), size)
    pieces = [tuple(step.within(i) for step in steps[i : i + size]) for i in firsts]
    shared, own = split_parameters(stack, size)
    keys = {name: stack.make_rng(name) for name in ("dropout", "router") if stack.has_rng(name)}

    def run_some(x: Array, rows: list[PieceInputs], some: list, entry: Array, **how: bool) -> tuple:
        runners = {piece: runner(stack, shared, keys, inputs, piece, **how) for piece in some}
        outputs = []
        for piece, row in zip(some, rows, strict=True):
            x, *output = runners[piece](x, entry, row)
            outputs.append(output)
        return x, joined(outputs)

    # [B, L, M, D] -> count * [B, size, M, D]
    count, core, entry, outputs = len(pieces), loop.prelude // size, None, []
    memories = [None] * count if memory is None else jnp.split(memory, count, axis=1)
    numbers = jnp.array([step.loop for step in steps], jnp.int32).reshape(count, size)
    rows = list(map(PieceInputs, own, memories, range(count), numbers))
    if inputs.drops:
        places = jnp.array(inputs.drops.places, jnp.int32).reshape(count, size)
        rows = [row._replace(places=of) for row, of in zip(rows, places, strict=True)]
    stretches = [(0, core, 1), (core, count - core, 1)]
    if inputs.loops is not None:
        groups = [(group.first, group.period, group.loops) for group in loop.groups()]
        stretches = [(0, core, 1), *groups, (count - loop.coda, loop.coda, 1)]
    elif not stack.unroll:
        stretches = [*stretches_of(pieces[:core]), *stretches_of(pieces[core:], core)]
    for first, period, repeats in (stretch for stretch in stretches if stretch[1]):
        if first == core:
            x, entry = begin_core(stack, x, train=inputs.train), x
        some, of_some = pieces[first : first + period], rows[first : first + period * repeats]
        run = partial(run_some, some=some, entry=entry, looped=repeats > 1)
        if inputs.loops is not None and repeats > 1:
            number = loops_of(loop, repeats, inputs.loops)
            last = loop.counts.backprop_last if loop.counts.train == "poisson" else repeats
            beyond = (repeats, (first + 1) << 16)
            x, output = run_counted(run, x, of_some[:period], number, last, beyond)
        else:
            x, output = repeat(run, x, [of_some[i::period] for i in range(period)])
        outputs += output
    return x, *joined(outputs)


def runner(
    stack: Module,
    shared: dict,
    keys: dict,
    inputs: Inputs,
    piece: tuple[Step, ...],
    *,
    looped: bool,
    learns: bool = True,
) -> Callable:
    """Returns a piece as a function (x, entry, inputs) -> (x, aux, memory).

    Args:
      stack: the blocks.
      shared: the parameters that the piece shares with others.
      keys: of the random streams, from which each index draws its own.
      inputs: of the stack.
      piece: its steps.
      looped: whether a loop runs it.
      learns: whether gradients flow to parameters and entry.
    """
    plain = {"remat": "none", "unroll": True, "last_norm": False}
    blocks = stack.clone(parent=None, name=None, some_steps=piece, **plain)
    stop = (lambda tree: tree) if learns else jax.lax.stop_gradient
    tokens = {"mask": inputs.mask, "train": inputs.train} | inputs.seen

    def run(x: Array, entry: Array | None, row: PieceInputs) -> Outputs:
        rngs = {name: jax.random.fold_in(key, row.index) for name, key in keys.items()}
        entry, params = stop(entry), stop({"params": shared | row.params})
        place = {"memory": row.memory, "entry": entry, "loop_numbers": row.loop_numbers}
        place["drops"] = inputs.drops and inputs.drops._replace(places=row.places)
        return blocks.apply(params, x, **tokens, **place, rngs=rngs)

    # The two passes of a loop are two loops, whose operations no compiler merges.
    remat = stack.remat == "block" and learns
    return jax.checkpoint(run, prevent_cse=not looped) if remat else run


def split_parameters(stack: Module, size: int) -> tuple[dict, list[dict]]:
    """Returns the parameters that blocks share, and the own parameters of each `size` blocks.

    The latter have the names that they would have in a stack of `size` blocks.
    """
    shared, own = {}, [{} for _ in range(stack.depth // size)]
    for name, params in stack.variables["params"].items():
        index, kind = split_block_part(name)
        if index is not None:
            own[index // size][block_part(index % size, kind)] = params
        elif name != NORM_OUT:
            shared[name] = params
    return shared, own


def stretches_of(pieces: Sequence[Any], place: int = 0) -> Iterator[tuple[int, int, int]]:
    """Splits pieces, which begin at `place` of a longer sequence, into stretches that repeat.

    Yields:
      (first, period, repeats): the `period` pieces from `first` on come `repeats` times; the
      longest such stretch, of those the one with the shortest period.
    """
    while pieces:
        counts = {n: repeats_of(pieces, n) for n in range(1, len(pieces) // 2 + 1)}
        repeating = [(n, repeats) for n, repeats in counts.items() if repeats > 1]
        period, repeats = max(repeating, key=math.prod, default=(1, 1))
        yield place, period, repeats
        place, pieces = place + period * repeats, pieces[period * repeats :]


def repeats_of(pieces: Sequence[Any], period: int) -> int:
    """Returns how often in a row the first `period` pieces come."""
    chunks = (pieces[first : first + period] for first in range(0, len(pieces), period))
    return sum(1 for _ in itertools.takewhile(lambda chunk: chunk == pieces[:period], chunks))


def repeat(run: Callable, x: Array, rows: list[list[PieceInputs]]) -> tuple[Array, list]:
    """Runs `run(x, inputs of a period) -> (x, output)` once a period, in a loop if it is repeated.

    Args:
      run: the pieces of a period.
      x: [B, T, D].
      rows: each piece of a period -> the inputs of all periods.

    Returns:
      The last x, and the output of each period.
    """
    periods = list(map(list, zip(*rows, strict=True)))
    if len(periods) == 1:
        x, output = run(x, periods[0])
        return x, [output]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *periods)
    x, outputs = jax.lax.scan(run, x, stacked)
    return x, [jax.tree.map(lambda y, i=i: y[i], outputs) for i in range(len(periods))]


def run_counted(
    run: Callable,
    x: Array,
    row: list[PieceInputs],
    loops: Array,
    last: int,
    beyond: tuple[int, int],
) -> tuple[Array, list]:
    """Runs a loop `loops` times, a number that is known only as the program runs.

    Args:
      run: (x, inputs of a loop's pieces, learns) -> (x, (aux, memory)).
      x: [B, T, D].
      row: the inputs of the pieces of loop 0.
      loops: int32.
      last: how many of the last loops have a gradient.
      beyond: a number of loops, and what is added to the indices of further ones, so that no piece
        of another group has the same and draws the same noise.

    Returns:
      The last x; and the outputs of the `last` loops, 0 of those that did not run.
    """
    silent = jnp.maximum(loops - last, 0)

    def inputs(k: Array) -> list[PieceInputs]:
        before, fields = k * len(row), []
        more = before + jnp.where(k < beyond[0], 0, beyond[1])
        for params, _, i, n, places in row:
            places = None if places is None else places + before
            fields.append(PieceInputs(params, None, i + more, n + k, places))
        return fields

    before = jax.lax.stop_gradient(x)
    without = jax.lax.fori_loop(0, silent, lambda k, x: run(x, inputs(k), learns=False)[0], before)
    x = jnp.where(silent > 0, without, x)
    output = jax.eval_shape(run, x, inputs(silent))[1]
    zeros = jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), output)

    def loop(x: Array, j: Array) -> tuple[Array, tuple]:
        k = silent + j
        return jax.lax.cond(k < loops, lambda x: run(x, inputs(k)), lambda x: (x, zeros), x)

    x, output = jax.lax.scan(loop, x, jnp.arange(last))
    return x, [jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:]), output)]


def joined(outputs: list[tuple[Aux, Array | None]]) -> tuple[Aux, Array | None]:
    """Joins the aux and the memories [B, blocks, M, D] of consecutive pieces."""
    memories = [memory for _, memory in outputs if memory is not None]
    aux = over_operations(jnp.concatenate, [aux for aux, _ in outputs])
    return aux, jnp.concatenate(memories, axis=1) if memories else None
