"""`prepare_data.py check` of texts, tables and prepared sets: all mistakes at once."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import error_line, photo, refused, run, write

from configs import glue
from widenet_jax.corpus.novel import FOLDER
from widenet_jax.data import records
from widenet_jax.data.sources import open_data
from widenet_jax.errors import BadInputError


def check(capsys, *arguments: object) -> list[str]:
    """Returns the lines that a check of bad data prints, without the last."""
    assert run("check", *arguments) == 2
    out, err = capsys.readouterr()
    *lines, last = out.splitlines()
    count = int(last.rsplit("; ")[1].split()[0])
    assert f"{count} problems; repair what is named" in error_line(err)
    return lines


def test_texts(tmp_path: Path, capsys):
    bad = b"\xef\xbb\xbfone\ntw\xff\n\nfour\0\nfive\n"
    write(tmp_path / "a.txt", bad)
    write(tmp_path / "b.jsonl", '{"text": "a"}\n\n{"body": "b"}\nnot JSON\n{"text": "\\ud800"}\n')
    write(tmp_path / "c.txt.gz", gzip.compress(b"a line\n" * 999)[:-12])
    pq.write_table(pa.table({"text": ["a", None, "c"]}), tmp_path / "d.parquet")
    write(tmp_path / "e", b"")
    write(tmp_path / "f.txt", "\n \n" * 3000)
    write(tmp_path / "g.md", b"\xff\n")
    write(tmp_path / "h.text", b"\0")
    write(tmp_path / "i.txt", "one\n".encode("utf-16"))
    write(tmp_path / ".hidden", b"\0")
    lines = check(capsys, tmp_path)
    expected = [
        "a.txt line 2: not UTF-8 text; save it as UTF-8 (iconv -f latin1 -t utf8)",
        "a.txt line 4: holds a NUL character",
        "b.jsonl line 3: no text 'text'; it has body",
        "b.jsonl line 4: not valid JSON",
        "b.jsonl line 5: not UTF-8 text",
        "c.txt.gz: damaged or cut short",
        "d.parquet record 1: 'text' holds no text",
        "e: an empty file",
        "f.txt: no text in it",
        "g.md line 1: not UTF-8 text",
        "h.text line 1: holds a NUL character",
        "i.txt line 1: UTF-16 text; save it as UTF-8 (iconv -f utf-16 -t utf8)",
        "i.txt line 2: holds a NUL character",
    ]
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(f"{tmp_path}/{start}")
    assert run("check", tmp_path / "a.txt", "--json") == 2
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == lines[:2]
    write(tmp_path / "a.txt", b"\xe9\n" * 25)
    assert check(capsys, tmp_path / "a.txt")[20:] == [
        f"{tmp_path}/a.txt: 5 more (--json lists all)"
    ]
    assert run("check", FOLDER / "persuasion.txt") == 0
    assert "; 0 problems\n" in capsys.readouterr().out


def test_tables(tmp_path: Path, capsys):
    """Every row without a column, a text or a label."""
    write(tmp_path / "train.tsv", "text\tlabel\na\tyes\nb\nc\tno\td\n")
    write(tmp_path / "dev.csv", "text,label\n ,yes\nb,\nc,no\n")
    write(tmp_path / "more.csv", "text,label\n ,yes\nc,no\n")
    assert check(capsys, tmp_path) == [
        f"{tmp_path}/dev.csv row 1: the text is empty",
        f"{tmp_path}/dev.csv row 2: column 'label' holds no label ('')",
        f"{tmp_path}/more.csv row 1: the text is empty",
        f"{tmp_path}/train.tsv line 3: 1 columns, and the header names 2 ('text', 'label')",
        f"{tmp_path}/train.tsv line 4: 3 columns, and the header names 2 ('text', 'label')",
        "row 1 of a table is the first below its header",
        "the texts and labels of a table are read once all its lines fit its header",
    ]
    own = write(tmp_path / "own.jsonl", '{"review": 5, "stars": 1}\n{"review": "b"}\n')
    assert check(capsys, own, "--text_column=review", "--label_column=stars") == [
        f"{own} row 1: column 'review' holds 5, and not a text",
        f"{own} row 2: column 'stars' holds no label (None)",
    ]


# The rows of train.csv and of dev.csv, and how a run refuses one of them.
YES_NO = "a,yes\nb,no\n"
ALIKE = {
    "the same": (YES_NO, YES_NO, ""),
    "one character or two": ("a,é\nb,no\n", "a,e\u0301\nb,no\n", ""),
    "invisible in a label": (YES_NO, "a,\u200byes\xa0\nb,no\n", ""),
    "numbers in two ways": ("a,0\nb,1\n", "a,0\nb,1.0\n", "dev.csv row 2: label '1.0' is none of"),
    "an unknown label": (YES_NO, "a,yes\nb,maybe\n", "dev.csv row 2: label 'maybe' is none of"),
    "one label": ("a,yes\nb,yes\n", YES_NO, "train.csv row 1: the labels of the training split"),
    "no label": (YES_NO, "a,yes\nb,\u200b\n", "dev.csv row 2: column 'label' holds no label"),
    "-1": ("a,1\nb,-1\n", "a,1\n", "train.csv row 2: column 'label' holds no label ('-1'); if it"),
    "an invisible text": ("\u200b\xa0,yes\nb,no\n", YES_NO, "train.csv row 1: the text is empty"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_check_and_a_run_say_the_same(tmp_path: Path, capsys, name: str):
    *splits, told = ALIKE[name]
    for split, rows in zip(("train", "dev"), splits, strict=True):
        write(tmp_path / f"{split}.csv", f"text,label\n{rows}")
    config = glue.get_config("own,model=albert_tiny")
    config.data.update(path=str(tmp_path), tokenizer=str(FOLDER))
    if not told:
        open_data(config)
        assert run("check", tmp_path) == 0
        return
    with pytest.raises(BadInputError) as refusal:
        open_data(config)
    line, *_ = check(capsys, tmp_path)
    assert line.startswith(f"{tmp_path}/{told}")
    assert str(refusal.value).replace("--config.data.", "--").startswith(line)


def test_listed_labels(tmp_path: Path, capsys):
    write(tmp_path / "train.csv", "text,label\na,-1\nb,1\n")
    assert run("check", tmp_path, "--label_names=-1,1") == 0
    capsys.readouterr()
    line, *_ = check(capsys, tmp_path, "--label_names=no,1")
    assert line.startswith(
        f"{tmp_path}/train.csv row 1: column 'label' holds no label ('-1'); if it"
    )


def test_quoted_tabs(tmp_path: Path, capsys):
    """A .tsv that was written as a .csv is noted; a quotation or two is not."""
    for rows, noted in (('"a"\tyes\n"b"\tno\n"\tno\n', 1), ('"a"\tyes\nb\tno\n', 0)):
        file = write(tmp_path / "train.tsv", f"text\tlabel\n{rows}")
        assert run("check", file) == 0
        note = f"{file}: 2 of 3 texts begin and end with a quote, which is a part of the text in"
        assert capsys.readouterr().out.count(note) == noted


def test_tables_without_labels(tmp_path: Path, capsys):
    """GLUE's folders pass; texts in columns of another name, and labels in none, are mistakes."""
    write(tmp_path / "train.tsv", "sentence\tlabel\na\tno\nd\tyes \nc\tNo\nc\tno\ne\tno\nf\tno\n")
    write(tmp_path / "dev.tsv", "sentence\tlabel\na\tno\nb\tno \nc\tno\nd\tyes\n")
    unlabelled = write(tmp_path / "test.tsv", "index\tsentence\n0\ta\n")
    assert run("check", tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/dev.tsv: labels: 2, with 1 ('yes') to 3 ('no') rows",
        f"{tmp_path}/train.tsv: labels: 3, with 1 ('No') to 4 ('no') rows",
        f"{tmp_path}/train.tsv: 'No' and 'no' differ only in spelling: if they mean the same, "
        "write them alike in the table",
        f"{tmp_path}/train.tsv: texts whose rows have different labels: 1",
        f"{tmp_path}/train.tsv: 4 of 6 texts are in {tmp_path}/dev.tsv too",
        f"{unlabelled}: no label column: not for training",
        f"{tmp_path}: 3 files, 10 documents, rows and questions; 0 problems",
    ]
    other = write(tmp_path / "other.tsv", "review\tstars\na\t1\n")
    assert check(capsys, other) == [
        f"{other}: no column 'text'; there are 'review', 'stars' (choose with --text_column=NAME)"
    ]
    numbers = write(tmp_path / "prices.csv", "text,price\na,10\nb,20\nc,30\n")
    assert run("check", numbers, "--label_column=price") == 0
    note = f"{numbers}: 3 classes in 3 rows: are these numbers or texts? --label_column\n"
    assert note in capsys.readouterr().out
    photos = write(tmp_path / "labels.csv", "filename,label\nphotos/a.JPG,ant\n")
    (line,) = check(capsys, photos)
    assert "no column 'text'; there are 'filename', 'label'; images are not read from" in line


