"""`prepare_data.py text`: splits, packing, kills and workers, what an output directory holds."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from preparing import ROOT, refused, run, write

from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadInputError
from widenet_jax.text.data.text_records import TinyText


def prepare(inputs: object, out: Path, *options: object) -> int:
    inputs = inputs if isinstance(inputs, list) else [inputs]
    return run("text", *inputs, "--out", out, "--tokenizer", FOLDER, "--workers=1", *options)


def read_set(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(place.iterdir())}


@pytest.fixture(scope="module")
def novel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("novel") / "set"
    assert prepare(TEXT, out, "--max_length=128", "--valid_per_mille=50") == 0
    return out


def test_the_set_holds_what_the_embedded_text_does(novel: Path):
    for split in ("train", "valid"):
        ours = build_source({"source": "text", "path": str(novel)}, split)
        embedded = TinyText({"max_length": 128}, split, {})
        assert len(ours) == len(embedded) and ours.info == embedded.info
        for index in range(0, len(ours), 7):
            pair = zip(ours[index]["sentences"], embedded[index]["sentences"], strict=True)
            assert all(np.array_equal(a, b) for a, b in pair)


def test_a_packed_set_holds_the_same_chunks(tmp_path: Path, novel: Path):
    out = tmp_path / "packed"
    assert prepare(TEXT, out, "--max_length=128", "--valid_per_mille=50", "--pack") == 0
    for split in ("train", "valid"):
        rows = build_source({"source": "text", "path": str(out)}, split)
        plain = build_source({"source": "text", "path": str(novel)}, split)
        packed = [chunk for k in range(len(rows)) for chunk in rows[k]["chunks"]]
        single = [plain[k]["sentences"] for k in range(len(plain))]
        key = [sorted(np.concatenate(c).tobytes() for c in chunks) for chunks in (packed, single)]
        assert key[0] == key[1]
        assert len(rows) < len(plain) or split == "valid"


def test_the_length_of_sequences_must_suit_the_set(tmp_path: Path):
    text, valid = (write(tmp_path / name, "One. Two.") for name in ("a.txt", "b.txt"))
    for packed in (False, True):
        out = tmp_path / f"packed {packed}"
        options = ["--max_length=16", "--valid", valid, *(["--pack"] if packed else [])]
        assert prepare(text, out, *options) == 0
        for max_length, suits in ((16, True), (32, False), (8, not packed)):
            data = {"source": "text", "path": str(out), "max_length": max_length}
            if suits:
                assert len(build_source(data, "train")) == 1
            else:
                with pytest.raises(BadInputError, match="--max_length=16"):
                    build_source(data, "train")


@pytest.mark.slow
def test_the_same_command_again_changes_nothing(tmp_path: Path, capsys):
    inputs, out = [write(tmp_path / f"{k}.txt", f"One {k}. Two.") for k in range(2)], tmp_path / "o"
    options = ("--max_length=16", "--valid", inputs[1])
    assert prepare(inputs[0], out, *options) == 0
    before = read_set(out)
    assert prepare(inputs[0], out, *options) == 0
    assert read_set(out) == before
    valid = build_source({"source": "text", "path": str(out)}, "valid")[0]["sentences"]
    assert [load_tokenizer(str(out)).decode(s) for s in valid] == ["one 1.", "two."]
    arguments = ("text", inputs[0], "--out", out, "--tokenizer", FOLDER, "--valid", inputs[1])
    message = refused(capsys, *arguments, "--max_length=32")
    assert "other inputs or settings" in message and "--overwrite" in message
    assert run(*arguments, "--max_length=32", "--overwrite") == 0
    write(inputs[0], "Another text. It is longer.")
    assert "other inputs" in refused(capsys, *arguments, "--max_length=32")


def test_another_text_of_the_same_size_is_noticed(tmp_path: Path, capsys):
    """In a finished set, and in the parts of a stopped preparation."""
    a, b = write(tmp_path / "a.txt", "A good end. So."), write(tmp_path / "b.txt", b"Three \xff.")
    out = tmp_path / "out"
    arguments = ("text", a, b, "--out", out, "--tokenizer", FOLDER, "--max_length=16")
    arguments += ("--valid", write(tmp_path / "c.txt", "One."), "--workers=1")
    assert "b.txt line 1" in refused(capsys, *arguments)
    write(a, "A evil end. So.")
    write(b, "Three four.")
    assert run(*arguments) == 0
    tokenizer, train = load_tokenizer(str(out)), {"source": "text", "path": str(out)}
    sentences = build_source(train, "train")[0]["sentences"]
    assert tokenizer.decode(sentences[0]) == "a evil end."
    write(a, "A good end. So.")
    assert "other inputs" in refused(capsys, *arguments)


def test_a_set_stays_until_another_is_whole(tmp_path: Path, capsys):
    text, out = write(tmp_path / "a.txt", "One. Two."), tmp_path / "out"
    options = ("--max_length=16", "--valid", write(tmp_path / "c.txt", "One. Two."))
    assert prepare(text, out, *options) == 0
    before = read_set(out)
    bad = write(tmp_path / "b.txt", b"Three \xff.")
    arguments = ("text", text, bad, "--out", out, "--tokenizer", FOLDER, *options, "--workers=1")
    assert "b.txt line 1" in refused(capsys, *arguments, "--overwrite")
    assert {name: (out / name).read_bytes() for name in before} == before
    assert "--overwrite" in refused(capsys, *arguments)
    write(bad, "Three.")
    assert run(*arguments, "--overwrite") == 0
    assert len(read_set(out)) == len(before) + 1 and not list(out.glob(".*"))


def test_a_directory_of_other_things_is_left_alone(tmp_path: Path, capsys):
    text, out = write(tmp_path / "a.txt", "One. Two."), tmp_path / "out"
    out.mkdir()
    write(out / "thesis.tex", "mine")
    message = refused(capsys, "text", text, "--out", out, "--tokenizer", FOLDER, "--overwrite")
    assert "thesis.tex" in message and read_set(out) == {"thesis.tex": b"mine"}
    file = write(tmp_path / "b.txt", "mine")
    for place, problem in ((file, "is a file"), ("gs://bucket/set", "local --out")):
        message = refused(capsys, "text", text, "--out", place, "--tokenizer", FOLDER)
        assert problem in message


def test_a_tokenizer_of_another_vocabulary_is_noticed(tmp_path: Path, novel: Path, capsys):
    out = tmp_path / "set"
    out.mkdir()
    for name, content in read_set(novel).items():
        write(out / name, content)
    changed = json.loads((out / "tokenizer.json").read_text())
    changed["model"]["vocab"][-1][0] = "zebra"
    write(out / "tokenizer.json", json.dumps(changed))
    with pytest.raises(BadInputError, match="not the tokenizer that the set was prepared with"):
        build_source({"source": "text", "path": str(out)}, "train")
    tokenizer = out / "tokenizer.json"
    again = ("text", TEXT, "--out", novel, "--tokenizer", tokenizer, "--max_length=128")
    assert "other inputs or settings" in refused(capsys, *again, "--valid_per_mille=50")


def test_numbers_out_of_range_and_sets_of_another_kind(tmp_path: Path, novel: Path, capsys):
    for flag in ("--max_length=7", "--max_length=70000", "--valid_per_mille=1000"):
        out = ("--out", tmp_path / "out", "--tokenizer", FOLDER)
        assert flag.split("=")[0] in refused(capsys, "text", TEXT, *out, flag)
    with pytest.raises(BadInputError, match=r"config\.data\.source=text"):
        build_source({"source": "array_record", "path": str(novel)}, "train")


# --- Kills and workers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five files, each the novel with its chapters in another order."""
    folder = tmp_path_factory.mktemp("corpus")
    chapters = TEXT.read_text().split("\n\n= ")
    turned = [chapters[k:] + chapters[:k] for k in range(5)]
    return [
        write(folder / f"{k}.txt", "= " + "\n\n= ".join(parts).removeprefix("= "))
        for k, parts in enumerate(turned)
    ]


