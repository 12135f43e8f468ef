"""Settings of text models, without JAX."""

import dataclasses
from collections.abc import Iterator

from widenet_jax.nn import rules
from widenet_jax.nn.stack_settings import ModelSettings
from widenet_jax.specs import head_spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextSettings(ModelSettings):
    """Settings of a text encoder.

    Attributes:
      vocab_size: V.
      head: a name in the `heads` of a `specs.TaskSpec`.
      num_classes: of the head "classification".
      embedding_dim: E, of the embeddings.
      projection: whether a linear map leads from E to D; without it E must be D.
      num_positions: rows of the position embeddings; an example may be shorter.
      num_token_types: rows of the token type embeddings.
      dropout: rate after the norm of the embeddings, too.
      The rest: see `ModelSettings`.
    """

    vocab_size: int
    head: str
    num_classes: int = 0
    embedding_dim: int
    projection: bool
    num_positions: int
    num_token_types: int = 2

    def rules(self) -> Iterator[rules.Row]:
        head_spec(self.head)  # raises where there is none
        yield from super().rules()
        yield from rules.text_rules(self)
