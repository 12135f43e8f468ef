"""The text encoder: BERT, ALBERT and WideNet for text are settings of one module."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.nn.block_settings import BlockSettings
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.param_names import ENCODER
from widenet_jax.specs import head_spec, resolve
from widenet_jax.text.settings import TextSettings
from widenet_jax.typing import Array, Aux, PyTree, Shapes


class TextEncoder(BlockSettings):
    """Embeddings of tokens, a projection, blocks, and the head of a task.

    Parameters: embeddings/{token, token_type, position, norm}, projection, encoder (the blocks) and
    the head's: pooler, mlm, order, classifier, span.
    """

    stack: TextSettings

    @nn.compact
    def __call__(self, inputs: Mapping[str, Array], *, train: bool) -> tuple[PyTree, Aux]:
        """Encodes texts and applies the head.

        Padding is neither attended to nor routed nor counted.

        Args:
          inputs: tokens, token_types [B, T] int32; mask [B, T] bool, True for real tokens;
            optionally positions [B, T] int32, instead of 0 .. T-1; where rows are packed also
            segment_ids [B, T] int32, the number of each token's instance in the row, from 1 on, 0
            for padding: tokens attend within their instance. And the inputs of the head.
          train: with dropout and routing noise.

        Returns:
          The head's outputs, float32, and the blocks' aux.
        """
        dtype, mask = self.float_type, inputs["mask"]
        sizes = ("vocab_size", "num_token_types", "num_positions", "embedding_dim", "norm_epsilon")
        fields = {name: getattr(self, name) for name in sizes}
        embed = TokenEmbed(**fields, dtype=dtype, name="embeddings")
        x, table = embed(inputs["tokens"], inputs["token_types"], inputs.get("positions"))
        x = Dropout(self.dropout)(x, train=train)
        if self.projection:
            x = Dense(self.embed_dim, dtype, self.outer_init.kernel(), name="projection")(x)
        blocks = Blocks(self.stack, name=ENCODER)
        seen = {"mask": mask, "segment_ids": inputs.get("segment_ids")}
        x, aux, _ = blocks(x, **seen, loops=inputs.get("loops"), train=train)
        head = resolve(head_spec(self.head).apply)
        return head(self, x, table, inputs, train=train), aux

    def outside_flops(self, input_spec: Shapes) -> int:
        """Returns the FLOPs of an example's projection and head; embeddings count none."""
        T, D, E = self.num_tokens(input_spec), self.embed_dim, self.embedding_dim
        projection = 2 * T * E * D if self.projection else 0
        flops = head_spec(self.head).flops
        if flops is None:
            raise BadInputError(f"the head {self.head} counts no FLOPs; give its HeadSpec `flops`")
        return projection + resolve(flops)(self, input_spec)

    def num_tokens(self, input_spec: Shapes) -> int:
        """Returns T of an example."""
        return input_spec["tokens"].shape[1]


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
                f"(config.model.num_positions={self.num_positions}); add "
                f"--config.data.max_length={self.num_positions}, or, to train from scratch, "
                f"--config.model.num_positions={T}"
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
