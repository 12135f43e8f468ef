"""Rules over several fields of a model: whether settings break each, and what users are told then.

A function returns the rows of one kind of settings, in the order in which mistakes are told;
`check_rules` refuses the first one that is broken. Limits and choices of a single field are in its
row of configs/defaults.py.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from widenet_jax.config.fields import limits
from widenet_jax.config.imports import configs_module
from widenet_jax.errors import (
    BadInputError,
    between,
    check_fields,
    check_range,
    choose,
    raise_first,
)
from widenet_jax.specs import added

if TYPE_CHECKING:
    from widenet_jax.nn.loop_settings import LoopSettings

Row = tuple[Any, str]  # (true where the rule is broken, the line that tells so)
LOOP = "config.model.loop"
MOST_STEPS = 2**10
OF_EXITS = "a language model without a memory (config.model.attention.name=full)"


def check_rules(rows: Iterable[Row]) -> None:
    """Raises BadInputError with the line of the first broken rule."""
    raise_first(line for broken, line in rows if broken)


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
    yield between("config.model.loop: the number of steps", loop.depth, 1, MOST_STEPS)
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
    yield (
        loop.routing == "first" and not looping,
        f"{LOOP}.routing=first has no effect: no group of the core loops",
    )
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
      stack: `loop`, ..., as in `stack_settings.StackSettings`.
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
        OF_EXITS: stack.exits,
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


GATED = ("swiglu",)  # activations that act on a product of their own, the gate
UNLIMITED = "unlimited"  # the rule of the capacity by which no token is dropped
INHERITED = ("dropout", "activation", "kernel_init", "dtype")  # from the model, by its parts
# Field -> the module and the table of the functions that it chooses from, to which users add.
OPEN = {
    "activation": ("widenet_jax.nn.mlp", "ACTIVATIONS"),
    "kernel_init": ("widenet_jax.nn.initializers", "KERNEL_INITS"),
    "dispatch": ("widenet_jax.nn.moe.dispatch", "DISPATCHERS"),
    "capacity_rule": ("widenet_jax.nn.moe.slots", "CAPACITY_RULES"),
    "ffn": ("widenet_jax.nn.feed_forwards", "FEED_FORWARDS"),
    "priority": ("widenet_jax.nn.moe.slots", "PRIORITIES"),
}


def check_values(section: str, values: Mapping[str, Any]) -> None:
    """Raises BadInputError where a value is outside the limits or choices of its field's row.

    Args:
      section: of the config, such as "model.moe".
      values: by field.
    """
    rows = configs_module("defaults").MODELS
    rows = {name: rows["model"][name] for name in INHERITED} | rows.get(section, {})
    for name, value in values.items():
        default, _, *bounds = rows.get(name, (None, ""))
        field = f"config.{section}.{name}"
        if bounds and isinstance(bounds[0], tuple):
            choose(
                dict.fromkeys([*bounds[0], *added(*OPEN[name])] if name in OPEN else bounds[0]),
                value,
                field=field,
            )
        elif type(default) in (int, float):
            check_range(field, value, *limits(rows[name]))


IMPLEMENTATION = "config.model.attention.implementation"
KERNELS = ("auto", "xla", "pallas")  # of relative attention


def attention_rules(attention: Any) -> Iterator[Row]:
    """Yields the rules of an attention layer."""
    if attention.needs_memory:  # cuDNN has no kernel of it
        choose(dict.fromkeys(KERNELS), attention.implementation, field=IMPLEMENTATION)
    A = getattr(attention, "num_experts", 1)
    if A > 1:
        yield between(
            "config.model.attention.num_selected_experts", attention.num_selected_experts, 1, A
        )


def attend_rules(
    query: Any, key: Any, value: Any, mask: Any, segment_ids: Any, *, causal: bool
) -> Iterator[Row]:
    """Yields the rules of the arrays of `attention.attend`."""
    asked, known = ((x.shape[:1], x.shape[2:]) for x in (query, key))  # all but the tokens
    arrays, count = (query, key, value), query.ndim
    shapes, dtypes = (
        ", ".join(map(str, of))
        for of in ([list(x.shape) for x in arrays], [x.dtype for x in arrays])
    )
    yield (
        count != 4 or asked != known or key.shape != value.shape,
        f"query is [B, Tq, N, H], key and value [B, Tk, N, H]; here {shapes}",
    )
    B, Tq, Tk = (*query.shape[:2], key.shape[1])
    wanted = {"mask": (mask, (B, Tk)), "segment_ids": (segment_ids, (B, Tq))}
    for name, (array, shape) in wanted.items():
        here = shape if array is None else array.shape
        yield here != shape, f"{name} is {list(here)}; must be {list(shape)}"
    kinds = {name: None if x is None else x.dtype for name, (x, _) in wanted.items()}
    yield (
        kinds["mask"] not in (None, bool),
        f"mask is {kinds['mask']}; must be bool, True for keys to attend to",
    )
    yield (
        kinds["segment_ids"] is not None and kinds["segment_ids"].kind not in "iu",
        f"segment_ids are {kinds['segment_ids']}; must be integers",
    )
    floats = all("float" in x.dtype.name for x in arrays)
    yield (
        len({x.dtype for x in arrays}) > 1 or not floats,
        f"query, key and value must be of one floating dtype, not {dtypes}",
    )
    yield (
        (causal or segment_ids is not None) and Tq != Tk,
        f"causal and segment_ids need as many keys as queries, not {Tk}, {Tq}",
    )


def pallas_rules(platform: str, *, fits: bool, limits: str, here: str) -> Iterator[Row]:
    """Yields the rules of a kernel for TPUs, with its limits in words, and the shapes here."""
    known = platform in ("tpu", "cpu")
    yield not known, f"{IMPLEMENTATION}=pallas runs on TPUs, and on CPUs for tests; use auto"
    yield not fits, f"{IMPLEMENTATION}=pallas: {limits}; here {here}"


def v4_line(most: int, keys: int) -> str:
    """Returns the line for more keys than the kernel of relative attention trains with on a v4."""
    return (
        f"{IMPLEMENTATION}=pallas: on a TPU v4 it trains with M + T of at most {most:,}, here "
        f"{keys:,}; use auto"
    )


def group_rules(x: Any, group: int, *, train: bool) -> Iterator[Row]:
    """Yields the rules of the tokens that a layer of experts routes in groups of examples."""
    yield x.ndim != 3, f"x is {list(x.shape)}; a layer of experts takes [B, T, D]"
    B = x.shape[0]
    yield (
        B % group and (B > 1 or train),
        f"x has {B} examples; must be a multiple of examples_per_group={group}, which are routed "
        "together",
    )


def cudnn_rules(platform: str, dtype: str) -> Iterator[Row]:
    """Yields the rule of NVIDIA's kernel."""
    yield (
        platform != "gpu" or dtype not in ("bfloat16", "float16"),
        f"{IMPLEMENTATION}=cudnn needs an NVIDIA GPU and config.model.dtype=bfloat16; use auto",
    )


