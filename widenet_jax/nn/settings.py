"""Settings of the layers in a block: plain data, without JAX.

They hash, clone and pickle. Values have the limits and choices of the rows in configs/defaults.py,
and fit each other by the rules in `rules`, however settings are made; so layers check nothing.

    layer = MoeLayer(MoeSettings(mlp_dim=64, num_experts=4, num_selected_experts=2, ...))
    layer = MoeLayer(mlp_dim=64, num_experts=4, num_selected_experts=2, ...)  # the same
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from widenet_jax.errors import choose
from widenet_jax.nn import rules
from widenet_jax.nn.moe.routers import ROUTERS, Router
from widenet_jax.specs import resolve


class FrozenMap(dict):
    """A dict that hashes, because nothing changes it; inner dicts become such maps, too."""

    def __init__(self, *mapping: Mapping[str, Any], **fields: Any):
        super().__init__({name: frozen(value) for name, value in dict(*mapping, **fields).items()})

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple:
        return FrozenMap, (dict(self),)


def frozen(value: Any) -> Any:
    """Returns a value that hashes: a `FrozenMap` for a mapping, a tuple for a list."""
    if hasattr(value, "items") and not isinstance(value, FrozenMap):  # also a ConfigDict
        return FrozenMap(value)
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


NO_FIELDS, NO_LOSSES = FrozenMap(), FrozenMap(load_balance=0.0, over="group")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What all layers of a block have; a section of a config that sets none has the model's.

    Attributes:
      dropout: rate after the layer.
      kernel_init: a name in `initializers.KERNEL_INITS`.
      depth: L, the number of blocks, on which some initialisers depend.
      dtype: "float32" or "bfloat16" of the computation; parameters are float32.
    """

    dropout: float = 0.0
    kernel_init: str = "glorot_uniform"
    depth: int = 1
    dtype: str = "float32"

    section: ClassVar[str]  # of the config
    module: ClassVar[str]  # dotted name of the layer

    def __post_init__(self):
        """Raises BadInputError where a field is out of range or does not fit another."""
        rules.check_values(self.section, vars(self))
        rules.check_rules(self.rules())

    def rules(self) -> Iterator[rules.Row]:
        """Yields the rules over several fields."""
        yield from ()


@dataclasses.dataclass(frozen=True)
class AdapterSettings:
    """Low-rank adapters of a stack's kernels, see `nn.adapters`.

    Attributes:
      rank: 0: none.
      tie: "weights", one for each stored kernel; or "none", one for each step that runs it.
      alpha: the factor of the product is alpha / rank.
    """

    rank: int = 0
    tie: str = "weights"
    alpha: float = 8.0

    def __post_init__(self):
        rules.check_values("model.adapter", vars(self))


NO_ADAPTER = AdapterSettings()


@dataclasses.dataclass(frozen=True)
class AttentionSettings(Settings):
    """What attention layers have.

    Attributes:
      num_heads: N.
      head_dim: H; 0: D / N.
      implementation: see `attention.implementations`.
    """

    num_heads: int
    head_dim: int = 0
    implementation: str = "auto"

    section: ClassVar[str] = "model.attention"
    use_bias: ClassVar[bool] = False
    needs_memory: ClassVar[bool] = False  # of tokens before the window
    takes_values: ClassVar[bool] = False  # apart from queries and keys

    def head_size(self, embed_dim: int) -> int:
        """Returns H."""
        return self.head_dim or embed_dim // self.num_heads

    def rules(self) -> Iterator[rules.Row]:
        yield from rules.attention_rules(self)


@dataclasses.dataclass(frozen=True)
class SelfAttentionSettings(AttentionSettings):
    """Settings of attention within an example or a window.

    Attributes:
      rope: share of a head's dimensions that rotate by the token's place, see `rotary.rotate`.
      qk_norm: whether queries and keys of each head are divided by their root mean square, and
        multiplied by learned weights, before they rotate (Henry et al. 2020, arXiv:2010.04245, has
        the L2 norm and a single learned number).
      causal: whether tokens see earlier ones and themselves only; the model decides.
      The rest: see `AttentionSettings`.
    """

    rope: float = 0.0
    qk_norm: bool = False
    causal: bool = False

    takes_values: ClassVar[bool] = True

    def pairs(self, T: int) -> int:
        """Returns how many pairs of a token and a token that it sees T tokens make."""
        return T * (T + 1) // 2 if self.causal else T * T


