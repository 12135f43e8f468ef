"""Paths on an object store; files that are written whole or not at all."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from etils import epath
from etils.epath.testing import mock_epath
from fsspec import AbstractFileSystem, config

from widenet_jax.errors import BadInputError
from widenet_jax.files import absolute, is_gone, readable, write_json


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


def test_other_stores_are_refused():
    for read in (absolute, readable):
        with pytest.raises(BadInputError, match="hf://bert: neither a local path nor gs://; copy"):
            read("hf://bert")


def test_a_bucket_that_does_not_answer_is_not_gone():
    for error, gone in ((FileNotFoundError("gone"), True), (OSError("try again"), False)):
        with mock_epath(stat=Mock(side_effect=error)):
            assert is_gone(epath.Path("gs://bucket/run/config.json")) == gone


def test_a_file_that_several_write_at_a_time_is_one_of_theirs(tmp_path: Path):
    file = tmp_path / "sweep.json"
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda number: write_json(file, [number] * 1000), range(32)))
    assert len(set(json.loads(file.read_text()))) == 1
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_json(tmp_path / "taken", {})
    assert caught.value.filename == str(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
