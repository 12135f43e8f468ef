"""Hosts that disagree about the run end it; the message names the host that differs.

`tests/test_many_hosts.py` runs hosts that differ in one point.
"""

import shutil
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from small_runs import commands_of_two, finish, start

from widenet_jax.errors import BadInputError
from widenet_jax.run import hosts
from widenet_jax.run.hosts import code_sha256, disagreement, on_every_host


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ([[1, 2], [1, 2], [1, 2]], None),
        ([[1, 2], [1, 3], [1, 2]], "on seed: process 1 of 3 differs"),
        ([[1, 3], [1, 2], [1, 2]], "on seed: process 0 of 3 differs"),
        ([[1, 2], [1, 3]], "on seed: process 1 of 2 differs"),  # a tie: process 0 is right
        ([[4, 2], [5, 2], [5, 3], [4, 2], [4, 2]], "on depth: process 1, 2 of 5 differs"),
    ],
)
def test_the_odd_host_is_named(table: list, told: str | None):
    found = disagreement(["depth", "seed"], np.array(table, np.uint32))
    assert (found is None) if told is None else (told in found)


def test_one_host_begins_or_says_why():
    assert on_every_host(lambda: 3) == 3
    with pytest.raises(BadInputError, match="no such data"):
        on_every_host(fail)


def fail() -> None:
    raise BadInputError("no such data")


@pytest.mark.slow
def test_data_that_one_process_cannot_open(tmp_path: Path):
    """Both processes end at once: one names the path, the other names the failed process."""
    first, second = commands_of_two(tmp_path / "run")
    second += ["--config.data.source=image_folder", "--config.data.path=/nowhere"]
    first += ["--config.data.source=image_folder", f"--config.data.path={tmp_path}"]
    for name in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (tmp_path / name).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / name / "0.png"), np.zeros((8, 8, 3), np.uint8))
    runs = [start(first, devices=2), start(second, devices=2)]
    began = time.monotonic()
    assert "/nowhere" in finish(runs[1], 2)
    assert "process 1 cannot begin" in finish(runs[0], 2)
    assert time.monotonic() - began < 60


def test_every_byte_of_the_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of the package has the same hash until one of its bytes changes."""
    package = Path(hosts.__file__).parents[1]
    copy = Path(shutil.copytree(package, tmp_path / "copy"))
    before = code_sha256()
    monkeypatch.setattr(hosts, "__file__", str(copy / "run" / "hosts.py"))
    assert code_sha256() == before
    with (copy / "nn" / "moe" / "slots.py").open("a") as file:
        file.write("#")
    assert code_sha256() != before
