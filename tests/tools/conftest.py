"""Settings for the tests of tools."""

import pytest

from widenet_jax.tools.sweep import runner


@pytest.fixture(autouse=True)
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for training end within milliseconds: look at them more often than at runs."""
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runner, "JUDGE_SECONDS", 0.05)