def test_scores(tmp_path: Path, capsys):
    """Numbers only where they are asked for; a table without them passes."""
    write(tmp_path / "train.tsv", "sentence1\tsentence2\tscore\na\tb\t0.5\nb\tc\t-1\n")
    write(tmp_path / "test.tsv", "sentence1\tsentence2\na\tb\n")
    assert run("check", tmp_path, "--scores") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{tmp_path}/train.tsv: scores from -1 to 0.5, mean -0.25",
        f"{tmp_path}/test.tsv: no label column: not for training",
    ]
    write(tmp_path / "dev.csv", "text,label\na,x\nb,\u0661\nc,inf\n")
    assert check(capsys, tmp_path, "--scores")[:2] == [
        f"{tmp_path}/dev.csv row 1: label 'x' is no finite number; write scores as 3.5",
        f"{tmp_path}/dev.csv row 3: label 'inf' is no finite number; write scores as 3.5",
    ]
    same = write(tmp_path / "same.csv", "text,score\na,-1\nb,-1.0\n")
    line, *_ = check(capsys, same, "--scores")
    assert line.startswith(f"{same} row 1: all 2 scores are -1; a correlation needs others, too: ")


def test_questions(tmp_path: Path, capsys):
    """Every question of another layout and every answer that is not in its context."""
    qas = [{"id": str(n), "question": "who", "answers": []} for n in range(30)]
    qas[1]["answers"] = [{"text": "a", "answer_start": n} for n in (0, 1)]
    del qas[2]["answers"]
    for asked in qas[4:]:
        asked["question"] = None
    content = {"data": [{"paragraphs": [{"context": "a b", "qas": qas}]}, {"paragraphs": 3}]}
    file = write(tmp_path / "dev-v2.0.json", json.dumps(content))
    first, second, third, *_, twentieth, more = check(capsys, file)
    assert first == f"{file}: question 1: its context has ' ' at 1, and not the answer 'a'"
    assert second.endswith("(question 3, KeyError: 'answers')")
    assert third.endswith("(question 5, TypeError: question '4': a text is missing or is no text)")
    assert twentieth.endswith("question '21': a text is missing or is no text)")
    assert (
        more == f"{file}: 9 more (--json lists all)"
    )  # 29 mistakes: the last is the second article's
    assert run("check", file, "--json") == 2
    found = json.loads(capsys.readouterr().out)["problems"]
    assert len(found) == 29 and found[-1].endswith(
        "(TypeError: 'int' object is not iterable); nothing after it was read"
    )


