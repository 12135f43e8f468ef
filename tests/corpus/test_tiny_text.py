"""The embedded text and its place in the package."""

import pickle
import tomllib
from pathlib import Path

import numpy as np

from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.data.sources import build_source
from widenet_jax.text.data.text_records import TinyText

ROOT = Path(__file__).parents[2]


def test_both_splits_hold_whole_chapters():
    train, valid = (
        build_source({"source": "tiny_text", "max_length": 128}, split)
        for split in ("train", "valid")
    )
    assert train.info == valid.info and train.info["vocab_size"] == 2000
    tokens = [
        sum(len(sentence) for k in range(len(source)) for sentence in source[k]["sentences"])
        for source in (train, valid)
    ]
    assert sum(tokens) > 100_000 and 0.05 < tokens[1] / sum(tokens) < 0.1
    assert 5.5 < train.info["unigram_entropy"] < 6.5


def test_every_character_has_a_piece():
    source = TinyText({"max_length": 128}, "train", {})
    unknown = [np.sum(s == 1) for k in range(len(source)) for s in source[k]["sentences"]]
    assert sum(unknown) == 0


def test_the_length_of_chunks_follows_the_config():
    sources = [TinyText({"max_length": max_length}, "train", {}) for max_length in (64, 512)]
    for source, room in zip(sources, (61, 509), strict=True):
        lengths = [sum(map(len, source[k]["sentences"])) for k in range(len(source))]
        assert np.mean(np.array(lengths) >= room) > 0.5
    assert len(sources[0]) > 2 * len(sources[1])


def test_a_pickled_copy_reads_the_same():
    source = TinyText({"max_length": 128}, "valid", {})
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy[3]["sentences"][0], source[3]["sentences"][0])
    assert copy.describe(3) == "embedded text, valid sequence 3"


def test_the_package_includes_the_files():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    [pattern] = patterns["package-data"]["widenet_jax.corpus.tiny"]
    assert {FOLDER / "tokenizer.json", TEXT} <= set(FOLDER.glob(pattern))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 600_000
