"""Settings for the tests of tools."""

import pytest
from matplotlib.figure import Figure

from widenet_jax.tools.sweep import runner


@pytest.fixture(autouse=True)
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for training end within milliseconds: look at them more often than at runs."""
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(runner, "JUDGE_SECONDS", 0.05)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Lists the figures that are saved during the test, as they were drawn."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args, **options) -> None:
        save(figure, *args, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures
