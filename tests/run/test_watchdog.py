"""A run that makes no progress says where it hangs, and ends if asked to."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import ROOT, command, finish, start

CODE = """
import threading, time
from widenet_jax.run.watchdog import Watchdog

def waiting_for_godot():
    time.sleep(60)

dog = Watchdog(dump_after_seconds={dump}, exit_after_seconds={end})
threading.Thread(target=waiting_for_godot, daemon=True).start()
for step in range(4):
    dog.beat(f"step {{step}}")
    time.sleep(0.3)
time.sleep({sleep})
dog.close()
"""


def watched(dump: float, end: float, sleep: float) -> subprocess.CompletedProcess:
    code = CODE.format(dump=dump, end=end, sleep=sleep)
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_stacks_of_all_threads_again_and_again():
    done = watched(dump=0.8, end=0, sleep=2.0)
    assert done.returncode == 0
    assert done.stderr.count("s since step 3; where every thread is:") == 2
    assert done.stderr.count("in waiting_for_godot") == 2


def test_it_can_end_the_run():
    began = time.monotonic()
    done = watched(dump=0, end=1.0, sleep=30.0)
    assert done.returncode == 3 and time.monotonic() - began < 10
    assert "in waiting_for_godot" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("failed: no progress for 1 s since step 3 (conf")


def test_never():
    assert watched(dump=0, end=0, sleep=0.5).stderr == ""


@pytest.mark.slow
def test_a_hanging_data_source(tmp_path: Path):
    arguments = command(
        tmp_path / "run",
        "--config.watchdog.dump_after_seconds=5",
        "--config.watchdog.exit_after_seconds=15",
        "--config.data.source=hanging_digits",
    )
    errors = finish(start([arguments[0], "tests/with_slow_data.py", *arguments[3:]]), 3)
    assert "with_slow_data.py" in errors and "__getitem__" in errors
    assert "the same command goes on from the last checkpoint" in errors.splitlines()[-1]
