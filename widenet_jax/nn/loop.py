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

import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError, check_fields, check_range, choose
from widenet_jax.nn.feed_forwards import PLAIN
from widenet_jax.param_names import ROUTER, block_part, core_part, split_block_part
from widenet_jax.typing import Array

SECTION = "config.model.loop"
INJECTIONS = dict.fromkeys(("none", "add", "linear"))
STARTS = dict.fromkeys(("prelude", "zeros", "noise"))
CONDITIONS = dict.fromkeys(("none", "index", "index_state"))
ROUTINGS = dict.fromkeys(("own", "first"))
EXIT_RULES = dict.fromkeys(("none", "gate", "kl"))
EXIT_LOSSES = dict.fromkeys(("last", "mean", "expected"))
TRAINED = dict.fromkeys(("fixed", "poisson", "grow"))
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

    In training each group that loops runs r times, one r for the whole batch:

        fixed    as its core says
        poisson  r = Poisson(e^tau) + 1, tau ~ N(log m - sigma^2 / 2, sigma) (arXiv:2502.05171);
                 gradients flow through the last `backprop_last` loops alone
        grow     from 1 to the core's loops, in equal stages of the run

    Attributes:
      train: fixed, poisson or grow.
      mean: m; 0: the most loops of a group.
      sigma: of log m.
      backprop_last: of poisson.
      eval: loops in evaluation of each group that loops; 0: as the core says.
    """

    train: str = "fixed"
    mean: int = 0
    sigma: float = 0.5
    backprop_last: int = 8
    eval: int = 0


@dataclasses.dataclass(frozen=True)
class Exit:
    """What is predicted after each loop of the group that loops; the coda runs on each state.

    Attributes:
      loss: of training: the "last" loop's; the "mean" over loops; or "expected", sum_k p_k
        loss_k - entropy H(p): a gate l_k = sigmoid(w x_k + b) leaves at loop k with p_k = l_k
        prod_{j<k} (1 - l_j), and the last loop takes the rest (Ouro, arXiv:2510.25741).
      entropy: weight of H(p), averaged over tokens, in "expected"; its size is ours.
      rule: at which loop a token's prediction is taken in evaluation: "none", the last; "gate",
        where the sum of p reaches the threshold; "kl", where KL(q_{k-1} || q_k) of the predictions
        after two loops is below the threshold in nats, q_0 being even over the vocabulary, so that
        the first loop may be the last (arXiv:2502.05171 has 5e-4, its later code 1e-3).
      threshold: of the rule.
    """

    loss: str = "last"
    entropy: float = 0.1
    rule: str = "none"
    threshold: float = 0.5


@dataclasses.dataclass(frozen=True)
class Step:
    """One run of a block: its place, and the scopes of its parts' parameters.

    Attributes:
      index: t, its place in the stack, or in the piece of the stack that runs.
      ffn: the kind of its feed-forward.
      scopes: of `attention`, `norm_attention`, `ffn` and `norm_ffn`; of `norm_attention_out` and
        `norm_ffn_out` where norms follow, too; of `router` where that has another tie than the
        experts.
      routes: whether it may not follow the routing of the step before it.
      follows: the step whose routing it follows; None for none.
      begins, ends: its group, where it is the first or last step of a loop and something happens
        there; else None.
      scale: of its residual branches.
      loops: that its conditioned norms know; 0: they are not conditioned.
    """

    index: int
    ffn: str
    scopes: tuple[tuple[str, str], ...]
    routes: bool
    follows: int | None = None
    begins: int | None = None
    ends: int | None = None
    scale: float = 1.0
    loops: int = 0

    @property
    def source(self) -> int | None:
        """The step whose routing this one follows; None: its own."""
        before = None if self.routes else self.index - 1
        return before if self.follows is None else self.follows

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
      start: the state s with which the core begins: "prelude", e; "zeros"; or "noise", normal of
        variance 2/5, cut at three deviations, and the same in each evaluation.
      condition: how the norms of the core's blocks know their loop k, n(x) (1 + g) + b with (g, b)
        = W2 silu(c_k) ("index") or W2 silu(W1 n(x) + c_k) ("index_state"); see
        `loop_modules.Condition`.
      routing: "own", or "first": every loop takes the experts that its layer's first loop chose.
      embed: whether a learned vector of each loop of a group, 0 at first, is added as it begins.
      state_norm: whether a norm of the state ends each loop, one norm a group.
      residual_scale: a name in `RESIDUAL_SCALES`, of the core's residual branches.
      counts: see `Counts`.
      exit: see `Exit`.
    """

    core: tuple[tuple[int | str, int], ...]
    prelude: int = 0
    coda: int = 0
    tie: Tie = Tie()
    inject: str = "none"
    start: str = "prelude"
    condition: str = "none"
    routing: str = "own"
    embed: bool = False
    state_norm: bool = False
    residual_scale: str = "1"
    counts: Counts = Counts()
    exit: Exit = Exit()

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> "Loop":
        """Builds a loop from its section.

        Raises:
          BadInputError: a field is unknown, of another type or out of range.
        """
        check_fields({f.name: f for f in dataclasses.fields(cls)}, section, section=SECTION)
        inner = {}
        for name, kind in (("tie", Tie), ("counts", Counts), ("exit", Exit)):
            fields, known = section.get(name, {}), {f.name: f for f in dataclasses.fields(kind)}
            check_fields(known, fields, section=f"{SECTION}.{name}")
            inner[name] = kind(**fields)
        loop = cls(**{**section, "core": groups_of(section.get("core")), **inner})
        for part, value in dataclasses.asdict(loop.tie).items():
            known = TIES | ({LIKE_EXPERTS: None} if part == "router" else {})
            choose(known, value, field=f"{SECTION}.tie.{part}")
        for end in ("prelude", "coda"):
            check_range(f"{SECTION}.{end}", getattr(loop, end), 0, MOST_STEPS)
        check_range(f"{SECTION}: the number of steps", loop.depth, 1, MOST_STEPS)
        choose(INJECTIONS, loop.inject, field=f"{SECTION}.inject")
        choose(STARTS, loop.start, field=f"{SECTION}.start")
        choose(CONDITIONS, loop.condition, field=f"{SECTION}.condition")
        choose(ROUTINGS, loop.routing, field=f"{SECTION}.routing")
        choose(RESIDUAL_SCALES, loop.residual_scale, field=f"{SECTION}.residual_scale")
        if loop.start != "prelude" and loop.inject == "none":
            raise BadInputError(
                f"{SECTION}.start={loop.start} needs {SECTION}.inject=add or linear; without, the "
                "core sees nothing of the input"
            )
        if loop.condition != "none" and loop.tie.norms == "none":
            raise BadInputError(
                f"{SECTION}.condition={loop.condition} needs {SECTION}.tie.norms=loops or core; "
                "norms of their own know their loop"
            )
        if loop.routing == "first" and loop.tie.router == "none":
            raise BadInputError(
                f"{SECTION}.routing=first uses the first loop's router alone; set "
                f"{SECTION}.tie.router=loops"
            )
        loop.check_counts()
        loop.check_exit()
        return loop

    def check_counts(self) -> None:
        """Raises BadInputError where a number of loops is asked for that has no weights."""
        counts, place = self.counts, f"{SECTION}.counts"
        choose(TRAINED, counts.train, field=f"{place}.train")
        check_range(f"{place}.mean", counts.mean, 0, MOST_STEPS)
        check_range(f"{place}.sigma", counts.sigma, 0.0, 4.0)
        check_range(f"{place}.backprop_last", counts.backprop_last, 1, MOST_STEPS)
        check_range(f"{place}.eval", counts.eval, 0, MOST_STEPS)
        named = {f"{place}.eval={counts.eval}": counts.eval > 0}
        named[f"{place}.train={counts.train}"] = counts.train != "fixed"
        untied = [part for part, tie in dataclasses.asdict(self.tie).items() if tie == "none"]
        trained = [r for _, r in self.core if r > 1]
        for setting in (setting for setting, given in named.items() if given):
            if untied:
                raise BadInputError(
                    f"{setting} needs the same weights in each loop, and {SECTION}.tie."
                    f"{untied[0]} is none; train with loops or core"
                )
            if not trained:
                raise BadInputError(f"{setting} has no effect: no group of the core loops")
            more = counts.train == "poisson" or counts.eval > min(trained)
            knows = [f"embed={self.embed}"] if self.embed else []
            knows += [f"condition={self.condition}"] if self.condition != "none" else []
            if more and knows:
                raise BadInputError(
                    f"{setting}: {SECTION}.{knows[0]} knows {min(trained)} loops and no more"
                )

    def check_exit(self) -> None:
        """Raises BadInputError where predictions after each loop cannot be had."""
        place, rule = f"{SECTION}.exit", self.exit.rule
        choose(EXIT_LOSSES, self.exit.loss, field=f"{place}.loss")
        choose(EXIT_RULES, rule, field=f"{place}.rule")
        check_range(f"{place}.entropy", self.exit.entropy, 0.0, 1e3)
        check_range(f"{place}.threshold", self.exit.threshold, 0.0, 1e3)
        if rule == "gate" and self.exit.loss != "expected":
            raise BadInputError(f"{place}.rule=gate needs {place}.loss=expected, which trains it")
        if self.exits and sum(r > 1 for _, r in self.core) != 1:
            raise BadInputError(
                f"{place} needs one group that loops, and {SECTION}.core={self.core} has "
                f"{sum(r > 1 for _, r in self.core)}"
            )
        if self.exits and (self.counts.train != "fixed" or self.routing != "own"):
            raise BadInputError(f"{place} needs {SECTION}.counts.train=fixed and routing=own")

    @property
    def exits(self) -> bool:
        """Whether there is a prediction after each loop."""
        return self.exit.loss != "last" or self.exit.rule != "none"

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

    def edges(self) -> list[dict[str, Any]]:
        """Returns `begins`, `ends`, `scale` and `loops` of each step, where they are not usual."""
        found: list[dict[str, Any]] = []
        scale, most = RESIDUAL_SCALES[self.residual_scale], max(r for _, r in self.core)
        for group, (order, loops) in enumerate(self.orders()):
            edge = {"scale": scale(loops, max(order) + 1)}
            if self.condition != "none":
                edge["loops"] = most if self.tie.norms == "core" else loops
            of_loop = [dict(edge) for _ in order]
            if self.inject != "none" or self.embed:
                of_loop[0]["begins"] = group
            if self.state_norm:
                of_loop[-1]["ends"] = group
            found += of_loop * loops
        return [{}] * self.prelude + found + [{}] * self.coda

    def runs(self) -> list[int]:
        """Returns how often each step runs: those after the loop of `exit` on all its states."""
        ends = [(first + n * r, r) for first, n, r in self.periods() if self.exits and r > 1]
        end, loops = ends[0] if ends else (self.depth, 1)
        return [1] * end + [loops] * (self.depth - end)

    def periods(self) -> list[tuple[int, int, int]]:
        """Returns (first step, steps of a loop, loops) of each group, as `stretches` does."""
        found, place = [], self.prelude
        for order, loops in self.orders():
            found.append((place, len(order), loops))
            place += len(order) * loops
        return found

    def learning(self, loops: Array, trained: int) -> tuple[Array, int]:
        """Returns r of a group, and how many of its last loops have a gradient, at most.

        Args:
          loops: as `draw` returns it.
          trained: the group's own loops.
        """
        if self.counts.train == "poisson":
            return loops, self.counts.backprop_last
        return jnp.minimum(loops, trained), trained

    def draw(self, key: Array | None, progress: Array) -> Array | None:
        """Returns r, int32, of one step of training; None: as the core says.

        Args:
          key: of the step; loops that grow need none.
          progress: share of the run that is done, from 0 to 1; of loops that grow also an array,
            of many steps.
        """
        most, sigma = max(r for _, r in self.core), self.counts.sigma
        if self.counts.train == "poisson":
            normal_key, poisson_key = jax.random.split(key)
            mean = math.log(self.counts.mean or most)
            tau = mean - sigma**2 / 2 + sigma * jax.random.normal(normal_key)
            return jax.random.poisson(poisson_key, jnp.exp(tau)).astype(jnp.int32) + 1
        if self.counts.train == "grow":
            return jnp.clip(progress * most, 0, most - 1).astype(jnp.int32) + 1
        return None

    def visited(self) -> list[tuple[int, int] | None]:
        """Returns (group, layer) of each step; None outside the core."""
        core = [
            (group, layer)
            for group, (order, loops) in enumerate(self.orders())
            for layer in order * loops
        ]
        return [None] * self.prelude + core + [None] * self.coda

    def steps(
        self, ffns: Sequence[str], blocks_per_routing: int, *, norms_out: bool = False
    ) -> tuple[Step, ...]:
        """Returns the steps in their order.

        Args:
          ffns: the kind of each step's feed-forward.
          blocks_per_routing: how many consecutive steps follow one routing.
          norms_out: whether norms follow attention and feed-forward, too.
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
            for part in ("norm_attention_out", "norm_ffn_out") if norms_out else ():
                scopes[part] = scope(i, part, tie.norms)
            if self.own_router and ffn != PLAIN:
                scopes["router"] = scope(i, "router", tie.router)
            routes = i % blocks_per_routing == 0
            steps.append(Step(i, ffn, tuple(scopes.items()), routes, **edges))
        return following(tuple(steps), self)


def evaluated_steps(loop: Loop, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Returns the steps that evaluation runs, with the weights of the trained `steps`."""
    found, place = list(steps[: loop.prelude]), loop.prelude
    for (order, trained), (_, loops) in zip(loop.orders(), loop.evaluated().core, strict=True):
        found += list(steps[place : place + len(order)]) * loops
        place += len(order) * trained
    found += steps[place:]
    steps = tuple(dataclasses.replace(step, index=i) for i, step in enumerate(found))
    return following(steps, loop.evaluated())


