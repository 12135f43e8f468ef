"""A process of a distributed run that does not come; wrong flags are in test_main.py."""

import sys

import pytest
from small_runs import finish, free_port, start

RUN = ("--config=configs/digits.py", "--workdir=W")
# The program with a shorter timeout.
IMPATIENT = """
import sys
from widenet_jax import main
main.JOIN_SECONDS = 3.0
sys.exit(main.main(sys.argv))
"""


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
