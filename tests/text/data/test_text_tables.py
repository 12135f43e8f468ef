"""Tables of texts: formats, columns, splits, labels by name, cutting, and hostile files."""

import codecs
import gzip
import io
import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from etils import epath
from text_sets import SPECIAL, write_tokenizer

from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.data.contract import Data
from widenet_jax.data.pipeline import check_small_splits
from widenet_jax.data.sources import open_data, overview
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.text.data.sequences import join, sequence_row
from widenet_jax.text.data.tables import (
    Row,
    Table,
    class_names_of,
    label_numbers,
    label_text,
    read_rows,
)

LETTERS = [*"abcdefghij", '"', ","]
VOCABULARY = [*SPECIAL, *LETTERS]
CLS, SEP = 2, 3
BASE = {
    "text_column": "", "pair_column": "", "label_column": "", "label_names": "",
    "train_split": "train", "eval_split": "dev", "max_length": 8,
    "on_bad_example": "error",
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token for each letter from a to j: their ids are 5, 6, ..."""
    return load_tokenizer(str(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), LETTERS)))


def data(path: Path, **changes) -> dict:
    return {**BASE, "path": str(path), **changes}


def rows(path: Path, split: str = "train", **changes) -> list[tuple]:
    return [tuple(row)[:3] for row in read_rows(data(path, **changes), split)]


def table(
    place: Path, tokenizer: Tokenizer, split: str = "train", names: tuple = (), **changes
) -> Table:
    info = {"tokenizer": tokenizer.json, "class_names": names}
    return Table(data(place) | changes, split, info)


def parquet(columns: dict, names: list[str] | None = None) -> bytes:
    file = io.BytesIO()
    write_parquet(file, columns, names)
    return file.getvalue()


def write_parquet(path: Path | io.BytesIO, columns: dict, names: list[str] | None = None) -> None:
    table = pa.table(columns)
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        described = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": described})
    pq.write_table(table, path)


TWICE = pa.table([["a"], ["b"], [1]], ["text", "text", "label"])


def test_every_format_has_the_same_rows(tmp_path: Path):
    texts, labels = ['a "b', 'c,"d" e'], ["no", "yes"]
    (tmp_path / "one.tsv").write_text('sentence\tlabel\r\na "b\tno\r\nc,"d" e\tyes\r\n')
    (tmp_path / "two.csv").write_text('label,sentence\nno,"a ""b"\nyes,"c,""d"" e"\n')
    records = [{"sentence": t, "label": y} for t, y in zip(texts, labels, strict=True)]
    (tmp_path / "three.json").write_text(json.dumps(records, indent=1))
    (tmp_path / "four.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "five.json").write_text("\n".join(map(json.dumps, records)) + "\n\n")
    (tmp_path / "six.tsv").write_text('\ufeffsentence\tlabel\na "b\tno\nc,"d" e\tyes')  # BOM
    write_parquet(tmp_path / "seven-00000-of-00001.parquet", {"sentence": texts, "label": labels})
    write_parquet(tmp_path / "eight.parquet", {"sentence": texts, "label": [1, 0]}, ["yes", "no"])
    for name in ("one.tsv", "two.csv", "three.json", "four.jsonl"):  # Excel's "Unicode Text"
        wide = (tmp_path / name).read_bytes().decode().encode("utf-16")
        (tmp_path / f"wide_{name}").write_bytes(wide)
    wide = ("wide_one", "wide_two", "wide_three", "wide_four")
    for split in ("one", "two", "three", "four", "five", "six", "seven", "eight", *wide):
        assert rows(tmp_path, split) == [('a "b', None, "no"), ('c,"d" e', None, "yes")], split


def test_splits_are_named_cut_and_joined(tmp_path: Path):
    for name, letters in (("train", "abcdefghij"), ("validation_matched", "xy")):
        lines = [f"{letter}\t{n % 2}" for n, letter in enumerate(letters)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]))

    def texts(split: str, path: Path = tmp_path) -> str:
        return "".join(row[0] for row in rows(path, split))

    assert texts("train[:3]") == "abc" and texts("train[-2:]") == "ij"
    assert texts("train[90%:]") == "j" and texts("train[20%:40%]") == "cd"
    assert texts("dev_matched+train[:2]") == "xyab"  # as Hugging Face's validation_matched
    assert texts("train.tsv[1:2]") == "b"
    assert texts("[5:]", tmp_path / "train.tsv") == "fghij"
    (tmp_path / "train.tsv").rename(tmp_path / "train.TSV")
    assert texts("train[:3]") == "abc"


def test_files_of_a_split_that_is_not_whole(tmp_path: Path):
    """The rest of a copy that was cut short, and an older set's files among a newer one's."""

    def write(name: str) -> Path:
        (tmp_path / name).write_text(f"text\tlabel\n{name[6:11]}\t0\n")
        return tmp_path / name

    last = [write(f"train-{k:05d}-of-00003.tsv") for k in range(3)][-1]
    assert [row[0] for row in rows(tmp_path, "train")] == ["00000", "00001", "00002"]
    last.unlink()
    with pytest.raises(BadInputError, match=r"there are 2 of 3 files train; copy what is missing"):
        rows(tmp_path, "train")
    assert [row[0] for row in rows(tmp_path, "train-00001-of-00003.tsv")] == ["00001"]
    write(last.name)
    write("train-00000-of-00001.tsv")
    with pytest.raises(BadInputError, match=r"1 of 1 files train and 3 of 3 files train"):
        rows(tmp_path, "train")


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00001.tsv", "train.tsv"),
        ("train.csv", "train.tsv"),
        ("train.csv.gz", "train.tsv.gz"),
    ],
)
def test_a_split_that_two_files_may_be_is_refused(tmp_path: Path, names: tuple[str, str]):
    for name in names:
        content = b"text\tlabel\na\t0\n"
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(BadInputError, match=f"split 'train' may be {', '.join(names)}; give the"):
        rows(tmp_path, "train")
    if names[1] == "train.tsv":
        assert len(rows(tmp_path, "train.tsv")) == 1


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("idx\tpremise\thypothesis\tlabel", "bcd"),
        ("label1\tsentence1\tsentence2\tgold_label", "bcd"),
        ("Quality\tquestion1\tquestion2\tis_duplicate", "bcd"),
        ("x\ty\tsentence\tlabel", "c d"),
    ],
)
def test_known_columns(tmp_path: Path, header: str, columns: str):
    (tmp_path / "train.tsv").write_text(f"{header}\na\tb\tc\td\n")
    text, pair, label = columns
    assert rows(tmp_path) == [(text, pair.strip() or None, label)]


def test_columns_of_ones_own(tmp_path: Path):
    (tmp_path / "train.csv").write_text("review,stars,reply\na,1,b\n")
    own = {"text_column": "review", "label_column": "stars"}
    assert rows(tmp_path, **own) == [("a", None, "1")]
    assert rows(tmp_path, **own, pair_column="reply") == [("a", "b", "1")]


def test_labels_go_by_name(tmp_path: Path, tokenizer: Tokenizer):
    """Whatever the order of first appearance in a split, and whatever numbers a file has."""
    (tmp_path / "train.tsv").write_text("text\tlabel\na\tno\nb\tmaybe\nc\tyes\n")
    (tmp_path / "dev.tsv").write_text("text\tlabel\na\tyes\nb\tno\nc\tno\n")  # a class is missing
    line = overview([("dev", table(tmp_path, tokenizer, "dev"))], "rows")
    assert line == "dev: 3 rows, none of maybe"
    columns = {"text": ["a", "b", "c"], "label": [0, 1, 2]}
    write_parquet(tmp_path / "other.parquet", columns, ["yes", "maybe", "no"])
    for split, expected in (("train", [1, 0, 2]), ("dev", [2, 1, 1]), ("other", [2, 0, 1])):
        found = table(tmp_path, tokenizer, split)
        assert found.class_names == ("maybe", "no", "yes")
        assert [found[i]["label"] for i in range(3)] == expected
    permuted = table(tmp_path, tokenizer, "dev", names=("yes", "no", "other"))
    assert [permuted[i]["label"] for i in range(3)] == [0, 1, 1]


def test_labels_that_look_the_same_are_the_same(tmp_path: Path, tokenizer: Tokenizer):
    """Letters with accents as one character or two, and what is invisible around them."""
    write_parquet(
        tmp_path / "train.parquet",
        {
            "text": [*"abcdef"],
            "label": ["é", "e\u0301", "\xa0é\u200b", "no", "no\ufeff", "n\u200bo"],
        },
    )
    found = table(tmp_path, tokenizer)
    assert found.class_names == ("no", "n\u200bo", "é")
    assert found.record_labels.tolist() == [2, 2, 2, 0, 0, 1]
    assert "'no' and 'n\\u200bo' differ only in spelling" in found.note
    older = table(tmp_path, tokenizer, names=("e\u0301", "no", "n\u200bo"))  # a model of before
    assert older.class_names[0] == "e\u0301"
    assert older.record_labels.tolist() == [0, 0, 0, 1, 1, 2]
    flags = [f"\U0001f3f4\U000e0067\U000e0062{chr(0xE0061 + k)}\U000e007f" for k in range(2)]
    assert class_names_of([Row("a", None, label_text(flag), "") for flag in flags]) == flags


def test_lines_are_counted_where_cells_hold_line_breaks(tmp_path: Path):
    table = 'text,label\r\n"a\nb\n\nc",1\r\n\r\nd\r\n"e\r\nf",1\r\n'
    for name, content, told in (
        ("train.csv", table, ["line 7: 1 columns"]),
        ("train.csv", table + "g,1,2\r\nh\r\n", [f"line {n}:" for n in (7, 10, 11)]),
        ("train.csv", table.replace("d\r", '"d,1\r'), ["line 7: not a CSV file"]),
        ("train.jsonl", '\n{"text": "a",\n', ["line 2: neither .* enclosed in double"]),
        ("train.json", '\n\n[{"text":\n "a",}]', ["line 4: neither"]),
        ("train.json", f'[{{"a": {"9" * 5000}}}]', ["line 1: neither"]),
    ):
        (tmp_path / name).write_text(content, newline="")
        with pytest.raises(BadInputError) as raised:
            rows(tmp_path, name)
        lines = getattr(raised.value, "problems", [str(raised.value)])
        for line, start in zip(lines, told, strict=True):
            assert re.match(f"{tmp_path}/{name} {start}", line)


def test_labels_that_stand_for_none_elsewhere(tmp_path: Path, tokenizer: Tokenizer):
    """SNLI's "-" and Hugging Face's -1 are classes where they are listed."""
    for labels, names in ((("-1", "1"), "-1,1"), (("-", "+"), "+,-")):
        content = "".join(f"a\t{label}\n" for label in labels)
        (tmp_path / "train.tsv").write_text(f"text\tlabel\n{content}")
        with pytest.raises(BadInputError, match=r"row 1: .* no label .*; if it is a class, list"):
            rows(tmp_path)
        info = {"tokenizer": tokenizer.json}
        found = Table(data(tmp_path, label_names=names), "train", info)
        assert [found.class_names[k] for k in found.record_labels] == [*labels]


def test_empty_texts(tmp_path: Path, tokenizer: Tokenizer):
    """Refused with their rows, or left to the pipeline, which skips or counts them."""
    lines = ["premise\thypothesis\tlabel", "a\tb\tno", "c\t \tyes", "\td\tyes", "e\tf\tno"]
    (tmp_path / "train.tsv").write_text("\n".join(lines))
    row = rf"{tmp_path}/train\.tsv row"
    with pytest.raises(BadInputError, match=rf"{row} 2: the second text is empty \(2 such rows\)"):
        table(tmp_path, tokenizer)
    pairs = table(tmp_path, tokenizer, on_bad_example="skip")
    assert len(pairs) == 4 and pairs[0]["tokens"].tolist() == [CLS, 5, SEP, 6, SEP]
    single = table(tmp_path, tokenizer, text_column="hypothesis", on_bad_example="skip")
    assert single[2]["tokens"].tolist() == [CLS, 8, SEP]
    # A tokenizer that has a token for what is invisible, as one of bytes.
    whole = Tokenizer({**tokenizer.json, "normalizer": None})
    text = "\n".join(lines).replace("\td", "\u200b\xa0\u2060\td")
    (tmp_path / "train.tsv").write_text(text)
    assert len(whole.encode("\u200b\xa0\u2060"))
    shown = table(tmp_path, whole, on_bad_example="skip")
    for found, index in ((pairs, 2), (single, 1), (shown, 2)):
        with pytest.raises(BadExampleError, match=f"{row} {index + 1}: the text is empty"):
            found[index]


def test_too_many_empty_texts_end_a_run_before_it_trains(tmp_path: Path, tokenizer: Tokenizer):
    """Of a large table, too; the message has the value that allows them."""
    rows = ["text\tlabel", *["a\tno", "b\tyes"] * 1000, *[" \tno"] * 70]
    (tmp_path / "train.tsv").write_text("\n".join(rows))
    small = table(tmp_path, tokenizer, "train[:10]", on_bad_example="skip")
    assert small.problems == []
    found = table(tmp_path, tokenizer, on_bad_example="skip")
    splits, notes = Data(found, small, *[None] * 3), []
    config = {"max_bad_fraction": 0.001}
    message = r"^70 of 2,070 training rows .* allow them: --config.data.max_bad_fraction=0.034$"
    with pytest.raises(BadInputError, match=message):
        check_small_splits(splits, config, "rows", notes.append)
    assert notes[0] == f"{tmp_path}/train.tsv row 2001: the text is empty"
    assert len(notes) == 61 and notes[-1].startswith("10 more; scripts/prepare_data.py check")
    check_small_splits(splits, {"max_bad_fraction": 0.034}, "rows", notes.append)


def test_a_run_names_the_classes(tmp_path: Path, tokenizer: Tokenizer):
    for labels, expected in (
        (("no", "yes"), "2 classes: 'no', 'yes'"),
        (
            ("no", "Yes", "yes"),
            "3 classes: 'Yes', 'no', 'yes'\n'Yes' and 'yes' differ only in spelling",
        ),
        (("1", "2", "1.0"), "3 classes: '1', '1.0', '2'\n'1' and '1.0' differ only in spelling"),
        (
            ("0.0", "2.5", "5.000"),  # STS-B
            "3 classes: '0.0', '2.5', '5.000'\n3 classes are numbers with fractions: scores are",
        ),
        (
            ("0.5", "nan", "no"),
            "3 classes: '0.5', 'nan', 'no'\nclasses that may be missing labels: 'nan'; ",
        ),
        (map(str, range(20)), "20 classes: '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '10'"),
    ):
        rows = [f"a {n}\t{label}" for n, label in enumerate(labels)]
        (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]))
        assert table(tmp_path, tokenizer).note.startswith(expected)
    (tmp_path / "train.tsv").write_text("text\tlabel\na\t1\nb\t2\nc\t3\nd\t2\n")
    assert table(tmp_path, tokenizer).note.splitlines()[1:-1] == [
        "3 classes in 4 rows: are these numbers or texts? config.data.label_column"
    ]
    (tmp_path / "train.tsv").write_text("text\tlabel\na\tno\nb\tno\nb\tno\na\tyes\n")
    assert table(tmp_path, tokenizer).note.splitlines()[1:-1] == [
        "texts whose rows have different labels: 1"
    ]


def test_texts_that_are_cut_are_counted(tmp_path: Path, tokenizer: Tokenizer):
    def note(columns: str, *rows: str) -> str:
        (tmp_path / "train.tsv").write_text("\n".join([columns, *rows]))
        return table(tmp_path, tokenizer).note

    message = "1 of 2 texts are longer than config.data.max_length=8 tokens, and lose their ends"
    assert "longer" not in note("text\tlabel", "a b c d e f\tno", "b\tyes")
    assert note("text\tlabel", "a b c d e f g\tno", "b\tyes").splitlines()[1:-1] == [message]
    pairs = ("sentence1\tsentence2\tlabel", "a\tb c d e\tno")
    *lines, lost = note(*pairs, "a\tB c d e é\tyes").splitlines()[1:]
    assert lines == [message]
    # Two of 18 characters, in both texts of both rows: a capital letter, and the accent's.
    assert lost == (
        "0.00% of the tokens are unknown, 11.11% of the characters do not come back when they are "
        "decoded"
    )


def test_numbered_labels(tmp_path: Path):
    """GLUE's 0 and 1 are names of `label_names`; numbers without names are sorted as numbers."""
    (tmp_path / "train.tsv").write_text("text\tlabel\na\t1\nb\t0\nc\tpositive\n")
    found = read_rows(data(tmp_path), "train")
    for names in (["negative", "positive"], ["positive", "negative"]):
        numbers = label_numbers(found, names, "negative, positive").tolist()
        assert [names[number] for number in numbers] == ["positive", "negative", "positive"]
    (tmp_path / "train.tsv").write_text("text\tlabel\na\t10\nb\t9\nc\t2\n")
    assert class_names_of(read_rows(data(tmp_path), "train")) == ["2", "9", "10"]
    alike = [Row("a", None, "0" * k + "1", "") for k in range(6)]  # in one order in all processes
    assert class_names_of(alike) == sorted(row.label for row in alike)


@pytest.mark.parametrize(
    ("first", "second", "length", "expected"),
    [
        ("abc", "de", 8, "[abc]de]"),  # fits
        ("abcdef", "gh", 8, "[abc]gh]"),  # the first is longer
        ("ab", "cdefgh", 8, "[ab]cde]"),
        ("abcdef", "ghijab", 8, "[abc]gh]"),  # equal: the second loses the last token
        ("abcdef", None, 5, "[abc]"),
    ],
)
def test_pairs_are_cut_longest_first_and_padded(
    tokenizer: Tokenizer, first: str, second: str | None, length: int, expected: str
):
    ids = {text: tokenizer.encode(" ".join(text)) for text in (first, second) if text}
    row = sequence_row(join(tokenizer, ids[first], ids.get(second), length), length=length + 2)
    names, n = {CLS: "[", SEP: "]"}, len(expected)
    assert "".join(names.get(i, VOCABULARY[i]) for i in row["tokens"][:n]) == expected
    ends = expected.index("]") + 1
    assert row["token_types"].tolist() == [0] * ends + [1] * (n - ends) + [0] * (length + 2 - n)
    assert row["length"] == n and not row["tokens"][n:].any()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("train.tsv", b"", "train.tsv: empty"),
        ("train.tsv", b"text\tlabel\na\t1\nb\n", "line 3: 1 columns, and the header names 2"),
        ("train.tsv", b"text\ttext\na\t1\n", "two columns have the same name"),
        ("train.tsv", b"text\tlabel\na\0b\t1\n", "line 2: holds a NUL character"),
        ("train.tsv", "text\tlabel\na\t1\n".encode("utf-16-le"), "line 1: holds a NUL"),
        ("train.tsv", "text\tlabel\na\t1\n".encode("utf-16")[:-1], "damaged UTF-16 text"),
        ("train.csv", codecs.BOM_UTF16_BE + b"\xd8\x3d\0,", "damaged UTF-16 text"),
        ("train.tsv", b"text\tlabel\na\t1\n\xff\t1\n", "line 3: not UTF-8"),
        ("train.tsv", b"text\tlabel\na\t1\nb\t\n", "row 2: column 'label' holds no label"),
        ("train.csv", b'text,label\n"a,1\n', "not a CSV file"),
        ("train.csv", b'text;label\r\na, b;1\r\n"a ""b""";1', "has semicolons and no commas;"),
        ("train.csv", b'"text"\t"label"\na, b\t1\n', "header has tabs and no commas; save the tab"),
        ("train.json", b'{"text": "a"', "neither a JSON list of objects nor an object a line"),
        ("train.json", b"[]", "holds no list of objects"),
        ("train.json", b"[" * 100_000, "neither a JSON list"),
        ("train.json", b'[{"text": 7, "label": 1}]', "row 1: column 'text' holds 7, and not a"),
        ("train.json", b'[{"text": "a\\ud83d", "label": 1}]', r"row 1: .* 'a\\ud83d', and not a"),
        ("train.json", b'[{"text": "a", "label": 1}, {"text": "b"}]', "row 2: column 'label'"),
        ("train.jsonl", b'{"text": "a", "label": 1}\n{"text": "b", "label": NaN}', "label .nan."),
        ("train.json", b'[{"text": "a", "label": -Infinity}]', r"holds no label \(-inf\)"),
        ("train.json", b'[{"text": "a", "label": [1]}]', r"holds no label \(\[1\]\)"),
        ("train.json", b'[{"text": "a", "label": "\\ud83d"}]', "row 1: column 'label' holds no"),
        ("train.parquet", parquet({"text": ["a", "b"], "label": [1.0, math.nan]}), "row 2: .*nan"),
        ("train.parquet", parquet({"text": ["a"], "label": [0]}, ["x", "x"]), "has the name of cl"),
        (
            "train.parquet",
            parquet(TWICE),
            "train.parquet: two columns have the same name; there are",
        ),
        ("train.parquet", b"PAR1 and no more", "damaged, or not a parquet file"),
        ("train.tsv.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", "damaged or cut short"),
    ],
)
def test_hostile_files_are_one_line(tmp_path: Path, name: str, content: bytes, problem: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInputError, match=problem) as raised:
        rows(tmp_path)
    assert "\n" not in str(raised.value) and str(tmp_path) in str(raised.value)


