"""Which weights a stack of blocks runs, and in which order: `config.model.loop`.

A stack is a prelude of own blocks, a core of groups, and a coda of own blocks. A group
`(layers, loops)` runs its layers in order, and that so many times: `((12, 1),)` is a plain stack
of 12 blocks, `((1, 12),)` one block 12 times (WideNet, ALBERT), `((2, 3),)` ABABAB, and
`((1, 3), (1, 3))` AAABBB. Letters in place of a number write the order out: `(("ABCBA", 1),)`.

The ties say which parts share weights:

    none   each step of the core has its own
    loops  one for each layer of a group, for all its loops
    core   one for all steps of the core

Names of parameters: a part that one step owns is `block_03_attention`; of a layer that runs more
than once `core_0_1_attention` (group 0, layer 1), or `attention` where the core has this one layer
or the tie is `core`.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from widenet_jax.errors import BadInputError, check_fields, check_range, choose
from widenet_jax.param_names import ROUTER, block_part, core_part, split_block_part

SECTION = "config.model.loop"
INJECTIONS = dict.fromkeys(("none", "add", "linear"))
STARTS = dict.fromkeys(("prelude", "zeros"))
# Factors of the residual branches of a group's blocks, by its loops and its layers.
RESIDUAL_SCALES = {
    "1": lambda loops, layers: 1.0,
    "1/loops": lambda loops, layers: 1 / loops,
    "1/(loops*sqrt(layers))": lambda loops, layers: 1 / (loops * math.sqrt(layers)),
}
TIES = dict.fromkeys(("none", "loops", "core"))
LIKE_EXPERTS = "experts"  # a router's tie: the experts' own
MOST_STEPS = 2**10


@dataclasses.dataclass(frozen=True)
class Tie:
    """Which steps of the core share a part's weights: a name in `TIES` for each part.

    Attributes:
      attention: the attention layer.
      experts: the feed-forward, with experts or dense.
      router: of the experts; "experts" is as they are.
      norms: both norms of a block.
    """

    attention: str = "loops"
    experts: str = "loops"
    router: str = LIKE_EXPERTS
    norms: str = "none"


@dataclasses.dataclass(frozen=True)
class Counts:
    """How often groups loop, where not as their `core` says.

    Attributes:
      eval: loops in evaluation of each group that loops; 0: as in training.
    """

    eval: int = 0


@dataclasses.dataclass(frozen=True)
class Step:
    """One run of a block: its place, and the scopes of its parts' parameters.

    Attributes:
      index: t, its place in the stack, or in the piece of the stack that runs.
      ffn: the kind of its feed-forward.
      scopes: of `attention`, `norm_attention`, `ffn` and `norm_ffn`, and `router` where that has
        another tie than the experts.
      routes: whether it may not follow the routing of the step before it.
      begins, ends: the group of which it begins or ends a loop; None for none, or where nothing
        happens then.
      scale: of its residual branches.
    """

    index: int
    ffn: str
    scopes: tuple[tuple[str, str], ...]
    routes: bool
    begins: int | None = None
    ends: int | None = None
    scale: float = 1.0

    def within(self, first: int) -> "Step":
        """Returns this step as one of a piece that starts at step `first`."""
        scopes = tuple((part, renumbered(scope, -first)) for part, scope in self.scopes)
        return dataclasses.replace(self, index=self.index - first, scopes=scopes)


def renumbered(scope: str, shift: int) -> str:
    """Returns the scope of the block that many places later; others as they are."""
    index, part = split_block_part(scope)
    return scope if index is None else block_part(index + shift, part)


@dataclasses.dataclass(frozen=True)
class Loop:
    """The section `config.model.loop`.

    Attributes:
      prelude, coda: number of own blocks before and after the core.
      core: (layers, loops) of each group; layers is a number or letters in their order.
      tie: see `Tie`.
      inject: how e, the state before the core, enters each loop of a group: "none"; "add", s + e;
        "linear", W [s; e] with one W a group (Geiping et al. 2025, arXiv:2502.05171).
      start: the state s with which the core begins: "prelude", e, or "zeros".
      embed: whether a learned vector of each loop of a group, 0 at first, is added as it begins.
      state_norm: whether a norm of the state ends each loop, one norm a group.
      residual_scale: a name in `RESIDUAL_SCALES`, of the core's residual branches.
      counts: see `Counts`.
    """

    core: tuple[tuple[int | str, int], ...]
    prelude: int = 0
    coda: int = 0
    tie: Tie = Tie()
    inject: str = "none"
    start: str = "prelude"
    embed: bool = False
    state_norm: bool = False
    residual_scale: str = "1"
    counts: Counts = Counts()

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> "Loop":
        """Builds a loop from its section.

        Raises:
          BadInputError: a field is unknown, of another type or out of range.
        """
        check_fields({f.name: f for f in dataclasses.fields(cls)}, section, section=SECTION)
        inner = {}
        for name, kind in (("tie", Tie), ("counts", Counts)):
            fields, known = section.get(name, {}), {f.name: f for f in dataclasses.fields(kind)}
            check_fields(known, fields, section=f"{SECTION}.{name}")
            inner[name] = kind(**fields)
        loop = cls(**{**section, "core": groups_of(section["core"]), **inner})
        for part, value in dataclasses.asdict(loop.tie).items():
            known = TIES | ({LIKE_EXPERTS: None} if part == "router" else {})
            choose(known, value, field=f"{SECTION}.tie.{part}")
        for end in ("prelude", "coda"):
            check_range(f"{SECTION}.{end}", getattr(loop, end), 0, MOST_STEPS)
        check_range(f"{SECTION}: the number of steps", loop.depth, 1, MOST_STEPS)
        choose(INJECTIONS, loop.inject, field=f"{SECTION}.inject")
        choose(STARTS, loop.start, field=f"{SECTION}.start")
        choose(RESIDUAL_SCALES, loop.residual_scale, field=f"{SECTION}.residual_scale")
        if loop.start == "zeros" and loop.inject == "none":
            raise BadInputError(
                f"{SECTION}.start=zeros needs {SECTION}.inject=add or linear; without, the core "
                "sees nothing"
            )
        loop.check_counts()
        return loop

    def check_counts(self) -> None:
        """Raises BadInputError where evaluation asks for loops that have no weights."""
        loops = self.counts.eval
        check_range(f"{SECTION}.counts.eval", loops, 0, MOST_STEPS)
        place = f"{SECTION}.counts.eval={loops}"
        untied = [part for part, tie in dataclasses.asdict(self.tie).items() if tie == "none"]
        if loops and untied:
            raise BadInputError(
                f"{place} needs the same weights in each loop, and {SECTION}.tie.{untied[0]} is "
                "none; train with loops or core"
            )
        trained = [r for _, r in self.core if r > 1]
        if loops and self.embed and loops > min(trained, default=1):
            raise BadInputError(f"{place}: {SECTION}.embed has vectors of {min(trained)} loops")

    def evaluated(self) -> "Loop":
        """Returns the loop that evaluation runs."""
        loops = self.counts.eval
        core = tuple((layers, loops if r > 1 and loops else r) for layers, r in self.core)
        return dataclasses.replace(self, core=core)

    @property
    def depth(self) -> int:
        """L, the number of steps: blocks as they run, not as they are stored."""
        return self.prelude + self.coda + sum(len(order) * r for order, r in self.orders())

    @property
    def own_router(self) -> bool:
        """Whether routers stand apart from the experts, as they have another tie."""
        return self.tie.router not in (LIKE_EXPERTS, self.tie.experts)

    @property
    def layers(self) -> int:
        """Number of blocks as they are stored, where each layer's loops share all parts."""
        return self.prelude + self.coda + sum(max(order) + 1 for order, _ in self.orders())

    @property
    def text(self) -> str:
        """The loop as an option of a variant writes it: "2+8x2+2"."""
        ends = [[str(n)] if n else [] for n in (self.prelude, self.coda)]
        return "+".join(ends[0] + [f"{layers}x{loops}" for layers, loops in self.core] + ends[1])

    def shared(self) -> list[str]:
        """Returns the parts whose weights more than one step of the core runs."""
        steps = self.depth - self.prelude - self.coda
        loops, core = steps > self.layers - self.prelude - self.coda, steps > 1
        repeats = {"none": False, "loops": loops, "core": core}
        ties = {"attention": self.tie.attention, "feed-forward": self.tie.experts}
        return [part for part, tie in (ties | {"norms": self.tie.norms}).items() if repeats[tie]]

    def orders(self) -> list[tuple[tuple[int, ...], int]]:
        """Returns the layers of each group in their order, and its loops: [((0, 1), 6)]."""
        return [(order_of(layers), loops) for layers, loops in self.core]

    def loop_numbers(self) -> list[int]:
        """Returns k, the number of its loop within its group, of each step; 0 outside the core."""
        core = [k for order, loops in self.orders() for k in range(loops) for _ in order]
        return [0] * self.prelude + core + [0] * self.coda

    def edges(self) -> list[tuple[int | None, int | None, float]]:
        """Returns `begins`, `ends` and `scale` of each step."""
        found: list[tuple[int | None, int | None, float]] = []
        scale = RESIDUAL_SCALES[self.residual_scale]
        begin, end = self.inject != "none" or self.embed, self.state_norm
        for group, (order, loops) in enumerate(self.orders()):
            last = len(order) - 1
            found += [
                (
                    group if begin and place == 0 else None,
                    group if end and place == last else None,
                    scale(loops, max(order) + 1),
                )
                for place in range(len(order))
            ] * loops
        own = [(None, None, 1.0)]
        return own * self.prelude + found + own * self.coda

    def visited(self) -> list[tuple[int, int] | None]:
        """Returns (group, layer) of each step; None outside the core."""
        core = [
            (group, layer)
            for group, (order, loops) in enumerate(self.orders())
            for layer in order * loops
        ]
        return [None] * self.prelude + core + [None] * self.coda

    def steps(self, ffns: Sequence[str], blocks_per_routing: int) -> tuple[Step, ...]:
        """Returns the steps in their order.

        Args:
          ffns: the kind of each step's feed-forward.
          blocks_per_routing: how many consecutive steps follow one routing.
        """
        layers = self.visited()
        visits, tie = Counter(layers), self.tie
        lone = len(visits.keys() - {None}) == 1

        def scope(index: int, part: str, tied: str) -> str:
            layer = layers[index]
            if layer is None or tied == "none":
                return block_part(index, part)
            if lone or tied == "core":
                return part
            return core_part(*layer, part) if visits[layer] > 1 else block_part(index, part)

        steps = []
        for i, (ffn, edges) in enumerate(zip(ffns, self.edges(), strict=True)):
            scopes = {
                "attention": scope(i, "attention", tie.attention),
                "norm_attention": scope(i, "norm_attention", tie.norms),
                "ffn": scope(i, ffn, tie.experts),
                "norm_ffn": scope(i, "norm_ffn", tie.norms),
            }
            if self.own_router:
                scopes["router"] = scope(i, "router", tie.router)
            routes = i % blocks_per_routing == 0
            steps.append(Step(i, ffn, tuple(scopes.items()), routes, *edges))
        return tuple(steps)


