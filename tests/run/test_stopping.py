"""SIGTERM, and time that is up, in every phase: saved, exit code 143, and going on is exact."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from small_runs import (
    ROOT,
    assert_same_end,
    command,
    commands_of_two,
    finish,
    last_step,
    metrics_of,
    small_config,
    start,
    start_two,
    wait_until,
)

from widenet_jax import train
from widenet_jax.errors import StoppedError
from widenet_jax.run.stopping import Stop

ONE = jax.devices()[:1]
SLOW_DATA = "tests/with_slow_data.py"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("runs") / "unbroken"
    finish(start(command(workdir)))
    return workdir


def stopped(process: subprocess.Popen) -> str:
    """The last line of a run that was stopped: exit code 143 and no traceback."""
    errors = finish(process, 143)
    assert "Traceback" not in errors
    return errors.splitlines()[-1]


def slowly(arguments: list[str], source: str) -> list[str]:
    """The same command with one of the slow data sources."""
    return [arguments[0], SLOW_DATA, *arguments[3:], f"--config.data.source={source}"]


def lines_in(workdir: Path) -> int:
    metrics = workdir / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def test_while_training(unbroken: Path, tmp_path: Path):
    """Saved at the very step, not at the last checkpoint; the rest is as if nothing had been."""
    run = start(command(tmp_path / "run", **{"checkpoint.every": "1000 steps"}))
    wait_until(lambda: lines_in(tmp_path / "run") >= 3, run)
    run.send_signal(signal.SIGTERM)
    line = stopped(run)
    step = last_step(tmp_path / "run")
    assert 3 <= step < 20
    assert line == f"stopped: SIGTERM; saved after step {step}. The same command goes on from there"
    assert f"resuming after step {step}:" in finish(start(command(tmp_path / "run")))
    assert_same_end(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_while_starting(tmp_path: Path):
    """Before there is anything to lose it ends at once, at whatever moment."""
    for seconds in (1.0, 1.5, 2.0, 3.0):
        run = start(command(tmp_path / "run"))
        time.sleep(seconds)
        run.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        assert "there was nothing new to save" in stopped(run)
        assert time.monotonic() - sent < 1.0
    assert last_step(tmp_path / "run") == 0


@pytest.mark.slow
def test_while_compiling(tmp_path: Path):
    """WideNet-B takes minutes to compile; the end comes at once."""
    arguments = command(tmp_path / "run", **{"model.depth": 12, "model.embed_dim": 512})
    run = start(arguments)
    wait_until((tmp_path / "run" / "environment.json").exists, run)
    time.sleep(1.0)
    assert lines_in(tmp_path / "run") == 0
    run.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    assert "there was nothing new to save" in stopped(run)
    assert time.monotonic() - sent < 1.0


@pytest.mark.slow
def test_while_evaluating(tmp_path: Path):
    """The evaluation that was cut off is made up for: the same metrics at the same place."""
    every = {"evaluation.every": "5 steps", "evaluation.batch_size": 32}
    finish(start(command(tmp_path / "unbroken", **every)))
    run = start(slowly(command(tmp_path / "run", **every), "slowly_tested_digits"))
    wait_until(lambda: lines_in(tmp_path / "run") >= 5, run)
    time.sleep(1.0)
    run.send_signal(signal.SIGTERM)
    assert "saved after step 5." in stopped(run)
    assert not metrics_of(tmp_path / "run", "eval")

    stored = tmp_path / "run" / "config.json"
    stored.write_text(stored.read_text().replace("slowly_tested_digits", "digits"))
    # Killed once that evaluation is written and no checkpoint has followed: it comes again.
    never = {"checkpoint.every": "1000 steps"}
    run = start(command(tmp_path / "run", **every, **never))
    wait_until(lambda: len(metrics_of(tmp_path / "run", "eval")) >= 1, run)
    run.kill()
    run.communicate()
    finish(start(command(tmp_path / "run", **every)))
    assert_same_end(tmp_path / "run", tmp_path / "unbroken")


@pytest.mark.slow
def test_while_waiting_for_data(tmp_path: Path):
    """Data that never comes: what was trained so far is saved, without waiting for the readers."""
    run = start(slowly(command(tmp_path / "run"), "hanging_digits"))
    wait_until(lambda: lines_in(tmp_path / "run") >= 8, run)
    time.sleep(2.0)
    trained = len(metrics_of(tmp_path / "run"))
    run.send_signal(signal.SIGTERM)
    assert f"saved after step {trained}." in stopped(run)
    assert last_step(tmp_path / "run") == trained


def test_one_of_two_processes_is_told(tmp_path: Path):
    """Both save at the same step and leave with 143; one process then ends the run."""
    runs = start_two(tmp_path / "run", duration="400 steps", **{"evaluation.every": "400 steps"})
    wait_until(lambda: lines_in(tmp_path / "run") >= 3, runs[0])
    runs[1].send_signal(signal.SIGTERM)
    lines = [stopped(run) for run in runs]
    step = last_step(tmp_path / "run")
    assert 3 <= step < 400
    assert all(f"saved after step {step}." in line for line in lines)


@pytest.mark.slow
def test_a_single_process_with_distributed(tmp_path: Path):
    """As on a TPU with one host: JAX's own handler must not swallow the signal."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = ["--distributed", f"--coordinator=localhost:{port}", "--num_processes=1"]
    run = start(command(tmp_path / "run", *flags, "--process_id=0", duration="100000 steps"))
    wait_until(lambda: lines_in(tmp_path / "run") >= 3, run)
    run.send_signal(signal.SIGTERM)
    line = stopped(run)
    assert f"saved after step {last_step(tmp_path / 'run'):,}." in line