FILES = {
    "train.tsv": "text\tlabel\na\tno\nb\tyes\n",
    "dev.tsv": "text\tlabel\na\tno\nb\tmaybe\n",
    "same.tsv": "text\tlabel\na\tno\nb\tno\n",
    "signs.tsv": "text\tlabel\na\t-1\na\t1\na\t0\n",
    "own.csv": "review,stars,reply\na,1,b\n",
    "a.txt": "a\tb\n",
}
OWN = {"text_column": "review", "label_column": "stars"}


@pytest.mark.parametrize(
    ("split", "changes", "problem"),
    [
        ("dev", {}, r"dev.tsv row 2: label 'maybe' is none of the 2 .* or the model$"),
        ("train", {"label_names": "No,yes"}, r"label 'no' is none .*; if it is 'No', write both"),
        ("same", {"train_split": "same"}, "1 different values.*.* sorted by label"),
        ("train", {"label_names": "a,b,c"}, "row 1: label 'no' is none of the 3 classes"),
        ("train", {"label_names": "no,yes,maybe"}, r"no row of 1 of the 3 classes \('maybe'\) of"),
        ("train", {"label_names": "no,no,yes"}, "label_names=no,no,yes: give each class"),
        ("train", {"label_names": "no,yes,"}, "label_names=no,yes,: give each class"),
        ("signs", {"label_names": "-1,1"}, "row 3: label '0' is none of the 2 classes"),
        ("own", {}, "no column 'text'; there are 'review', 'stars'"),
        ("own", OWN | {"label_column": "a"}, "no column 'a'.*--config.data.label_column=NAME"),
        (
            "own",
            OWN | {"pair_column": "stars"},
            r"pair_column and label_column are both 'stars' \(",
        ),
        ("own", {"text_column": "a", "pair_column": "a"}, "text_column and pair_column are both"),
        ("test", {}, "no split 'test'.*there are dev, own, same, signs, train"),
        ("train[3]", {}, r"a slice is written as train\[90%:\]"),
        ("train[9:4]", {}, r"split 'train\[9:4\]' has no rows: leave it out, name another"),
        ("train[:1]+same[:1%]", {}, r"split 'same\[:1%\]' has no rows"),
        ("train", {"path": "{}/train.tsv"}, r"is one file.*train_split=\[500:\]"),
        ("[1:]", {"path": ""}, "name a file or a directory"),
        ("[1:]", {"path": "{}/none"}, "no such file"),
        ("[1:]", {"path": "{}/a.txt"}, r"a.txt: no table by its suffix; .*\.tsv, \.csv"),
    ],
)
def test_what_a_run_refuses(
    tmp_path: Path, tokenizer: Tokenizer, split: str, changes: dict, problem: str
):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    path = changes.get("path", "{}").format(tmp_path)
    with pytest.raises(BadInputError, match=problem):
        table(path, tokenizer, split, **changes | {"path": path})


