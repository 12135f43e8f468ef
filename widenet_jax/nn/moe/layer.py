"""The mixture of experts: route, assign slots, dispatch, run the experts, combine.

A router (`routers/`) chooses experts for each token, `slots` gives every choice a place in a buffer
or drops it, `dispatch` moves tokens to `experts` and back, `losses` keep the experts in use, and
statistics report how they were used; all of these read choices as the masks of `slots`.
`MoeLayer` puts them together.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.extensions import router_class
from widenet_jax.nn.dense import Dropout
from widenet_jax.nn.mlp import Mlp
from widenet_jax.nn.module import Module
from widenet_jax.nn.moe import slots
from widenet_jax.nn.moe.dispatch import DISPATCHERS, method_of
from widenet_jax.nn.moe.experts import build_experts
from widenet_jax.nn.moe.losses import balance_losses
from widenet_jax.nn.rules import check_rules, group_rules
from widenet_jax.nn.settings import MoeSettings
from widenet_jax.sharding import BATCH, constrain, platform
from widenet_jax.typing import Array, Aux, FfnOutput, Routing


class MoeLayer(Module):
    """A feed-forward layer in which K of E experts see each token (WideNet, eqs. 1-5).

        y = sum over the K chosen experts i of gate_i e_i(x)    (1)

    The gates are `routers.softmax.route_top_k` (2, 5); `losses.load_balance_loss` (3, 4) enters
    the loss with its weight (8). By itself:

        layer = MoeLayer(
            mlp_dim=64,
            num_experts=4,
            num_selected_experts=2,
            capacity_factor=1.2,  # slots for each choice of a token
            capacity_factor_eval=2.0,
            examples_per_group=2,  # that share the slots
            router={"name": "top_k", "noise_std": 1.0},  # 0 by default: no noise
            losses={"load_balance": 0.01},  # none by default
        )
        params = layer.init(jax.random.key(0), x, train=False)  # x [B, T, D], B a multiple of 2
        output = layer.apply(params, x, train=True, rngs={"router": key})
        loss = task_loss(output.y) + output.aux["loss"]
    """

    settings: MoeSettings

    routes = True  # blocks of a routing group follow one routing
    # Turns sums of aux over a set of batches into metrics.
    summarize = staticmethod(slots.summarize)

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
        """
        s = self.settings
        check_rules(group_rules(x, s.examples_per_group, train=train))
        B, T, D = x.shape
        g = 1 if B == 1 and not train else s.examples_per_group
        mask = jnp.ones((B, T), bool) if mask is None else mask
        grouped = constrain(x.reshape(B // g, g * T, D), BATCH)  # [B, T, D] -> [G, S, D]
        C = slots.capacity(g * T, s, train=train)

        aux = {}
        if routing is None:
            with jax.named_scope("router"):
                mask = mask.reshape(B // g, g * T)
                router = router or self.build_router(parent=self, name="router")
                read = grouped if selection is None else selection.reshape(grouped.shape)
                routing, aux = self.route(router, read, mask, capacity=C, train=train)
        experts = build_experts(s, D, train=train, drops_output=not s.output_dropout)
        method = method_of(s, platform=platform(), group_tokens=g * T, train=train)
        # Eq. 1, the sum over the chosen experts.
        y = DISPATCHERS[method](grouped.astype(self.dtype), routing, experts, capacity=C)
        y = constrain(y, BATCH).reshape(B, T, D)
        if s.shared_experts:
            y = y + Mlp(s.shared, name="shared")(x, train=train).y
        y = Dropout(s.output_dropout)(y, train=train)
        return FfnOutput(y=y, aux=aux, routing=routing)

    def route(
        self, router: nn.Module, x: Array, mask: Array, *, capacity: int, train: bool
    ) -> tuple[Routing, Aux]:
        """Routes token groups x [G, S, D], mask [G, S]: the routing with slots, and aux."""
        s = self.settings
        # The key is drawn in this layer's scope, whatever the router draws from it.
        key = self.make_rng("router") if train and self.has_rng("router") else None
        # Eqs. 2 and 5. In float32, whatever `dtype`: rounding would move tokens between experts.
        routing = router(x.astype(jnp.float32), mask, key=key, train=train)
        # A user's router may choose one twice.
        if s.router.own_fields is None and not s.router.experts_choose:
            chosen = slots.distinct(routing.expert_index, s.num_experts)
            routing = routing.replace(expert_index=chosen)
        losses, loss = balance_losses(routing, mask, s.losses)  # eqs. 3, 4, 8
        limit = slots.capacity_limit(mask.sum(axis=1, dtype=jnp.int32), s, train=train)
        limit = jnp.minimum(limit, capacity)
        if s.router.experts_choose:
            routing = slots.assign_by_experts(routing, mask, capacity=capacity, limit=limit)
            lost = slots.tokens_without_expert(routing, mask)
            lost = {"no_expert": lost, "dropped": jnp.int32(0)}
        else:
            how = {"capacity": capacity, "limit": limit, "priority": s.priority}
            routing, lost = slots.assign_slots(routing, mask, **how), {}
        sums = slots.routing_statistics(routing, mask, capacity) | lost
        return routing, {"loss": loss, "losses": losses, "sums": sums}

    def build_router(self, *, parent: nn.Module | None, name: str | None) -> nn.Module:
        """Builds the router as a submodule of `parent`."""
        s, build = self.settings, router_class(self.settings)
        sizes = {"num_experts": s.num_experts, "num_selected_experts": s.num_selected_experts}
        return build(**sizes, kernel_init=self.kernels, **s.router.fields, parent=parent, name=name)
