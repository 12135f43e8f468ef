"""The mixture-of-experts layer: group, route, dispatch, experts, combine."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError, check_range, choose
from widenet_jax.moe.balance import load_balance_loss, routing_statistics
from widenet_jax.moe.dispatch import AUTO, DISPATCHERS, choose_dispatch
from widenet_jax.moe.experts import Experts
from widenet_jax.moe.routers import ROUTERS
from widenet_jax.moe.slots import assign_slots, capacity_limit
from widenet_jax.sharding import BATCH, constrain, platform
from widenet_jax.typing import Array, FfnOutput, Routing


class MoeLayer(nn.Module):
    """A feed-forward layer in which K of E experts see each token (WideNet, eqs. 1-5).

    Attributes:
      mlp_dim: F of every expert.
      num_experts: E.
      num_selected_experts: K.
      capacity_factor: C in training; `capacity_factor_eval` in evaluation.
      capacity: rule by which C becomes slots, see `slots.CAPACITY_RULES`.
      images_per_group: images routed together; results do not depend on the devices in use.
      priority: who gets a slot first, see `slots.PRIORITIES`.
      router: see `routers.ROUTERS`.
      noise_std: of the routing noise in training, in units of 1/E.
      load_balance_weight: lambda of eq. 8.
      dispatch: see `dispatch.DISPATCHERS`; "auto" is the cheapest, see `choose_dispatch`.
      dropout: after both layers of every expert.
      output_gelu: as in `layers.mlp.Mlp`.
      dtype: of the experts' computation; the router runs in float32.
    """

    mlp_dim: int
    num_experts: int
    num_selected_experts: int
    capacity_factor: float
    capacity_factor_eval: float
    images_per_group: int
    capacity: str = "paper"
    priority: str = "token_order"
    router: str = "top_k"
    noise_std: float = 0.0
    load_balance_weight: float = 0.0
    dispatch: str = AUTO
    dropout: float = 0.0
    output_gelu: bool = False
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        mask: Array | None = None,  # [B, T] True for real tokens
        train: bool,
        routing: Routing | None = None,
    ) -> FfnOutput:
        """Routes every token, or follows a `routing` made by an earlier block of its group.

        aux (empty when following): `loss`, already weighted; `load_balance_loss`; and the sums of
        `balance.routing_statistics`.

        Raises:
          BadInputError: images_per_group does not divide B, a field is out of range, or an
            unknown name.
        """
        B, T, D = x.shape
        self.check()
        g = 1 if B == 1 and not train else self.images_per_group
        check_group(B, g)
        mask = jnp.ones((B, T), bool) if mask is None else mask
        grouped = constrain(x.reshape(B // g, g * T, D), BATCH)  # [B, T, D] -> [G, S, D]
        group_mask = mask.reshape(B // g, g * T)
        limit, C = self.capacity_of(train), self.slots(g * T, train=train)

        aux = {}
        if routing is None:
            with jax.named_scope("router"):
                routing = self.route(grouped, group_mask, train=train)
                live = jnp.minimum(limit(group_mask.sum(axis=1, dtype=jnp.int32)), C)
                routing = assign_slots(
                    routing, group_mask, capacity=C, limit=live, priority=self.priority
                )
                balance = load_balance_loss(routing, group_mask)
                aux = {
                    "loss": self.load_balance_weight * balance,
                    "load_balance_loss": balance,
                    **routing_statistics(routing, group_mask, C),
                }

        experts = Experts(
            self.num_experts, self.mlp_dim, self.dropout, self.output_gelu, name="experts"
        )(D, train=train)
        method = self.method(g * T, train=train, platform=platform())
        y = DISPATCHERS[method](grouped.astype(self.dtype), routing, experts, capacity=C)
        y = constrain(y, BATCH).reshape(B, T, D)
        return FfnOutput(y=y, aux=aux, routing=routing)

    def check(self) -> None:
        """Raises BadInputError where a field is out of range."""
        section = "config.model.moe"
        check_range(f"{section}.capacity_factor", self.capacity_factor, 1e-3, 1e3)
        check_range(f"{section}.capacity_factor_eval", self.capacity_factor_eval, 1e-3, 1e3)
        check_range(f"{section}.noise_std", self.noise_std, 0, 1e3)
        selected = f"{section}.num_selected_experts"
        check_range(selected, self.num_selected_experts, 1, self.num_experts)

    def route(self, x: Array, mask: Array, *, train: bool) -> Routing:
        """The router in float32, whatever `dtype`: rounding would move tokens between experts.

        HIGHEST, because TPUs and recent GPUs multiply float32 in fewer bits by default.
        """
        logits = nn.Dense(
            self.num_experts,
            use_bias=False,
            dtype=jnp.float32,
            precision=jax.lax.Precision.HIGHEST,
            kernel_init=nn.initializers.glorot_uniform(),
            name="router",
        )(x.astype(jnp.float32))
        rng = self.make_rng("router") if train and self.noise_std > 0 else None
        route = choose(ROUTERS, self.router, field="config.model.moe.router")
        return route(
            logits,
            mask,
            rng,
            num_selected_experts=self.num_selected_experts,
            noise_std=self.noise_std,
        )

    def method(self, tokens: int, *, train: bool, platform: str) -> str:
        """The dispatch method for groups of `tokens`."""
        C = self.slots(tokens, train=train)
        return choose_dispatch(self.dispatch, platform=platform, group_tokens=tokens, capacity=C)

    def slots(self, tokens: int, *, train: bool) -> int:
        """C, of every expert in a group of `tokens`: at least one, at most the whole group."""
        return max(1, min(self.capacity_of(train)(tokens), tokens))

    def capacity_of(self, train: bool) -> partial:
        """A function from a group's number of real tokens to the slots an expert may fill."""
        return partial(
            capacity_limit,
            rule=self.capacity,
            capacity_factor=self.capacity_factor if train else self.capacity_factor_eval,
            num_selected=self.num_selected_experts,
            num_experts=self.num_experts,
        )


def check_group(
    batch_size: int, group: int, *, field: str = "config.model.moe.images_per_group"
) -> None:
    """Raises BadInputError, naming sizes that would do, unless groups fill the batch exactly."""
    if batch_size % group == 0:
        return
    divisors = [d for d in range(1, batch_size + 1) if batch_size % d == 0]
    near = sorted(sorted(divisors, key=lambda d: abs(d - group))[:3])
    whole = -(-batch_size // group) * group
    raise BadInputError(
        f"{field}={group} must divide the batch of {batch_size} images; "
        f"{' or '.join(map(str, near))}, or a batch of {whole}, would do"
    )
