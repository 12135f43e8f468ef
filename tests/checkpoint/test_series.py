"""Damaged checkpoints are named and kept aside; the run restores the previous checkpoint."""

import asyncio
import json
import shutil
from pathlib import Path

import gcs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from orbax.checkpoint._src import asyncio_utils
from saved_series import opened, save

from widenet_jax.checkpoint.manifest import LEFT_OUT, write_manifest
from widenet_jax.checkpoint.series import CannotReadError, steps_in
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.files import absolute, write_text


def arrays(step: int) -> dict[str, dict]:
    """Returns arrays whose values are different for every step."""
    return {
        "params": {"kernel": jnp.arange(600.0).reshape(20, 30) + step, "bias": jnp.ones(3)},
        "opt_state": {"mu": jnp.full((20, 30), float(step))},
    }


TARGET = jax.tree.map(jnp.zeros_like, arrays(0))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes checkpoints 5 and 10."""
    directory = tmp_path_factory.mktemp("series") / "checkpoints"
    with opened(directory) as series:
        save(series, 5, arrays(5))
        save(series, 10, arrays(10))
    return directory


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkpoints"))


def newest(directory: Path) -> tuple[int, dict, dict[int, str]]:
    """Returns (step, items, damaged) as a run would restore them."""
    with opened(directory) as series:
        restored, damaged = series.newest(TARGET, fingerprint="f")
        series.quarantine(damaged)
        return restored.meta["step"], restored.items, damaged


def assert_read(directory: Path, step: int) -> dict[int, str]:
    found, items, damaged = newest(directory)
    assert found == step
    jax.tree.map(np.testing.assert_array_equal, items, arrays(step))
    return damaged


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * bit // 8] ^= 1 << bit
    path.write_bytes(bytes(content))


def everything_in(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in files_of(directory)}


@pytest.mark.parametrize("bit", [5, pytest.param(0, marks=pytest.mark.slow)])
def test_a_flipped_bit_in_each_file_in_turn(made: Path, tmp_path: Path, bit: int):
    """Every file is verified, except those that Orbax adds at the commit and does not need."""
    counted = set()
    for number, file in enumerate(files_of(made / "10")):
        copy = Path(shutil.copytree(made, tmp_path / str(number)))
        name = file.relative_to(made)
        content = file.read_bytes()
        if not content:
            continue
        flip(copy / name, bit)
        if file.name in LEFT_OUT and file.name != "manifest.json":
            assert_read(copy, 10)
            continue
        counted.add(file.name)
        damaged = assert_read(copy, 5)
        assert list(damaged) == [10]
        assert damaged[10].startswith(str(name.relative_to("10")))
        assert (copy / "10.damaged").is_dir() and not (copy / "10").exists()
    assert {"manifest.json", "_METADATA", "manifest.ocdbt", "metadata"} <= counted


DAMAGES = {
    "a file is gone": lambda step: (step / "opt_state" / "manifest.ocdbt").unlink(),
    "everything is gone": lambda step: [
        shutil.rmtree(p) if p.is_dir() else p.unlink() for p in step.iterdir()
    ],
    "a directory is in the manifest's place": lambda step: [
        (step / "manifest.json").unlink(),
        (step / "manifest.json").mkdir(),
    ],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_other_damage(directory: Path, capfd: pytest.CaptureFixture, damage: str):
    DAMAGES[damage](directory / "10")
    damaged = assert_read(directory, 5)
    warning = f"warning: {directory / '10'} {damaged[10]}; renamed to 10.damaged\n"
    assert warning in capfd.readouterr().err


@pytest.mark.parametrize(("item", "value"), [("params", np.nan), ("opt_state", np.inf)])
def test_numbers_that_are_not_finite(tmp_path: Path, item: str, value: float):
    """They count as damage, but not for a replay."""
    with opened(tmp_path) as series:
        save(series, 5, arrays(5))
        bad = arrays(10)
        bad[item] = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(value), bad[item])
        save(series, 10, bad)
        assert series.newest(TARGET, finite=False)[0].meta["step"] == 10
    assert assert_read(tmp_path, 5) == {10: "holds non-finite numbers"}


@pytest.mark.parametrize("copied", [True, False])
def test_a_checkpoint_under_the_name_of_another_step(directory: Path, capfd, copied: bool):
    """Its files are intact, but a run would repeat or leave out steps, and keep it as the newest.

    Where it is the only one, the message says which name is right.
    """
    (shutil.copytree if copied else shutil.move)(directory / "5", directory / "9999")
    told = f"warning: {directory}/9999 holds step 5, whose name it must have; renamed to 9999.dam"
    assert list(assert_read(directory, 10)) == [9999]
    assert capfd.readouterr().err.startswith(told)
    (directory / "10").rename(directory / "11")
    with (
        opened(directory) as series,
        pytest.raises(RunFailedError, match="11: holds step 10, whose name it must have"),
    ):
        series.newest(TARGET, only=11 if copied else None)


def test_a_file_in_the_place_of_the_directory(tmp_path: Path):
    (tmp_path / "best").write_text("")
    with pytest.raises(BadInputError, match="best is a file, and must hold checkpoints"):
        steps_in(epath.Path(tmp_path / "best"))


def test_all_of_them_damaged(directory: Path):
    """Exit code 3 in a run; nothing is renamed, deleted or written."""
    for step in ("5", "10"):
        flip(directory / step / "params" / "manifest.ocdbt", 4)
    before = everything_in(directory)
    with pytest.raises(RunFailedError, match=r"10: params/manifest.ocdbt has changed .*; 5: par"):
        newest(directory)
    assert everything_in(directory) == before


def test_what_a_killed_save_leaves_is_no_checkpoint(directory: Path):
    (directory / "10").rename(directory / "15.orbax-checkpoint-tmp")
    assert_read(directory, 5)
    with opened(directory) as series:
        assert series.remove_unfinished() == ["15"]
        assert series.steps() == [5]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs
def test_a_save_cut_off_on_an_object_store_is_removed(bucket: str):
    """It cannot rename: Orbax writes in place, and commits with a file."""
    place, marker = absolute(bucket), "commit_success.txt"
    with opened(place, keep=3) as series:
        save(series, 5, arrays(5))
        (place / "10" / "params").mkdir(parents=True)
        write_text(place / "10" / "params" / "manifest.ocdbt", "")
        assert series.steps() == [5]
        assert (place / "5" / marker).exists()
        write_text(place / "15" / "manifest.json", "{}")  # of a copy from a disk, or cut off late
        assert series.remove_unfinished() == ["10"]
        save(series, 10, arrays(10))
        save(series, 15, arrays(15))
        series.directory.joinpath("15").rmtree()
        with pytest.raises(RunFailedError, match=r"5 could not be written to .* already exists"):
            save(series, 5, arrays(10))
        assert series.steps() == [5, 10]
    assert_read(place, 10)
    (place / "10" / marker).unlink()
    assert_read(place, 5)


def test_a_store_that_refuses_the_first_host_is_told_to_the_others(bucket: str, gcs_server: str):
    """They wait for what it finds, whichever request is refused."""
    for refused in ("b/bucket/o?delimiter", "commit_success.txt", "manifest.json?alt"):
        with opened(absolute(f"{bucket}/{len(refused)}")) as series:
            save(series, 5, arrays(5))
            fault = lambda request, what=refused: 403 if what in request else None  # noqa: E731
            with gcs.way(gcs_server, fault) as way, gcs.reached(way.url):
                with pytest.raises(CannotReadError, match="status 403 for a test"):
                    series.newest({})
                assert any(refused in request for request in way.requests)


def test_a_newer_format_is_refused(directory: Path):
    """It is left unchanged and does not count as damaged."""
    path = directory / "10" / "meta" / "metadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    write_manifest(epath.Path(directory / "10"))
    with pytest.raises(BadInputError, match=r"format_version 99, and this version .* reads 1"):
        newest(directory)
    assert (directory / "10").is_dir()


def test_the_one_before_goes_only_after_the_new_one_is_whole(tmp_path: Path, monkeypatch):
    """The new checkpoint is damaged between its commit and its verification, as by a bad disk."""
    with opened(tmp_path, keep=1) as series:
        save(series, 5, arrays(5))
        wait = series.checkpointer.wait_until_finished

        def wait_and_spoil() -> None:
            wait()
            if (tmp_path / "10").exists():
                (tmp_path / "10" / "params" / "_METADATA").write_bytes(b"{}")

        monkeypatch.setattr(series.checkpointer, "wait_until_finished", wait_and_spoil)
        with pytest.raises(RunFailedError, match="read back, params/_METADATA has 2 bytes"):
            save(series, 10, arrays(10))
    assert_read(tmp_path, 5)


def test_keep_counts_the_newest_written(tmp_path: Path):
    with opened(tmp_path) as series:
        for step in (30, 10, 20):  # 30 is from an earlier start
            save(series, step, arrays(step))
        assert series.steps() == [20, 30]


def test_a_failed_save_waits_for_its_other_files():
    """Else their tasks print tracebacks when they find the event loop closed."""
    ended = []

    async def write(file: int) -> None:
        await asyncio.sleep(0.01 * file)
        ended.append(file)
        raise OSError(f"file {file}")

    async def save() -> None:
        await asyncio.gather(*map(write, range(3)))

    with pytest.raises(OSError, match="file 0"):
        asyncio_utils.run_sync(save())
    assert ended == [0, 1, 2]
