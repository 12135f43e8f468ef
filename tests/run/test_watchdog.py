"""A run that makes no progress prints the stacks of its threads, and ends if the config says so."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import ROOT, command, finish, start

CODE = """
import threading, time
from widenet_jax.run import stopping
from widenet_jax.run.stopping import Watchdog

stopping.STORE_SECONDS = 0.4

def hanging():
    time.sleep(60)

dog = Watchdog(dump_after_seconds=0.8, exit_after_seconds=2.0)
threading.Thread(target=hanging, daemon=True).start()
for step in range(4):
    dog.beat(f"step {step}", store="gs://b/run")
    time.sleep(0.3)
time.sleep(30)
"""


def test_stacks_are_printed_after_each_interval_and_then_the_run_ends():
    """Two dumps, after 0.8 and 1.6 s; the end, after 2 s, prints the stacks too."""
    began = time.monotonic()
    program = [sys.executable, "-c", CODE]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3 and time.monotonic() - began < 20
    assert done.stderr.count("s since step 3; stacks of all threads:") >= 2
    assert done.stderr.count("in hanging") == 3
    assert done.stderr.count(" s since step 3: waiting for gs://b/run\n") == 1
    assert done.stderr.splitlines()[-1].startswith("failed: no progress for 2 s since step 3 (conf")


def test_a_run_that_waits_for_a_store_which_does_not_answer_ends():
    """TensorStore and ArrayRecord may go on asking for longer than a run is to wait."""
    code = CODE.replace("STORE_SECONDS = 0.4", "ASK_SECONDS = 0.4")
    code = code.replace("exit_after_seconds=2.0", "exit_after_seconds=20.0, ask=ask")
    asking = """
from widenet_jax.errors import NoAnswerError

def ask(answers=iter([1, 1, 0])):
    if not next(answers):
        raise NoAnswerError("gs:// does not answer")
"""
    program = [sys.executable, "-c", asking + code]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 3
    assert re.fullmatch(r"failed: no progress for \d s since step 3: gs:// does not answer", last)


@pytest.mark.slow
def test_time_in_which_the_process_is_stopped_does_not_count():
    """Stopped for 3 s, as by Ctrl-Z, where 2 s without progress would end the run."""
    code = CODE.replace("time.sleep(30)", "time.sleep(0.3); print('on', flush=True); time.sleep(1)")
    program = [sys.executable, "-c", f"{code}\nprint('through')"]
    run = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout.readline() == b"on\n"
    run.send_signal(signal.SIGSTOP)
    time.sleep(3)
    run.send_signal(signal.SIGCONT)
    assert finish(run) is not None and run.returncode == 0


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
    assert "to resume from the last checkpoint, if there is one" in errors.splitlines()[-1]
