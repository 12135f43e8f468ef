"""`predict.py` with folders, patterns and bad files; its tables."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from messy_photos import picture, saved, write
from refusals import answered, refused

from widenet_jax.cli import evaluate, predict


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b.png", "a b.JPG", "deep/猫.webp", "deep/c.gif"):
        write(tmp_path / "photos" / name, saved(picture().convert("L"), "PNG"))
    write(tmp_path / "photos" / "notes.txt", b"text")
    return tmp_path / "photos"


@pytest.fixture
def run(digits_run: Path) -> Callable[..., int]:
    """Predicts with the digits' model."""
    flags = (f"--workdir={digits_run}", "--top=3")
    return lambda arguments: predict.main([*map(str, arguments), *flags])


def test_folders_and_patterns(run, photos, capsys):
    images = answered(capsys, run, photos, f"{photos}/*.png")["images"]
    found = [row["image"] for row in images]
    names = ["a b.JPG", "b.png", "deep/c.gif", "deep/猫.webp", "b.png"]
    assert found == [f"{photos}/{name}" for name in names]
    assert run([f"{photos}/**/*.gif"]) == 0
    assert capsys.readouterr().out.startswith(f"{photos}/deep/c.gif\n")
    (photos / "empty").mkdir()
    for nothing in (f"{photos}/*.bmp", photos / "empty"):
        assert refused(capsys, run, nothing) == f"error: {nothing}: no image found\n"
    (photos / "deep" / "IMG_1.HEIC").touch()
    assert run([photos / "deep"]) == 0
    assert capsys.readouterr().err == f"{photos}/deep: 1 file left out (.heic 1)\n"


@pytest.mark.parametrize("bad", [1, 2])
def test_bad_files_are_named_and_the_others_predicted(run, photos, bad, capsys):
    for i in range(bad):
        (photos / f"bad{i}.jpg").write_bytes(b"")
    assert run([photos, "--json"]) == 2
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert len(answer["images"]) == 4 and len(answer["unreadable"]) == bad
    assert err.count("empty file") == bad and err.count("error: ") == 1
    assert bad == 1 or err.endswith("error: 2 of 6 images cannot be read; they are named above\n")


@pytest.mark.slow
def test_tables(run, photos, capsys):
    rows = answered(capsys, run, photos)["images"]
    table, lines = photos / "found.csv", photos / "found.jsonl"
    assert run([photos, f"--out={table}"]) == 0 and run([photos, f"--out={lines}"]) == 0
    assert capsys.readouterr().out == f"{table}: 4 images\n{lines}: 4 images\n"
    rows = [predict.rounded(row) for row in rows]
    assert [json.loads(line) for line in lines.read_text().splitlines()] == rows
    head, *body = csv.reader(table.read_text().splitlines())
    assert head == ["image", "class_1", "probability_1", "class_2", "probability_2", "class_3",
                    "probability_3"]  # fmt: skip
    for cells, row in zip(body, rows, strict=True):
        assert cells[0] == row["image"] and cells[1::2] == [one["class"] for one in row["top"]]
        assert [float(p) for p in cells[2::2]] == [one["probability"] for one in row["top"]]
    assert "ends in .csv or .jsonl" in refused(capsys, run, photos, f"--out={photos}/found.xlsx")


def test_outputs_replace_nothing_else(run, photos, capsys):
    """What the same command wrote may be replaced."""
    other = photos.parent / "other"
    other.mkdir()
    for name, content in (
        ("a.csv", "text,label\n"),
        ("a.jsonl", '{"text": 1}\n'),
        ("a.png", "\x89PNG"),
    ):
        (other / name).write_text(content)
        flag = f"{'--overlay' if name == 'a.png' else '--out'}={other / name}"
        told = refused(capsys, run, photos / "b.png", flag)
        assert f"error: {flag} holds something else than " in told
        assert (other / name).read_text() == content
        (other / name).unlink()
        assert run([photos / "notes.txt", flag]) == 2 and not (other / name).exists()
        assert run([photos / "b.png", flag]) == run([photos / "b.png", flag]) == 0
        capsys.readouterr()
    (photos / "x.csv").mkdir()
    told = refused(capsys, run, photos / "b.png", f"--out={photos}/x.csv")
    assert f"error: --out={photos}/x.csv is a directory; name a file" in told


@pytest.mark.slow
def test_outputs_are_tried_before_the_work(run, digits_run, photos, capsys):
    """Their folders are made; a set is not even looked for where they cannot be."""
    new = photos.parent / "new"
    outputs = (f"--out={new}/a/found.csv", f"--overlay={new}/b/experts.png")
    assert run([photos / "b.png", *outputs]) == 0
    assert {path.name for path in new.glob("*/*")} == {"found.csv", "experts.png"}
    capsys.readouterr()
    file = photos / "notes.txt"
    line, nowhere = f"error: {file}: File exists\n", "--config.data.path=nowhere"
    assert refused(capsys, run, photos / "b.png", f"--out={file}/found.csv") == line
    flags = (f"--workdir={digits_run}", "--config.data.source=image_folder", nowhere)
    assert refused(capsys, evaluate.main, f"--out={file}", *flags) == line


def test_help_names_what_each_task_reads(capsys):
    with pytest.raises(SystemExit):
        predict.parser_of(["--help"]).read(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "FILE image files, folders, '*.jpg'; tables of texts, or .txt with a text a line" in text