def hopper_rules(kind: str, dtype: str) -> Iterator[Row]:
    """Yields the rule of JAX's kernels for Hopper GPUs, by the device's kind."""
    hopper = kind.startswith(("NVIDIA H", "NVIDIA GH"))  # H100, H200, GH200, ...: capability 9.0
    yield (
        not hopper or dtype != "bfloat16",
        "config.model.moe.dispatch=hopper needs an NVIDIA H100 or H200 and "
        f"config.model.dtype=bfloat16, here {kind} and {dtype}; use ragged or auto",
    )


@contextmanager
def refusals_of_cudnn() -> Iterator[None]:
    """Raises BadInputError where JAX does not take these sizes, or finds no cuDNN."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).rstrip(".")
        raise BadInputError(f"{IMPLEMENTATION}=cudnn: {text}; use auto") from None


def width_rules(attention: Any, ffn: Any, D: int) -> Iterator[Row]:
    """Yields the rules of the layers in blocks of width D."""
    place, N = "config.model.attention", getattr(attention, "num_heads", 1)
    yield (
        not getattr(attention, "head_dim", 1) and D % N,
        f"{place}.num_heads={N} must divide config.model.embed_dim={D}, or {place}.head_dim be set",
    )
    rope = getattr(attention, "rope", 0)
    H = attention.head_size(D) if rope else 0
    yield (
        rope and int(rope * H) < 2,
        f"{place}.rope={rope} of {H} dimensions of a head is no pair that could rotate; give more, "
        "or 0",
    )
    yield (
        getattr(attention, "section", "") and attention.needs_memory and D % 2,
        f"config.model.embed_dim={D} must be even: positions are pairs of a sine and a cosine",
    )
    yield getattr(ffn, "query_dim", None) == 0 and D % 2, half_of("embed_dim", D)


def activation_rules(ffn: Any) -> Iterator[Row]:
    """Yields the rule of a feed-forward's activation."""
    yield (
        ffn.output_activation and ffn.activation in GATED,
        f"config.model.ffn_output_activation=true: activation={ffn.activation} has a gate, and "
        "outputs have none; set ffn_output_activation=false, or activation=silu",
    )


