"""Embeddings of tokens: the sum of token, token type and position embeddings, normalised."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.typing import Array


class TokenEmbed(nn.Module):
    """e = LayerNorm(token[id] + token_type[s] + position[t]) (BERT).

    All three tables are N(0, 0.02) cut at two standard deviations. The sum is in float32.

    Attributes:
      vocab_size: V.
      num_token_types, num_positions: rows of the other two tables.
      embedding_dim: E.
      norm_epsilon: of the LayerNorm. Its input has a variance of 1e-3, so that an epsilon of 1e-6
        would change the result by 5e-4.
      dtype: of the result.
    """

    vocab_size: int
    num_token_types: int
    num_positions: int
    embedding_dim: int
    norm_epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        tokens: Array,  # [B, T] int32
        token_types: Array,  # [B, T] int32
        positions: Array | None = None,  # [B, T] int32; None: 0 .. T-1
    ) -> tuple[Array, Array]:
        """Returns the embeddings [B, T, E], and the tokens' table [V, E] for a tied output layer.

        Raises:
          BadInputError: an example is longer than the table of positions.
        """
        T = tokens.shape[1]
        if self.num_positions < T:
            raise BadInputError(
                f"config.data.max_length={T} is more than the model's positions "
                f"(config.model.num_positions={self.num_positions})"
            )
        init = KernelInit("truncated_normal").kernel()
        token = self.param("token", init, (self.vocab_size, self.embedding_dim))
        token_type = self.param("token_type", init, (self.num_token_types, self.embedding_dim))
        position = self.param("position", init, (self.num_positions, self.embedding_dim))
        x = jnp.take(token, tokens, axis=0) + rows_at(token_type, token_types)
        x = x + (position[:T] if positions is None else rows_at(position, positions))
        norm = nn.LayerNorm(epsilon=self.norm_epsilon, dtype=self.dtype, name="norm")
        return norm(x), token


def rows_at(x: Array, index: Array) -> Array:
    """Returns rows x[..., index, :] by a product with one-hots, whose gradient scatters nothing.

    Rows of a table are exact. Those of examples are rounded to bfloat16 on TPUs, as the inputs of
    other products are there by default.

    Args:
      x: [N, D], or [B, N, D] with examples of their own rows.
      index: [B, P] int32; an index that is no row gives zeros.

    Returns:
      [B, P, D].
    """
    one_hot = jax.nn.one_hot(index, x.shape[-2], dtype=x.dtype)
    if x.ndim == 3:
        return jnp.einsum("bpn,bnd->bpd", one_hot, x)
    return jnp.einsum("bpn,nd->bpd", one_hot, x, precision=jax.lax.Precision.HIGHEST)
