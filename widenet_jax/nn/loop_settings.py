"""Which weights a stack of blocks runs, and in which order: `config.model.loop`.

A stack is a prelude of own blocks, a core of groups, and a coda of own blocks. A group
`(layers, loops)` runs its layers in order, and that so many times: `((12, 1),)` is a plain stack
of 12 blocks, `((1, 12),)` one block 12 times (WideNet, ALBERT), `((2, 3),)` ABABAB, and
`((1, 3), (1, 3))` AAABBB. Letters in place of a number write the order out: `(("ABCBA", 1),)`.

The ties say which parts share weights:

    none   each step of the core has its own
    loops  one for each layer of a group, for all its loops
    core   one for all steps of the core
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from widenet_jax.errors import BadInputError
from widenet_jax.nn import rules

# Factors of the residual branches of a group's blocks, by its loops and its layers.
RESIDUAL_SCALES = {
    "1": lambda loops, layers: 1.0,
    "1/loops": lambda loops, layers: 1 / loops,
    "1/(loops*sqrt(layers))": lambda loops, layers: 1 / (loops * math.sqrt(layers)),
}


@dataclasses.dataclass(frozen=True)
class Tie:
    """Which steps of the core share a part's weights: none, loops or core for each part.

    Attributes:
      attention: the attention layer.
      experts: the feed-forward, with experts or dense.
      router: of the experts; "experts" is as they are.
      norms: both norms of a block.
    """

    attention: str = "loops"
    experts: str = "loops"
    router: str = "experts"
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


class Group(NamedTuple):
    """A group of the core: the layers of `order`, `loops` times, from step `first` on."""

    first: int
    order: tuple[int, ...]
    loops: int

    @property
    def period(self) -> int:
        """Number of steps of a loop."""
        return len(self.order)

    @property
    def end(self) -> int:
        """The step after the last one."""
        return self.first + self.period * self.loops


class Visit(NamedTuple):
    """One run of a block.

    Attributes:
      index: t, its number among the visits.
      block: its number in training, which names its own weights.
      group, layer, loop: in the core, each from 0.
      place: its number within its loop; a layer that runs twice in a loop has two places.
    """

    index: int
    block: int
    group: int | None = None
    layer: int | None = None
    loop: int = 0
    place: int = 0


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """The settings of a loop. They are checked by the rows of configs/defaults.py and by `rules`.

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
      routing: "own"; "first": each loop takes the experts, gates and slots of its layer's first.
      embed: whether a learned vector of each loop of a group, 0 at first, is added as it begins.
      state_norm: whether a norm of the state ends each loop, one norm a group.
      residual_scale: in `RESIDUAL_SCALES`, of the core's branches; by the loops of `core` alone.
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

    def __post_init__(self):
        """Raises BadInputError where a field has an unknown value or does not fit another."""
        object.__setattr__(self, "core", groups_of(self.core))
        sections = {"": self, ".tie": self.tie, ".counts": self.counts, ".exit": self.exit}
        for name, section in sections.items():
            rules.check_values(f"model.loop{name}", vars(section))
        rules.check_rules(rules.loop_rules(self))

    @property
    def exits(self) -> bool:
        """Whether there is a prediction after each loop."""
        return self.exit.loss != "last" or self.exit.rule != "none"

    @property
    def depth(self) -> int:
        """L, the number of steps: blocks as they run, not as they are stored."""
        return self.groups()[-1].end + self.coda

    @property
    def layers(self) -> int:
        """Number of blocks as they are stored, where each layer's loops share all parts."""
        return self.prelude + self.coda + sum(len(set(group.order)) for group in self.groups())

    @property
    def own_router(self) -> bool:
        """Whether routers stand apart from the experts, as they have another tie."""
        return self.tie.router not in ("experts", self.tie.experts)

    @property
    def text(self) -> str:
        """The loop as an option of a variant writes it: "2+8x2+2"."""
        core = [f"{layers}x{loops}" for layers, loops in self.core]
        return "+".join([str(self.prelude or ""), *core, str(self.coda or "")]).strip("+")

    def shared(self) -> list[str]:
        """Returns the parts whose weights more than one step of the core runs."""
        several = {"none": False, "loops": self.depth > self.layers}
        several["core"] = self.depth - self.prelude - self.coda > 1
        ties = {"attention": self.tie.attention, "feed-forward": self.tie.experts}
        return [part for part, tie in (ties | {"norms": self.tie.norms}).items() if several[tie]]

    def untied(self) -> list[str]:
        """Returns the parts whose weights no two steps of the core share."""
        return [part for part, tie in dataclasses.asdict(self.tie).items() if tie == "none"]

    def other_counts(self) -> list[str]:
        """Returns what asks for other numbers of loops than the core: "counts.eval=3"."""
        counts = self.counts
        changes = [f"counts.eval={counts.eval}"] if counts.eval else []
        return changes + ([f"counts.train={counts.train}"] if counts.train != "fixed" else [])

    def groups(self, *, train: bool = True) -> list[Group]:
        """Returns the groups of the core as they run in training or in evaluation."""
        groups, first = [], self.prelude
        for layers, trained in self.core:
            other = 0 if train or trained == 1 else self.counts.eval
            groups.append(Group(first, order_of(layers), other or trained))
            first = groups[-1].end
        return groups

    def runs(self) -> list[int]:
        """Returns how often each step runs: those after the loop of `exit` on all its states."""
        if not self.exits:
            return [1] * self.depth
        (looping,) = (group for group in self.groups() if group.loops > 1)
        return [1] * looping.end + [looping.loops] * (self.depth - looping.end)

    def walk(self, *, train: bool = True) -> Iterator[Visit]:
        """Yields the visits of all blocks in the order in which they run."""
        index = itertools.count()
        for block in range(self.prelude):
            yield Visit(next(index), block)
        pairs = zip(self.groups(), self.groups(train=train), strict=True)
        for number, (trained, group) in enumerate(pairs):
            places = enumerate(group.order)
            for loop, (place, layer) in itertools.product(range(group.loops), places):
                block = trained.first + loop % trained.loops * trained.period + place
                yield Visit(next(index), block, number, layer, loop, place)
        for block in range(self.depth - self.coda, self.depth):
            yield Visit(next(index), block)


