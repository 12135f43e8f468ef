"""Inputs of `prepare_data.py text`: every format, and files that cannot be read."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import refused, run, tfds_record, write, write_tfds

from widenet_jax.corpus import inputs, readers
from widenet_jax.corpus.inputs import documents, plan
from widenet_jax.corpus.novel import FOLDER
from widenet_jax.corpus.readers import Input

PARAGRAPHS = [["It rained. We stayed.", "He left."], ["A second text."]]


def refuse(capsys, tmp_path: Path, path: Path, *options: object) -> str:
    """Prepares one bad file; returns the message, which must name it."""
    out = tmp_path / "new" / "out"
    command = ("text", path, "--tokenizer", FOLDER, "--workers=1", *options, "--out", out)
    message = refused(capsys, *command)
    assert not out.exists()
    assert path.name in message
    return message


def parquet(column: str = "text") -> bytes:
    held = io.BytesIO()
    pq.write_table(pa.table({column: ["\n".join(lines) for lines in PARAGRAPHS]}), held)
    return held.getvalue()


TITLES = "\n\n".join(f"= Title {k} =\n\n" + "\n".join(p) for k, p in enumerate(PARAGRAPHS)).encode()
JSON = "\n".join(json.dumps({"id": 0, "text": "\n".join(lines)}) for lines in PARAGRAPHS).encode()
TABLE = "\n".join(["text,label", *('"' + "\n".join(p) + '",yes' for p in PARAGRAPHS)]).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", TITLES),
        ("a.txt", codecs.BOM_UTF8 + TITLES),
        ("a.jsonl", JSON),
        ("wiki_00", JSON),  # as of WikiExtractor
        ("a.jsonl.gz", gzip.compress(JSON, mtime=0)),
        ("a.parquet", parquet()),
        ("a.csv", TABLE),
    ],
)
def test_every_format_gives_the_same_documents(tmp_path: Path, name: str, content: bytes):
    [unit] = plan([str(write(tmp_path / name, content))])
    found = list(documents(unit))
    assert [list(document.paragraphs) for document in found] == PARAGRAPHS
    assert [document.index for document in found] == [0, 1] and found[0].split


def test_a_sentence_a_line(tmp_path: Path):
    lines = "It rained.\nWe stayed.\nHe left.\n\n\nA second text.\n"
    [unit] = plan([str(write(tmp_path / "a.txt", lines))], "sentences")
    found = list(documents(unit))
    assert [document.paragraphs for document in found] == [
        ["It rained.", "We stayed.", "He left."],
        ["A second text."],
    ]
    assert not found[0].split


def test_a_directory_holds_a_document_a_file(tmp_path: Path):
    for name in ("b/two.txt", "a/one.txt", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, f"This is {name}\nin lines.\n\nSecond paragraph.")
    units = plan([str(tmp_path)])
    found = [document for unit in units for document in documents(unit)]
    assert [document.source for document in found] == ["a/one.txt", "b/two.txt"]
    assert found[0].paragraphs == ["This is a/one.txt in lines.", "Second paragraph."]


def test_many_files_share_units(tmp_path: Path):
    for k in range(600):
        write(tmp_path / f"{k:03d}.txt", f"Text {k}.")
    units = plan([str(tmp_path)])
    assert len(units) == 200 and sum(map(len, units)) == 600


def test_a_tfds_set(tmp_path: Path, capsys):
    tfds = pytest.importorskip("tensorflow_datasets")
    shards = [
        [tfds_record(text=text) for text in some]
        for some in ([b"One. Two.", b"Three."], [b"Four."])
    ]
    write_tfds(tmp_path, {"train": shards}, {"text": tfds.features.Text()})
    place = tmp_path / "tiny" / "1.0.0"
    units = plan([str(place)])
    assert len(units) == 2
    found = [d.paragraphs for unit in units for d in documents(unit)]
    assert found == [["One. Two."], ["Three."], ["Four."]]
    options = ("--tokenizer", FOLDER, "--max_length=16", "--workers=1", "--valid")
    valid = write(tmp_path / "valid.txt", "Five.")
    assert run("text", place, "--out", tmp_path / "out", *options, valid) == 0
    assert "is in two splits" in refuse(capsys, tmp_path, place, *options, place)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", b"One.\nTw\xffo.", "line 2: not UTF-8"),
        ("a.txt", b"One.\0", "line 1: holds a NUL"),
        ("a.txt", gzip.compress(b"One. Two. " * 999, mtime=0)[:-20], "damaged or cut short"),
        ("a.txt.bz2", bz2.compress(b"One.") + b"BZh9 damaged", "damaged or cut short"),
        ("a.txt.xz", lzma.compress(b"One.") + b"a damaged header", "damaged or cut short"),
        ("a.txt.gz", gzip.compress(b"One.", mtime=0) + b"\x1f damaged", "damaged or cut short"),
        ("a.xml.bz2", bz2.compress(b'<mediawiki xml:lang="en">\n'), "extract its text first"),
        ("wiki_00", b'<doc id="1" title="A">\nA\n\nIt is.\n</doc>\n', "with its flag --json"),
        ("a.txt", b"\xef\xbb\xbf\n<!DOCTYPE html>\n<p>It is.", "pages with marks"),
        ("a.txt", b'<HTML lang="en"><p>It is.', "pages with marks"),
        ("a.txt", b'<?xml version="1.0"?><TEI>It is.</TEI>', "pages with marks"),
        ("a.wet.gz", gzip.compress(b"WARC/1.0\r\n\r\nIt is.", mtime=0), "pages with marks"),
        ("a.jsonl", b'{"text": "One."}\n{"body": "Two."}', "line 2: no text 'text'; it has body"),
        ("a.jsonl", b'{"text": "One.\\ud800"}', "line 1: not UTF-8"),
        ("a.jsonl", b"[1]", "line 1: no text 'text'; it is no object"),
        ("a.jsonl", b'{"text": "One."', "line 1: not valid JSON"),
        ("a.jsonl", b'{"text": ' + b"[" * 100_000, "line 1: not valid JSON (nested too deep"),
        ("a.parquet", b"PAR1 garbage", "not a parquet file"),
        ("a.parquet", parquet("body"), "no column 'text'; there are body (choose with --text_col"),
        ("a.csv", b"review,stars\na,1\n", "no column 'text'; there are 'review', 'stars' (choose"),
        ("a.tsv", b"text\tstars\na\n", "line 2: 1 columns, and the header names 2"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, capsys, name, content, problem):
    message = refuse(capsys, tmp_path, write(tmp_path / name, content))
    assert problem in message


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress])
def test_streams_one_after_another_are_one_file(tmp_path: Path, compress):
    write(path := tmp_path / "a.txt", compress(b"One. ") + compress(b"Two."))
    assert [d.paragraphs for unit in plan([str(path)]) for d in documents(unit)] == [["One. Two."]]


def test_a_file_without_text_is_refused(tmp_path: Path, capsys):
    for content in (b"", b"\n\n", b"= Title =\n"):
        path = write(tmp_path / "empty.txt", content)
        out = tmp_path / f"out{len(content)}"
        message = refused(capsys, "text", path, "--out", out, "--tokenizer", FOLDER)
        assert "split train: no text found" in message
        assert not out.exists()


def test_a_column_of_inputs_without_columns(tmp_path: Path, capsys):
    """Refused, unless an input has columns."""
    text, flag = write(tmp_path / "a.txt", "One. Two."), "--text_column=review"
    message = refuse(capsys, tmp_path, text, flag)
    assert (
        f"--text_column=review: no input has columns ({text} is read as --format=text)" in message
    )
    out = ("--out", tmp_path / "out")
    assert "no input has columns" in refused(capsys, "stream", text, flag, *out)
    for words in (("--convert", FOLDER), (text,)):
        assert "no input has columns" in refused(capsys, "tokenizer", *words, flag, *out)
    rows = write(tmp_path / "b.tsv", "review\nOne. Two.\n")
    assert (
        run("stream", text, "--valid", rows, flag, "--splits=train=100%", *out, "--workers=1") == 0
    )


def test_paths_that_are_not_there(tmp_path: Path, capsys):
    assert "No such file" in refuse(capsys, tmp_path, tmp_path / "absent.txt")
    (tmp_path / "folder").mkdir()
    assert "holds no files" in refuse(capsys, tmp_path, tmp_path / "folder")
    os.mkfifo(tmp_path / "fifo.txt")
    assert "not a regular file" in refuse(capsys, tmp_path, tmp_path / "fifo.txt")


@pytest.mark.parametrize("letters", ["ab ä€\n", "ä€"])
def test_long_lines_are_read_in_parts(tmp_path: Path, monkeypatch, letters: str):
    """Parts are short, whole characters, and whole words where there are spaces."""
    monkeypatch.setattr(readers, "LINE_BYTES", 64)
    monkeypatch.setattr(inputs, "PASSAGE_BYTES", 100)
    rng = random.Random(0)
    text = "".join(rng.choices(letters, k=5000)) + "e" * 50 + " word\nlast"
    file = write(tmp_path / "a.txt", text)
    passages = list(inputs.passages([Input(str(file), "a.txt", "text")], "text"))
    parts = [passage.text.decode() for passage in passages]
    assert "".join(parts) == text and max(map(len, parts)) < 300
    assert [passage.last for passage in passages] == [False] * (len(parts) - 1) + [True]
    for number, passage in enumerate(passages):
        assert passage.line == 1 + "".join(parts[:number]).count("\n")
    ((paragraphs, _),) = readers.texts(Input(str(file), "a.txt", "text"), "text")
    assert "".join("".join(paragraphs).split()) == "".join(text.split())
    assert any("word" in paragraph for paragraph in paragraphs)


def test_large_documents(tmp_path: Path, monkeypatch, capsys):
    """Plain text and a JSON line become several documents; a longer JSON line is refused."""
    monkeypatch.setattr(readers, "DOCUMENT_CHARACTERS", 38)
    lines = [f"Line {number} of the text." for number in range(5)]  # of 19 characters
    plain = write(tmp_path / "a.txt", "\n".join(lines))
    rows = write(tmp_path / "a.jsonl", json.dumps({"text": "\n".join(lines)}))
    for file, kind in ((plain, "text"), (rows, "jsonl")):
        found = [list(texts) for texts, _ in readers.texts(Input(str(file), "", kind), "text")]
        assert found == [lines[:2], lines[2:4], lines[4:]]
    monkeypatch.setattr(readers, "DOCUMENT_BYTES", 100)
    assert "a.jsonl line 1: longer than 0 MiB, the most" in refuse(capsys, tmp_path, rows)
