"""Rules over several fields of a model: whether settings break each, and what users are told then.

A function returns the rows of one kind of settings, in the order in which mistakes are told;
`check_rules` has the one raise. Limits and choices of a single field are in its row of
configs/defaults.py.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from widenet_jax.errors import BadInputError, check_fields

if TYPE_CHECKING:
    from widenet_jax.nn.loop_settings import LoopSettings

Row = tuple[Any, str]  # (true where the rule is broken, the line that tells so)
LOOP = "config.model.loop"
MOST_STEPS = 2**10


def check_rules(rows: Iterable[Row]) -> None:
    """Raises BadInputError with the line of the first broken rule."""
    for broken, line in rows:
        if broken:
            raise BadInputError(line)


def parse_section(kind: type, section: Mapping[str, Any], *, place: str) -> Any:
    """Returns the settings of a section of a config, with those of the sections in it.

    Args:
      kind: the dataclass of the settings; a field that is a dataclass has its own section.
      section: its fields; those left out have their defaults.
      place: its name, for messages.

    Raises:
      BadInputError: a field is unknown.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    check_fields(fields, section, section=place)
    values = dict(section)
    for name, inner in values.items():
        if dataclasses.is_dataclass(fields[name].type):
            values[name] = parse_section(fields[name].type, inner, place=f"{place}.{name}")
    return kind(**values)


def loop_rules(loop: "LoopSettings") -> Iterator[Row]:
    """Yields the rules of a loop by itself."""
    yield (
        not 1 <= loop.depth <= MOST_STEPS,
        f"{LOOP}: the number of steps={loop.depth} must be between 1 and {MOST_STEPS}",
    )
    yield (
        loop.start != "prelude" and loop.inject == "none",
        f"{LOOP}.start={loop.start} needs {LOOP}.inject=add or linear; without, the core sees "
        "nothing of the input",
    )
    yield (
        loop.condition != "none" and loop.tie.norms == "none",
        f"{LOOP}.condition={loop.condition} needs {LOOP}.tie.norms=loops or core; norms of their "
        "own know their loop",
    )
    yield (
        loop.routing == "first" and loop.tie.router == "none",
        f"{LOOP}.routing=first uses the first loop's router alone; set {LOOP}.tie.router=loops",
    )
    changes, looping = loop.other_counts(), [loops for _, loops in loop.core if loops > 1]
    for setting in changes[:1]:
        untied, fewest = loop.untied(), min(looping, default=1)
        yield (
            untied,
            f"{LOOP}.{setting} needs the same weights in each loop, and {LOOP}.tie."
            f"{untied and untied[0]} is none; train with loops or core",
        )
        yield not looping, f"{LOOP}.{setting} has no effect: no group of the core loops"
        knows = "embed=True" if loop.embed else f"condition={loop.condition}"
        yield (
            (loop.embed or loop.condition != "none")
            and (loop.counts.train == "poisson" or loop.counts.eval > fewest),
            f"{LOOP}.{setting}: {LOOP}.{knows} knows {fewest} loops and no more",
        )
    yield (
        loop.exit.rule == "gate" and loop.exit.loss != "expected",
        f"{LOOP}.exit.rule=gate needs {LOOP}.exit.loss=expected, which trains it",
    )
    yield (
        loop.exits and len(looping) != 1,
        f"{LOOP}.exit needs one group that loops, and {LOOP}.core={loop.core} has {len(looping)}",
    )
    yield (
        loop.exits and (loop.counts.train != "fixed" or loop.routing != "own"),
        f"{LOOP}.exit needs {LOOP}.counts.train=fixed and routing=own",
    )


def stacked_loop_rules(stack: Any) -> Iterator[Row]:
    """Yields the rules of a loop and the stack of blocks that it runs.

    Args:
      stack: `loop`, ..., as in `block_settings.BlockSettings`.
    """
    loop, size = stack.loop, stack.blocks_per_routing()
    yield (
        loop.prelude % size,
        f"config.model.routing_groups={stack.routing_groups} shares a routing between the prelude "
        f"of {loop.prelude} and the core; choose a {LOOP}.prelude that {size} divides",
    )
    needs_of_first = {
        "ffn=moe": stack.routes,
        "routing_groups=0": not stack.routing_groups,
        "unroll=true": stack.unroll,
        "remat=none": stack.remat == "none",
        "loop.counts.train=fixed": loop.counts.train == "fixed",
    }
    for need, met in needs_of_first.items():
        broken = loop.routing == "first" and not met
        yield broken, f"{LOOP}.routing=first needs config.model.{need}"
    changes, names = loop.other_counts(), stack.ffn_names()
    for change in changes[:1]:
        yield stack.routing_groups, f"{LOOP}.{change} needs config.model.routing_groups=0"
    changes += ["routing=first"] if loop.routing == "first" else []
    alike = all(
        names[group.first : group.first + group.period] * group.loops
        == names[group.first : group.end]
        for group in loop.groups()
    )
    for change in changes[:1]:
        yield (
            not alike,
            f"{LOOP}.{change} needs the same feed-forwards in each loop of a group; "
            f"config.model.ffn_blocks={stack.ffn_blocks} gives others: give all",
        )
    yield (
        loop.exits and not stack.exits,
        f"{LOOP}.exit needs a language model without a memory (config.model.attention.name=full)",
    )
    yield (
        loop.exits and not (stack.unroll and stack.remat == "none"),
        f"{LOOP}.exit needs config.model.unroll=true and config.model.remat=none",
    )
    yield loop.exits and stack.routing_groups, f"{LOOP}.exit needs config.model.routing_groups=0"
    yield (
        loop.own_router and not stack.routes,
        f"{LOOP}.tie.router={loop.tie.router} has no effect on config.model.ffn={stack.ffn}, "
        "which routes nothing; give experts, or choose a model with experts",
    )
