"""The mixture of experts: route, assign slots, dispatch, run the experts, combine.

A router (`routers/`) chooses experts for each token, `slots` gives every choice a place in a buffer
or drops it, `dispatch` moves tokens to `experts` and back, `losses` keep the experts in use, and
statistics report how they were used; all of these read choices as the masks of `slots`.
`MoeLayer` puts them together.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from widenet_jax.config.imports import place_of
from widenet_jax.errors import (
    BadInputError,
    UnknownNameError,
    check_group,
    check_range,
    check_section,
    choose,
)
from widenet_jax.nn.dense import Dropout
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.mlp import ACTIVATIONS, Mlp, check_activation, products
from widenet_jax.nn.moe.dispatch import AUTO, DISPATCHERS, choose_dispatch
from widenet_jax.nn.moe.experts import build_experts
from widenet_jax.nn.moe.losses import balance_losses
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.nn.moe.slots import (
    UNLIMITED,
    assign_by_experts,
    assign_slots,
    capacity_limit,
    distinct,
    routing_statistics,
    summarize,
    tokens_without_expert,
)
from widenet_jax.param_names import BALANCE_BIAS
from widenet_jax.sharding import BATCH, constrain, platform
from widenet_jax.specs import resolve
from widenet_jax.typing import Array, Aux, FfnOutput, Routing

SECTION = "config.model.moe"


class MoeLayer(nn.Module):
    """A feed-forward layer in which K of E experts see each token (WideNet, eqs. 1-5).

    Attributes:
      mlp_dim: F of every expert.
      num_experts: E.
      num_selected_experts: K.
      shared_experts: n, more experts, which see every token (DeepSeekMoE, arXiv:2401.06066): one
        dense feed-forward of width n F, `shared`.
      capacity_factor: in training; `capacity_factor_eval` in evaluation.
      examples_per_group: examples routed together, a token group; results do not depend on the
        devices in use.
      capacity_rule: rule by which the factor becomes slots, see `slots.CAPACITY_RULES`.
      priority: which token gets a slot first, see `slots.PRIORITIES`.
      router: `name` in `routers.ROUTERS`, and that router's own fields.
      losses: weights of the balance losses (lambda of eq. 8), see `losses.balance_losses`.
      dispatch: see `dispatch.DISPATCHERS`; "auto" is the cheapest, see `choose_dispatch`.
      use_bias: whether both layers of an expert have a bias.
      dropout, hidden_dropout: in every expert, as in `nn.mlp.Mlp`.
      output_dropout: rate after the weighted sum of the experts' outputs. Where it is not 0,
        `dropout` does not act after each expert's output.
      activation, output_activation, kernel_init: as in `nn.mlp.Mlp`; the initialiser is the
        router's, too.
      dtype: dtype of the experts' computation; the router runs in float32.
    """

    mlp_dim: int
    num_experts: int
    num_selected_experts: int
    capacity_factor: float
    capacity_factor_eval: float
    examples_per_group: int
    capacity_rule: str = "paper"
    priority: str = "token_order"
    router: Mapping = FrozenDict(name="top_k")
    losses: Mapping = FrozenDict(load_balance=0.0, over="group")
    dispatch: str = AUTO
    shared_experts: int = 0
    use_bias: bool = True
    dropout: float = 0.0
    hidden_dropout: bool = True
    output_dropout: float = 0.0
    activation: str = "gelu_tanh"
    output_activation: bool = False
    kernel_init: KernelInit = KernelInit()
    dtype: jnp.dtype = jnp.float32

    routes = True  # blocks of a routing group follow one routing
    # Turns sums of aux over a set of batches into metrics.
    summarize = staticmethod(summarize)

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        mask: Array | None = None,  # [B, T] True for real tokens
        train: bool,
        routing: Routing | None = None,
        router: nn.Module | None = None,
        selection: Array | None = None,  # [B, T, D]
    ) -> FfnOutput:
        """Routes every token, or follows a `routing` of an earlier block in its routing group.

        The router is this layer's, or `router`, a part of the block; see `build_router`. It reads
        `selection`, or x.
        aux is {} when following.

        Raises:
          BadInputError: examples_per_group does not divide B, a field is out of range, or a name
            is unknown.
        """
        B, T, D = x.shape
        self.check()
        g = 1 if B == 1 and not train else self.examples_per_group
        check_group(B, g, field=f"{SECTION}.examples_per_group")
        mask = jnp.ones((B, T), bool) if mask is None else mask
        grouped = constrain(x.reshape(B // g, g * T, D), BATCH)  # [B, T, D] -> [G, S, D]
        C = self.slots(g * T, train=train)

        aux = {}
        if routing is None:
            with jax.named_scope("router"):
                mask = mask.reshape(B // g, g * T)
                router = router or self.build_router(parent=self, name="router")
                read = grouped if selection is None else selection.reshape(grouped.shape)
                routing, aux = self.route(router, read, mask, capacity=C, train=train)
        experts = build_experts(self, D, train=train, drops_output=not self.output_dropout)
        method = self.method(g * T, capacity=C, platform=platform())
        y = DISPATCHERS[method](grouped.astype(self.dtype), routing, experts, capacity=C)
        y = constrain(y, BATCH).reshape(B, T, D)
        if self.shared_experts:
            y = y + self.build_shared()(x, train=train).y
        y = Dropout(self.output_dropout)(y, train=train)
        return FfnOutput(y=y, aux=aux, routing=routing)

    def check(self) -> None:
        """Raises BadInputError where a field is out of range."""
        check_range(f"{SECTION}.capacity_factor", self.capacity_factor, 1e-3, 1e3)
        check_range(f"{SECTION}.capacity_factor_eval", self.capacity_factor_eval, 1e-3, 1e3)
        selected = f"{SECTION}.num_selected_experts"
        check_range(selected, self.num_selected_experts, 1, self.num_experts)
        check_range(f"{SECTION}.shared_experts", self.shared_experts, 0, 2**12)
        check_range(f"{SECTION}.output_dropout", self.output_dropout, 0.0, 0.99)
        choose(ACTIVATIONS, self.activation, field=f"{SECTION}.activation")
        check_activation(self.activation, self.output_activation)
        if self.experts_choose:
            self.check_experts_choose()

    def check_experts_choose(self) -> None:
        """Raises BadInputError at fields without meaning where experts choose tokens."""
        name = self.router["name"]
        if self.capacity_rule in (UNLIMITED, "literal"):
            raise BadInputError(
                f"{SECTION}.capacity_rule={self.capacity_rule}: with router.name={name} every "
                "expert would take every token; set capacity_rule=paper"
            )
        if odd := [key for key, w in self.losses.items() if key not in ("z", "over") and w]:
            raise BadInputError(
                f"{SECTION}.losses.{odd[0]}={self.losses[odd[0]]}: with router.name={name} loads "
                "are equal without a loss; set 0"
            )

    def route(
        self, router: nn.Module, x: Array, mask: Array, *, capacity: int, train: bool
    ) -> tuple[Routing, Aux]:
        """Routes token groups x [G, S, D], mask [G, S]: the routing with slots, and aux."""
        # The key is drawn in this layer's scope, whatever the router draws from it.
        key = self.make_rng("router") if train and self.has_rng("router") else None
        # In float32, whatever `dtype`: rounding would move tokens between experts.
        routing = self.called(router, x.astype(jnp.float32), mask, key=key, train=train)
        if not self.experts_choose:
            chosen = distinct(routing.expert_index, self.num_experts)
            routing = routing.replace(expert_index=chosen)
        if router.has_variable("params", BALANCE_BIAS) != (routing.balance_bias is not None):
            raise BadInputError(
                f"router {self.router['name']}: the parameter {BALANCE_BIAS} must be what it "
                f"returns as Routing.{BALANCE_BIAS}; rename the one, or return the other"
            )
        losses, loss = balance_losses(routing, mask, self.losses)
        limit = self.limit(mask.sum(axis=1, dtype=jnp.int32), train=train)
        limit = jnp.minimum(limit, capacity)
        if self.experts_choose:
            routing = assign_by_experts(routing, mask, capacity=capacity, limit=limit)
            lost = {"no_expert": tokens_without_expert(routing, mask), "dropped": jnp.int32(0)}
        else:
            slots = {"capacity": capacity, "limit": limit, "priority": self.priority}
            routing, lost = assign_slots(routing, mask, **slots), {}
        sums = routing_statistics(routing, mask, capacity) | lost
        return routing, {"loss": loss, "losses": losses, "sums": sums}

    def called(self, router: nn.Module, x: Array, mask: Array, **how: object) -> Routing:
        """Calls a router, perhaps a user's own; raises BadInputError where it is none."""
        try:
            routing = router(x, mask, **how)
        except Exception as error:
            if isinstance(error, BadInputError) or self.router_is_ours:
                raise
            file = inspect.getsourcefile(inspect.unwrap(type(router).__call__)) or ""
            raise BadInputError(
                f"router {self.router['name']} fails: {place_of(error, file)}"
            ) from error
        self.check_routing(routing, mask.shape)
        return routing

    def try_router(self, embed_dim: int) -> None:
        """Raises BadInputError where a user's router, run on random tokens, gives no probabilities.

        A run, which only traces its router, cannot see their values.
        """
        if self.router_is_ours:
            return
        x, mask = jax.random.normal(jax.random.key(0), (1, 16, embed_dim)), jnp.ones((1, 16), bool)
        for key in (None, jax.random.key(1)):
            run = partial(self.called, x=x, mask=mask, key=key, train=key is not None)
            router = self.build_router(parent=None, name=None)
            probs = nn.init_with_output(run, router)(jax.random.key(0))[0].router_probs
            sums = probs.astype(jnp.float32).sum(axis=-1)
            if not (jnp.all(probs >= 0) and jnp.allclose(sums, 1, atol=0.01)):
                raise BadInputError(
                    f"router {self.router['name']}: router_probs of a token must be a distribution "
                    f"over the experts, such as a softmax; the least is {probs.min():.3g}, the sum "
                    f"{sums.min():.3g} to {sums.max():.3g}"
                )

    def check_routing(self, routing: object, groups: tuple[int, int]) -> None:
        """Raises BadInputError where a router, perhaps a user's own, returns other arrays."""
        where = f"router {self.router['name']}"
        if not isinstance(routing, Routing):
            raise BadInputError(f"{where} returns {type(routing).__name__}; return a Routing")
        sizes = {"K": self.num_selected_experts, "E": self.num_experts}
        chosen = "E" if self.experts_choose else "K"
        names = {"expert_index": chosen, "gate": chosen, "router_probs": "E", "router_logits": "E"}
        for name, last in names.items():
            array, shape = getattr(routing, name), (*groups, sizes[last])
            if jnp.shape(array) != shape:
                raise BadInputError(
                    f"{where}: {name} is {list(jnp.shape(array))}; must be [G, S, {last}], here "
                    f"{list(shape)}"
                )
            kind = jnp.integer if name == "expert_index" else jnp.floating
            if not jnp.issubdtype(array.dtype, kind):
                must = "int32" if kind is jnp.integer else "float32"
                raise BadInputError(f"{where}: {name} is {array.dtype}; must be {must}")

    def forward_flops(self, B: int, T: int, D: int) -> int:
        """Returns the FLOPs of a token's K and shared experts, without router and dispatch."""
        width = self.mlp_dim * (self.num_selected_experts + self.shared_experts)
        return B * T * 2 * products(self.activation) * D * width

    def build_router(self, *, parent: nn.Module, name: str) -> nn.Module:
        """Builds the module of `self.router` as a submodule of `parent`.

        Raises:
          BadInputError: an unknown router, a field that is unknown or missing, or a class of the
            user's that is not as `nn.moe.routers` says.
        """
        fields = {key: value for key, value in self.router.items() if key != "name"}
        build = self.router_class()
        names = ("num_experts", "num_selected_experts", "kernel_init")
        try:
            check_section(build, fields, section=f"{SECTION}.router", decided=names)
        except UnknownNameError as error:
            raise UnknownNameError(
                f"{error}; each router has its own fields: a config file can set the whole "
                f"section, config.model.moe.router = {{'name': '{self.router['name']}'}}"
            ) from None
        taken = {field.name for field in dataclasses.fields(build)}
        if missing := [name for name in names if name not in taken]:
            raise BadInputError(f"router {self.router['name']} lacks the field {missing[0]}")
        try:
            inspect.signature(build.__call__).bind("self", "x", "mask", key="key", train="train")
        except TypeError as error:
            raise BadInputError(
                f"router {self.router['name']} is called as router(x, mask, *, key, train): {error}"
            ) from None
        common = {field: getattr(self, field) for field in names}
        return build(**common, **fields, parent=parent, name=name)

    def router_class(self) -> type[nn.Module]:
        """Returns the class of the router; raises BadInputError at an unknown name."""
        kind = self.router.get("name", "")
        return resolve(choose(ROUTERS, kind, field=f"{SECTION}.router.name"))

    @property
    def router_is_ours(self) -> bool:
        """Whether the router is one of this package, whose errors are no mistakes of a user."""
        return self.router_class().__module__.startswith("widenet_jax.")

    @property
    def experts_choose(self) -> bool:
        """Whether experts choose tokens: a token's experts depend on other tokens' scores."""
        return getattr(self.router_class(), "mixes", False)

    @property
    def mixes(self) -> bool:
        """Whether a token's output depends on later tokens, in evaluation, too."""
        later_first = self.priority != "token_order" and self.capacity_rule != UNLIMITED
        return self.experts_choose or later_first

    def build_shared(self) -> Mlp:
        """Returns the shared experts as one dense feed-forward."""
        return Mlp(
            self.shared_experts * self.mlp_dim,
            dropout=self.dropout,
            hidden_dropout=self.hidden_dropout,
            output_dropout=not self.output_dropout,
            activation=self.activation,
            output_activation=self.output_activation,
            use_bias=self.use_bias,
            kernel_init=self.kernel_init,
            dtype=self.dtype,
            name="shared",
        )

    def method(self, tokens: int, *, capacity: int, platform: str) -> str:
        """Returns the dispatch method for groups of `tokens` with `capacity` slots an expert."""
        return choose_dispatch(
            self.dispatch,
            platform=platform,
            group_tokens=tokens,
            capacity=capacity,
            share=self.num_selected_experts / self.num_experts,
            unlimited=self.capacity_rule == UNLIMITED,
        )

    def slots(self, tokens: int, *, train: bool) -> int:
        """Returns C of a group of `tokens`: at least one slot, at most the whole group."""
        return max(1, min(self.limit(tokens, train=train), tokens))

    def limit(self, tokens: Array | int, *, train: bool) -> Array | int:
        """Returns the slots that each expert may fill in a group of `tokens` real tokens."""
        factor = self.capacity_factor if train else self.capacity_factor_eval
        sizes = self.num_selected_experts, self.num_experts
        return capacity_limit(tokens, self.capacity_rule, factor, *sizes)


def dispatch_methods(model: Mapping, num_tokens: int, *, platform: str) -> dict[str, str]:
    """Returns the method that `config.model.moe.dispatch` stands for in each mode.

    Args:
      model: the section `config.model`.
      num_tokens: T of one example.
      platform: "tpu", "gpu" or "cpu".

    Returns:
      {"training": "einsum", "evaluation": "ragged"}, for example; {} where no block has experts.
    """
    if model.get("ffn") != "moe":
        return {}
    layer = MoeLayer(**model["moe"])
    tokens = layer.examples_per_group * num_tokens
    return {
        mode: layer.method(tokens, capacity=layer.slots(tokens, train=train), platform=platform)
        for mode, train in (("training", True), ("evaluation", False))
    }


def dispatch_text(methods: Mapping[str, str]) -> str:
    """Formats `dispatch_methods` as "einsum in training, ragged in evaluation"."""
    return ", ".join(f"{method} in {mode}" for mode, method in methods.items())