def top_k_rules(ffn: Any) -> Iterator[Row]:
    """Yields the rules of the feed-forward with the K largest hidden units."""
    yield between("config.model.top_k_mlp.num_active", ffn.num_active, 1, ffn.mlp_dim)
    yield (
        ffn.activation != "relu",
        "config.model.top_k_mlp keeps the largest of units that are not negative: set "
        f"config.model.top_k_mlp.activation=relu in place of {ffn.activation}",
    )


def product_key_rules(ffn: Any) -> Iterator[Row]:
    """Yields the rules of a product-key memory."""
    yield between("config.model.product_key.knn", ffn.knn, 1, ffn.num_keys**2)
    yield ffn.query_dim % 2, half_of("product_key.query_dim", ffn.query_dim)


def half_of(field: str, size: int) -> str:
    """Returns the line for the size of a query that has no halves."""
    return f"config.model.{field}={size} must be even: half of it is each sub-key's"


def moe_rules(moe: Any) -> Iterator[Row]:
    """Yields the rules of a mixture of experts."""
    router, losses = moe.router, moe.losses
    place, name = "config.model.moe", router.name
    yield between(f"{place}.num_selected_experts", moe.num_selected_experts, 1, moe.num_experts)
    check_losses(losses)
    yield from router_rules(router, moe.num_experts, moe.num_selected_experts)
    yield (
        router.experts_choose and moe.capacity_rule in (UNLIMITED, "literal"),
        f"{place}.capacity_rule={moe.capacity_rule}: with router.name={name} every expert would "
        "take every token; set capacity_rule=paper",
    )
    for loss, weight in losses.items():
        yield (
            router.experts_choose and loss not in ("z", "over") and weight,
            f"{place}.losses.{loss}={weight}: with router.name={name} loads are equal without a "
            "loss; set 0",
        )
    factor, in_evaluation = moe.capacity_factor, moe.capacity_factor_eval
    yield (
        router.experts_choose and factor != in_evaluation,
        f"{place}.capacity_factor_eval={in_evaluation}: with router.name={name} the factor is part "
        f"of the function; set it to capacity_factor={factor}",
    )
    yield losses.get("load") and not getattr(router.kind, "own_noise", True), moe.without_load


def check_losses(losses: Mapping[str, Any]) -> None:
    """Raises BadInputError at a loss that is unknown, or statistics over something unknown."""
    place, rows = "model.moe.losses", configs_module("defaults").MODELS["model.moe.losses"]
    own = [name for name in rows if name != "over"]
    known = [*own, *added("widenet_jax.nn.moe.losses", "LOSSES", own), "over"]
    check_fields(known, losses, section=f"config.{place}")
    given = ({"over": ""} | losses).items()
    check_values(place, {name: value for name, value in given if name in rows})


def router_rules(router: Any, E: int, K: int) -> Iterator[Row]:
    """Yields the rules of one of this project's routers, of E experts and K for each token."""
    place, fields, own = "config.model.moe.router", router.fields, router.own_fields
    if own is None:  # a user's
        return
    yield (
        fields.get("bias_balancing") and router.name.startswith("sinkhorn"),
        f"{place}.bias_balancing=true: this router balances each batch already; set false, or "
        f"{place}.name=sigmoid",
    )
    check_fields(own, fields, section=place, advice=f"; {router.advice}")
    check_values("model.moe.router", fields)
    if router.name != "hierarchical":
        return
    E1, K1 = (fields.get(name, 2) for name in ("groups", "selected_groups"))
    yield between(f"{place}.groups", E1, 1, E)
    yield between(f"{place}.selected_groups", K1, 1, min(K, E1))
    yield (
        E % E1 or K % K1 or K // K1 > E // E1,
        f"{place}: groups={E1} must divide the {E} experts, and selected_groups={K1} the {K} "
        f"selected ones, at most {E // E1} in a group",
    )


