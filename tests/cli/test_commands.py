"""The commands that use a trained model: their output, their files and their errors."""

import csv
import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from refusals import answered, refused

from widenet_jax.cli import analyze, evaluate, export, predict
from widenet_jax.cli.evaluate import loop_rows
from widenet_jax.nn.loop_settings import parse_loop
from widenet_jax.vision.data.digits import Digits

COMMANDS = {"analyze": analyze, "evaluate": evaluate, "export": export, "predict": predict}


def run(name: str, *arguments: object) -> int:
    return COMMANDS[name].main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def exported(digits_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "model"
    assert run("export", f"--workdir={digits_run}", f"--out={out}", "--json") == 0
    return out


@pytest.fixture(scope="module")
def digit_files(tmp_path_factory) -> list[Path]:
    """Writes two test images to files."""
    folder, source = tmp_path_factory.mktemp("digits"), Digits("test")
    for i in range(2):
        cv2.imwrite(str(folder / f"{i}.png"), source[i]["image"])
    return [folder / f"{i}.png" for i in range(2)]


def test_evaluate_an_export_into_files(exported, digits_run, tmp_path, capsys, drawn):
    out = tmp_path / "out"
    table = tmp_path / "new" / "predictions.csv"
    (labels := tmp_path / "dev.csv").write_text("sentence,label\n")
    other = refused(capsys, evaluate.main, f"--workdir={exported}", f"--predictions={labels}")
    assert f"--predictions={labels} holds something else than predictions" in other
    assert labels.read_text() == "sentence,label\n"
    sets = tmp_path / "sets.json"  # the last 60 images are left out
    labels = Digits("test").record_labels.tolist()
    sets.write_text(json.dumps([*([k, str((k + 1) % 10)] for k in labels[:300]), *[[]] * 60]))
    flags = (f"--workdir={exported}", f"--out={out}", f"--predictions={table}", f"--labels={sets}")
    printed = answered(capsys, evaluate.main, *flags)
    result = json.loads((digits_run / "result.json").read_text())
    assert printed["top_1"] == result["test_accuracy"]
    assert json.loads((out / "evaluation.json").read_text()) == printed
    counts = list(csv.reader((out / "confusion.csv").open()))
    assert sum(int(n) for row in counts[1:] for n in row[1:]) == 360
    rows = list(csv.DictReader(table.open()))
    right = sum(row["truth"] == row["prediction"] for row in rows)
    assert len(rows) == 360 and right / 360 == printed["top_1"]
    near = [(int(row["prediction"]) - int(row["truth"])) % 10 < 2 for row in rows]
    assert printed["in_label_set"] == sum(near[:300]) / 300 > printed["top_1"]
    assert (printed["judged"], printed["left_out"]) == (300, 60)
    low, high = printed["intervals"]["in_label_set"]
    assert low < printed["in_label_set"] < high
    assert 0 < printed["calibration_error"] < 0.5 and printed["choices"] == 10
    title, interval = drawn[0].texts[0].get_text().split("\n")
    assert title == "split test: 360 images" and interval.startswith("top-1 ")
    assert cv2.imread(str(out / "confusion.png")).shape[0] > 100
    # Nothing of this call stays beside the numbers of another one.
    found = answered(capsys, evaluate.main, f"--workdir={exported}", f"--out={out}", "--shots=2")
    assert [path.name for path in out.iterdir()] == ["evaluation.json"]
    assert json.loads((out / "evaluation.json").read_text()) == found


def test_evaluate_for_people_on_another_split(digits_run, capsys):
    assert run("evaluate", f"--workdir={digits_run}", "--config.data.eval_split=train") == 0
    out = capsys.readouterr().out
    assert "images                      1,437" in out and "hardest classes" in out
    assert "share of the largest class  10.16%" in out
    assert "balanced accuracy" in out and out.count(" (95%: ") == 4


def test_layers_fitted_to_few_images(digits_run, capsys):
    flags = (f"--workdir={digits_run}", "--shots=100")
    found = answered(capsys, evaluate.main, *flags)
    assert [found[k] for k in ("shots", "fitted", "images", "classes")] == [100, 1000, 360, 10]
    assert len(found["draws"]) == 3 and min(found["draws"]) > 0.3
    assert found["few_shot"] == pytest.approx(sum(found["draws"]) / 3)
    low, high = found["intervals"]["few_shot"]
    assert low < found["few_shot"] < high


def test_predict_and_draw(exported, digit_files, tmp_path, capsys):
    overlay = tmp_path / "experts.png"
    files = [str(path) for path in digit_files]
    flags = (f"--workdir={exported}", "--top=3", f"--overlay={overlay}")
    answers = answered(capsys, predict.main, *files, *flags)["images"]
    assert [a["image"] for a in answers] == files
    for answer in answers:
        shares = [row["probability"] for row in answer["top"]]
        assert len(shares) == 3 and shares == sorted(shares, reverse=True) and sum(shares) <= 1
    assert np.ptp(cv2.imread(str(overlay))) > 100


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_other_files(digits_run, digit_files, capsys):
    """The ten probabilities add up to 1, and do not change if there is a second image."""
    answers = []
    for files in (digit_files[:1], digit_files):
        found = answered(capsys, predict.main, *files, f"--workdir={digits_run}", "--top=10")
        answers.append(found["images"][0]["top"])
    assert answers[0] == answers[1]
    assert sum(row["probability"] for row in answers[0]) == pytest.approx(1, abs=1e-5)
    assert run("predict", digit_files[0], f"--workdir={digits_run}", "--top=1") == 0
    assert answers[0][0]["class"] in capsys.readouterr().out


@pytest.mark.slow
def test_analyze(exported, digits_run, tmp_path, capsys):
    """Compares a model with itself: both lines have the same numbers, an earlier step others."""
    out = tmp_path / "analysis"
    flags = (f"--workdir={digits_run}", "--checkpoint=10", f"--out={out}", "--images=2")
    compared = (f"--compare={exported}", f"--compare={digits_run}@20")
    assert run("analyze", *flags, *compared) == 0
    assert "tokens an expert would see in each block if even: 2,880" in capsys.readouterr().out
    names = {f"expert_{n}.png" for n in ("usage", "shares", "co_occurrence", "overlay")}
    names |= {"norm_divergence.png", "loops.png", "analysis.json"}
    assert {path.name for path in out.iterdir()} == names
    facts = json.loads((out / "analysis.json").read_text())
    earlier, ours, theirs = facts["norm_divergence"].values()
    assert facts["step"] == 10 and earlier != ours
    assert ours == theirs and len(ours["gamma"]["block"]) == 2 and min(ours["beta"]["block"]) > 0


def test_mistakes_are_one_line(exported, digit_files, tmp_path, capsys):
    text = tmp_path / "text.jpg"
    text.write_text("no picture")
    for (name, *flags), answer in (
        (["predict", "x.jpg", "--top=0"], "'0' must be a whole number of at least 1"),
        (["evaluate", "--config.evaluation.batch_size=7"], "batch_size=7 must be 1 or a multiple"),
        (["evaluate", "--config.data.pth=x"], "did you mean --config.data.path"),
        (["predict", tmp_path / "gone.jpg"], "gone.jpg: No such file"),
        (["predict", text], "text.jpg: no JPEG, PNG, WebP, BMP, GIF or TIFF file"),
        (["export", f"--out={exported}"], "is not empty"),
        (["evaluate", "--shots=2", "--restrict"], "--shots fits other classifiers"),
        (["evaluate", "--shots=2", "--config.data.train_split=test"], "are both test"),
        (["evaluate", "--shots=200"], "fewer training images of 0, 1, 2, 3, 4 and 5 more"),
        (["evaluate", f"--labels={text}"], "text.jpg: cannot be read (Expecting value"),
        (["analyze", f"--out={tmp_path / 'a'}", f"--compare={tmp_path}"], "no finished checkpoint"),
        # a file, where a folder would have to be
        (["predict", digit_files[0], f"--overlay={text / 'o.png'}"], "text.jpg: "),
    ):
        assert answer in refused(capsys, COMMANDS[name].main, *flags, f"--workdir={exported}")
    gone = f"--workdir={tmp_path / 'gone'}"
    assert "no finished checkpoint" in refused(capsys, evaluate.main, gone)


def test_no_whole_checkpoint_is_exit_code_3(digits_run, tmp_path, capsys):
    """Uses a copy of the run whose parameter files are truncated."""
    shutil.copytree(digits_run, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").rglob("manifest.json"):
        file.write_text("{}")
    assert run("export", f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'e'}") == 3
    assert capsys.readouterr().err.startswith("failed: ")


def test_other_numbers_of_loops_than_trained_are_shown():
    section = {"core": ((2, 3), (1, 4)), "tie": {"norms": "loops"}}
    assert loop_rows(parse_loop(section)) == []
    shown = loop_rows(parse_loop(section | {"counts": {"eval": 4, "train": "grow"}}))
    assert shown == [("loops", "4; trained: 3 and 4, grow")]
    one = section | {"core": ((1, 4),)}
    assert loop_rows(parse_loop(one | {"counts": {"eval": 4}})) == []
    assert loop_rows(parse_loop(one | {"counts": {"eval": 8}})) == [
        ("loops", "8; trained: 4, fixed")
    ]