def test_prepared_sets(tmp_path: Path, capsys):
    text = write(tmp_path / "a.txt", "One day. Two days.\n\n" * 400)
    stream, chunks = tmp_path / "stream", tmp_path / "chunks"
    assert run("stream", text, "--out", stream, "--workers=1") == 0
    valid = write(tmp_path / "b.txt", text.read_bytes())
    options = ("--tokenizer", FOLDER, "--valid", valid, "--max_length=32", "--workers=1")
    assert run("text", text, "--out", chunks, *options) == 0
    images = {"train": [(0, photo(7)), (1, b"no image"), (0, b"")]}
    records.write_set(tmp_path / "images", images, class_names=["a", "b"], provenance={})
    for whole in (stream, chunks):
        assert run("check", whole) == 0
        assert "; 0 problems" in capsys.readouterr().out
    lines = check(capsys, tmp_path / "images")
    assert [line.partition(" (")[2][:7] for line in lines] == ["image 1", "image 2"]
    tokens = bytearray((stream / "train.tokens").read_bytes())
    tokens[1000] ^= 1
    write(stream / "train.tokens", bytes(tokens))
    (stream / "valid.tokens").unlink()
    first, second = check(capsys, stream)
    assert first.startswith(f"{stream}/train.tokens: not what was written")
    assert second.startswith(f"{stream}/valid.tokens: cannot be read (No such file")
    (shard, *_) = chunks.glob("train-*")
    content = bytearray(shard.read_bytes())
    content[300] ^= 255
    write(shard, bytes(content))
    assert all(line.startswith(f"{shard} record ") for line in check(capsys, chunks))


def test_what_is_not_checked_is_one_line(tmp_path: Path, capsys):
    assert "check reads local files" in refused(capsys, "check", "gs://bucket/set")
    write(tmp_path / "dataset.json", '{"format_version": 1}')
    assert "dataset.json: damaged (KeyError" in refused(capsys, "check", tmp_path)
    write(tmp_path / "dataset.json", '{"format_version": 1, "class_names": ["a"], "splits": {}}')
    assert "damaged (ValueError: it names no split)" in refused(capsys, "check", tmp_path)
    (tmp_path / "dataset.json").unlink()
    assert "no such file or directory" in refused(capsys, "check", tmp_path / "nowhere")
    write(tmp_path / "dataset_info.json", "{}")
    assert "a set of TFDS, which a run checks" in refused(capsys, "check", tmp_path)
