"""`prepare_data.py stream`: what a set holds, where it is cut, kills, mistakes in one line."""

import bz2
import gzip
import hashlib
import json
import lzma
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import ROOT, make_tar, refused, run, write

from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.data.input_files import check_apart
from widenet_jax.language.data.token_streams import open_stream


def prepare(inputs: object, out: Path, *options: object) -> int:
    inputs = inputs if isinstance(inputs, list) else [inputs]
    return run("stream", *inputs, "--out", out, "--workers=1", *options)


def tokens(out: Path, split: str, dtype: str = "u1") -> np.ndarray:
    return np.fromfile(out / f"{split}.tokens", dtype)


def manifest(out: Path) -> dict:
    return json.loads((out / "dataset.json").read_text())


def test_bytes_are_taken_as_they_are(tmp_path: Path):
    content = bytes(range(256)) * 40 + b"the end"
    text, out = write(tmp_path / "enwik", content), tmp_path / "set"
    assert prepare(text, out, "--splits=train=9k,valid=1000,test=2%") == 0
    assert tokens(out, "train").tobytes() == content[:9000]
    assert tokens(out, "valid").tobytes() == content[9000:10_000]
    assert tokens(out, "test").tobytes() == content[10_000 : 10_000 + round(len(content) * 0.02)]
    assert len(list(out.iterdir())) == 4  # with dataset.json
    entry = manifest(out)["splits"]["train"]
    assert entry["sha256"] == hashlib.sha256(content[:9000]).hexdigest() == entry["sample_sha256"]
    assert (entry["tokens"], entry["bytes"], entry["file_bytes"]) == (9000, 9000, 9000)
    source = open_stream(str(out), "train", 8)
    assert source.info["vocab_size"] == 256 and source.bytes_per_token == 1.0


def test_compressed_inputs(tmp_path: Path, capsys):
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        packed, out = compress(b"abc\n" * 5000), tmp_path / compress.__module__
        text = write(tmp_path / "text", packed)
        assert prepare(text, out) == 0
        assert tokens(out, "train").tobytes() == b"abc\n" * 4500
        write(text, packed[: len(packed) // 2])
        message = refused(capsys, "stream", text, "--out", tmp_path / "other")
        assert "text: damaged or cut short" in message and not (tmp_path / "other").exists()


def test_documents_of_json_lines_and_parquet_are_joined_by_a_separator(tmp_path: Path):
    texts = ["One.\nTwo.", "Drei für vier."]
    lines = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))
    pq.write_table(pa.table({"text": texts}), tmp_path / "b.parquet")
    for number, path in enumerate((lines, tmp_path / "b.parquet")):
        out = tmp_path / f"set{number}"
        assert prepare(path, out, "--splits=train=100%", "--separator", "\\n\\n") == 0
        expected = "".join(text + "\n\n" for text in texts)
        assert tokens(out, "train").tobytes() == expected.encode()
        assert manifest(out)["documents"] == 2


def test_documents_without_a_mark_between_them_are_told(tmp_path: Path, capsys):
    lines = write(tmp_path / "a.jsonl", '{"text": "the cat"}\n{"text": "a dog"}')
    told = "documents follow each other without a mark; --separator='\\n' adds one"
    for number, flags in enumerate(([], ["--separator", "\\n"])):
        assert prepare(lines, tmp_path / str(number), "--splits=train=100%", *flags) == 0
        assert (told in capsys.readouterr().out) == (not flags)


def test_a_separator_of_any_bytes(tmp_path: Path, capsys):
    """As a command line hands it over: a byte that is no UTF-8 is a surrogate."""
    lines = write(tmp_path / "a.jsonl", '{"text": "One."}')
    flags = ("--splits=train=100%", "--separator", "\udcff")
    assert prepare(lines, tmp_path / "set", *flags) == 0
    assert tokens(tmp_path / "set", "train").tobytes() == b"One.\xff"
    found = refused(capsys, "stream", lines, "--out", tmp_path / "b", *flags, "--tokenizer", FOLDER)
    assert "--separator" in found and "not UTF-8" in found


