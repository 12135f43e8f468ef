"""The TPU compiler, which tests of it need."""

import importlib.util

import pytest

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="the TPU compiler is not installed: pip install -e '.[plan]'",
)
