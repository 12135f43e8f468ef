"""Paths on an object store; files that are written whole or not at all."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from etils import epath
from etils.epath.testing import mock_epath
from fsspec import config, filesystem

from widenet_jax import files
from widenet_jax.checkpoint.series import Series
from widenet_jax.corpus.inputs import plan
from widenet_jax.errors import BadInputError
from widenet_jax.files import absolute, is_gone, matching, readable, replacing, write_json
from widenet_jax.inference.pretrained import weight_files
from widenet_jax.vision.prepare.packing import split_files


def test_listings_of_a_bucket_are_not_kept(monkeypatch: pytest.MonkeyPatch):
    """Other hosts write there. etils makes the file system with this argument at its first use."""
    monkeypatch.setitem(config.conf, "gcs", {"token": "anon", "timeout": 60})
    assert str(absolute("gs://bucket/run")) == "gs://bucket/run"
    store = filesystem("gcs", finalize_on_close=True)
    store.dircache["bucket/run"] = []
    assert "bucket/run" not in store.dircache
    assert store.timeout == 60  # what the user has set stays


def test_other_stores_are_refused():
    for read in (absolute, readable):
        with pytest.raises(BadInputError, match="hf://bert: neither a local path nor gs://; copy"):
            read("hf://bert")


@pytest.mark.parametrize("mark", files.WILDCARDS)
def test_names_on_gs_that_would_be_patterns_are_refused(mark: str):
    """fsspec expands them, also to write, rename and delete."""
    for check in (absolute, readable, lambda path: plan([path])):
        with pytest.raises(BadInputError, match="in a name would be taken as a wildcard"):
            check(f"gs://bucket/a{mark}b/run")


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?", "[!b]"])
def test_local_names_are_no_patterns(tmp_path: Path, name: str):
    """Beside the directory is one that its name would match."""
    for folder in (name, "a1"):
        (tmp_path / folder).mkdir()
        for file in (
            "model.safetensors",
            "5.orbax-checkpoint-tmp",
            "5.damaged",
            ".x.json",
            "y.json",
        ):
            (tmp_path / folder / file).write_text(folder)
    place = epath.Path(tmp_path / name)
    assert weight_files(place) == [place / "model.safetensors"]
    assert split_files([f"train={place / 'y.json'}"]) == {"train": [str(place / "y.json")]}
    assert matching(place, "*.json") == [place / "y.json"]
    with closing(Series(place, keep=1)) as series:
        assert series.damaged() == ["5.damaged"]
        assert series.remove_unfinished() == ["5"]
    assert len(list((tmp_path / "a1").iterdir())) == 5
    assert matching(place / "none", "*") == []


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


def test_files_replace_those_of_an_earlier_call(tmp_path: Path):
    """Not where the new call fails, nor in a directory of other files."""
    out = epath.Path(tmp_path)

    def call(*names: str) -> list[str]:
        with replacing(out, "a.json", "b_*.png") as new:
            for name in names:
                (new / name).touch()
            if not names:
                raise OSError
        return sorted(path.name for path in tmp_path.iterdir())

    for name in ("b_mine.png", "c.png"):
        (tmp_path / name).touch()
    assert call("a.json", "b_1.png") == ["a.json", "b_1.png", "b_mine.png", "c.png"]
    with pytest.raises(OSError):
        call()
    assert call("a.json", "b_2.png") == ["a.json", "b_2.png", "c.png"]