def stack_rules(stack: Any) -> Iterator[Row]:
    """Yields the rules of a stack of blocks."""
    groups, depth, names = stack.routing_groups, stack.depth, stack.ffn_names()
    yield (
        groups and not stack.routes,
        f"config.model.routing_groups={groups} has no effect on config.model.ffn={stack.ffn}, "
        "which routes nothing; give 0, or choose a model with experts",
    )
    fits = [g for g in range(1, depth + 1) if depth % g == 0]
    yield (
        groups and (groups not in fits or set(names) != {stack.ffn}),
        f"config.model.routing_groups={groups} needs config.model.ffn_blocks=all and must divide "
        f"the depth {depth}: one of {fits}, or 0 for none",
    )
    odd = "tie.router=none" * (stack.loop.own_router and stack.loop.tie.router == "none")
    odd = next(iter(stack.loop.other_counts()), odd)
    yield (
        odd and stack.adapter.rank and stack.adapter.tie == "none",
        "config.model.adapter.tie=none gives each step an adapter, which "
        f"{LOOP}.{odd} has no place for; give weights",
    )
    yield (
        stack.drop_path and depth == 1,
        f"config.model.drop_path={stack.drop_path} has no effect on a depth of 1: rates grow from "
        "0 in the first block; give 0, or more blocks",
    )
    peri, place = stack.norm_position == "peri", "config.model.norm_position=peri"
    yield (
        peri and not all(stack.feed_forwards[name].routes for name in names),
        f"{place} normalises what routers read, and config.model.ffn={stack.ffn} in the blocks "
        f"config.model.ffn_blocks={stack.ffn_blocks} leaves blocks without; give ffn=moe and "
        "ffn_blocks=all, or another norm_position",
    )
    yield (
        peri and not stack.attention.takes_values,
        f"{place} normalises queries and keys alone, and config.model.attention.name="
        f"{stack.attention_name} has no values apart; give full or switch_head",
    )
    yield from stacked_loop_rules(stack)


def block_rules(rule: str | tuple[int, ...], depth: int, chosen: Any) -> Iterator[Row]:
    """Yields the rules of `config.model.ffn_blocks`, of which the blocks `chosen` follow."""
    place = "config.model.ffn_blocks"
    indices = () if isinstance(rule, str) else rule
    for odd in (index for index in indices if index not in range(depth)):
        yield (
            True,
            f"{place}={list(rule)}: there is no block {odd!r} in a depth of {depth}; blocks count "
            "from 0",
        )
    yield (
        chosen is None,
        f"{place}={rule!r} is not known; known: all, last, every_N and last_N with N from 1 to "
        f"{depth}",
    )


def causal_rules(stack: Any, fits: list[str]) -> Iterator[Row]:
    """Yields the rule of an attention that a model cannot have, in place of those in `fits`."""
    field, tokens = "config.model.attention.name", "earlier" if stack.causal else "all"
    yield (
        True,
        f"{field}={stack.attention_name}: tokens of this model see {tokens} tokens; give "
        f"{field}={' or '.join(fits)}",
    )


def language_rules(model: Any) -> Iterator[Row]:
    """Yields the rules of a language model."""
    ffn, memory = model.feed_forwards[model.ffn], model.has_memory
    yield (
        ffn.mixes and not model.allow_mixing,
        f"config.model.ffn={model.ffn}: these experts see later tokens, the answers of a language "
        "model; choose another router, or moe.priority=token_order, or set "
        "config.model.allow_mixing=true",
    )
    yield memory and model.loop.exits, f"{LOOP}.exit needs {OF_EXITS}"
    yield (
        memory and model.loop.start == "noise",
        f"{LOOP}.start=noise depends on a token's place in its window, and with a memory windows "
        f"begin anywhere; set {LOOP}.start=prelude or config.model.attention.name=full",
    )
    for change in model.loop.other_counts()[:1]:
        yield (
            memory,
            f"config.model.loop.{change}: the memory has a place for each block that the core "
            "names; give config.model.attention.name=full, which has none",
        )


def packed_rules(model: Any) -> Iterator[Row]:
    """Yields the rule of a model whose examples are packed rows of several documents.

    Routers may see them all: they see other examples of a group, too.
    """
    ffn = model.feed_forwards[model.ffn]
    yield (
        ffn.mixes and not ffn.routes,
        f"config.model.ffn={model.ffn} mixes all tokens of a row, and this set packs several "
        "documents into one; prepare it without --pack, or choose another config.model.ffn",
    )


def vision_rules(model: Any) -> Iterator[Row]:
    """Yields the rules of an image model."""
    yield (
        model.pool == "token" and model.cls_token == "none",
        "config.model.pool=token needs a CLS token: set config.model.cls_token=learned",
    )


def text_rules(model: Any) -> Iterator[Row]:
    """Yields the rules of a text model."""
    yield (
        not model.projection and model.embedding_dim != model.embed_dim,
        "config.model.projection=false needs embeddings as wide as the blocks, but "
        f"config.model.embedding_dim={model.embedding_dim} and "
        f"config.model.embed_dim={model.embed_dim}",
    )