@pytest.mark.slow
def test_with_worker_processes_and_the_whole_group(tmp_path: Path):
    """Ctrl-C and schedulers signal the whole group: readers keep reading until the run is done."""
    arguments = command(tmp_path / "run", duration="100000 steps", **{"data.num_workers": 2})
    run = subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_until(lambda: lines_in(tmp_path / "run") >= 3, run)
    os.killpg(run.pid, signal.SIGTERM)
    errors = finish(run, 143)
    assert f"saved after step {last_step(tmp_path / 'run'):,}." in errors


def test_an_evaluation_alone_has_nothing_to_save(unbroken: Path):
    stop = Stop()
    stop.reason = "SIGTERM"
    with pytest.raises(StoppedError, match="SIGTERM; there was nothing new to save"):
        train.run(small_config(), str(unbroken), mode="eval", stop=stop, devices=ONE)


@pytest.mark.slow
def test_the_second_sigterm_ends_at_once(tmp_path: Path):
    """Two processes wait for data that never comes: neither may leave alone, until told again."""
    commands = commands_of_two(tmp_path / "run", duration="200 steps")
    runs = [start(slowly(arguments, "hanging_digits"), devices=2) for arguments in commands]
    wait_until(lambda: lines_in(tmp_path / "run") >= 25, runs[0])
    time.sleep(3.0)  # the last images that come are trained on
    runs[0].send_signal(signal.SIGTERM)
    time.sleep(2.0)
    assert runs[0].poll() is None
    runs[0].send_signal(signal.SIGTERM)
    sent = time.monotonic()
    assert stopped(runs[0]) == "SIGTERM again: ending at once"
    assert time.monotonic() - sent < 1.0
    runs[1].kill()
    runs[1].communicate()


CODE = """
import sys, threading, time
from widenet_jax.run.stopping import Stop, StopRequestedError

class NeverReady:
    def __next__(self):
        threading.Event().wait()

    def close(self):
        threading.Event().wait()

stop = Stop()
stop.listen()
stop.unsaved = True
stop.after(0.5)
began = time.monotonic()
try:
    next(stop.reading(NeverReady()))
except StopRequestedError:
    print(stop.reason, 0.4 < time.monotonic() - began)
time.sleep(float(sys.argv[1]))
stop.close()
"""


def after_half_a_second(sleep: float) -> subprocess.Popen:
    arguments = [sys.executable, "-c", CODE, str(sleep)]
    return subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_time_is_up_while_waiting():
    out, _ = after_half_a_second(0.0).communicate()
    assert out == "time is up (--max_seconds) True\n"


def test_a_sigterm_after_that_is_the_first():
    """A preemption while the run saves because its time is up must not cut the save off."""
    run = after_half_a_second(5.0)
    assert run.stderr.readline().startswith("time is up")
    run.send_signal(signal.SIGTERM)
    assert run.stderr.readline().startswith("SIGTERM: saving after this step")
    run.send_signal(signal.SIGTERM)  # at once: `timeout` signals a process and its group
    time.sleep(1.5)
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=30) == 143
    assert run.stderr.readline() == "SIGTERM again: ending at once\n"
    run.communicate()


@pytest.mark.slow
def test_time_is_up(tmp_path: Path):
    arguments = command(tmp_path / "run", "--max_seconds=40", duration="100000 steps")
    line = stopped(start(arguments))
    step = last_step(tmp_path / "run")
    assert f"time is up (--max_seconds); saved after step {step:,}." in line
    assert step > 0


def test_it_is_a_number_of_seconds():
    done = subprocess.run(
        command(Path("W"), "--max_seconds=soon"), cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--max_seconds=soon" in done.stderr and done.stderr.count("\n") == 1


def test_leaving_writes_what_was_printed_and_runs_nothing_more():
    program = (
        "import atexit; from widenet_jax.run.stopping import leave; "
        "atexit.register(print, 'late'); print('said', end=''); leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said", "")
