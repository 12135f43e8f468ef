"""Paths on an object store."""

import sys
from types import ModuleType

import pytest
from fsspec import AbstractFileSystem, config

from widenet_jax.files import absolute


class Bucket(AbstractFileSystem):
    """A file system with the names of gcsfs'."""

    protocol = ("gs", "gcs")


def test_listings_of_a_bucket_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    """Other hosts write there. etils makes the file system with this argument at its first use."""
    monkeypatch.setitem(sys.modules, "gcsfs", ModuleType("gcsfs"))
    monkeypatch.setitem(config.conf, "gcs", {"timeout": 60})
    assert str(absolute("gs://bucket/run")) == "gs://bucket/run"
    bucket = Bucket(finalize_on_close=True)
    bucket.dircache["bucket/run"] = []
    assert "bucket/run" not in bucket.dircache
    assert bucket.storage_options["timeout"] == 60  # what the user has set stays
