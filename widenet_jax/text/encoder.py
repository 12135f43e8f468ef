"""The text encoder: BERT, ALBERT and WideNet for text are settings of one module."""

from collections.abc import Mapping

import flax.linen as nn

from widenet_jax.errors import BadInputError
from widenet_jax.nn.block_settings import DTYPES, BlockSettings
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.param_names import ENCODER
from widenet_jax.specs import head_spec, resolve
from widenet_jax.text.embeddings import TokenEmbed
from widenet_jax.typing import Array, Aux, PyTree, Shapes


class TextEncoder(BlockSettings, kw_only=True):
    """Embeddings of tokens, a projection, blocks, and the head of a task.

    Parameters: embeddings/{token, token_type, position, norm}, projection, encoder (the blocks) and
    the head's: pooler, mlm, order, classifier, span.

    Attributes:
      vocab_size: V.
      head: a name in the `heads` of a `specs.TaskSpec`.
      num_classes: of the head "classification".
      embed_dim: D.
      embedding_dim: E, of the embeddings.
      projection: whether a linear map leads from E to D; without it E must be D.
      num_positions: rows of the position embeddings; an example may be shorter.
      num_token_types: rows of the token type embeddings.
      dropout: rate after the norm of the embeddings, too.
      The rest: see `block_settings.BlockSettings`.
    """

    vocab_size: int
    head: str
    num_classes: int = 0
    embed_dim: int
    embedding_dim: int
    projection: bool
    num_positions: int
    num_token_types: int = 2

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
        dtype, mask = DTYPES[self.dtype], inputs["mask"]
        embed = TokenEmbed(
            vocab_size=self.vocab_size,
            num_token_types=self.num_token_types,
            num_positions=self.num_positions,
            embedding_dim=self.embedding_dim,
            norm_epsilon=self.norm_epsilon,
            dtype=dtype,
            name="embeddings",
        )
        x, table = embed(inputs["tokens"], inputs["token_types"], inputs.get("positions"))
        x = Dropout(self.dropout)(x, train=train)
        if self.projection:
            x = Dense(self.embed_dim, dtype, self.outer_init.kernel(), name="projection")(x)
        blocks = Blocks(**self.settings(), name=ENCODER)
        x, aux, _ = blocks(x, mask=mask, segment_ids=inputs.get("segment_ids"), train=train)
        head = resolve(head_spec(self.head).apply)
        return head(self, x, table, inputs, train=train), aux

    def check(self) -> None:
        """Raises BadInputError where a field is unknown, out of range or contradicts another."""
        super().check()
        head_spec(self.head)
        self.check_attention(self.embed_dim, memory=False)
        if not self.projection and self.embedding_dim != self.embed_dim:
            raise BadInputError(
                f"config.model.projection=false needs embeddings as wide as the blocks, but "
                f"config.model.embedding_dim={self.embedding_dim} and "
                f"config.model.embed_dim={self.embed_dim}"
            )

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