def test_word_pieces_are_those_of_each_line(tmp_path: Path):
    tokenizer = load_tokenizer(str(FOLDER))
    lines = ["  Anne was here.", "", "She smiled. [SEP]"]
    train, valid = write(tmp_path / "a.txt", "\n".join(lines)), write(tmp_path / "b.txt", "No.\n")
    out, copy = tmp_path / "set", write(tmp_path / "c.txt", "No.\n")
    options = ("--valid", valid, "--tokenizer", FOLDER, "--separator=[SEP]")
    assert prepare([train, copy], out, *options) == 0
    parts = [*map(tokenizer.encode, lines), [tokenizer.sep_id], tokenizer.encode("No.")]
    expected = np.concatenate([*parts, [tokenizer.sep_id]])
    np.testing.assert_array_equal(tokens(out, "train", "<u2"), expected)
    assert (expected == tokenizer.sep_id).sum() == 2, "a marker in a text is ordinary characters"
    source = open_stream(str(out), "valid", 1)
    assert source.info["tokenizer"] == tokenizer.json
    # "No.\n" has 4 bytes, one word and one end of a line.
    assert source.bytes_per_token * source.num_tokens == 4
    assert source.words_per_token * source.num_tokens == 2


def test_word_pieces_are_cut_between_lines_and_counted(tmp_path: Path):
    out, text = tmp_path / "set", TEXT.read_bytes()
    assert prepare(TEXT, out, "--tokenizer", FOLDER) == 0
    splits = manifest(out)["splits"]
    assert sum(entry["bytes"] for entry in splits.values()) == len(text)
    total = sum(entry["tokens"] for entry in splits.values())
    tokenizer, done = load_tokenizer(str(FOLDER)), 0
    for split, share in (("train", 0.9), ("valid", 0.05), ("test", 0.05)):
        entry = splits[split]
        assert entry["tokens"] / total == pytest.approx(share, abs=0.01)
        part = text[done : done + entry["bytes"]]
        done += entry["bytes"]
        lines = [line for line in part.decode().split("\n") if line.strip()]
        whole = np.concatenate(tokenizer.encode_all(lines))
        np.testing.assert_array_equal(tokens(out, split, "<u2"), whole)
        assert entry["words"] == len(part.split()) + part.count(b"\n")
        capitals = sum(map(str.isupper, part.decode()))
        characters = len(part) - part.count(b"\n")
        assert entry["lost_character_share"] == pytest.approx(capitals / characters, rel=0.01)


def test_parts_of_a_split_are_joined_and_words_counted(tmp_path: Path):
    """Validation text from the middle. Five words, the last cut off, and two ends of lines."""
    content = b"one  two\nthree\tfour \nfive"
    text, out = write(tmp_path / "a.txt", content), tmp_path / "set"
    assert prepare(text, out, "--splits=train=4,valid=5,train=16") == 0
    assert tokens(out, "valid").tobytes() == content[4:9]
    assert tokens(out, "train").tobytes() == content[:4] + content[9:]
    assert prepare(text, out, "--splits=train=100%", "--overwrite") == 0
    assert manifest(out)["splits"]["train"]["words"] == 7


def test_the_preview_shows_the_first_windows(tmp_path: Path, capsys):
    config = write(
        tmp_path / "config.py",
        "from ml_collections import ConfigDict\n"
        "def get_config():\n"
        "    data = dict(source='token_stream', path='', train_split='train', max_length=12)\n"
        "    return ConfigDict(dict(task=dict(name='language_modeling'), data=data))\n",
    )
    assert run("preview", "--config", config, "--num=1") == 0
    shown = capsys.readouterr().out
    assert "split train, tokens 0 to 12" in shown and "then" in shown


@pytest.mark.parametrize("kind", ["stream", "text"])
def test_a_file_is_read_once_and_for_one_split(tmp_path: Path, capsys, kind: str):
    """Whether it is named twice, lies in a folder that is named, or is linked."""
    folder = write(tmp_path / "wiki" / "train.txt", TEXT.read_bytes()).parent
    (folder / "link").symlink_to(tmp_path / "dev")
    valid = write(tmp_path / "dev" / "valid.txt", "It rained. We stayed.")
    command = (kind, folder, "--workers=1", *(["--tokenizer", FOLDER] if kind == "text" else []))
    message = refused(capsys, *command, "--out", tmp_path / "a", "--valid", valid)
    assert f"{valid} is in two splits, train and valid" in message
    flag = ["--valid_per_mille=50"] if kind == "text" else []
    for out, more in (("b", []), ("c", [folder, folder / "train.txt", tmp_path / "dev"])):
        assert run(kind, *more, *command[1:], *flag, "--out", tmp_path / out) == 0
    assert manifest(tmp_path / "b")["splits"] == manifest(tmp_path / "c")["splits"]
    told = capsys.readouterr().err
    assert f"note: given twice, read once: {folder}\n" in told
    assert f"note: given twice, read once: {folder / 'train.txt'} and 1 more\n" in told
    empty = str(write(tmp_path / "_SUCCESS", ""))
    check_apart({"train": [empty], "valid": [empty]}, "text")


