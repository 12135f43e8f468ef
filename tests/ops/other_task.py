"""A config whose task has a primary metric of which lower values are better."""

from pathlib import Path

import pytest

from widenet_jax.specs import TASKS

CONFIG = """
from configs import digits
from dataclasses import replace

from widenet_jax.specs import register
from widenet_jax.task import PrimaryMetric, Task
from widenet_jax.vision.spec import CLASSIFICATION

class Guess(Task):
    primary_metric = PrimaryMetric("perplexity", higher_is_better=False)

register(replace(CLASSIFICATION, name="guess", task=Guess))

def get_config():
    config = digits.get_config()
    config.task.name = "guess"
    return config
"""


def config(directory: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes the config, and returns its path; `TASKS` is restored at the end of the test."""
    monkeypatch.setitem(TASKS, "guess", None)
    (directory / "guess.py").write_text(CONFIG)
    return str(directory / "guess.py")
