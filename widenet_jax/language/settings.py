"""Settings of language models, without JAX."""

import dataclasses
from collections.abc import Iterator

from widenet_jax.nn import rules
from widenet_jax.nn.stack_settings import ModelSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageSettings(ModelSettings):
    """Settings of a language model.

    Attributes:
      vocab_size: V.
      embed_dim: D, even.
      tied_output: whether the output layer is the embedding's transpose, without a bias.
      dropout: rate after the embedding and before the output layer, too.
      allow_mixing: whether a feed-forward may see later tokens (its attribute `mixes`); the losses
        then say nothing about predicting text.
      The rest: see `ModelSettings`.
    """

    vocab_size: int
    causal: bool = True
    exits: bool = True
    allow_mixing: bool = False
    tied_output: bool = False

    def rules(self) -> Iterator[rules.Row]:
        yield from super().rules()
        yield from rules.language_rules(self)
