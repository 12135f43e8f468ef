"""Tiny text sets that a tiny model learns in seconds, and the tokenizer of their words."""

import atexit
import functools
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from widenet_jax.config.files import load_config

ROOT = Path(__file__).parents[1]
NAMES = ["anna", "bob", "carl", "dora", "emil", "fay"]
PLACES = ["oslo", "rome", "cairo", "lima", "delhi", "paris"]
FILLERS = ["the", "day", "was", "long", "and", "quiet"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*NAMES, *PLACES, *FILLERS, "good", "bad", "lives", "in", "where", "does", "live", ".", "?"]


@functools.cache
def text_directory() -> str:
    """Returns a directory with questions, scores and the tokenizer, which ends with the process."""
    directory = tempfile.TemporaryDirectory(prefix="texts")
    atexit.register(directory.cleanup)
    write_squad(Path(directory.name))
    write_scores(Path(directory.name))
    write_tokenizer(Path(directory.name))
    return directory.name


def write_tokenizer(directory: Path, words: Sequence[str] = WORDS) -> Path:
    """Writes a vocab.txt; the ids of the words are 5, 6, ..."""
    file = directory / "vocab.txt"
    file.write_text("\n".join([*SPECIAL, *words]))
    return file


def nll(logits: np.ndarray, label: int) -> float:
    """Returns the negative log-likelihood of a label, in float64."""
    scores = np.asarray(logits, np.float64)
    return float(np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[label])


def write_table(directory: Path) -> None:
    """Writes train.tsv and dev.tsv: a text is positive where it holds "good"."""
    rng = random.Random(0)
    for split, count in (("train", 96), ("dev", 40)):
        rows = ["sentence\tlabel"]
        for number in range(count):
            words = rng.choices(FILLERS, k=rng.randint(2, 5))
            words.insert(rng.randint(0, len(words)), ("bad", "good")[number % 2])
            rows.append(f"{' '.join(words)}\t{('negative', 'positive')[number % 2]}")
        (directory / f"{split}.tsv").write_text("\n".join(rows) + "\n")


def write_scores(directory: Path) -> None:
    """Writes train.tsv and dev.tsv as STS-B's: 2.5 for each sentence of a pair with "good"."""
    rng = random.Random(0)
    for split, count in (("train", 96), ("dev", 40)):
        rows = ["index\tsentence1\tsentence2\tscore"]
        for number in range(count):
            ends = ["good" if number & bit else "bad" for bit in (1, 2)]
            pair = [" ".join([*rng.choices(FILLERS, k=2), end]) for end in ends]
            rows.append("\t".join([str(number), *pair, f"{2.5 * ends.count('good'):.3f}"]))
        (directory / f"{split}.tsv").write_text("\n".join(rows) + "\n")


def write_squad(directory: Path, dev: int = 24) -> None:
    """Writes train-v2.0.json and dev-v2.0.json: where someone lives, if the context tells."""
    rng = random.Random(0)
    for split, count in (("train", 64), ("dev", dev)):
        paragraphs = []
        for number in range(count):
            who, other = rng.sample(NAMES, 2)
            place = rng.choice(PLACES)
            filler = " ".join(rng.choices(FILLERS, k=rng.randint(0, 12)))
            context = f"{filler} . {who} lives in {place} .".strip()
            answers = [{"text": place, "answer_start": context.index(place)}]
            known = number % 3 > 0
            question = {
                "id": f"{split}{number}",
                "question": f"where does {who if known else other} live ?",
                "answers": answers if known else [],
                "is_impossible": not known,
            }
            paragraphs.append({"context": context, "qas": [question]})
        content = {"version": "v2.0", "data": [{"title": split, "paragraphs": paragraphs}]}
        (directory / f"{split}-v2.0.json").write_text(json.dumps(content))


def reviews_config(directory: Path) -> ConfigDict:
    """Returns the config of a run on the table and the tokenizer in a directory."""
    config = load_config(f"{ROOT}/configs/glue.py:own,model=widenet_4_tiny,depth=1")
    config.update_from_flattened_dict({
        "batch_size": 16, "evaluation.batch_size": 16, "log_every_steps": 1,
        "duration": "40 steps", "optimizer.warmup": "4 steps", "optimizer.learning_rate": 3e-3,
        "evaluation.every": "20 steps", "checkpoint.every": "40 steps",
        "tracking.tensorboard": False, "data.max_length": 16,
        "data.path": str(directory), "data.tokenizer": str(directory / "vocab.txt"),
    })  # fmt: skip
    return config
