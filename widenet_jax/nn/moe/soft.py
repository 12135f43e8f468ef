"""Soft MoE (Puigcerver et al. 2023, arXiv:2308.00951): experts see weighted means of all tokens."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.module import Module
from widenet_jax.nn.moe.dispatch import BUFFERS
from widenet_jax.nn.moe.experts import build_experts
from widenet_jax.nn.settings import SoftMoeSettings
from widenet_jax.sharding import BATCH, constrain
from widenet_jax.typing import Array, FfnOutput, Routing

EPSILON = 1e-6  # added to squared norms


class SoftMoe(Module):
    """y_t = sum over slots of softmax_slots(l_t) F(sum over tokens of softmax_tokens(l) x).

    l = scale (x / |x|) . (mu / |mu|), one mu [D] for each of the p slots of each of the E experts;
    all tokens of an example take part in every slot. Padding is not among the tokens; its own
    outputs are computed but never read. Parameters: `mu` [D, E, p], `scale`, 1 at first, `experts`.

    The initialisation fixes the number of slots, also of shorter and longer examples. A model that
    is finetuned on such examples needs another `capacity_factor` for as many slots.
    """

    settings: SoftMoeSettings

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        mask: Array | None = None,  # [B, T] True for real tokens
        train: bool,
        routing: Routing | None = None,
    ) -> FfnOutput:
        """Ignores `routing`, which belongs to the feed-forward contract."""
        del routing
        experts = build_experts(self.settings, x.shape[-1], train=train, drops_output=True)
        with jax.named_scope("router"):
            logits = self.logits(x.astype(jnp.float32))  # [B, T, E, p]
            real = True if mask is None else mask[..., None, None]
            # Finite, so that an example of padding alone has no NaN.
            over_tokens = jnp.where(real, logits, jnp.finfo(logits.dtype).min)
            dispatch = jax.nn.softmax(over_tokens, axis=1).astype(self.dtype)
            combine = jax.nn.softmax(logits, axis=(2, 3)).astype(self.dtype)
        with jax.named_scope("dispatch"):
            buffers = jnp.einsum("btep,btd->ebpd", dispatch, x.astype(self.dtype))
        with jax.named_scope("experts"):
            outputs = constrain(experts.on_buffers(constrain(buffers, BUFFERS)), BUFFERS)
        with jax.named_scope("combine"):
            y = jnp.einsum("btep,ebpd->btd", combine, outputs)
        return FfnOutput(y=constrain(y, BATCH), aux={})

    def logits(self, x: Array) -> Array:  # [B, T, D] -> [B, T, E, p]
        """Returns the scores of all slots for each token, without a mask."""
        D = x.shape[-1]
        if self.is_initializing():
            shape = D, self.settings.num_experts, self.settings.slots(x.shape[1])
        else:
            shape = self.get_variable("params", "mu").shape
        mu = self.param("mu", nn.initializers.normal(D**-0.5), shape)
        scale = self.param("scale", nn.initializers.ones, ())
        directions = unit(mu, axis=0) * scale
        return jnp.einsum(
            "btd,dep->btep", unit(x, axis=-1), directions, precision=jax.lax.Precision.HIGHEST
        )


def unit(x: Array, *, axis: int) -> Array:
    """Returns x / |x| along an axis."""
    return x * jax.lax.rsqrt((x * x).sum(axis=axis, keepdims=True) + EPSILON)
