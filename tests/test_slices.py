"""Slices played by processes: they train as one, end together, and a run goes on with fewer.

A process takes about ten seconds of processor time to start: run them with --slow.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from small_runs import (
    assert_same_end,
    command,
    finish,
    free_port,
    last_step,
    metrics_of,
    run_here,
    start,
    wait_until,
)

pytestmark = pytest.mark.slow
SLICES, DEVICES, SECONDS_TO_END = 3, 2, 120
# Of 96 images each of six devices, and of four, has whole groups of 4.
FIELDS = {
    "duration": "12 steps", "checkpoint.every": "2 steps", "evaluation.every": "12 steps",
    "batch_size": 96, "sharding.fsdp": -1,
}  # fmt: skip
# The training program, in which each process is a slice.
PROGRAM = """
import sys
from functools import partial
from operator import attrgetter
from widenet_jax import experiment, main
experiment.build_mesh = partial(experiment.build_mesh, slice_of=attrgetter("process_index"))
sys.exit(main.main(sys.argv))
"""
Launch = Callable[..., list[subprocess.Popen]]


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    """Returns a function that starts the slices of a run; ends those that are left."""
    started: list[subprocess.Popen] = []

    def of(workdir: Path, slices: int = SLICES, **changes: object) -> list[subprocess.Popen]:
        flags = ["--distributed", f"--coordinator=127.0.0.1:{free_port()}"]
        flags.append(f"--num_processes={slices}")
        for number in range(slices):
            words = command(workdir, *flags, f"--process_id={number}", **FIELDS | changes)
            started.append(start([sys.executable, "-c", PROGRAM, *words[3:]], DEVICES))
        return started[-slices:]

    yield of
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def unbroken(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("slices") / "unbroken"
    first, *others = launch(workdir)
    assert "6 cpu devices (data 3, fsdp 2" in finish(first)
    for process in others:
        finish(process)
    return workdir


def assert_close(ours: Path, theirs: Path) -> None:
    """Asserts that the metrics of two runs agree to 1e-6."""
    for split, count in (("train", 12), ("eval", 1)):
        mine, others = metrics_of(ours, split), metrics_of(theirs, split)
        assert len(mine) == len(others) == count
        for one, other in zip(mine, others, strict=True):
            assert one.keys() == other.keys()
            for name in one.keys() - {"split"}:
                np.testing.assert_allclose(one[name], other[name], rtol=1e-6, err_msg=name)


def test_slices_train_as_one(unbroken: Path, tmp_path: Path):
    """As one slice of as many devices, over all of which the parameters are split."""
    run_here(tmp_path / "one", devices=SLICES * DEVICES, **FIELDS)
    assert_close(unbroken, tmp_path / "one")


def test_a_slice_is_lost(launch: Launch, unbroken: Path, tmp_path: Path):
    """The others end within two minutes, with the code after which the launcher starts them again.

    Then they end as an unbroken run.
    """
    workdir = tmp_path / "run"
    processes = launch(workdir)
    wait_until(lambda: last_step(workdir) >= 4, processes[0])
    processes[1].kill()
    deadline = time.monotonic() + SECONDS_TO_END
    for number, process in enumerate(processes):
        process.communicate(timeout=max(1, deadline - time.monotonic()))
        assert process.returncode == -(signal.SIGKILL if number == 1 else signal.SIGABRT)
    assert not (workdir / "result.json").exists()
    for process in launch(workdir):
        finish(process)
    assert_same_end(workdir, unbroken)


def test_resume_with_one_slice_fewer(launch: Launch, unbroken: Path, tmp_path: Path):
    workdir = tmp_path / "run"
    processes = launch(workdir)
    wait_until(lambda: last_step(workdir) >= 4, processes[0])
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.communicate(timeout=SECONDS_TO_END)
        assert process.returncode == 143
    assert last_step(workdir) < 12
    first, second = launch(workdir, slices=SLICES - 1)
    assert "4 cpu devices (data 2, fsdp 2" in finish(first)
    finish(second)
    assert_close(workdir, unbroken)