@pytest.mark.parametrize("kind", ["stream", "text"])
def test_the_same_command_mends_a_set(tmp_path: Path, capsys, kind: str):
    """Of a missing or a cut file; --overwrite prepares a whole set again, too."""
    out, options = tmp_path / "set", ["--tokenizer", FOLDER, "--workers=1"]
    options += ["--valid_per_mille=50"] if kind == "text" else []
    command = (kind, TEXT, "--out", out, *options)
    assert run(*command) == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    for path in before:
        if path.name.startswith("train"):
            for damage in (path.unlink, lambda path=path: path.write_bytes(b"")):
                damage()
                assert run(*command) == 0
                assert path.read_bytes() == before[path]
                assert "; preparing the set again" in capsys.readouterr().err
    times = {path: path.stat().st_mtime_ns for path in before}
    assert run(*command) == 0
    assert times == {path: path.stat().st_mtime_ns for path in before}
    assert run(*command, "--overwrite") == 0
    assert all(path.stat().st_mtime_ns > time for path, time in times.items())
    assert before == {path: path.read_bytes() for path in out.iterdir()}


# --- Kills and mistakes ---------------------------------------------------------------------------


@pytest.mark.slow
def test_five_kills_change_no_byte(tmp_path: Path):
    """SIGKILL at five places; the set is that of an undisturbed preparation."""
    texts = [TEXT.read_text() * (1 + number % 2) for number in range(6)]
    files = [write(tmp_path / f"{number}.txt", text) for number, text in enumerate(texts)]
    options = ["--tokenizer", str(FOLDER), "--separator=[SEP]"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert prepare(files, whole, *options) == 0
    command = [sys.executable, str(ROOT / "scripts/prepare_data.py"), "stream", *map(str, files)]
    command += ["--out", str(killed), "--workers=1", *options]
    for attempt in range(5):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT)
        while len(list(killed.glob("*/.part-*.json"))) <= attempt:
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (killed / "dataset.json").exists()
    assert subprocess.run(command, stderr=subprocess.DEVNULL, cwd=ROOT).returncode == 0
    assert {p.name: p.read_bytes() for p in whole.iterdir()} == {
        p.name: p.read_bytes() for p in killed.iterdir()
    }


@pytest.mark.parametrize(
    ("file", "options", "line"),
    [
        ("a.txt", ["--tokenizer", FOLDER], "a.txt line 2: not UTF-8 text"),
        ("a.txt", ["--tokenizer", FOLDER, "--separator=\\n"], "the tokenizer makes no token of it"),
        ("enwik8.zip", [], "enwik8.zip: a zip archive; unpack it first"),
        ("a.jsonl.zst", [], "a.jsonl.zst: compressed by Zstandard; unpack it (zstd -d) first"),
        ("wiki.tgz", [], "wiki.tgz: a tar archive; unpack it first"),
        ("missing.txt", [], "missing.txt"),
        ("a.txt", ["--splits=train:90"], "'train:90' is not NAME=SIZE; write for instance train"),
        ("a.txt", ["--splits=train=0%"], "'train=0%' is not NAME=SIZE"),
        ("a.txt", ["--splits=valid=90%"], "names no split train; add train=SIZE"),
        ("a.txt", ["--valid=a", "--splits=train=9%,valid=1%"], "valid is given by --valid, too"),
        ("a.txt", ["--splits=train=16,valid=5"], "valid=5 ends at token 21, and the text has 16"),
        ("empty.txt", ["--splits=train=90%"], "split train: no text found"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, capsys, file: str, options: list, line: str):
    write(tmp_path / "a.txt", b"One.\nTw\xff.\nThree.")
    write(tmp_path / "enwik8.zip", b"PK\x03\x04rest")
    write(tmp_path / "a.jsonl.zst", b"\x28\xb5\x2f\xfdrest")
    make_tar(tmp_path / "wiki.tgz", {"a.txt": b"One."}, "w:gz")
    write(tmp_path / "empty.txt", b"")
    found = refused(capsys, "stream", tmp_path / file, *options, "--out", tmp_path / "set")
    assert line in found and not (tmp_path / "set").exists()
