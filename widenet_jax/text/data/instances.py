"""The transform of pretraining: a chunk of sentences to the arrays of one masked sequence.

A packed set's examples are rows of several chunks. Each chunk becomes an instance with its own
[CLS], order label, positions and masks; attention stays within an instance.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from widenet_jax.corpus.chunking import SPECIALS
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data.contract import ArraySpec, Example
from widenet_jax.errors import check_range
from widenet_jax.text.data.masking import MaskingRules, cut, mask, truncate
from widenet_jax.text.data.sequences import padded

MOST_CHUNKS = 8  # in a packed row


class Instance(NamedTuple):
    """One masked pair of parts.

    Attributes:
      tokens: int32 [n], [CLS] A [SEP] B [SEP].
      token_types: int32 [n], 0 up to the first [SEP], then 1.
      positions: int64 [k], of the tokens to predict.
      labels: int32 [k].
      order: 1 if the parts are swapped, else 0.
    """

    tokens: np.ndarray
    token_types: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    order: int


@dataclasses.dataclass(frozen=True, eq=False)
class InstanceTransform:
    """Draws the instances of a chunk, or of a packed row of chunks.

    Attributes:
      rules: of masking.
      max_length: T, tokens of a sequence or a row.
      cls_id, sep_id, pad_id: of the special tokens.
    """

    rules: MaskingRules
    max_length: int
    cls_id: int
    sep_id: int
    pad_id: int

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Turns {"sentences": [ids, ...]} or {"chunks": [sentences, ...]} into a row of a batch."""
        if "chunks" in example:
            return self.row([self.instance(chunk, rng) for chunk in example["chunks"]])
        return self.sequence(self.instance(example["sentences"], rng))

    def sequence(self, one: Instance) -> dict[str, np.ndarray]:
        """Returns the arrays of one instance."""
        return {
            "tokens": self._padded(one.tokens, self.pad_id),
            "token_types": self._padded(one.token_types),
            "length": np.int32(len(one.tokens)),
            **self._predictions(one.positions, one.labels, self.rules.max_predictions),
            "order": np.int32(one.order),
        }

    def instance(self, sentences: Sequence[np.ndarray], rng: np.random.Generator) -> Instance:
        """Cuts, swaps, truncates and masks one chunk."""
        a, b = cut(sentences, self.rules.starts_word, rng)
        order = int(rng.integers(2))
        if order:
            a, b = b, a
        a, b = truncate(a, b, self.max_length - SPECIALS, rng)
        tokens = np.empty(len(a) + len(b) + SPECIALS, np.int32)
        second = len(a) + 2
        tokens[0], tokens[second - 1], tokens[-1] = self.cls_id, self.sep_id, self.sep_id
        tokens[1 : second - 1], tokens[second:-1] = a, b
        token_types = np.zeros(len(tokens), np.int32)
        token_types[second:] = 1
        tokens, positions, labels = mask(tokens, self.rules, rng)
        return Instance(tokens, token_types, positions, labels, order)

    def row(self, instances: Sequence[Instance]) -> dict[str, np.ndarray]:
        """Returns the arrays of a packed row of instances."""
        lengths = [len(one.tokens) for one in instances]
        firsts = np.cumsum([0, *lengths[:-1]])
        numbers = np.repeat(np.arange(1, len(instances) + 1), lengths)
        # Rounding may add half a token for each instance, and each has at least one.
        row_size = round(self.rules.mask_fraction * self.max_length) + MOST_CHUNKS
        order = np.zeros(MOST_CHUNKS, np.int32)
        order[: len(instances)] = [one.order for one in instances]
        tokens, token_types, labels = (
            np.concatenate([getattr(one, name) for one in instances])
            for name in ("tokens", "token_types", "labels")
        )
        places = [first + one.positions for first, one in zip(firsts, instances, strict=True)]
        return {
            "tokens": self._padded(tokens, self.pad_id),
            "token_types": self._padded(token_types),
            "positions": self._padded(np.concatenate([np.arange(n) for n in lengths])),
            "segment_ids": self._padded(numbers),
            **self._predictions(np.concatenate(places), labels, row_size),
            "order": order,
            "num_instances": np.int32(len(instances)),
        }

    def _padded(self, values: np.ndarray, fill: int = 0) -> np.ndarray:
        return padded(values, self.max_length, fill)

    def _predictions(
        self, positions: np.ndarray, labels: np.ndarray, size: int
    ) -> dict[str, np.ndarray]:
        return {
            "mlm_positions": padded(positions, size),
            "mlm_labels": padded(labels, size),
            "mlm_count": np.int32(len(positions)),
        }


def instance_transforms(
    config: Any, info: Mapping[str, Any]
) -> tuple[InstanceTransform, InstanceTransform]:
    """Builds the transform of `config.task` and `config.data`, for training and for evaluation.

    Args:
      config: of a run of the task "masked_lm".
      info: of the source; its "tokenizer" gives the special tokens and the beginnings of words.

    Raises:
      BadInputError: a field is out of range.
    """
    tokenizer = Tokenizer(info["tokenizer"])
    max_length = config.data.max_length
    check_range("config.task.max_predictions", config.task.max_predictions, 0, max_length)
    rules = MaskingRules(
        starts_word=tokenizer.starts_word,
        special=tokenizer.special,
        mask_id=tokenizer.mask_id,
        mask_fraction=config.task.mask_fraction,
        max_predictions=max_predictions(config),
        max_ngram=config.task.max_ngram,
    )
    ids = {name: getattr(tokenizer, name) for name in ("cls_id", "sep_id", "pad_id")}
    transform = InstanceTransform(rules, max_length, **ids)
    return transform, transform


def max_predictions(config: Any) -> int:
    """Returns P: the most tokens that are predicted in a sequence."""
    task = config.task
    return task.max_predictions or max(1, round(task.mask_fraction * config.data.max_length))


def instance_spec(config: Any, _: Any = None) -> dict[str, ArraySpec]:
    """Returns the arrays of one example that is not packed; see `specs.TaskSpec`."""
    row, scalar = ArraySpec((config.data.max_length,), "int32"), ArraySpec((), "int32")
    predictions = ArraySpec((max_predictions(config),), "int32")
    return {
        **dict.fromkeys(("tokens", "token_types"), row),
        **dict.fromkeys(("mlm_positions", "mlm_labels"), predictions),
        **dict.fromkeys(("length", "mlm_count", "order"), scalar),
    }
