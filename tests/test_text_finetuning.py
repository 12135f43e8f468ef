"""Finetuning on texts from one command: tiny runs of each task, and mistakes in one line."""

import json
import shutil
from pathlib import Path

import pytest
from refusals import refused
from small_runs import metrics_of, train_here
from text_sets import reviews_config, write_scores, write_squad, write_table, write_tokenizer

import widenet_jax as wj
from widenet_jax.cli.evaluate import main as evaluate
from widenet_jax.cli.export import main as export
from widenet_jax.cli.predict import main as predict
from widenet_jax.cli.prepare_data import main as prepare
from widenet_jax.errors import BadInputError
from widenet_jax.inference.over_source import metrics_over_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.main import main, parse_flags

COMMON = {
    "batch_size": 16, "evaluation.batch_size": 16, "model.loop.core": ((1, 1),),
    "log_every_steps": 1, "checkpoint.every": "1000 steps", "tracking.tensorboard": "false",
    "optimizer.learning_rate": 3e-3, "data.max_length": 16,
}  # fmt: skip


def flags(config: str, data: Path, **changes: object) -> list[str]:
    """Returns the flags of a tiny run."""
    fields = COMMON | {"data.path": data, "data.tokenizer": data / "vocab.txt"} | changes
    return [f"--config=configs/{config}", *(f"--config.{k}={v}" for k, v in fields.items())]


def run(config: str, workdir: Path, data: Path, **changes: object) -> dict:
    """Trains on one device; returns the result."""
    _, fields = parse_flags(["main", f"--workdir={workdir}", *flags(config, data, **changes)])
    return train_here(fields, workdir)


def evaluated(workdir: Path, out: Path, *flags: str) -> dict:
    """Evaluates a run by scripts/evaluate.py; returns evaluation.json."""
    assert evaluate([f"--workdir={workdir}", f"--out={out}", *flags]) == 0
    return json.loads((out / "evaluation.json").read_text())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "table").mkdir()
    write_table(tmp_path / "table")
    write_tokenizer(tmp_path / "table")
    return tmp_path / "table"


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    (tmp_path / "squad").mkdir()
    write_squad(tmp_path / "squad")
    write_tokenizer(tmp_path / "squad")
    return tmp_path / "squad"


def test_classification(reviews_run: Path):
    result = json.loads((reviews_run / "result.json").read_text())
    assert result["test_accuracy"] > 0.9 and result["test_examples"] == 40
    evaluations = metrics_of(reviews_run, "eval")
    accuracies = {record["step"]: record["accuracy"] for record in evaluations}
    assert result["best_checkpoint_accuracy"] == max(accuracies.values())
    assert accuracies[result["best_checkpoint_step"]] == max(accuracies.values())
    assert json.loads((reviews_run / "class_names.json").read_text()) == ["negative", "positive"]
    assert json.loads((reviews_run / "tokenizer.json").read_text())["model"]


