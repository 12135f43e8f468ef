"""Settings of image models, without JAX."""

import dataclasses
from collections.abc import Iterator

from widenet_jax.nn import rules
from widenet_jax.nn.stack_settings import ModelSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionSettings(ModelSettings):
    """Settings of a vision transformer.

    Attributes:
      num_classes: V.
      patch_size: in pixels.
      cls_token: "learned", "zero" or "none", see `model.PositionEmbed`.
      pool: "token" (the CLS token) or "mean".
      pre_logits: a tanh layer D -> D before the classifier (pretraining).
      dropout: rate after the embedding, too.
      The rest: see `ModelSettings`.
    """

    num_classes: int
    patch_size: int
    cls_token: str
    pool: str
    pre_logits: bool

    def rules(self) -> Iterator[rules.Row]:
        yield from super().rules()
        yield from rules.vision_rules(self)
