"""SwitchHead: attention whose heads choose experts for values and for the output.

Csordás et al. 2023, arXiv:2312.07987; as MoEUT has it (arXiv:2405.16039, RobertCsordas/moeut).
"""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.nn.attention.full import SelfAttention
from widenet_jax.nn.dense import Dropout, KernelAndBias, linear
from widenet_jax.nn.moe.slots import chosen_experts
from widenet_jax.nn.settings import SwitchHeadSettings
from widenet_jax.typing import Array, Aux

SIDES = ("value", "out")


class SwitchHead(SelfAttention):
    """Attention with A experts of values and A of the output for each of its N heads.

    Of head n, the value of a token is sum_e s_e x Wv_e, over the K experts e of largest s_e, and
    the layer's output is sum_n sum_e s'_e a Wo_e, a the weighted sum of values. s = sigmoid(x W)
    is of the token whose value it is, s' of the token that asks. With A = 1 values and output are
    plain, and sigmoid(x w_n) of the token that asks is a gate on the output of head n.

    Parameters: the kernels query and key [D, N H]; value_experts [A, D, N H] and out_experts
    [A, N H, D]; value_router and out_router [D, N A]. With A = 1 the kernels value [D, N H] and
    out [N H, D], and out_router [D, N]. Nothing has biases.

    All A experts are computed, and the scores of those not chosen are 0: few large products, which
    take A / K times the operations of the chosen. Arrays of A values for each head and token are
    not kept for the backward pass.

    The loss, in training, is sum_e p_e log p_e, where p is the softmax of a head's logits averaged
    over the tokens of an example: the mean over examples and heads, once for s and once for s'. It
    belongs to one operation. Differs from MoEUT, whose p is also averaged over the loops of a
    layer: here each loop adds its own, so that the weight counts once a loop. The sizes of MoEUT
    divide it by their loops.
    """

    settings: SwitchHeadSettings

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        values: Array | None = None,  # [B, T, D] what values are made of; None: x
        mask: Array | None = None,  # [B, T] True for real tokens
        segment_ids: Array | None = None,  # [B, T] int32; replaces the mask
        train: bool,
    ) -> tuple[Array, Aux]:  # [B, T, D]
        """Attends within each example; with `segment_ids`, within equal numbers."""
        source, heads = x if values is None else values, self.queries_and_keys(x)
        seen = {"mask": mask, "segment_ids": segment_ids}
        if self.settings.num_experts == 1:
            y = self.attended(*heads, self.heads("value", source), **seen)
            gate = jax.nn.sigmoid(self.logits("out", x)).astype(y.dtype)
            return self.output(y * gate, x.shape[-1], train=train), {}
        logits = {side: self.logits(side, x) for side in SIDES}
        chosen = {side: self.chosen(logits[side]) for side in SIDES}
        scores = {
            side: jnp.where(chosen[side], jax.nn.sigmoid(logits[side]), 0).astype(self.float_type)
            for side in SIDES
        }
        D, W = x.shape[-1], self.settings.num_heads * self.settings.head_size(x.shape[-1])
        v = mixed_values(
            source.astype(self.float_type), self.experts("value", D, W), scores["value"]
        )
        y = self.attended(*heads, v, **seen)
        y = mixed_outputs(y, self.experts("out", W, D), scores["out"])
        y = Dropout(self.settings.dropout)(y, train=train)
        return y, self.aux(logits, chosen, jnp.ones(x.shape[:2], bool) if mask is None else mask)

    def logits(self, side: str, x: Array) -> Array:  # [B, T, D] -> [B, T, N, A]
        """Computes the scores of all experts before the sigmoid, in full float32."""
        N, A = self.settings.num_heads, self.settings.num_experts
        init = self.kernels.router()
        kernel = self.param(f"{side}_router", init, (x.shape[-1], N * A))
        # In float32, whatever `dtype`: rounding would move tokens between experts.
        x, highest = x.astype(jnp.float32), jax.lax.Precision.HIGHEST
        return jnp.einsum("btd,de->bte", x, kernel, precision=highest).reshape(*x.shape[:2], N, A)

    def chosen(self, logits: Array) -> Array:
        """Marks the K experts of largest logits, [B, T, N, A]."""
        _, index = jax.lax.top_k(logits, self.settings.num_selected_experts)
        return chosen_experts(index, self.settings.num_experts)

    def experts(self, side: str, rows: int, columns: int) -> Array:
        """Returns the kernels of one side, each drawn as one dense kernel."""
        shape = self.settings.num_experts, rows, columns
        init = self.kernels.kernel(batch_axis=(0,))
        return KernelAndBias(shape, None, init, name=f"{side}_experts")()[0]

    def aux(self, logits: Mapping, chosen: Mapping, mask: Array) -> Aux:
        """Returns the loss, and `attention_load` [2, N, A]: tokens of each expert, values first."""
        load = jnp.stack([(chosen[side] & mask[..., None, None]).sum((0, 1)) for side in SIDES])
        sums = {"attention_load": load.astype(jnp.int32)}
        if not self.settings.entropy:
            return {"loss": jnp.float32(0), "losses": {}, "sums": sums}
        loss = sum(negative_entropy(logits[side], mask) for side in SIDES)
        return {
            "loss": self.settings.entropy * loss,
            "losses": {"attention_entropy": loss},
            "sums": sums,
        }

    @staticmethod
    def summarize(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns attention_load [operations, 2, N, A], a head's shares; NaN where none ran."""
        if "attention_load" not in sums:
            return {}
        load = np.asarray(sums["attention_load"], np.float64)
        sent = load.sum(-1, keepdims=True)
        return {"attention_load": load / np.where(sent > 0, sent, np.nan)}


@jax.checkpoint
def mixed_values(x: Array, kernels: Array, scores: Array) -> Array:
    """Computes sum_a scores[a] x kernels[a] for each head.

    Args:
      x: [B, T, D].
      kernels: [A, D, N H] float32.
      scores: [B, T, N, A].

    Returns:
      [B, T, N, H].
    """
    B, T, N, A = scores.shape
    kernel = kernels.swapaxes(0, 1).reshape(x.shape[-1], -1)  # one product, the fastest on a CPU
    every = linear("btd,df->btf", x, kernel, None).reshape(B, T, A, N, -1)
    return (every * scores.swapaxes(2, 3)[..., None]).sum(2)


@jax.checkpoint
def mixed_outputs(y: Array, kernels: Array, scores: Array) -> Array:
    """Computes sum_n sum_a scores[n, a] y[n] kernels[a, n].

    Args:
      y: [B, T, N, H].
      kernels: [A, N H, D] float32.
      scores: [B, T, N, A].

    Returns:
      [B, T, D].
    """
    B, T = scores.shape[:2]
    every = y[:, :, None] * scores.swapaxes(2, 3)[..., None]  # [B, T, A, N, H]
    kernel = kernels.reshape(-1, kernels.shape[-1])
    return linear("btf,fd->btd", every.reshape(B, T, -1), kernel, None)


def negative_entropy(logits: Array, mask: Array) -> Array:
    """Returns sum_a p_a log p_a of the mean choice of each example and head, averaged over both.

    Args:
      logits: [B, T, N, A].
      mask: [B, T] True for real tokens.
    """
    real = mask[..., None, None]
    p = jnp.where(real, jax.nn.softmax(logits), 0).sum(1) / jnp.maximum(real.sum(1), 1)
    return (p * jnp.log(p + 1e-30)).sum(-1).mean()
