"""A run that would not fit on the disk is refused; a full disk is an error with both sizes."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from saved_series import failure, opened, save

from widenet_jax.checkpoint.series import check_space, tree_bytes
from widenet_jax.errors import BadInputError, RunFailedError


def test_bytes_of_a_tree():
    """2 x 3 x 4 + 5 x 2 bytes, and two words of a random key, as an optimizer may have."""
    tree = {"a": np.zeros((2, 3), np.float32), "b": jnp.zeros(5, jnp.bfloat16)}
    assert tree_bytes(tree) == tree_bytes(jax.eval_shape(lambda: tree)) == 34
    assert tree_bytes(tree | {"key": jax.random.key(0)}) == 42


def test_the_newest_one_more_and_two_of_the_best(tmp_path: Path):
    """keep + 3 checkpoints, in a directory that does not exist yet."""
    workdir = epath.Path(tmp_path / "runs" / "new")
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    check_space(workdir, ("checkpoints",), checkpoint_bytes=free // 10, keep=2)
    with pytest.raises(BadInputError, match=r"take up to .* MB, and only .* MB are free there"):
        check_space(workdir, ("checkpoints",), checkpoint_bytes=free // 4, keep=2)


def test_what_is_there_already_counts(tmp_path: Path):
    """Space that the run's checkpoints already use (here a sparse file) counts as available."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    with (tmp_path / "checkpoints" / "5" / "a").open("wb") as file:
        file.truncate(free // 2)
    check_space(epath.Path(tmp_path), ("checkpoints",), checkpoint_bytes=free // 4, keep=2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_fills_up(small_disk: Path):
    """The second save does not fit and fails; the first checkpoint can still be read."""
    rng = np.random.default_rng(0)
    arrays = {"params": {"a": jnp.asarray(rng.random(1_250_000), jnp.float32)}}  # 5 MB of noise
    with opened(small_disk / "checkpoints") as series:
        save(series, 5, arrays)
        with pytest.raises(RunFailedError, match=r"^checkpoint 10 could not be .*\(needs 5.0 MB, "):
            save(series, 10, arrays)
        restored, damaged = series.newest(arrays)
    assert (restored.meta["step"], damaged) == (5, {})
    assert [p.name for p in (small_disk / "checkpoints").iterdir()] == ["5"]


def test_a_disk_that_holds_no_more_files(small_disk: Path):
    """The line counts inodes; closing raises no second error, and no thread waits for the disk."""
    threads = set(threading.enumerate())
    for inodes in (3, 8):
        subprocess.run(["mount", "-o", f"remount,nr_inodes={inodes}", str(small_disk)], check=True)
        told = failure(small_disk / "checkpoints", 5, {"params": {"a": jnp.zeros(3)}})
        full = rf"No space left on device \([01] of {inodes} inodes free, one for each file; "
        assert re.search(full, told)
        mend = "delete some files there, then run the same command again to resume"
        assert told.endswith(mend)
    left, pools = set(threading.enumerate()) - threads, {"metadata_store_0", "asyncio_0"}  # idle
    for thread in left:  # one may be about to end; join of Orbax's own raises what failed there
        threading.Thread.join(thread, 0 if thread.name in pools else 5)
    assert {thread.name for thread in left if thread.is_alive()} <= pools