@pytest.mark.slow
def test_a_run_keeps_its_tokenizer(reviews_run: Path, table: Path, tmp_path: Path):
    """It resumes without the tokenizer's file, not with another one, and evaluates without both."""
    workdir, config = tmp_path / "run", reviews_config(table)
    shutil.copytree(reviews_run, workdir)
    result = json.loads((workdir / "result.json").read_text())
    words = (table / "vocab.txt").read_text().split("\n")
    (table / "vocab.txt").write_text("\n".join([*words[:-2], words[-1], words[-2]]))
    with pytest.raises(BadInputError, match="was trained on data with another tokenizer"):
        train_here(config, workdir)
    (table / "vocab.txt").unlink()
    config.data.tokenizer = ""
    assert train_here(config, workdir)["params_sha256"] == result["params_sha256"]

    (table / "train.tsv").unlink()
    found = evaluated(workdir, tmp_path / "out", f"--config.data.path={table}")
    assert found["top_1"] == result["test_accuracy"] and found["examples"] == 40
    assert 0 < found["calibration_error"] < 0.5
    rows = (tmp_path / "out" / "confusion.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["negative", "positive"]


@pytest.mark.slow
def test_scores(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Pairs as STS-B's: trained, evaluated, predicted from a file, exported, loaded, taken over."""
    write_scores(tmp_path)
    write_tokenizer(tmp_path)
    assert prepare(["check", str(tmp_path), "--scores"]) == 0
    changes = {
        "duration": "80 steps", "optimizer.warmup": "5 steps", "evaluation.every": "40 steps",
        "optimizer.learning_rate": 2e-3,
    }  # fmt: skip
    workdir, exported = tmp_path / "run", tmp_path / "exported"
    result = run("glue.py:scores,model=albert_tiny", workdir, tmp_path, **changes)
    assert result["primary_metric"]["name"] == "spearman" and result["test_examples"] == 40
    assert result["test_spearman"] > 0.8 and result["test_pearson"] > 0.8
    found = evaluated(workdir, tmp_path / "out")
    for name in ("spearman", "pearson"):
        low, high = found["intervals"][name]
        assert low < found[name] < high
        assert found[name] == pytest.approx(result[f"test_{name}"])

    assert export([f"--workdir={workdir}", f"--out={exported}"]) == 0
    flags = [f"--workdir={exported}", str(tmp_path / "dev.tsv"), f"--out={tmp_path / 'out.csv'}"]
    assert predict(flags) == 0
    header, *lines = (tmp_path / "out.csv").read_text().splitlines()
    assert header == "file,row,text,pair,score" and len(lines) == 40
    model = wj.load(exported)
    good, bad = "the day good", "the day bad"
    scores = model.score([bad, good, good], [bad, bad, good])
    assert scores[0] < scores[1] < scores[2]
    capsys.readouterr()
    assert predict([f"--workdir={exported}", f"--text={bad}", f"--pair={bad}"]) == 0
    assert capsys.readouterr().out.splitlines() == [bad, bad, f"  score {scores[0]:.4f}"]
    hf = [f"--workdir={workdir}", "--format=huggingface", f"--out={tmp_path / 'hf'}"]
    assert export(hf) == 0
    more = {"init_from": tmp_path / "hf", "data.tokenizer": "", "model.loop.core": ((1, 1),)}
    again = run("glue.py:scores", tmp_path / "again", tmp_path, **changes | more)
    assert again["test_spearman"] > 0.5


def test_question_answering(tmp_path: Path, squad: Path):
    changes = {
        "duration": "30 steps", "optimizer.warmup": "3 steps", "evaluation.every": "30 steps",
        "data.max_question_length": 8, "data.stride": 4, "task.null_threshold": -0.25,
    }  # fmt: skip
    result = run("squad.py:v2,model=albert_tiny", tmp_path / "run", squad, **changes)
    losses = [record["loss"] for record in metrics_of(tmp_path / "run")]
    assert losses[-1] < 0.8 * losses[0]
    assert result["primary_metric"] == {"name": "best_f1", "higher_is_better": True}
    assert result["test_questions"] == 24 < result["test_windows"]
    assert result["test_best_f1"] >= max(result["test_f1"], 8 / 24)

    found = evaluated(tmp_path / "run", tmp_path / "out")
    assert found["f1"] == pytest.approx(result["test_f1"])
    read = lambda name: json.loads((tmp_path / "out" / f"{name}.json").read_text())  # noqa: E731
    answers, null_scores = read("predictions"), read("null_scores")
    assert answers.keys() == null_scores.keys() == {f"dev{number}" for number in range(24)}
    assert all((answers[name] == "") == (null_scores[name] > -0.25) for name in answers)
    best = read("best_answers")  # where the threshold does not silence them
    assert best.keys() == answers.keys() and any(best[name] for name in best if not answers[name])
    assert all(answers[name] in ("", best[name]) for name in best)
    trained = open_trained(str(tmp_path / "run"))
    trained.config.task.unanswerable = False  # as of a model for SQuAD1.1
    with pytest.raises(BadInputError, match="has questions without an answer"):
        metrics_over_source(trained)


def test_mistakes_are_one_line(tmp_path: Path, table: Path, squad: Path, reviews_run, capsys):
    """Of the table that is read, of the task that reads it, and of flags for images."""
    for flag in ("--shots=2", "--restrict"):
        line = refused(capsys, evaluate, f"--workdir={reviews_run}", flag)
        assert f"{flag.split('=')[0]} takes a classifier of images" in line
    (tmp_path / "dev.tsv").write_text("one\ttwo\tlabel\nday\tgood\tnegative\nbad\tday\tpositive\n")
    data = (f"path={tmp_path}", "text_column=one", "pair_column=two")
    data = (f"--config.data.{field}" for field in data)
    line = refused(capsys, evaluate, f"--workdir={reviews_run}", *data)
    assert "was trained on single texts, and the set is of pairs of texts" in line
    v1 = {"data.train_split": "train-v2.0", "data.eval_split": "dev-v2.0", "data.stride": 4}
    v1 |= {"data.max_question_length": 8}
    for config, data, changes, line in (
        ("glue.py:own,model=albert_tiny", table, {"data.eval_split": "test"}, "no split 'test'"),
        ("squad.py:v1,model=albert_tiny", squad, v1, "add --config.task.unanswerable=true"),
    ):
        arguments = [f"--workdir={tmp_path / 'run'}", *flags(config, data, **changes)]
        assert line in refused(capsys, main, "main", *arguments)
        assert not (tmp_path / "run").exists()
