"""Settings for the tests of the papers' tables, which run sweeps."""

import pytest


@pytest.fixture(autouse=True)
def _polls(frequent_polls: None) -> None:
    """Applies to every test here."""
