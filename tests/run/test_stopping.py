"""SIGTERM, Ctrl-C and --max_seconds in every phase: the state is saved and resuming is exact."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import (
    ROOT,
    assert_same_end,
    command,
    commands_of_two,
    finish,
    last_step,
    lines_in,
    metrics_of,
    run_here,
    start,
    wait_until,
)

from widenet_jax.errors import StoppedError
from widenet_jax.run import summary
from widenet_jax.run.stopping import AGAIN, SIGNALS, Stop

SLOW_DATA = "tests/with_slow_data.py"


def stopped(process: subprocess.Popen, code: int = 143) -> str:
    """Returns the last line of a run that was stopped, without a traceback."""
    errors = finish(process, code)
    assert "Traceback" not in errors
    return errors.splitlines()[-1]


def slowly(arguments: list[str], source: str) -> list[str]:
    """Returns the same command with one of the slow data sources."""
    return [arguments[0], SLOW_DATA, *arguments[3:], f"--config.data.source={source}"]


class SignalAfterThreeSteps(Stop):
    """Sends a signal to this process after its third step."""

    def __init__(self, number: int):
        super().__init__()
        self.number, self.checks = number, 0

    def check(self) -> None:
        self.checks += 1
        if self.checks == 3:
            os.kill(os.getpid(), self.number)
        super().check()


@pytest.mark.parametrize("name", ["Ctrl-C", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_while_training(digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, name: str):
    """Saves at the step of the signal; the resumed run ends as if unbroken."""
    stop = SignalAfterThreeSteps({text: number for number, text in SIGNALS.items()}[name])
    stop.listen()
    try:
        with pytest.raises(StoppedError) as caught:
            run_here(tmp_path, stop=stop, **{"checkpoint.every": "1000 steps"})
    finally:
        stop.close()
    step = last_step(tmp_path)
    assert 3 <= step < 20
    assert str(caught.value) == f"{name}; saved after step {step}. {AGAIN} to resume"
    assert not list(tmp_path.glob("*/*tmp*"))
    run_here(tmp_path)
    assert f"resuming after step {step}:" in capsys.readouterr().err
    assert_same_end(tmp_path, digits_run)


@pytest.mark.slow
def test_ctrl_c_after_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """The run finishes, and the message does not promise a stop."""
    write, stop = summary.write_result, Stop()

    def interrupted(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)  # the thread that receives it speaks
        write(*arguments)

    monkeypatch.setattr(summary, "write_result", interrupted)
    stop.listen()
    try:
        run_here(tmp_path, stop=stop)
    finally:
        stop.close()
    assert (tmp_path / "result.json").exists()
    told = capsys.readouterr().err
    assert "Ctrl-C: the last step is done; saving, then ending; another signal" in told
    assert "then stopping" not in told


def test_what_is_said_where_nothing_is_new():
    """Once the workdir was read, the message names the newest checkpoint, if there is one."""
    stop = Stop()
    for stop.saved, since in ((None, ""), (0, ""), (1200, " since step 1,200")):
        assert stop.nothing_new == f"nothing new to save{since}. {AGAIN}"


@pytest.mark.slow
def test_while_evaluating(tmp_path: Path):
    """The evaluation that was interrupted is repeated: the same metrics at the same place."""
    every = {"evaluation.every": "5 steps", "evaluation.batch_size": 32}
    finish(start(command(tmp_path / "unbroken", **every)))
    run = start(slowly(command(tmp_path / "run", **every), "slowly_tested_digits"))
    wait_until(lambda: len(lines_in(tmp_path / "run")) >= 5, run)
    time.sleep(1.0)
    run.send_signal(signal.SIGTERM)
    assert "saved after step 5." in stopped(run)
    assert not metrics_of(tmp_path / "run", "eval")

    stored = tmp_path / "run" / "config.json"
    stored.write_text(stored.read_text().replace("slowly_tested_digits", "digits"))
    # Killed after that evaluation is written and before the next checkpoint: it is repeated.
    never = {"checkpoint.every": "1000 steps"}
    run = start(command(tmp_path / "run", **every, **never))
    wait_until(lambda: len(metrics_of(tmp_path / "run", "eval")) >= 1, run)
    run.kill()
    run.communicate()
    finish(start(command(tmp_path / "run", **every)))
    assert_same_end(tmp_path / "run", tmp_path / "unbroken")


@pytest.mark.slow
def test_while_waiting_for_data(tmp_path: Path):
    """A reader hangs: the finished steps are saved without waiting for it."""
    run = start(slowly(command(tmp_path), "hanging_digits"))
    wait_until(lambda: len(lines_in(tmp_path)) >= 8, run)
    time.sleep(2.0)
    trained = len(metrics_of(tmp_path))
    run.send_signal(signal.SIGTERM)
    assert f"saved after step {trained}." in stopped(run)
    assert last_step(tmp_path) == trained


def test_an_evaluation_alone_has_nothing_to_save(digits_run: Path):
    stop = Stop()
    stop.reason = "SIGTERM"
    with pytest.raises(StoppedError, match=f"SIGTERM; nothing new to save. {AGAIN}$"):
        run_here(digits_run, mode="eval", stop=stop)


@pytest.mark.slow
def test_the_second_sigterm_ends_at_once(tmp_path: Path):
    """Two processes wait for a hanging reader: neither may end alone before a second signal."""
    commands = commands_of_two(tmp_path / "run", duration="200 steps")
    runs = [start(slowly(arguments, "hanging_digits"), devices=2) for arguments in commands]
    wait_until(lambda: len(lines_in(tmp_path / "run")) >= 25, runs[0])
    time.sleep(3.0)  # let the steps before the hanging image finish
    runs[0].send_signal(signal.SIGTERM)
    time.sleep(2.0)
    assert runs[0].poll() is None
    runs[0].send_signal(signal.SIGTERM)
    sent = time.monotonic()
    assert stopped(runs[0]) == "SIGTERM while stopping: ending at once"
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


@pytest.mark.parametrize(
    ("number", "name", "code"), [(signal.SIGTERM, "SIGTERM", 143), (signal.SIGINT, "Ctrl-C", 130)]
)
def test_the_first_signal_saves_and_the_second_ends_at_once(number: int, name: str, code: int):
    """A first signal during a save at the time limit does not interrupt the save."""
    run = after_half_a_second(30.0)
    assert run.stderr.readline().startswith("time is up")
    run.send_signal(number)
    assert run.stderr.readline().startswith(f"{name}: saving after this step")
    run.send_signal(number)  # `timeout` signals a process and its group: one request
    time.sleep(1.2)
    assert run.poll() is None
    run.send_signal(number)
    assert run.wait(timeout=30) == code
    assert run.stderr.readline() == f"{name} while stopping: ending at once\n"
    run.communicate()


# In place of JAX and libtpu, which install handlers in C that Python does not see.
REPLACED = """
import ctypes, os, signal, sys, time
from widenet_jax.run.stopping import Stop

libc = ctypes.CDLL(None)
told = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: print("JAX is told", flush=True))
stop = Stop()
stop.listen()
stop.unsaved = True
if sys.argv[1] == "2":
    libc.signal(signal.SIGTERM, told)
    stop.keep_jax_handler()
libc.signal(signal.SIGTERM, None)  # the default: ends the process
stop.share(hosts=int(sys.argv[1]))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.5)
stop.close()
print(stop.reason)
"""


@pytest.mark.parametrize(("hosts", "told"), [("1", ""), ("2", "JAX is told\n")])
def test_a_handler_that_comes_with_the_devices_is_replaced(hosts: str, told: str):
    program = [sys.executable, "-c", REPLACED, hosts]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{told}SIGTERM\n"), done.stderr


def test_ctrl_c_ends_other_commands_with_one_line():
    program = (
        "import sys, time; from widenet_jax.config.parser import exit_code_of; "
        "print('ready', flush=True); sys.exit(exit_code_of(lambda: time.sleep(60)))"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout.readline() == "ready\n"
    time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    assert run.communicate()[1] == "interrupted\n"
    assert run.returncode == 130
