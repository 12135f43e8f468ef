"""The steps of a loop: what each block runs, with which weights; and how many loops a step draws.

Names of parameters: a part that one step owns is `block_03_attention`; of a layer that runs more
than once `core_0_1_attention` (group 0, layer 1), or `attention` where the core has this one layer
or the tie is `core`.
"""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from widenet_jax.nn.feed_forwards import PLAIN
from widenet_jax.nn.loop_settings import RESIDUAL_SCALES, LoopSettings, Visit
from widenet_jax.param_names import ROUTER, block_part, core_part, split_block_part
from widenet_jax.typing import Array


@dataclasses.dataclass(frozen=True)
class Step:
    """One run of a block: its place, and the scopes of its parts' parameters.

    Attributes:
      index: t, its place in the stack, or in the piece of the stack that runs.
      ffn: the kind of its feed-forward.
      scopes: of `attention`, `norm_attention`, `ffn` and `norm_ffn`; of `norm_attention_out` and
        `norm_ffn_out` where norms follow, too; of `router` where that has another tie than the
        experts.
      loop: k, the number of its loop within its group; of a piece, which runs in several, 0.
      follows: the step whose routing it follows; None: it routes itself.
      begins, ends: its group, where it is the first or last step of a loop and something happens
        there; else None.
      scale: of its residual branches.
      condition_loops: number of loops that its norms tell apart; 0: they are not conditioned.
    """

    index: int
    ffn: str
    scopes: tuple[tuple[str, str], ...]
    loop: int = 0
    follows: int | None = None
    begins: int | None = None
    ends: int | None = None
    scale: float = 1.0
    condition_loops: int = 0

    def within(self, first: int) -> "Step":
        """Returns this step as one of a piece that starts at step `first`."""

        def renumbered(scope: str) -> str:
            index, part = split_block_part(scope)
            return scope if index is None else block_part(index - first, part)

        scopes = tuple((part, renumbered(scope)) for part, scope in self.scopes)
        follows = None if self.follows is None else self.follows - first
        moved = {"index": self.index - first, "scopes": scopes, "loop": 0, "follows": follows}
        return dataclasses.replace(self, **moved)


def steps_of(
    loop: LoopSettings,
    ffns: Sequence[str],
    blocks_per_routing: int = 1,
    *,
    norms_out: bool = False,
    train: bool = True,
) -> tuple[Step, ...]:
    """Returns the steps in their order.

    Args:
      loop: the settings.
      ffns: the kind of the feed-forward of each block in training.
      blocks_per_routing: how many consecutive steps follow one routing.
      norms_out: whether norms follow attention and feed-forward, too.
      train: as in training; evaluation may have other numbers of loops, with the same weights.
    """
    runs, tie = Counter((visit.group, visit.layer) for visit in loop.walk()), loop.tie
    lone = sum(group is not None for group, _ in runs) == 1

    def scope(visit: Visit, part: str, tied: str) -> str:
        own = visit.group is None or tied == "none"
        if not own and (lone or tied == "core"):
            return part
        if own or runs[visit.group, visit.layer] == 1:
            return block_part(visit.block, part)
        return core_part(visit.group, visit.layer, part)

    def step(visit: Visit) -> Step:
        ffn, norms = ffns[visit.block], ["norm_attention", "norm_ffn"]
        norms += ["norm_attention_out", "norm_ffn_out"] if norms_out else []
        scopes = {part: scope(visit, part, tie.norms) for part in norms}
        scopes |= {"attention": scope(visit, "attention", tie.attention)}
        scopes |= {"ffn": scope(visit, ffn, tie.experts)}
        if loop.own_router and ffn != PLAIN:
            scopes["router"] = scope(visit, "router", tie.router)
        follows = visit.index - 1 if visit.index % blocks_per_routing else None
        plain = Step(visit.index, ffn, tuple(scopes.items()), visit.loop, follows)
        return plain if visit.group is None else in_core(plain, loop, visit)

    return tuple(map(step, loop.walk(train=train)))