@dataclasses.dataclass(frozen=True)
class FullSettings(SelfAttentionSettings):
    """Settings of multi-head attention.

    Attributes:
      use_bias: of the four projections.
      The rest: see `SelfAttentionSettings`.
    """

    use_bias: bool = True

    module: ClassVar[str] = "widenet_jax.nn.attention.full:MultiHeadAttention"

    def forward_flops(self, B: int, T: int, D: int, *, memory: int = 0) -> int:
        """Returns the FLOPs of a layer in which T tokens see each other.

        8 T D W for queries, keys, values and output, W = N H; 4 W for each token and token that it
        sees, for the score and the weighted sum of values.
        """
        del memory
        W = self.num_heads * self.head_size(D)
        return B * (8 * T * D * W + 4 * self.pairs(T) * W)


@dataclasses.dataclass(frozen=True)
class SwitchHeadSettings(SelfAttentionSettings):
    """Settings of attention whose heads choose experts.

    Attributes:
      num_experts: A.
      num_selected_experts: K; no meaning with A = 1.
      entropy: weight of the loss.
      The rest: see `SelfAttentionSettings`.
    """

    num_experts: int = 1
    num_selected_experts: int = 2
    entropy: float = 0.001

    module: ClassVar[str] = "widenet_jax.nn.attention.switch_head:SwitchHead"

    def forward_flops(self, B: int, T: int, D: int, *, memory: int = 0) -> int:
        """Returns the FLOPs of a layer with its chosen experts, without their scores.

        4 T D W for queries and keys, 4 K T D W for values and output, W = N H; 4 W for each token
        and token that it sees.
        """
        del memory
        W = self.num_heads * self.head_size(D)
        K = 1 if self.num_experts == 1 else self.num_selected_experts
        return B * (4 * (1 + K) * T * D * W + 4 * self.pairs(T) * W)


@dataclasses.dataclass(frozen=True)
class RelativeSettings(AttentionSettings):
    """Settings of attention by distance, with a memory; see `AttentionSettings`."""

    module: ClassVar[str] = "widenet_jax.nn.attention.relative:RelativeAttention"
    needs_memory: ClassVar[bool] = True

    def forward_flops(self, B: int, T: int, D: int, *, memory: int = 0) -> int:
        """Returns the FLOPs of a layer in which T tokens see M earlier ones and those before them.

        4 T D W for queries and output, 4 (M + T) D W for keys and values, W = N H, and 6 W for each
        token and token that it sees: scores by content, scores by distance, the weighted sum. The
        keys of the distances are left out: all examples of a batch share them.
        """
        M, W = memory, self.num_heads * self.head_size(D)
        seen = T * M + T * (T + 1) // 2
        return B * ((4 * T + 4 * (M + T)) * D * W + 6 * seen * W)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FfnSettings(Settings):
    """What feed-forwards have.

    Attributes:
      mlp_dim: F, of the hidden layer.
      hidden_dropout: whether dropout acts after the hidden layer, too.
      activation: f, a name in `mlp.ACTIVATIONS`.
      output_activation: applies f to the output too, as the authors' released code does.
      use_bias: whether the layers have biases.
    """

    mlp_dim: int = dataclasses.field(kw_only=False)
    hidden_dropout: bool = True
    activation: str = "gelu_tanh"
    output_activation: bool = False
    use_bias: bool = True

    routes: ClassVar[bool] = False  # tokens to experts
    mixes: ClassVar[bool] = False  # a token's output depends on later tokens

    @property
    def products(self) -> int:
        """Number of products of D times F: with a gate three."""
        return 3 if self.activation in rules.GATED else 2

    def rules(self) -> Iterator[rules.Row]:
        yield from rules.activation_rules(self)


