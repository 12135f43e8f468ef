"""Slices of splits, written as TFDS writes them."""

import json
from pathlib import Path

import pytest
from image_sources import png, refused

from widenet_jax.corpus.novel import FOLDER
from widenet_jax.data import records
from widenet_jax.data.splits import parse_slice, slice_of
from widenet_jax.errors import BadInputError
from widenet_jax.specs import task_specs


@pytest.mark.parametrize(
    ("split", "size", "expected"),
    [
        ("train[90%:]", 100, range(90, 100)),
        ("train[10%:20%]", 100, range(10, 20)),
        ("train[5:-5]", 100, range(5, 95)),
        ("train[:50%]", 7, range(4)),  # rounded as in TFDS
        # A share of less than half a record is none.
        ("train[-1%:]", 40, []),  # 0.4 records
        ("train[:-1%]", 40, range(40)),
        ("train[99%:]", 40, []),  # from 39.6
        ("train[-2%:]", 40, [39]),  # 0.8 records
        ("train[-100%:]", 40, range(40)),
    ],
)
def test_a_slice_has_these_records(split, size, expected):
    name, bounds = parse_slice(split)
    assert name == "train" and list(range(size)[slice_of(bounds, size)]) == list(expected)


def test_no_slice_and_a_part_of_a_set_that_is_one_file():
    assert parse_slice("val") == ("val", None) and parse_slice("[5:]") == ("", ("5", ""))


def test_other_slices_are_refused():
    for bound in ("150%", "-101%"):
        refused = rf"'train\[:{bound}\]': {bound} is out of range; give"
        with pytest.raises(BadInputError, match=refused):
            parse_slice(f"train[:{bound}]")
    for split in ("train[90%]", "train[a:]", "train[:5%]+test"):
        with pytest.raises(BadInputError, match="a slice is written as"):
            parse_slice(split)


def write_image_folder(path: Path) -> None:
    (path / "train" / "a").mkdir(parents=True)
    (path / "train" / "a" / "x.png").write_bytes(png(1))


def write_packed(path: Path) -> None:
    records.write_set(path, {"train": [(0, png(0))]}, class_names=["a"], provenance={})


# What each source reads; None: something that the package has. Of the two that are left out, tfds
# is in test_shards.py, and text opens packed sets as array_record does.
SETS = {
    "array_record": write_packed,
    "digits": None,
    "image_folder": write_image_folder,
    "scores": lambda path: (path / "train.tsv").write_text("text\tscore\na\t0\nb\t1\n"),
    "squad": lambda path: (path / "train.json").write_text(json.dumps({"data": []})),
    "table": lambda path: (path / "train.tsv").write_text("text\tlabel\na\t0\n"),
    "tiny_pieces": None,
    "tiny_text": None,
    "token_stream": None,
}


@pytest.mark.parametrize("field", ["train_split", "eval_split"])
@pytest.mark.parametrize("source", SETS)
def test_a_split_that_is_not_there_is_named_with_its_field(source: str, field: str, tmp_path: Path):
    sources = {name: one.open for spec in task_specs() for name, one in spec.sources.items()}
    ours = {name for name, opens in sources.items() if str(opens).startswith("widenet_jax.")}
    assert ours == {*SETS, "text", "tfds"}
    data = {"source": source, "path": "", "train_split": "train", "eval_split": "train[:1]"}
    data |= {"max_length": 16, "max_question_length": 4, "stride": 4, field: "dev7"}
    data["tokenizer"] = str(FOLDER)
    if write := SETS[source]:
        write(tmp_path)
        data["path"] = str(tmp_path)
    for split in ("dev7", "dev7+train"):
        message = refused(data | {field: split}, split)
        assert "no split 'dev7'" in message and "there are train" in message
        assert message.endswith(f" (--config.data.{field})")


def test_a_stream_has_no_slices_and_no_sums():
    for split in ("train[:9]", "train+valid"):
        message = refused({"source": "tiny_text", "max_length": 16}, split)
        assert message == f"config.data.source=tiny_text: has no slices or sums such as {split!r}"
