"""Classification of texts and pairs of texts, as in GLUE."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ml_collections import ConfigDict

from widenet_jax.corpus import texts
from widenet_jax.data.contract import ArraySpec, DataInfo
from widenet_jax.losses import LabelTask, batch_loss, label_cross_entropy
from widenet_jax.task import Apply, Metrics, Rngs
from widenet_jax.typing import Array, Shapes


@dataclass(frozen=True)
class TextClassification(LabelTask):
    """Mean cross-entropy plus the feed-forwards' own losses.

    A batch has tokens, token_types [B, T], length [B] and label [B], all int32.

    Attributes:
      vocab_size: of the tokenizer.
      num_classes: V.
      example: the arrays of one example.
    """

    vocab_size: int
    num_classes: int
    example: Mapping[str, ArraySpec]

    unit: ClassVar[str] = "examples"

    @classmethod
    def build(cls, _: ConfigDict, data_info: DataInfo) -> "TextClassification":
        info = data_info.info
        shared = {"largest_share": data_info.largest_share}
        return cls(info["vocab_size"], len(info["class_names"]), data_info.example, **shared)

    @property
    def model_fields(self) -> dict[str, int | str]:
        return {
            "vocab_size": self.vocab_size,
            "head": "classification",
            "num_classes": self.num_classes,
        }

    def batch_spec(self, batch_size: int) -> Shapes:
        return texts.batch_spec(self.example, batch_size)

    def inputs(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        return texts.encoder_inputs(batch)

    def loss(self, apply: Apply, batch: Mapping[str, Array], rngs: Rngs) -> tuple[Array, Metrics]:
        logits, aux = apply(self.inputs(batch), rngs)
        cross_entropy = label_cross_entropy(logits, batch["label"]).mean()
        return batch_loss(cross_entropy, logits.argmax(-1) == batch["label"], aux)