def following(steps: tuple[Step, ...], loop: Loop) -> tuple[Step, ...]:
    """Returns the steps of a loop whose routing is the first loop's, where `routing` says so."""
    follows = {}
    for first, period, loops in loop.periods() if loop.routing == "first" else ():
        later = range(first + period, first + period * loops)
        follows |= {i: first + (i - first) % period for i in later}
    return tuple(dataclasses.replace(step, follows=follows.get(step.index)) for step in steps)


def places_of(steps: Sequence[Step]) -> dict[str, list[int]]:
    """Returns the places at which steps run each scope of parameters: {"attention": [0, 1]}.

    A router, a part of its own or of a feed-forward ("moe/router"), runs where its step routes. A
    vector of each loop (of `embed` or `condition`) runs once: it has no places here.
    """
    places = defaultdict(list)
    for step in steps:
        routes = step.routes and step.follows is None
        for part, scope in step.scopes:
            if part != ROUTER or routes:
                places[scope].append(step.index)
            if part == "ffn" and routes:
                places[f"{scope}/{ROUTER}"].append(step.index)
            for kernel in ("state", "modulation") if step.loops and part.startswith("norm") else ():
                places[f"{scope}_condition/{kernel}"].append(step.index)
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
            f"{SECTION}.core={core!r}: give (layers, loops) of each group, both from 1 to "
            f'{MOST_STEPS}, such as ((1, 12),), or letters for layers: (("ABCBA", 1),)'
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
