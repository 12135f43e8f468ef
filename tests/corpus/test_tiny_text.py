"""The embedded text and its place in the package."""

import pickle
import tomllib
from pathlib import Path

import numpy as np
import pytest

from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadInputError
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
    lengths, sizes = {}, {}
    for max_length in (64, 512):
        source = TinyText({"max_length": max_length}, "train", {})
        full = [sum(map(len, source[k]["sentences"])) >= max_length - 3 for k in range(len(source))]
        lengths[max_length], sizes[max_length] = np.mean(full), len(source)
    assert min(lengths.values()) > 0.5
    assert sizes[64] > 2 * sizes[512]


def test_a_pickled_copy_reads_the_same():
    source = TinyText({"max_length": 128}, "valid", {})
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy[3]["sentences"][0], source[3]["sentences"][0])
    assert copy.describe(3) == "embedded text, valid sequence 3"


def test_an_unknown_split():
    with pytest.raises(BadInputError, match="no split 'test'"):
        TinyText({"max_length": 128}, "test", {})


def test_the_package_includes_the_files():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    [pattern] = patterns["package-data"]["widenet_jax.corpus"]
    assert {FOLDER / "tokenizer.json", TEXT} <= set(FOLDER.parent.glob(pattern))
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 600_000
