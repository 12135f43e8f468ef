"""Mistakes in the flags of a distributed run are reported in one line, exit code 2."""

import sys

import pytest
from refusals import refused
from small_runs import ROOT, finish, free_port, start

from widenet_jax.main import main

RUN = ("--config=configs/digits.py", "--workdir=W")
# The program with a shorter timeout.
IMPATIENT = """
import sys
from widenet_jax import main
main.JOIN_SECONDS = 3.0
sys.exit(main.main(sys.argv))
"""


@pytest.mark.parametrize(
    ("coordinator", "num_processes", "process_id", "message"),
    [
        ("HOST", 2, 1, "--coordinator=HOST must be HOST:PORT"),
        ("HOST:65536", 2, 1, "--coordinator=HOST:65536 must be HOST:PORT"),
        ("HOST:8476", 0, 0, "argument --num_processes: '0' must be a whole number of at least 1"),
        ("HOST:8476", 2, 2, "--process_id=2 must be between 0 and 1"),
    ],
)
def test_wrong_details(
    coordinator: str, num_processes: int, process_id: int, message: str, capsys, monkeypatch
):
    monkeypatch.chdir(ROOT)
    details = [f"--coordinator={coordinator}", f"--num_processes={num_processes}"]
    said = refused(capsys, main, "main", *RUN, *details, f"--process_id={process_id}")
    assert said.startswith(f"error: {message}")


@pytest.mark.slow
def test_the_other_process_does_not_come():
    """JAX itself would abort the process with a stack trace; process 0 is the coordinator."""
    waiting = []
    for process_id in (0, 1):
        details = [f"--coordinator=localhost:{free_port()}", "--num_processes=2"]
        program = [sys.executable, "-c", IMPATIENT, *RUN, *details, f"--process_id={process_id}"]
        waiting.append(start(program))
    for process in waiting:
        errors = finish(process, 2)
        last = errors.splitlines()[-1]
        assert last.startswith("error: --distributed: not all processes joined within 3 s; ")
        assert "Traceback" not in errors
