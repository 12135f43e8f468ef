"""Classification of texts and pairs of texts, as in GLUE."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from ml_collections import ConfigDict

from widenet_jax.corpus import texts
from widenet_jax.data.contract import ArraySpec, DataInfo, Source
from widenet_jax.losses import batch_loss, batch_sums, label_cross_entropy, split_metrics
from widenet_jax.task import Apply, Evaluation, Metrics, PrimaryMetric, Rngs, Task
from widenet_jax.typing import Array, Shapes


@dataclass(frozen=True)
class TextClassification(Task):
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

    primary_metric: ClassVar[PrimaryMetric] = PrimaryMetric("accuracy")
    unit: ClassVar[str] = "examples"

    @classmethod
    def build(cls, config: ConfigDict, data_info: DataInfo) -> "TextClassification":
        del config
        info = data_info.info
        return cls(info["vocab_size"], len(info["class_names"]), data_info.example)

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

    def evaluate(self, apply: Apply, batch: Mapping[str, Array]) -> Evaluation:
        logits, aux = apply(self.inputs(batch), None)
        cross_entropy = label_cross_entropy(logits, batch["label"])
        return batch_sums(cross_entropy, logits, batch, aux, unit=self.unit)

    def summarize(
        self, sums: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], source: Source
    ) -> dict[str, float]:
        del rows, source
        return split_metrics(sums, unit=self.unit)
