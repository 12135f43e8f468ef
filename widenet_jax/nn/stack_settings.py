"""Settings of a stack of blocks and of the models around it: plain data, without JAX.

`parse_model` makes them of a section `config.model`, once, where a config is read or a model is
opened. What the project asks about a model, it asks them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from widenet_jax.errors import BadInputError, UnknownNameError, check_section, choose, fields_of
from widenet_jax.nn import rules
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.feed_forwards import COMMON, FEED_FORWARDS, PLAIN
from widenet_jax.nn.loop_settings import LoopSettings, parse_loop
from widenet_jax.nn.moe.routers import ROUTERS, Router
from widenet_jax.nn.settings import (
    NO_ADAPTER,
    NO_FIELDS,
    AdapterSettings,
    AttentionSettings,
    FrozenMap,
    Settings,
    frozen,
)
from widenet_jax.specs import TASKS, ModelSpec, model_spec, resolve

MODEL = "config.model"
FACTS = ("routes", "mixes", "needs_memory", "takes_values")  # of a user's part, if it has them
DECIDED_OF_PART = {"causal", *(field.name for field in dataclasses.fields(AttentionSettings))}
# The own fields of each attention and router of this project, which sections of a config have.
ATTENTION_FIELDS = {
    name: tuple(
        field.name for field in dataclasses.fields(kind) if field.name not in DECIDED_OF_PART
    )
    for name, kind in ATTENTIONS.items()
    if isinstance(kind, type) and issubclass(kind, AttentionSettings)
}
ROUTER_FIELDS = {name: kind.fields for name, kind in ROUTERS.items() if isinstance(kind, Router)}
# Fields that the model decides; no config sets them.
DECIDED = ("feed_forwards", "causal", "exits", "attention_name")


@dataclasses.dataclass(frozen=True)
class UserPart:
    """A user's attention or feed-forward, whose class has fields in place of settings.

    Its attributes are also the layer's own, such as `routes`, False where the class says nothing.

    Attributes:
      kind: the class.
      fields: its fields, of its section and of the model.
      place: the section.
    """

    kind: type
    fields: FrozenMap
    place: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("kind", "fields"):  # while it is unpickled
            raise AttributeError(name)
        part = resolve("widenet_jax.nn.module:build")(self, parent=None)  # takes JAX
        return getattr(part, name) if hasattr(part, name) or name not in FACTS else False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackSettings:
    """Settings of a stack of blocks, which every model with such a stack has, too.

    Attributes:
      loop: which weights run in which order; its depth L is the number of blocks.
      attention: `name` in `attention.ATTENTIONS`, and that layer's own fields; or its settings.
      ffn: name in `feed_forwards.FEED_FORWARDS` of the feed-forward of the blocks that `ffn_blocks`
        chooses; the other blocks have `feed_forwards.PLAIN`.
      ffn_blocks: "all", "every_6" (blocks 5, 11, ...), "last_2", see `block_indices`.
      routing_groups: 0, every block routes for itself; G, routing is shared by G groups of
        depth/G consecutive blocks (WideNet, Fig. 3).
      feed_forwards: the fields or the settings of each feed-forward, by its name.
      norm: "layer", LayerNorm; or "rms", x / sqrt(mean(x^2) + epsilon) times a scale.
      norm_position: "pre": x + f(norm(x)); "post": norm(x + f(x)); "sandwich": norm2(x +
        f(norm(x))) (arXiv:2502.05171); "peri": x + f(x), where the norm feeds queries, keys and
        routers alone (MoEUT, arXiv:2405.16039). All but "post" end with a last norm.
      norm_epsilon: added to the variance in every norm.
      dropout: rate after attention and in the feed-forward.
      drop_path: rate at which the last block that runs leaves out each of its two branches, see
        `nn.parts.DropPath`.
      ffn_dropout: whether dropout acts within the feed-forward, after its activation, too.
      activation: a name in `nn.mlp.ACTIVATIONS`.
      kernel_init: a name in `nn.initializers.KERNEL_INITS`.
      ffn_output_activation, ffn_bias: `output_activation` and `use_bias` of each part that has
        them, such as `nn.mlp.Mlp`, where its section does not.
      adapter: low-rank adapters of the kernels.
      unroll: compiles the blocks one by one; otherwise once, in a loop: a shorter compilation, a
        slower step. Parameters are stored the same way.
      remat: "none", or "block": the backward pass recomputes each block, or the blocks that share a
        routing together, instead of keeping their intermediate results.
      dtype: "float32" or "bfloat16" of the computation; parameters are float32.
      causal: whether tokens see earlier ones only; the model decides, no config does.
      exits: whether the model predicts after each loop where `loop.exit` says so; it decides, too.
      attention_name: the name of the attention.
    """

    loop: LoopSettings
    attention: Settings | UserPart
    ffn: str = PLAIN
    ffn_blocks: str | tuple[int, ...] = "all"
    routing_groups: int = 0
    feed_forwards: FrozenMap = NO_FIELDS
    norm: str = "layer"
    norm_position: str = "pre"
    norm_epsilon: float = 1e-6
    dropout: float = 0.0
    drop_path: float = 0.0
    ffn_dropout: bool = True
    activation: str = "gelu_tanh"
    kernel_init: str = "glorot_uniform"
    ffn_output_activation: bool = False
    ffn_bias: bool = True
    adapter: AdapterSettings = NO_ADAPTER
    unroll: bool = True
    remat: str = "none"
    dtype: str = "float32"
    causal: bool = False
    exits: bool = True
    attention_name: str = "full"

    def __post_init__(self):
        """Raises BadInputError where a field is unknown, out of range or does not fit another."""
        if isinstance(self.loop, Mapping):
            self.put("loop", parse_loop(self.loop))
        if isinstance(self.adapter, Mapping):
            place = f"{MODEL}.adapter"
            self.put("adapter", rules.parse_section(AdapterSettings, self.adapter, place=place))
        rules.check_values("model", vars(self))
        if self.ffn not in self.feed_forwards:
            raise BadInputError(f"{MODEL}.ffn={self.ffn} needs the section {MODEL}.{self.ffn}")
        section = self.attention
        if isinstance(section, Mapping):
            section = dict(section)
            self.put("attention_name", section.pop("name", ""))
        kind = choose(ATTENTIONS, self.attention_name, field=f"{MODEL}.attention.name")
        self.put("attention", self.part(kind, section, place=f"{MODEL}.attention"))
        parts, used = dict(self.feed_forwards), {self.ffn, *self.ffn_names()}
        for name, section in parts.items():
            place = MODEL if name == PLAIN else f"{MODEL}.{name}"
            part = self.part(FEED_FORWARDS[name], section, place=place, used=name in used)
            parts[name] = part
        self.put("feed_forwards", FrozenMap(parts))
        self.put("ffn_blocks", frozen(self.ffn_blocks))
        rules.check_rules(self.rules())

    def put(self, name: str, value: Any) -> None:
        """Sets a field to its parsed value."""
        object.__setattr__(self, name, value)

    def part(self, kind: type | str, section: Any, *, place: str, used: bool = True) -> Any:
        """Returns the settings of a part of a block: `section`, or from it and common fields.

        Of a part that no block uses, the section: its values need not fit each other. Settings that
        this has made of a section follow the common fields as they are now.
        """
        section = section if isinstance(section, Mapping) else vars(section).get("made_of", section)
        if not isinstance(section, Mapping):
            return section
        kind = resolve(kind)
        decided = {"causal": self.causal, "depth": self.depth}
        common = {field: getattr(self, of_model) for field, of_model in COMMON.items()}
        check_section(kind, section, place=place, decided=decided, common=common)
        if not used:
            return section
        fields = {field.name for field in fields_of(kind)}
        values = {k: v for k, v in (decided | common | dict(section)).items() if k in fields}
        if issubclass(kind, Settings):
            made = kind(**values)
        else:  # the others mean what the class says
            own = {name: values[name] for name in ("dropout", "kernel_init") if name in values}
            rules.check_values(place.removeprefix("config."), own)
            made = UserPart(kind, FrozenMap(values | {"depth": self.depth}), place)
        object.__setattr__(made, "made_of", frozen(section))  # no field: equal settings stay equal
        return made

    def rules(self) -> Iterator[rules.Row]:
        """Yields the rules over several fields."""
        yield from rules.stack_rules(self)

    @property
    def depth(self) -> int:
        """L, the number of blocks as they run."""
        return self.loop.depth

    def ffn_names(self) -> tuple[str, ...]:
        """Returns the name of each block's feed-forward."""
        chosen = block_indices(self.ffn_blocks, self.depth)
        return tuple(self.ffn if i in chosen else PLAIN for i in range(self.depth))

    def steps(self, *, train: bool = True) -> tuple:
        """Returns the `loop.Step` of each block as they run, in training or evaluation."""
        from widenet_jax.nn.loop import steps_of  # takes JAX

        norms = {"norms_out": self.norm_position == "sandwich"}
        sizes = self.ffn_names(), self.blocks_per_routing()
        return steps_of(self.loop, *sizes, **norms, train=train)

    def blocks_per_routing(self) -> int:
        """Returns how many consecutive blocks share one routing."""
        return self.depth // self.routing_groups if self.routing_groups else 1

    @property
    def has_memory(self) -> bool:
        """Whether attention sees tokens before the window."""
        return self.attention.needs_memory

    @property
    def routes(self) -> bool:
        """Whether the feed-forward routes tokens."""
        return self.feed_forwards[self.ffn].routes

    @property
    def examples_per_group(self) -> int:
        """Number of consecutive examples that a feed-forward works on together; 1 if each alone."""
        return getattr(self.feed_forwards[self.ffn], "examples_per_group", 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings(StackSettings):
    """Settings of a model around a stack.

    Attributes:
      embed_dim: D.
      The rest: see `StackSettings`.
    """

    embed_dim: int
    exits: bool = False

    def rules(self) -> Iterator[rules.Row]:
        yield from super().rules()
        yield from fitting_rules(self, self.embed_dim)


def fitting_rules(stack: StackSettings, embed_dim: int) -> Iterator[rules.Row]:
    """Yields the rules of a stack's attention in a model whose blocks have a width D."""
    if not fits_model(stack.attention, stack.causal):
        fits = [name for name in ATTENTIONS if fits_model(resolve(ATTENTIONS[name]), stack.causal)]
        yield from rules.causal_rules(stack, fits)
    if isinstance(stack.attention, Settings):
        yield from rules.width_rules(stack.attention, stack.feed_forwards[stack.ffn], embed_dim)


def fits_model(attention: Any, causal: bool) -> bool:
    """Returns whether a model may have an attention, given its settings or its class.

    `nn.attention` has the contract.
    """
    if getattr(attention, "needs_memory", False):
        return causal
    has_field = "causal" in getattr(attention, "__dataclass_fields__", ())
    return not causal or has_field or hasattr(attention, "causal")


def needs_memory(attention: Mapping[str, Any]) -> bool:
    """Returns whether the attention of a section `config.model.attention` needs a memory."""
    kind = choose(ATTENTIONS, attention["name"], field=f"{MODEL}.attention.name")
    return getattr(resolve(kind), "needs_memory", False)


def block_indices(rule: str | tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Returns the blocks that a rule such as `config.model.ffn_blocks` chooses.

    "all"; "every_n": n-1, 2n-1, ...; "last_n"; "last": the released code's choice, as many as
    every_6 gives, at the end; or the indices themselves.
    The paper's parameter counts fix how many blocks of ViT-MoE have experts, not which.

    Raises:
      BadInputError: another rule, n outside 1..depth, or an index of no block.
    """
    chosen = tuple(rule)
    if isinstance(rule, str):
        counted = {"all": "every_1", "last": f"last_{max(1, depth // 6)}"}.get(rule, rule)
        kind, _, count = counted.partition("_")
        n = int(count) if count.isdecimal() and int(count) <= depth else 0
        ways = {"every": range(n - 1, depth, n or 1), "last": range(depth - n, depth)}
        chosen = tuple(ways[kind]) if n and kind in ways else None
    rules.check_rules(rules.block_rules(rule, depth, chosen))
    return chosen


def parse_model(model: Mapping[str, Any], **decided: int | str) -> StackSettings:
    """Returns the settings of a section `config.model`.

    Args:
      model: `name`, a key of `specs.MODELS`; the fields of that model; the section `attention`; a
        section of fields for each feed-forward, by its name in `FEED_FORWARDS`, or None; and
        `mlp_dim`, which is the plain feed-forward's.
      **decided: the fields that the task decides, such as num_classes=10; its spec has usual ones.

    Raises:
      BadInputError: a name or a value that does not exist, or a field that is unknown or missing.
    """
    made = read_model(model, **decided)[1]
    return made if isinstance(made, StackSettings) else made.stack


def check_model(model: Mapping[str, Any], task: str, *, begun: Callable[[], bool]) -> None:
    """Checks a section `config.model` before there is a task, without JAX.

    Args:
      model: the section. A user's model is checked when it is built.
      task: its name. A user's task may decide any field of the model, which is then built first.
      begun: tells whether this resumes a run, whose imported files may have the unknown name.

    Raises:
      BadInputError: as `parse_model`.
    """
    try:
        if isinstance(TASKS.get(task), str) and model_spec(model.get("name", "")).settings:
            parse_model(model)
    except UnknownNameError:
        if not begun():
            raise


def read_model(model: Mapping[str, Any], **decided: int | str) -> tuple[ModelSpec, Any]:
    """Returns the spec of a model; and its settings, or a user's module, which has its settings.

    Arguments and errors as of `parse_model`.
    """
    fields = dict(frozen(model))
    spec = model_spec(fields.pop("name", ""))
    decided = spec.usual | decided
    sections = {name: fields.pop(name) for name in FEED_FORWARDS if name in fields}
    sections[PLAIN] = {"mlp_dim": fields.pop("mlp_dim")} if "mlp_dim" in fields else {}
    sections = {name: section for name, section in sections.items() if section is not None}
    others = {name: fields[name] for name in ("loop", "attention", "adapter") if name in fields}
    for name, section in (others | sections).items():
        kinds = Mapping | LoopSettings | Settings | AdapterSettings | UserPart
        if not isinstance(section, kinds):
            raise BadInputError(f"{MODEL}.{name}={section!r} must be a section of fields")
    kind = resolve(spec.settings or spec.module)
    check_section(kind, fields, place=MODEL, decided={*DECIDED, *decided})
    return spec, kind(feed_forwards=sections, **fields, **decided)