@dataclasses.dataclass(frozen=True)
class MlpSettings(FfnSettings):
    """Settings of the dense feed-forward.

    Attributes:
      output_dropout: whether dropout acts after the output layer.
      The rest: see `FfnSettings`.
    """

    output_dropout: bool = True

    section: ClassVar[str] = "model"
    module: ClassVar[str] = "widenet_jax.nn.mlp:Mlp"

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs of the two products, with a gate three."""
        return B * T * 2 * self.products * D * self.mlp_dim


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopKMlpSettings(MlpSettings):
    """Settings of the dense feed-forward that keeps a token's K largest hidden units.

    Attributes:
      num_active: K, 1 to F.
      The rest: see `MlpSettings`; the activation must be "relu".
    """

    num_active: int

    section: ClassVar[str] = "model.top_k_mlp"
    module: ClassVar[str] = "widenet_jax.nn.mlp:TopKMlp"

    def rules(self) -> Iterator[rules.Row]:
        yield from super().rules()
        yield from rules.top_k_rules(self)

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs: the output layer needs the K largest units only."""
        return B * T * 2 * D * (self.mlp_dim + self.num_active)


@dataclasses.dataclass(frozen=True)
class RouterSettings:
    """Settings of a router, whose class has fields of its own.

    Attributes:
      name: in `routers.ROUTERS`.
      fields: its own.
    """

    name: str = "top_k"
    fields: FrozenMap = NO_FIELDS

    @classmethod
    def of(cls, section: Mapping[str, Any] | str) -> "RouterSettings":
        """Returns the settings of a section `config.model.moe.router`, or of a name alone."""
        fields = {"name": section} if isinstance(section, str) else dict(section)
        return cls(fields.pop("name", ""), FrozenMap(fields))

    @property
    def kind(self) -> Router | type:
        """The entry of `routers.ROUTERS`: this project's router, or the class of a user's."""
        return resolve(choose(ROUTERS, self.name, field="config.model.moe.router.name"))

    @property
    def advice(self) -> str:
        """How to change a router whose fields are another's."""
        return (
            f"each router has its own fields: choose it after the colon, as :VARIANT,router="
            f"{self.name}, or set the whole section in a config file, config.model.moe.router = "
            f"{{'name': '{self.name}'}}"
        )

    @property
    def own_fields(self) -> tuple[str, ...] | None:
        """Names of the fields of one of this project's routers; None of a user's."""
        return (*self.kind.fields, *self.kind.idle) if isinstance(self.kind, Router) else None

    @property
    def experts_choose(self) -> bool:
        """Whether experts choose tokens: a token's experts depend on other tokens' scores."""
        return getattr(self.kind, "mixes", False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoeSettings(FfnSettings):
    """Settings of the mixture of experts.

    Attributes:
      mlp_dim: F of every expert.
      num_experts: E.
      num_selected_experts: K.
      shared_experts: n, more experts, which see every token (DeepSeekMoE, arXiv:2401.06066): one
        dense feed-forward of width n F, `shared`.
      capacity_factor: in training; `capacity_factor_eval` in evaluation, equal if experts choose.
      examples_per_group: examples routed together, a token group; results do not depend on the
        devices in use.
      capacity_rule: rule by which the factor becomes slots, see `slots.CAPACITY_RULES`.
      priority: which token gets a slot first, see `slots.PRIORITIES`.
      router: `name` in `routers.ROUTERS`, and that router's own fields.
      losses: weights of the balance losses (lambda of eq. 8), see `losses.balance_losses`.
      dispatch: see `dispatch.DISPATCHERS`; "auto" is the cheapest, see `dispatch.method_of`.
      output_dropout: rate after the weighted sum of the experts' outputs. Where it is not 0,
        `dropout` does not act after each expert's output.
      dropout, hidden_dropout, use_bias, activation, output_activation: of every expert.
      kernel_init: of the router, too.
      dtype: of the experts; the router runs in float32.
    """

    num_experts: int = dataclasses.field(kw_only=False)
    num_selected_experts: int = dataclasses.field(kw_only=False)
    capacity_factor: float = dataclasses.field(kw_only=False)
    capacity_factor_eval: float = dataclasses.field(kw_only=False)
    examples_per_group: int = dataclasses.field(kw_only=False)
    capacity_rule: str = "paper"
    priority: str = "token_order"
    router: RouterSettings = RouterSettings()
    losses: FrozenMap = NO_LOSSES
    dispatch: str = "auto"
    shared_experts: int = 0
    output_dropout: float = 0.0

    section: ClassVar[str] = "model.moe"
    module: ClassVar[str] = "widenet_jax.nn.moe.layer:MoeLayer"
    routes: ClassVar[bool] = True

    def __post_init__(self):
        if not isinstance(self.router, RouterSettings):
            object.__setattr__(self, "router", RouterSettings.of(self.router))
        object.__setattr__(self, "losses", FrozenMap({"over": "group", **self.losses}))
        super().__post_init__()

    @property
    def mixes(self) -> bool:
        """Whether a token's output depends on later tokens, in evaluation, too."""
        later_first = self.priority != "token_order" and self.capacity_rule != "unlimited"
        return self.router.experts_choose or later_first

    @property
    def without_load(self) -> str:
        """The line for a router without what the loss `load` needs."""
        return (
            f"config.model.moe.losses.load={self.losses.get('load')} needs a router with noise of "
            "its own size: config.model.moe.router.name=noisy_top_k or hierarchical; set the "
            "weight to 0"
        )

    @property
    def shared(self) -> MlpSettings:
        """Settings of the shared experts, which are one dense feed-forward."""
        names = {field.name for field in dataclasses.fields(FfnSettings)}
        fields = {name: value for name, value in vars(self).items() if name in names}
        width = self.shared_experts * self.mlp_dim
        return MlpSettings(**fields | {"mlp_dim": width}, output_dropout=not self.output_dropout)

    def rules(self) -> Iterator[rules.Row]:
        yield from super().rules()
        yield from rules.moe_rules(self)

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs of a token's K and shared experts, without router and dispatch."""
        width = self.mlp_dim * (self.num_selected_experts + self.shared_experts)
        return B * T * 2 * self.products * D * width


@dataclasses.dataclass(frozen=True)
class SoftMoeSettings(FfnSettings):
    """Settings of soft experts.

    Attributes:
      mlp_dim: F of every expert.
      num_experts: E.
      capacity_factor: c; an example of T tokens has p = max(1, round(c T / E)) slots an expert.
      dtype: of the products; logits and both softmaxes are float32.
      The rest: of the experts, see `FfnSettings`.
    """

    num_experts: int
    capacity_factor: float = 1.0

    section: ClassVar[str] = "model.soft_moe"
    module: ClassVar[str] = "widenet_jax.nn.moe.soft:SoftMoe"
    mixes: ClassVar[bool] = True

    def slots(self, tokens: int) -> int:
        """Returns p for examples of so many tokens."""
        return max(1, round(self.capacity_factor * tokens / self.num_experts))

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs of the experts on all slots, and of logits, dispatch and combine."""
        slots = self.num_experts * self.slots(T)
        return B * slots * 2 * D * (self.products * self.mlp_dim + 3 * T)


@dataclasses.dataclass(frozen=True)
class ProductKeySettings(Settings):
    """Settings of a product-key memory.

    Attributes:
      num_keys: n.
      num_heads: h.
      knn: number of pairs that a head reads.
      weights: "relu" of the scores, or "softmax" over a head's pairs.
      combine_heads: "after": the weighted values are added; "before": the scores are, before one
        choice, and with knn >= n every pair is chosen.
      query_dim: d of a projected query, even; 0: the query is the token, d = D.
      table_init: "embed_fan": both tables as a kernel with D inputs; "values_fan": the values as
        one with n^2; "lample": keys uniform in +-(d/2)^(-1/2), values N(0, 1/D).
      dtype: of the weighted sum; scores are float32, multiplied with all of its bits.
      The rest: see `Settings`.
    """

    num_keys: int
    num_heads: int
    knn: int
    weights: str = "relu"
    combine_heads: str = "after"
    query_dim: int = 0
    table_init: str = "embed_fan"

    section: ClassVar[str] = "model.product_key"
    module: ClassVar[str] = "widenet_jax.nn.product_key:ProductKey"
    routes: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    def rules(self) -> Iterator[rules.Row]:
        yield from rules.product_key_rules(self)

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs of the query, the sub-keys and the chosen values."""
        n, h, d = self.num_keys, self.num_heads, self.query_dim
        chosen = min(self.knn * h, n * n)
        if self.combine_heads == "before":
            chosen = n * n if self.knn >= n else self.knn
        return B * T * (2 * D * h * d + 2 * h * n * (d or D) + 2 * chosen * D)