def test_no_tokenizer(tmp_path: Path):
    (tmp_path / "train.tsv").write_text(FILES["train.tsv"])
    advice = r"config.data.tokenizer is empty.*data.py tokenizer TEXTS.*--config.init_from"
    with pytest.raises(BadInputError, match=advice):
        Table(data(tmp_path, tokenizer=""), "train", {})


def test_open_data_takes_the_tokenizer_of_the_model(tmp_path: Path, tokenizer: Tokenizer):
    from configs import glue

    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\na b\tno\nc d e\tyes\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(tokenizer.json))
    config = glue.get_config("own,model=albert_tiny")
    config.init_from, config.data.path = str(tmp_path / "model"), str(tmp_path)
    config.data.max_length = 6
    config.data.update(train_split="train[:2]", eval_split="dev+train[-1:]")
    cut = open_data(config)
    assert (len(cut.train), len(cut.eval)) == (2, 3)
    line = overview((("train[:2]", cut.train), ("dev+train[-1:]", cut.eval)), "sequences")
    assert line == (  # by the texts: dev has the same
        "train[:2]: 2 sequences; dev+train[-1:]: 3 sequences, 3 of them in train[:2] too"
    )
    config.data.update(train_split="own[5:]", eval_split="own[:5]")
    own = tmp_path / "own.tsv"
    own.write_text("text\tlabel\n" + "".join(f"a b\t{label}\n" for label in "aaaaabcab"))
    open_data(config)
    own.write_text("text\tlabel\n" + "".join(f"a b\t{label}\n" for label in "aaaaaaabbbccc"))
    with pytest.raises(BadInputError, match=r"'own\[:5\]' has no row of 2 of the 3 classes"):
        open_data(config)
    config.data.update(train_split="train", eval_split="dev")
    opened = open_data(config)
    assert opened.data_info.info["vocab_size"] == len(VOCABULARY)
    assert opened.data_info.info["class_names"] == ["no", "yes"]
    assert opened.data_info.example["tokens"].shape == (6,)
    row = opened.train_transform(opened.train[1], None)
    assert row["tokens"].tolist() == [CLS, 7, 8, 9, SEP, 0] and row["label"] == 1
    for label in (2, -1, "1", 1.0, None):  # of an own source
        with pytest.raises(BadExampleError, match=rf"^own 1: its label is '?{label}'?; give"):
            opened.train_transform(opened.train[1] | {"label": label, "where": "own 1"}, None)
    examples = [("a b", "no"), ("c d e", "yes")]  # of Python code, as the files' rows
    info = dict(open_data(config, splits=(examples, examples[:1]), hashed=True).data_info.info)
    assert len(info.pop("content_sha256")) == 128 and info == opened.data_info.info
    pairs = [(("a", "b", "no"), ("b", "c", "yes")), (("a", "b", "yes"), ("b", "a", "yes"))]
    asked = open_data(config, splits=pairs)
    line = overview((("train", asked.train), ("dev", asked.eval)), "sequences")
    assert line == "train: 2 sequences; dev: 2 sequences, 1 of them in train too, none of no"
    for bad, problem in (
        ([("a b", 1), ("a",)], r"^data\[1\] is neither \(text, label\) nor"),
        ([("a b", 1), "ab"], r"^data\[1\] is neither"),
        ([("a b", "c", math.nan)], r"^data\[0\] is neither"),
        ([("a b", 1), ("a", "b", 2)], "each with one text or each with two"),
        ([], "^data: give examples"),
        ({1: ("a b", 1)}, r"^data\[0\] cannot be read: KeyError: 0"),
    ):
        with pytest.raises(BadInputError, match=problem):
            open_data(config, splits=(bad, examples))
    workdir = epath.Path(tmp_path / "run")  # its copy counts once the run has saved anything
    (workdir / "checkpoints").mkdir(parents=True)
    (workdir / "tokenizer.json").write_text(json.dumps(tokenizer.json))
    (workdir / "environment.json").write_text("[]")
    config.init_from = str(tmp_path / "gone")
    assert open_data(config, workdir).data_info == opened.data_info
    (workdir / "checkpoints").rmdir()
    with pytest.raises(BadInputError, match="gone"):
        open_data(config, workdir)
