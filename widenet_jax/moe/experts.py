"""The experts: E feed-forward layers side by side, on buffers of slots or on sorted rows."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from widenet_jax.layers.dense import linear
from widenet_jax.layers.dropout import drop
from widenet_jax.layers.gelu import gelu
from widenet_jax.layers.mlp import BIAS_INIT
from widenet_jax.typing import Array


@flax.struct.dataclass
class ExpertFfn:
    """E layers as `layers.mlp.Mlp`, each with weights of its own: a function and its arrays.

    A pytree and no module, so that it may be called inside `jax.shard_map`.

    Attributes:
      wi: [E, D, F] float32; wi_bias: [E, F]; wo: [E, F, D]; wo_bias: [E, D].
      key: of the dropout after both layers; None is no dropout.
      dropout: its rate.
      output_gelu: a second GELU on the output.
    """

    wi: Array
    wi_bias: Array
    wo: Array
    wo_bias: Array
    key: Array | None
    dropout: float = flax.struct.field(pytree_node=False)
    output_gelu: bool = flax.struct.field(pytree_node=False)

    def on_buffers(self, x: Array) -> Array:  # [E, G, C, D] -> [E, G, C, D]
        return self.feed_forward(partial(linear, "egci,eio->egco"), x)

    def on_rows(self, x: Array, expert: Array, sizes: Array) -> Array:  # [N, D] -> [N, D]
        """Rows sorted by expert: `expert` [N] int32 and, of each, how many: `sizes` [E] int32.

        Rows past the last expert's (expert E) are nobody's: what goes in plays no part, what comes
        out means nothing.
        """
        of_expert = jax.nn.one_hot(expert, sizes.shape[0])  # [N, E]
        owned = (expert < sizes.shape[0])[:, None]

        def dense(x: Array, kernel: Array, bias: Array) -> Array:
            # A ragged product may leave anything in rows that are nobody's, forwards and backwards:
            # even NaN, which times 0 would still be NaN in the bias's gradient.
            y = jax.lax.ragged_dot(jnp.where(owned, x, 0), kernel.astype(x.dtype), sizes)
            # The bias as a product, because its gradient then scatters nothing; in float32, because
            # that gradient is a sum over rows.
            return jnp.where(owned, y, 0) + (of_expert @ bias).astype(x.dtype)

        return self.feed_forward(dense, x)

    def feed_forward(self, dense: Callable[[Array, Array, Array], Array], x: Array) -> Array:
        """`dense(x, kernel, bias)` twice, GELU and dropout between: x of any layout."""
        keys = (None, None) if self.key is None else jax.random.split(self.key)
        h = drop(gelu(dense(x, self.wi, self.wi_bias)), keys[0], self.dropout)
        y = dense(h, self.wo, self.wo_bias)
        return drop(gelu(y) if self.output_gelu else y, keys[1], self.dropout)


class Experts(nn.Module):
    """Holds the parameters of `ExpertFfn`: wi and wo, kernel [E, in, out] and bias [E, out]."""

    num_experts: int  # E
    mlp_dim: int  # F
    dropout: float
    output_gelu: bool

    @nn.compact
    def __call__(self, embed_dim: int, *, train: bool) -> ExpertFfn:
        E, D, F = self.num_experts, embed_dim, self.mlp_dim
        wi, wi_bias = ExpertDense((E, D, F), name="wi")()
        wo, wo_bias = ExpertDense((E, F, D), name="wo")()
        key = self.make_rng("dropout") if train and self.dropout else None
        return ExpertFfn(wi, wi_bias, wo, wo_bias, key, self.dropout, self.output_gelu)


class ExpertDense(nn.Module):
    """Holds kernel [E, in, out] and bias [E, out] under one name, as `nn.Dense` would."""

    shape: tuple[int, int, int]

    @nn.compact
    def __call__(self) -> tuple[Array, Array]:
        # Glorot with the fans of one expert's kernel: E is a batch axis, not part of a fan.
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", batch_axis=(0,))
        kernel = self.param("kernel", init, self.shape)
        bias = self.param("bias", BIAS_INIT, (self.shape[0], self.shape[2]), jnp.float32)
        return kernel, bias
