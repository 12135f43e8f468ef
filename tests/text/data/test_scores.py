"""Tables whose labels are numbers: columns, forms of numbers, and labels that are none."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refuses
from text_sets import write_tokenizer

from configs import glue
from widenet_jax.data.contents import contents_sha256
from widenet_jax.data.contract import Data
from widenet_jax.data.sources import build_transforms, open_data
from widenet_jax.text.data.scores import Scores

STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"


def opened(place: Path, splits: tuple | None = None, **changes: str) -> Data:
    config = glue.get_config("scores,model=albert_tiny")
    config.data.update(path=str(place), tokenizer=str(write_tokenizer(place)), **changes)
    return open_data(config, splits=splits)


def scores(place: Path, **changes: str) -> list[float]:
    return opened(place, **changes).train.record_scores.tolist()


def test_known_columns(tmp_path: Path):
    """GLUE's, whose test set has no score; Hugging Face's, with -1 a number; a user's own."""
    for split in ("train", "dev"):
        row = "0\tmain\tMSRvid\t2012\t1\tnone\tnone\tthe day\tthe long day\t"
        (tmp_path / f"{split}.tsv").write_text(f"{STSB}{row}5.000\n{row}3.80\n")
    assert scores(tmp_path) == [5.0, np.float32(3.8)]
    source = opened(tmp_path).train
    assert source.info["pairs"] and "class_names" not in source.info
    assert source.note.splitlines()[0] == "scores from 3.8 to 5, mean 4.4"
    assert source[1]["label"] == pytest.approx(3.8) and len(source) == 2
    refuses("no column 'scores'; there are", opened, tmp_path, label_column="scores")

    columns = {"sentence1": ["the", "day"], "sentence2": ["a", "a"], "label": [2.5, -1.0]}
    pq.write_table(pa.table(columns), tmp_path / "hf.parquet")
    (tmp_path / "own.csv").write_text("text,score,stars\nthe,a,1\nday,b,1e1\n")
    assert scores(tmp_path, train_split="hf") == [2.5, -1.0]
    own = {"text_column": "text", "pair_column": "", "label_column": "stars"}
    splits = {"train_split": "own", "eval_split": "own"}
    assert scores(tmp_path, **own, **splits) == [1.0, 10.0]


def test_an_example_of_a_batch(tmp_path: Path):
    (tmp_path / "train.csv").write_text("text,score\nthe day,0.1\nlong,3\n")
    source = opened(tmp_path, eval_split="train").train
    config = glue.get_config("scores,model=albert_tiny")
    transform, _ = build_transforms(config, source.info)
    row = transform(source[0], np.random.default_rng(0))
    assert row["label"] == np.float32(0.1) and row["label"].dtype == np.float32
    other = Scores(config.data.to_dict() | {"path": str(tmp_path)}, "train", source.info)
    assert contents_sha256(other) == contents_sha256(source)
    other.record_scores[1] += 1
    assert contents_sha256(other) != contents_sha256(source)


@pytest.mark.parametrize("number", ["3,5", "good", "nan", "-inf", "1e39", "0x1"])
def test_labels_that_are_no_numbers(tmp_path: Path, number: str):
    (tmp_path / "train.tsv").write_text(f"text\tscore\nthe\t1\nday\t{number}\n")
    message = rf"train.tsv row 2: label '{number}' is no finite number; write scores as 3.5$"
    refuses(message, opened, tmp_path)


def test_other_refusals(tmp_path: Path):
    for label, message in (
        (', "score": null', r"train.jsonl row 1: column 'score' holds no label \(None\)$"),
        (', "score": NaN', r"train.jsonl row 1: column 'score' holds no label \(nan\)$"),
        (', "score": true', "train.jsonl row 1: label 'True' is no finite number; write"),
        (', "score": -1', r"train.jsonl row 1: all 1 scores are -1; a correlation needs others,"),
    ):
        (tmp_path / "train.jsonl").write_text(f'{{"text": "the"{label}}}\n')
        refuses(message, opened, tmp_path)
    (tmp_path / "train.jsonl").write_text('{"text": "the", "stars": 1}\n')
    refuses(r"no column 'score'; there are 'text', 'stars' \(choose with --c", opened, tmp_path)


def test_python_objects(tmp_path: Path):
    """Whole numbers, NumPy's and texts; their scale is told where it is large."""
    examples = [("the", "day", 1), ("day", "the", np.float32(2.5)), ("a", "b", "600")]
    data = opened(tmp_path, (examples, examples[:2]))
    assert data.train.record_scores.tolist() == [1, 2.5, 600]
    assert data.eval.record_scores.tolist() == [1, 2.5]
    told, *_ = data.train.note.splitlines()
    assert told.startswith("scores from 1 to 600, mean 201.2; they are learned as they are: scale")
    for label, message in (
        ("no", r"eval_data\[1\]: label 'no' is no finite number; write scores as 3.5$"),
        (float("nan"), r"eval_data\[1\] is neither \(text, label\) nor"),
        (1, r"eval_data\[0\]: all 2 scores are 1; a correlation needs"),
    ):
        refuses(message, opened, tmp_path, (examples, [examples[0], ("the", "b", label)]))
