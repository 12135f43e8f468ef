"""Settings for the tests of sweeps."""

import pytest


@pytest.fixture(autouse=True)
def _polls(frequent_polls: None) -> None:
    """Applies to every test here."""
