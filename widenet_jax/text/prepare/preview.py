"""Training examples of pretraining as text: masked instances."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.config.parser import Options
from widenet_jax.corpus.tokenizer import WORD_MARKS, Tokenizer
from widenet_jax.data.blocks import augmentation_rng, read_example
from widenet_jax.data.sources import build_source, build_transforms

LEGEND = "[MASK]{word}: hidden; other{word}: replaced; word{word}: kept, and predicted all the same"


def print_instances(config: Any, options: Options) -> None:
    """Prints masked instances as a run draws them: records spread over the training split.

    Each record has the instances of the first epochs, by the flags --num, --draws and --seed.
    """
    source = build_source(config.data, config.data.train_split)
    transform, _ = build_transforms(config, source.info)
    tokenizer = Tokenizer(source.info["tokenizer"])
    chosen = np.linspace(0, len(source) - 1, min(options.num, len(source))).astype(int)
    print(LEGEND)
    for record in chosen.tolist():
        print(f"\n{source.describe(record)}")
        for epoch in range(options.draws or 2):
            rng = augmentation_rng(seed=options.seed, epoch=epoch, record=record)
            row = transform(read_example(source, record), rng)
            pairs = zip(row["mlm_positions"], row["mlm_labels"], strict=True)
            predicted = dict(itertools.islice(pairs, row["mlm_count"]))
            for tokens, swapped in _instances(row):
                labels = {k: predicted[k] for k in tokens if k in predicted}
                order = "swapped" if swapped else "in order"
                print(f"  epoch {epoch}: {order}, {len(tokens)} tokens, {len(labels)} predicted")
                print(f"    {_text(row['tokens'], tokens, labels, tokenizer)}")


def _instances(row: Mapping[str, np.ndarray]) -> Iterator[tuple[Sequence[int], int]]:
    """Yields the positions and the order label of each instance of a row."""
    if "segment_ids" not in row:
        yield range(row["length"]), row["order"]
        return
    for number in range(row["num_instances"]):
        yield np.flatnonzero(row["segment_ids"] == number + 1).tolist(), row["order"][number]


def _text(
    tokens: np.ndarray, positions: Sequence[int], labels: Mapping[int, int], tokenizer: Tokenizer
) -> str:
    """Returns an instance as text, the true pieces of predicted tokens in braces."""
    text = ""
    for position in positions:
        piece = tokenizer.token(tokens[position])
        if tokenizer.starts_word[tokens[position]] or position in labels:
            text += " "
        text += _plain(piece)
        if position in labels:
            text += "{" + _plain(tokenizer.token(labels[position])) + "}"
    return " ".join(text.split())


def _plain(piece: str) -> str:
    return piece.removeprefix("##").lstrip("".join(WORD_MARKS))