def evaluated_steps(loop: Loop, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Returns the steps that evaluation runs, with the weights of the trained `steps`."""
    found, place = list(steps[: loop.prelude]), loop.prelude
    for (order, trained), (_, loops) in zip(loop.orders(), loop.evaluated().core, strict=True):
        found += list(steps[place : place + len(order)]) * loops
        place += len(order) * trained
    found += steps[place:]
    return tuple(dataclasses.replace(step, index=i) for i, step in enumerate(found))


def places_of(steps: Sequence[Step]) -> dict[str, list[int]]:
    """Returns the places at which steps run each scope of parameters: {"attention": [0, 1]}.

    A router, a part of its own or of a feed-forward ("moe/router"), runs where its step routes. A
    vector of each loop (`Loop.embed`) runs once: it has no places here.
    """
    places = defaultdict(list)
    for step in steps:
        for part, scope in step.scopes:
            if part != ROUTER or step.routes:
                places[scope].append(step.index)
            if part == "ffn" and step.routes:
                places[f"{scope}/{ROUTER}"].append(step.index)
        if step.begins is not None:
            places[f"core_{step.begins}_start/inject"].append(step.index)
        if step.ends is not None:
            places[f"core_{step.ends}_norm_state"].append(step.index)
    return dict(places)


def groups_of(core: Any) -> tuple[tuple[int | str, int], ...]:
    """Returns the groups of `core` as tuples; raises BadInputError where it has none."""
    try:
        groups = tuple((layers, loops) for layers, loops in core)
    except (TypeError, ValueError):
        groups = ()
    for layers, loops in groups:
        known = is_count(layers) or (isinstance(layers, str) and order_of(layers))
        if not (known and is_count(loops)):
            groups = ()
    if not groups:
        raise BadInputError(
            f"{SECTION}.core={core!r}: give (layers, loops) of each group, both at least 1, such "
            'as ((1, 12),), or letters for layers: (("ABCBA", 1),)'
        )
    return groups


def is_count(number: Any) -> bool:
    """Whether this is a number of layers or loops."""
    return type(number) is int and 1 <= number <= MOST_STEPS


def order_of(layers: int | str) -> tuple[int, ...]:
    """Returns a group's layers in their order: (0, 1, 2) for 3, (0, 1, 0) for "ABA"."""
    if type(layers) is int:
        return tuple(range(layers))
    letters = list(dict.fromkeys(layers)) if layers.isalpha() else []
    return tuple(map(letters.index, layers)) if letters else ()


def stretches(kinds: Sequence[Any], place: int = 0) -> Iterator[tuple[int, int, int]]:
    """Splits a sequence, which begins at `place` of a longer one, into stretches that repeat.

    Yields:
      (first, period, repeats): the `period` elements from `first` on come `repeats` times; the
      longest such stretch, of those the one with the shortest period.
    """
    first = 0
    while first < len(kinds):
        best = (1, 1)
        for period in range(1, (len(kinds) - first) // 2 + 1):
            repeats = 1
            while repeated(kinds, first, period, repeats):
                repeats += 1
            if repeats > 1 and period * repeats > best[0] * best[1]:
                best = (period, repeats)
        yield (place + first, *best)
        first += best[0] * best[1]


def repeated(kinds: Sequence[Any], first: int, period: int, repeats: int) -> bool:
    """Whether one more period follows `repeats` of them."""
    last = first + period * repeats
    return kinds[last : last + period] == kinds[first : first + period]
