"""Eight processes train as one; when one of them fails or differs, the others go on or end.

A process takes about ten seconds of processor time to start: run them with --slow.
"""

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from small_runs import (
    ROOT,
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
COUNT, ODD = 8, 5  # processes, and the number of the one to which something happens
SECONDS_TO_END = 120
FIELDS = {"duration": "12 steps", "checkpoint.every": "2 steps", "evaluation.every": "12 steps"}
Launch = Callable[..., list[subprocess.Popen]]


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    """Returns a function that starts the processes of a run; ends those that are left."""
    started: list[subprocess.Popen] = []

    def of(workdir: Path, odd: Callable[[list[str]], list[str]] = list, **changes: object):
        flags = ["--distributed", f"--coordinator=localhost:{free_port()}"]
        flags += [f"--num_processes={COUNT}"]
        commands = [
            command(workdir, *flags, f"--process_id={number}", **FIELDS | changes)
            for number in range(COUNT)
        ]
        commands[ODD] = odd(commands[ODD])
        started.extend(start(arguments) for arguments in commands)
        return started[-COUNT:]

    yield of
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def unbroken(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("eight") / "unbroken"
    for process in launch(workdir):
        finish(process)
    return workdir


def test_they_train_as_one(unbroken: Path, tmp_path: Path):
    """As one process with as many devices: metrics agree to 1e-6."""
    run_here(tmp_path / "one", devices=COUNT, **FIELDS)
    for split, count in (("train", 12), ("eval", 1)):
        ours, theirs = metrics_of(unbroken, split), metrics_of(tmp_path / "one", split)
        assert len(ours) == len(theirs) == count
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.keys() == other.keys()
            for name in mine.keys() - {"split"}:
                np.testing.assert_allclose(mine[name], other[name], rtol=1e-6, err_msg=name)


def test_one_is_killed(launch: Launch, unbroken: Path, tmp_path: Path):
    """The others end within two minutes; the run started again ends as an unbroken one."""
    workdir = tmp_path / "run"
    processes = launch(workdir)
    wait_until(lambda: last_step(workdir) >= 4, processes[0])
    processes[ODD].kill()
    deadline = time.monotonic() + SECONDS_TO_END
    for number, process in enumerate(processes):
        process.communicate(timeout=max(1, deadline - time.monotonic()))
        expected = -signal.SIGKILL if number == ODD else -signal.SIGABRT
        assert process.returncode == expected, number
    assert not (workdir / "result.json").exists()
    for process in launch(workdir):
        finish(process)
    assert_same_end(workdir, unbroken)


def test_one_pauses(launch: Launch, unbroken: Path, tmp_path: Path):
    """For 20 seconds, as a machine does that is moved: all wait for it."""
    processes = launch(tmp_path / "run")
    wait_until(lambda: last_step(tmp_path / "run") >= 4, processes[0])
    processes[ODD].send_signal(signal.SIGSTOP)
    time.sleep(20)
    assert all(process.poll() is None for process in processes)
    processes[ODD].send_signal(signal.SIGCONT)
    for process in processes:
        finish(process)
    assert_same_end(tmp_path / "run", unbroken)


def end_at_once(processes: list[subprocess.Popen], words: str, workdir: Path) -> None:
    """Asserts that all end with code 2 and one line, and have written nothing."""
    began = time.monotonic()
    for process in processes:
        *_, last = finish(process, 2).splitlines()
        assert last.startswith(f"error: hosts do not agree on {words}: process {ODD} of {COUNT}")
    assert time.monotonic() - began < SECONDS_TO_END
    assert not workdir.exists()


def test_one_has_another_config(launch: Launch, tmp_path: Path):
    field = "config.model.moe.num_selected_experts"  # more than there are: a mistake by itself
    processes = launch(tmp_path / "run", lambda arguments: [*arguments, f"--{field}=9"])
    end_at_once(processes, field, tmp_path / "run")


def test_one_has_other_code(launch: Launch, tmp_path: Path):
    """A comment more in one file."""
    copy = tmp_path / "other"
    for folder in ("widenet_jax", "configs"):
        shutil.copytree(ROOT / folder, copy / folder)
    with (copy / "widenet_jax" / "losses.py").open("a") as file:
        file.write("# changed\n")

    def odd(arguments: list[str]) -> list[str]:  # -P: without the current directory
        return ["env", f"PYTHONPATH={copy}", arguments[0], "-P", *arguments[1:]]

    end_at_once(launch(tmp_path / "run", odd), "the code", tmp_path / "run")


def test_one_has_other_data(launch: Launch, tmp_path: Path):
    """A picture of the same name, size and class, with another grey."""
    for place, grey in (("data", 0), ("other", 1)):
        for name in ("train/cat", "train/dog", "test/cat", "test/dog"):
            (tmp_path / place / name).mkdir(parents=True)
            image = np.full((8, 8), grey if name == "train/dog" else 9, np.uint8)
            cv2.imwrite(str(tmp_path / place / name / "0.png"), image)
    processes = launch(
        tmp_path / "run",
        lambda arguments: [*arguments, f"--config.data.path={tmp_path}/other"],
        **{"data.source": "image_folder", "data.path": tmp_path / "data"},
    )
    end_at_once(processes, "the training data", tmp_path / "run")
