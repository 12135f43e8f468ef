"""The commands of the pages in docs/start that train on texts: as they stand, with fewer steps."""

import importlib
import json
import re
from pathlib import Path

import pytest
from test_docs import ROOT, commands_of
from text_sets import FILLERS, write_tokenizer
from untrained import export_texts

from configs import text_tiny
from widenet_jax import main as training
from widenet_jax.cli import export

pytestmark = pytest.mark.slow


def run_page(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a page's commands in `folder`: one step for a thousand, and short texts."""
    (folder / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(folder)
    for program, *rest in commands_of(ROOT / "docs" / "start" / name):
        words = [re.sub(r"(\d)000 steps$", r"\1 steps", word) for word in rest]
        if program == "-m":
            short = ["--config.data.max_length=16", "--config.evaluation.every=1 steps"]
            short += ["--config.optimizer.warmup=0 steps", "--config.checkpoint.every=1 steps"]
            assert training.main(["main", *words[1:], *short]) == 0, words
        else:
            command = importlib.import_module(f"widenet_jax.cli.{Path(program).stem}")
            words += ["--vocab_size=34"] if "tokenizer" in words else []  # the texts have no more
            assert command.main(words) == 0, words


def test_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """The first run is continued; the experts' picture is drawn."""
    (tmp_path / "plays.txt").write_text("ROMEO: It was a long day, and quiet.\n" * 300)
    run_page("language_model.md", tmp_path, monkeypatch)
    assert "ROMEO:" in capsys.readouterr().out
    assert json.loads((tmp_path / "runs/plays/result.json").read_text())["steps"] == 3
    assert (tmp_path / "analysis" / "expert_kinds.png").exists()


def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both ways to a classifier, the first from a directory in Hugging Face's format."""
    folder = tmp_path / "reviews"
    folder.mkdir()
    for name, count in (("train", 64), ("dev", 16)):
        rows = [f"{word} {n} day,{stars}" for n in range(count // 2)
                for word, stars in (("good", "good"), ("dull", "bad"))]  # fmt: skip
        (folder / f"{name}.csv").write_text("\n".join(["review,stars", *rows]) + "\n")
    (tmp_path / "new_reviews.csv").write_text("id,review\n1,a good day\n2,a dull day\n")
    vocabulary = write_tokenizer(tmp_path, [*FILLERS, "good", "dull"])
    albert = export_texts(text_tiny.get_config("albert_tiny"), vocabulary, tmp_path / "albert")
    flags = [f"--workdir={albert}", f"--out={tmp_path / 'hf' / 'albert-base-v2'}"]
    assert export.main([*flags, "--format=huggingface"]) == 0
    run_page("texts.md", tmp_path, monkeypatch)
    small = json.loads((tmp_path / "runs/small/result.json").read_text())
    assert small["steps"] == 20 and small["test_examples"] == 16
    rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [["new_reviews.csv", str(n)] for n in (1, 2)]
