"""Streams of tokens: which windows a row reads, whoever reads them; mistakes in one line."""

import dataclasses
import gzip
import hashlib
import json
import pickle
import types
from pathlib import Path

import numpy as np
import pytest
from batch_streams import assert_same
from batch_streams import eval_stream as eval_stream_of
from batch_streams import train_stream as train_stream_of

from widenet_jax.config.fields import override
from widenet_jax.config.files import load_config
from widenet_jax.corpus.inputs import Passage
from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.data import blocks
from widenet_jax.data.sources import build_source, open_data, overview, unigram_bits
from widenet_jax.errors import BadInputError
from widenet_jax.language.data.token_streams import (
    TokenStream,
    in_memory,
    open_stream,
    window_transform,
)
from widenet_jax.language.data.tokens import Encoder, sample_sha256

ROOT = Path(__file__).parents[3]
T, B = 3, 2
SPLITS = ("train", "valid", "test", "all")


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A file of the bytes 0, 1, ..., 199: its training split holds 0 to 179."""
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(200)))
    return str(path)


def train_stream(source: TokenStream, **changes) -> list[dict[str, np.ndarray]]:
    return train_stream_of(source, window_transform, B, **{"num_steps": 70, **changes})


def eval_stream(source: TokenStream, batch_size: int, **changes) -> list[dict]:
    return eval_stream_of(source, window_transform, batch_size, **changes)


def test_a_hand_worked_epoch(text):
    """180 tokens make 59 windows of 3, so 29 batches of 2 rows; the 59th window is left out."""
    batches = train_stream(open_stream(text, "train", T))
    assert [b["fresh"].tolist() for b in batches[:3]] == [[True] * 2, [False] * 2, [False] * 2]
    assert batches[0]["tokens"].tolist() == [[0, 1, 2, 3], [87, 88, 89, 90]]
    assert batches[1]["tokens"].tolist() == [[3, 4, 5, 6], [90, 91, 92, 93]]
    assert batches[28]["tokens"].tolist() == [[84, 85, 86, 87], [171, 172, 173, 174]]
    assert batches[29]["tokens"].tolist() == batches[0]["tokens"].tolist()
    assert [k for k, b in enumerate(batches) if b["fresh"].any()] == [0, 29, 58]
    assert batches[0]["tokens"].dtype == np.int32


def test_words_end_with_their_document():
    """Two records of three words each are six words, as in a prepared set."""
    records = [Passage(b"the cat sat", str(number), None, True) for number in range(2)]
    assert in_memory(Encoder(None), records)[1]["words"] == 6


def test_a_plain_file_has_splits(text):
    splits = {name: open_stream(text, name, T) for name in ("valid", "test", "all")}
    found = {name: (split[0]["tokens"][0], len(split.tokens)) for name, split in splits.items()}
    assert found == {"valid": (180, 10), "test": (190, 10), "all": (0, 200)}


def test_rows_follow_the_rule_of_the_specification():
    """Row b at step s reads tokens (b S + s mod S) T .. + T, with S = floor((N - 1) / (T B))."""
    for N, length, rows in ((1000, 7, 5), (1001, 10, 4), (41, 10, 4)):
        S = (N - 1) // (length * rows)
        windows = (N - 1) // length
        for step in (0, S - 1, S, 3 * S + 1):
            positions = step * rows + np.arange(rows)
            place, found = blocks.stream_at(
                positions, batch_size=rows, num_windows=windows, whole=False
            )
            assert found.tolist() == [b * S + step % S for b in range(rows)]
            assert (place == step % S).all() and found.max() * length + length < N


def test_the_entropy_is_that_of_the_tokens_that_windows_predict(tmp_path):
    """Three windows of 3 predict 4 a, 4 b and 1 c; the first token is read only, the last not.

    4/9 of the tokens have log2(9/4) bits twice, 1/9 log2(9). A token is 2 bytes.
    """
    prepared = written(tmp_path, np.array([7, 1, 1, 2, 2, 1, 1, 2, 2, 3, 7, 7], "u1"), 8, bytes=24)
    expected = (8 / 9 * np.log2(9 / 4) + 1 / 9 * np.log2(9)) / 2
    assert unigram_bits(open_stream(prepared, "train", T)) == pytest.approx(expected)


def test_hosts_and_a_later_start_read_the_same(text):
    source = open_stream(text, "train", T)
    unbroken = train_stream(source)
    assert_same(train_stream(source, start_step=31), unbroken[31:])
    hosts = [train_stream(source, positions=np.array([row])) for row in range(B)]
    for step, batch in enumerate(unbroken):
        for key in ("tokens", "fresh", "record"):
            joined = np.concatenate([host[step][key] for host in hosts])
            np.testing.assert_array_equal(joined, batch[key])
    assert_same(train_stream(pickle.loads(pickle.dumps(source)), num_steps=5), unbroken[:5])


def test_evaluation_reads_every_window_once_and_in_order(text):
    """19 windows in 4 rows of 5: the last row has ended after its fourth window."""
    source = open_stream(text, "all", 10)
    batches = eval_stream(source, 4)
    assert [b["fresh"].tolist() for b in batches] == [[True] * 4] + [[False] * 4] * 4
    assert [b["mask"].tolist() for b in batches] == [[True] * 4] * 4 + [[True] * 3 + [False]]
    assert [b["record"].tolist() for b in batches[3:]] == [[3, 8, 13, 18], [4, 9, 14, -1]]
    assert batches[4]["tokens"][0].tolist() == list(range(40, 51))
    assert not batches[4]["tokens"][3].any()
    seen = [r for b in batches for r in b["record"].tolist() if r >= 0]
    assert sorted(seen) == list(range(19))
    halves = [eval_stream(source, 4, positions=np.arange(2) + first) for first in (0, 2)]
    for one, two, whole in zip(*halves, batches, strict=True):
        np.testing.assert_array_equal(np.concatenate([one["mask"], two["mask"]]), whole["mask"])


def written(folder: Path, ids: np.ndarray, vocab_size: int = 700, **changes) -> str:
    """Writes a set of one split by hand; returns its directory."""
    entry = {"tokens": len(ids), "bytes": 8000, "words": 1000, "file_bytes": ids.nbytes}
    (folder / "train.tokens").write_bytes(ids.tobytes())
    entry["sha256"] = hashlib.sha256(ids.tobytes()).hexdigest()
    entry["sample_sha256"] = sample_sha256(str(folder / "train.tokens"))
    manifest = {"format_version": 1, "kind": "stream", "vocab_size": vocab_size}
    manifest |= {"splits": {"train": {**entry, **changes}}}
    (folder / "dataset.json").write_text(json.dumps(manifest))
    return str(folder)


def test_the_info_tells_texts_apart(text, tmp_path):
    """All splits of a text have the same hash, wherever it lies; other text has another."""
    moved = tmp_path / "moved.txt"
    moved.write_bytes(Path(text).read_bytes())
    hashes = [open_stream(str(p), s, T).info["text_sha256"] for p in (text, moved) for s in SPLITS]
    assert set(hashes) == {hashlib.sha256(bytes(range(200))).hexdigest()}
    moved.write_bytes(bytes(range(199, -1, -1)))
    assert open_stream(str(moved), "train", T).info["text_sha256"] not in hashes
    sets = [written(tmp_path, np.full(100, token, "<u2")) for token in (1, 1)]
    one, same = (open_stream(path, "train", 9).info for path in sets)
    other = open_stream(written(tmp_path, np.full(100, 2, "<u2")), "train", 9).info
    assert one == same and one["text_sha256"] != other["text_sha256"]


def test_a_damaged_file_is_named(tmp_path):
    prepared = written(tmp_path, np.full(100, 701, "<u2"))
    with pytest.raises(BadInputError, match=r"train\.tokens: holds token 701.* prepare the set"):
        open_stream(prepared, "train", 9)[0]
    for changes, line in (
        ({"file_bytes": 202}, r"train\.tokens: 200 bytes, 202 were written"),
        *((odd, r"dataset\.json: damaged \(TypeError") for odd in
          ({"tokens": {}}, {"file_bytes": ""}, {"bytes": []})),
    ):  # fmt: skip
        prepared = written(tmp_path, np.zeros(100, "<u2"), **changes)
        with pytest.raises(BadInputError, match=line):
            open_stream(prepared, "train", 9)
    prepared = written(tmp_path, np.ones(100, "<u2"))
    (tmp_path / "train.tokens").write_bytes(bytes(200))
    with pytest.raises(BadInputError, match=r"train\.tokens: not what was written, by its sample"):
        open_stream(prepared, "train", 9)
    (tmp_path / "train.tokens").unlink()
    with pytest.raises(BadInputError, match=r"train\.tokens: cannot be read \(No such file"):
        open_stream(prepared, "train", 9)


def test_a_large_file_is_told_apart_by_parts_of_it(tmp_path):
    """Of 17 MiB the parts begin 1 1/15 MiB apart, so that the first gap begins at 1 MiB."""
    content = np.zeros(17 << 20, "u1")
    prepared, file = written(tmp_path, content, 256), tmp_path / "train.tokens"
    hashes = [sample_sha256(str(file))]
    for place in (0, (1 << 20) + 1000, 8 << 20, (17 << 20) - 1):
        with file.open("r+b") as changed:
            changed.seek(place)
            changed.write(b"a")
        hashes.append(sample_sha256(str(file)))
    _, beginning, gap, *_ = hashes
    assert beginning == gap and len(set(hashes)) == 4
    written(tmp_path, content, 256)
    assert open_stream(prepared, "train", 9).num_tokens == 17 << 20
    file.write_bytes(content[1:].tobytes() + b"a")
    with pytest.raises(BadInputError, match=r"train\.tokens: not what was written, by its sample"):
        open_stream(prepared, "train", 9)


@pytest.mark.parametrize(
    ("file", "changes", "line"),
    [
        ("missing.txt", {}, r"config\.data\.path=.*no such file or directory"),
        ("text.txt", {"split": "dev"}, "no split 'dev'; there are train, valid, test, all"),
        ("text.txt", {"split": "valid", "max_length": 10}, "split valid: 10 tokens, too few for"),
        ("empty.txt", {}, r"empty\.txt: an empty file"),
        ("text.gz", {}, r"text\.gz: compressed; unpack it"),
        ("text.zst", {}, r"text\.zst: compressed by Zstandard; unpack it \(zstd -d\)"),
        ("text.parquet", {}, r"text\.parquet: a parquet file; prepare it with"),
        ("", {}, "65,537 tokens is too large for a stream"),
    ],
)
def test_mistakes_are_one_line(text, tmp_path, file: str, changes: dict, line: str):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"text " * 100))
    (tmp_path / "text.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    (tmp_path / "text.parquet").write_bytes(b"PAR1" + bytes(100))
    written(tmp_path, np.zeros(100, "<u2"), vocab_size=65_537)
    where = {"split": "train", "max_length": T} | changes
    with pytest.raises(BadInputError, match=line):
        open_stream(str(tmp_path / file), **where)[0]


def test_the_smallest_config_reads_the_path_that_it_is_given(text: str):
    """Without one it reads the embedded novel. The first line of a run says which."""
    lines = []
    for flags in ([], [f"--config.data.path={text}", "--config.data.max_length=2"]):
        config = override(load_config(f"{ROOT}/configs/language_model.py:tiny"), flags)
        data = open_data(config)
        lines.append(overview((("train", data.train), ("valid", data.eval)), "sequences"))
    sizes = [(TEXT.stat().st_size * share // 100 - 1) // 64 for share in (90, 5)]
    assert lines == [
        f"train: {sizes[0]:,} sequences of the embedded novel; valid: {sizes[1]} sequences",
        # 180 and 10 bytes, in windows of 2 and the byte after them
        f"train: 89 sequences of {text}; valid: 4 sequences",
    ]
    splits = [(split, open_stream(text, split, 3)) for split in ("all", "valid", "train")]
    assert overview(splits[:2], "sequences").endswith("valid: 3 sequences, 3 of them in all too")
    assert overview(splits[:0:-1], "sequences").endswith("valid: 3 sequences")


def test_a_stream_without_the_token_after_each_window_is_refused(text: str):
    """It would train on one token less a window."""

    class Short(TokenStream):
        def read_windows(self, indices: np.ndarray) -> np.ndarray:
            return super().read_windows(indices)[:, :-1]

    config = load_config(f"{ROOT}/configs/language_model.py:tiny")
    config.data.max_length = T
    good = open_stream(text, "train", T)
    short = Short(**{field.name: getattr(good, field.name) for field in dataclasses.fields(good)})
    assert open_data(config, splits=(good, good)).data_info.stream.bytes_per_token == 1
    for splits, name in (((short, good), "data"), ((good, short), "eval_data")):
        problem = rf"^{name}: read_windows of one index returns an array \[1, 3\]; it must be"
        with pytest.raises(BadInputError, match=problem):
            open_data(config, splits=splits)


def test_a_source_that_is_no_stream_is_refused():
    """The message says all that one needs."""
    config = load_config(f"{ROOT}/configs/language_model.py:tiny")
    plain = types.SimpleNamespace(info={"vocab_size": 256}, describe=str)
    words = (
        r"data is list, without info, describe, read_windows, .* Stream \(.*\): info, describe, "
    )
    words += "__len__, __getitem__, read_windows, bytes_per_token, words_per_token, text$"
    with pytest.raises(BadInputError, match=f"^{words}"):
        open_data(config, splits=([{"tokens": 1}],) * 2)
    with pytest.raises(BadInputError, match="without __len__, __getitem__, read_windows, bytes_"):
        open_data(config, splits=(plain, plain))


def test_the_embedded_novel_in_word_pieces():
    """The three splits are the whole text, in order."""
    data = {"source": "tiny_pieces", "max_length": 1}
    streams = [build_source(data, split) for split in ("train", "valid", "test")]
    tokenizer = load_tokenizer(str(FOLDER))
    whole = np.concatenate(tokenizer.encode_all(TEXT.read_text().split("\n")))
    first = [stream.read_windows(np.arange(len(stream)))[:, 0] for stream in streams]
    last = [stream[len(stream) - 1]["tokens"][1:] for stream in streams]
    joined = np.concatenate([part for pair in zip(first, last, strict=True) for part in pair])
    np.testing.assert_array_equal(joined, whole)
    sizes = [stream.bytes_per_token * stream.num_tokens for stream in streams]
    assert sum(sizes) == pytest.approx(TEXT.stat().st_size)
    assert np.array(sizes) / sum(sizes) == pytest.approx([0.9, 0.05, 0.05], abs=0.01)
    assert streams[0].info["tokenizer"] == tokenizer.json
