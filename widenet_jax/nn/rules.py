"""Rules over several fields of a model: whether settings break each, and what users are told then.

A function returns the rows of one kind of settings, in the order in which mistakes are told;
`check_rules` has the one raise. Limits and choices of a single field are in its row of
configs/defaults.py.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from widenet_jax.config.fields import limits
from widenet_jax.config.files import configs_module
from widenet_jax.errors import BadInputError, check_fields, check_range, choose

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


def check_values(section: str, values: Mapping[str, Any]) -> None:
    """Raises BadInputError where a value is outside the limits or choices of its field's row.

    Args:
      section: of the config, such as "model.moe"; a field without a row there has the model's.
      values: by field.
    """
    rows = configs_module("defaults").MODELS
    rows = rows["model"] | rows.get(section, {})
    for name, value in values.items():
        default, _, *bounds = rows.get(name, (None, ""))
        field = f"config.{section}.{name}"
        if bounds and isinstance(bounds[0], tuple):
            choose(dict.fromkeys(bounds[0]), value, field=field)
        elif type(default) in (int, float):
            check_range(field, value, *limits(rows[name], default))


def between(field: str, value: float, low: float, high: float) -> Row:
    """Returns the rule that a number, of the field config.model.FIELD, is in a range."""
    line = f"config.model.{field}={value} must be between {low:.10g} and {high:.10g}"
    return not low <= value <= high, line


def loop_rules(loop: "LoopSettings") -> Iterator[Row]:
    """Yields the rules of a loop by itself."""
    yield between("loop: the number of steps", loop.depth, 1, MOST_STEPS)
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
    counts, looping = loop.counts, [loops for _, loops in loop.core if loops > 1]
    for setting in loop.other_counts()[:1]:
        for part in loop.untied():
            yield (
                True,
                f"{LOOP}.{setting} needs the same weights in each loop, and {LOOP}.tie.{part} is "
                "none; train with loops or core",
            )
        yield not looping, f"{LOOP}.{setting} has no effect: no group of the core loops"
        knows = "embed=True" if loop.embed else f"condition={loop.condition}"
        if counts.train == "poisson" or counts.eval > min(looping):
            known = f"{LOOP}.{knows} knows {min(looping)} loops and no more"
            yield knows != "condition=none", f"{LOOP}.{setting}: {known}"
    yield (
        loop.exit.rule == "gate" and loop.exit.loss != "expected",
        f"{LOOP}.exit.rule=gate needs {LOOP}.exit.loss=expected, which trains it",
    )
    yield (
        loop.exits and len(looping) != 1,
        f"{LOOP}.exit needs one group that loops, and {LOOP}.core={loop.core} has {len(looping)}",
    )
    yield (
        loop.exits and (counts.train != "fixed" or loop.routing != "own"),
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
    plain = stack.unroll and stack.remat == "none"
    needs_of_exits = {
        "a language model without a memory (config.model.attention.name=full)": stack.exits,
        "config.model.unroll=true and config.model.remat=none": plain,
        "config.model.routing_groups=0": not stack.routing_groups,
    }
    for need, met in needs_of_exits.items():
        yield loop.exits and not met, f"{LOOP}.exit needs {need}"
    yield (
        loop.own_router and not stack.routes,
        f"{LOOP}.tie.router={loop.tie.router} has no effect on config.model.ffn={stack.ffn}, "
        "which routes nothing; give experts, or choose a model with experts",
    )