def parse_loop(section: Mapping[str, Any]) -> LoopSettings:
    """Returns the settings of a section `config.model.loop`.

    Raises:
      BadInputError: a field is unknown, has an unknown value or does not fit another.
    """
    return rules.parse_section(LoopSettings, {"core": None, **section}, place=rules.LOOP)


def groups_of(core: Any) -> tuple[tuple[int | str, int], ...]:
    """Returns the groups of `core` as tuples; raises BadInputError where it has none."""
    try:
        groups = tuple((layers, loops) for layers, loops in core)
    except (TypeError, ValueError):
        groups = ()
    if groups and all(order_of(layers) and is_count(loops) for layers, loops in groups):
        return groups
    raise BadInputError(
        f"{rules.LOOP}.core={core!r}: give (layers, loops) of each group, both from 1 to "
        f'{rules.MOST_STEPS}, such as ((1, 12),), or letters for layers: (("ABCBA", 1),)'
    )


def is_count(number: Any) -> bool:
    """Whether this is a number of layers or loops."""
    return type(number) is int and 1 <= number <= rules.MOST_STEPS


def order_of(layers: int | str) -> tuple[int, ...]:
    """Returns a group's layers in their order: (0, 1, 2) for 3, (0, 1, 0) for "ABA", () for ""."""
    if isinstance(layers, str) and layers.isalpha():
        letters = list(dict.fromkeys(layers))
        return tuple(map(letters.index, layers))
    return tuple(range(layers)) if is_count(layers) else ()