def in_core(step: Step, loop: LoopSettings, visit: Visit) -> Step:
    """Returns a step with what it has as one of the core."""
    group, most = loop.groups()[visit.group], max(loops for _, loops in loop.core)
    begins = visit.place == 0 and (loop.embed or loop.inject != "none")
    ends = visit.place == group.period - 1 and loop.state_norm
    norm_loops = most if loop.tie.norms == "core" else group.loops
    as_first = visit.index - visit.loop * group.period
    return dataclasses.replace(
        step,
        follows=as_first if visit.loop and loop.routing == "first" else step.follows,
        begins=visit.group if begins else None,
        ends=visit.group if ends else None,
        scale=RESIDUAL_SCALES[loop.residual_scale](group.loops, len(set(group.order))),
        condition_loops=0 if loop.condition == "none" else norm_loops,
    )


def places_of(steps: Sequence[Step]) -> dict[str, list[int]]:
    """Returns the places at which steps run each scope of parameters: {"attention": [0, 1]}.

    A router, a part of its own or of a feed-forward ("moe/router"), runs where its step routes. A
    vector of each loop (of `embed` or `condition`) runs once: it has no places here.
    """
    places = defaultdict(list)
    for step in steps:
        routes = step.follows is None
        scopes = [scope for part, scope in step.scopes if part != ROUTER or routes]
        if routes:
            scopes.append(f"{dict(step.scopes)['ffn']}/{ROUTER}")
        if step.condition_loops:
            norms = [scope for part, scope in step.scopes if part.startswith("norm")]
            kernels = itertools.product(norms, ("state", "modulation"))
            scopes += [f"{norm}_condition/{kernel}" for norm, kernel in kernels]
        if step.begins is not None:
            scopes.append(f"core_{step.begins}_start/inject")
        if step.ends is not None:
            scopes.append(f"core_{step.ends}_norm_state")
        for scope in scopes:
            places[scope].append(step.index)
    return dict(places)


def draw_loops(loop: LoopSettings, key: Array | None, progress: Array) -> Array | None:
    """Returns r, int32, of one step of training; None: as the core says.

    Args:
      loop: the settings.
      key: of the step; loops that grow need none.
      progress: share of the run that is done, from 0 to 1; of loops that grow also an array, of
        many steps.
    """
    most, sigma = max(r for _, r in loop.core), loop.counts.sigma
    if loop.counts.train == "poisson":
        normal_key, poisson_key = jax.random.split(key)
        mean = math.log(loop.counts.mean or most)
        tau = mean - sigma**2 / 2 + sigma * jax.random.normal(normal_key)
        return jax.random.poisson(poisson_key, jnp.exp(tau)).astype(jnp.int32) + 1
    if loop.counts.train == "grow":
        return jnp.clip(progress * most, 0, most - 1).astype(jnp.int32) + 1
    return None


def loops_of(loop: LoopSettings, most: int, drawn: Array) -> Array:
    """Returns how often a group of `most` loops runs, of the loops that `draw_loops` has drawn."""
    return drawn if loop.counts.train == "poisson" else jnp.minimum(drawn, most)


def run_order(loop: LoopSettings, drawn: Array | None) -> tuple[list[Array | int], Array | int]:
    """Returns how many blocks run before each step of training, and how many run in all.

    Args:
      loop: the settings.
      drawn: as of `draw_loops`. Steps of a group that runs more loops follow in its order.
    """
    places, more = list(range(loop.prelude)), 0
    for group in loop.groups():
        places += [more + index for index in range(group.first, group.end)]
        if drawn is not None and group.loops > 1:
            more += group.period * (loops_of(loop, group.loops, drawn) - group.loops)
    last = range(loop.depth - loop.coda, loop.depth)
    return places + [more + index for index in last], more + loop.depth