def start(
    corpus: list[Path], out: Path, workers: int, stderr: int = subprocess.DEVNULL
) -> subprocess.Popen:
    command = [sys.executable, str(ROOT / "scripts/prepare_data.py"), "text", *map(str, corpus)]
    options = ["--out", str(out), "--tokenizer", str(FOLDER), f"--workers={workers}"]
    options += ["--max_length=128", "--valid_per_mille=50"]
    return subprocess.Popen(command + options, stderr=stderr, cwd=ROOT)


@pytest.mark.slow
def test_endings_change_no_byte(tmp_path: Path, corpus: list[Path]):
    """Ctrl-C, a killed worker, a killed command: each ends at once, the first two with their codes.

    The same command then completes the set: that of an undisturbed preparation.
    """
    whole, out, codes = tmp_path / "whole", tmp_path / "out", []
    for ending in ("Ctrl-C", "worker", "command"):
        process = start(corpus, out, workers=2, stderr=subprocess.PIPE)
        before = len(list(out.glob("*/.part-*")))
        while len(list(out.glob("*/.part-*"))) == before:
            assert process.poll() is None
            time.sleep(0.01)
        if ending == "worker":
            # Python's own helper process is a child too; workers have the units' files open.
            while not (written := list(out.glob("*/.writing-*"))):
                time.sleep(0.01)
            os.kill(int(written[0].name.rpartition("-")[2]), signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT if ending == "Ctrl-C" else signal.SIGKILL)
        stderr = process.communicate(timeout=60)[1].decode()
        codes.append(process.returncode)
        assert "Traceback" not in stderr, stderr
        assert ("a worker process was killed" in stderr) == (ending == "worker")
        assert not (out / "dataset.json").exists()
    assert codes == [130, 3, -signal.SIGKILL]
    for place in (whole, out):
        assert prepare(corpus, place, "--max_length=128", "--valid_per_mille=50") == 0
    found = [read_set(place) for place in (whole, out)]
    manifests = [json.loads(files.pop("dataset.json")) for files in found]
    assert manifests[0].pop("provenance") and manifests[1].pop("provenance")
    assert found[0] == found[1] and manifests[0] == manifests[1]


def test_beam_makes_the_same_set(tmp_path: Path, corpus: list[Path]):
    pytest.importorskip("apache_beam")
    options = ("--max_length=128", "--valid_per_mille=50")
    places = [tmp_path / "processes", tmp_path / "beam"]
    assert prepare(corpus[:3], places[0], *options) == 0
    assert prepare(corpus[:3], places[1], *options, "--beam=--runner=DirectRunner") == 0
    assert read_set(places[0]) == read_set(places[1])
