"""A config whose task has a headline metric of which lower values are better."""

from pathlib import Path

import pytest

from widenet_jax.specs import TASKS

CONFIG = """
from configs import digits
from widenet_jax.specs import TASKS
from widenet_jax.task import Headline, Task

class Guess(Task):
    headline = Headline("perplexity", higher_is_better=False)

TASKS["guess"] = Guess

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
