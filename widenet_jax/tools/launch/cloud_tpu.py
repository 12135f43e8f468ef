"""Backends `tpu-vm` and `queued-resource`: from making a TPU to deleting it, by gcloud."""

import hashlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.tools.launch.job import REMOTE, Job, stage
from widenet_jax.tools.launch.tools import NOT_FOUND, Tools

ABSENT = ""
READY = ("READY", "ACTIVE")
COMING = (
    *("CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING"),
    *("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"),
)
GONE = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING", "DELETING", "SUSPENDING", "SUSPENDED")
# How often to look whether a TPU is going away before a failed run counts as the run's failure:
# the run notices a host that is gone sooner than the service says so.
LOOKS_AFTER_FAILURE = 4
TRIES_TO_REACH = 5


class CloudTpu:
    """One TPU.

    Args:
      job: what runs on it.
      tools: run the commands.
      queued: ask through a queued resource, which waits until there is room.
      poll_seconds: between looks at its state.
    """

    def __init__(self, job: Job, tools: Tools, *, queued: bool, poll_seconds: float = 20.0):
        self.job, self.tools, self.queued, self.poll_seconds = job, tools, queued, poll_seconds
        self.place = [f"--zone={job.zone}"] + ([f"--project={job.project}"] if job.project else [])

    # Commands.

    def create_command(self) -> list[str]:
        job = self.job
        version = job.runtime_version or job.tpu.family.runtime_version
        accelerator = f"--accelerator-type={job.tpu.accelerator_type}"
        spot = ["--spot"] if job.spot else []
        if self.queued:
            node = [f"--node-id={job.name}", accelerator, f"--runtime-version={version}"]
            return [*self.request("create"), *node, *spot]
        return [*self.request("create"), accelerator, f"--version={version}", *spot]

    def describe_command(self) -> list[str]:
        state = "state.state" if self.queued else "state"
        return [*self.request("describe"), f"--format=value({state})"]

    def delete_command(self) -> list[str]:
        return [*self.request("delete"), *(["--force"] if self.queued else []), "--quiet"]

    def request(self, verb: str) -> list[str]:
        kind = "queued-resources" if self.queued else "tpu-vm"
        return ["gcloud", "compute", "tpus", kind, verb, self.job.name, *self.place]

    def ssh_command(self, command: str, worker: str) -> list[str]:
        ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", self.job.name, *self.place]
        return [*ssh, "--quiet", f"--worker={worker}", f"--command={command}"]

    def copy_command(self, files: Sequence[Path]) -> list[str]:
        target = f"{self.job.name}:{REMOTE}/"
        return [
            *("gcloud", "compute", "tpus", "tpu-vm", "scp", *map(str, files), target),
            *(*self.place, "--quiet", "--worker=all"),
        ]

    # What they are used for.

    def launch(self) -> int:
        """Until the run has ended, over any number of preemptions; returns its exit code."""
        state = self.state()
        if not (state in READY and self.runs_already()):
            self.begin(state)
        while (code := self.follow()) is None:
            say(f"{self.job.name} is gone; making it anew: the run resumes by itself")
            self.begin(self.state())
        if self.tools.dry:
            print("# once describe says that the TPU is gone: delete, create, and all of it again")
        return code

    def begin(self, state: str) -> None:
        """Makes the TPU and starts the run, over again where the TPU goes away meanwhile."""
        while True:
            self.bring_up(state)
            try:
                return self.start()
            except RunFailedError:
                if (state := self.state()) in READY:
                    raise
                say(f"{self.job.name} went away during set-up; making it anew")

    def state(self, *, dry_answer: str = ABSENT) -> str:
        """As the service calls it; ABSENT where there is no such TPU."""
        found = self.tools.attempt(self.describe_command(), dry_answer=dry_answer)
        if found.returncode and NOT_FOUND.search(found.stderr):
            return ABSENT
        if found.returncode:
            raise self.tools.cause(self.describe_command(), found.stderr)
        return found.stdout.strip()

    def bring_up(self, state: str) -> None:
        """Makes the TPU unless it is there, and waits until it is ready."""
        if state in GONE or state == "FAILED":
            self.tools.run(self.delete_command())
            state = ABSENT
        if state == ABSENT:
            self.tools.run(self.create_command())
        shown = None
        while (state := self.state(dry_answer=READY[self.queued])) not in READY:
            if state not in COMING:
                raise RunFailedError(
                    f"{self.job.name} is {state or 'gone'} instead of ready; "
                    f"`{' '.join(self.request('describe'))}` says why"
                )
            if state != shown:
                say(f"{self.job.name}: {state}")
                shown = state
            time.sleep(self.poll_seconds)

    def start(self) -> None:
        """Code and scripts to every worker; then the run, on all of them."""
        self.reach(f"mkdir -p -m 700 {REMOTE}")
        with tempfile.TemporaryDirectory(prefix="widenet_launch_") as directory:
            files = stage(self.job, Path(directory))
            if self.tools.dry:
                show_scripts(files)
            self.tools.run(self.copy_command(files))
        self.on_all(f"chmod 600 {REMOTE}/env && bash {REMOTE}/setup.sh")
        self.on_all(f"bash {REMOTE}/start.sh")

    def reach(self, command: str) -> None:
        """The first command on all workers: they take connections a while after being ready."""
        for _ in range(TRIES_TO_REACH - 1):
            ssh = self.ssh_command(command, "all")
            if self.tools.attempt(ssh).returncode == 0:
                return
            time.sleep(self.poll_seconds)
        self.on_all(command)

    def on_all(self, command: str) -> None:
        self.tools.run(self.ssh_command(command, "all"))

    def on_first(self, command: str, *, dry_answer: str = "") -> str | None:
        """What worker 0 answered; None where it cannot be reached."""
        found = self.tools.attempt(self.ssh_command(command, "0"), dry_answer=dry_answer)
        return None if found.returncode else found.stdout.strip()

    def runs_already(self) -> bool:
        """Raises BadInputError where it runs something else."""
        alive = f'kill -0 "$(cat {REMOTE}/run.pid)" 2>/dev/null'
        there = self.on_first(f"if {alive}; then sha256sum < {REMOTE}/run.sh; fi")
        if not there:
            return False
        if there.split()[0] != hashlib.sha256(self.job.run_script().encode()).hexdigest():
            raise BadInputError(
                f"{self.job.name} is running something else; stop it (`launch_tpu.py stop "
                f"{self.job.name} --zone={self.job.zone}`), or give another --name"
            )
        return True

    def follow(self) -> int | None:
        """Prints worker 0's log until the run has ended; its exit code, None if the TPU is gone."""
        lines = "+1"
        while True:
            self.tools.stream(self.ssh_command(follow_script(lines), "0"))
            code = self.on_first(f"cat {REMOTE}/run.exit", dry_answer="0")
            if code == "0":
                return 0
            looks = LOOKS_AFTER_FAILURE if code else 1
            for _ in range(looks):
                if self.state() not in READY:
                    return None
                time.sleep(self.poll_seconds)
            if code:
                return int(code)
            lines = "10"  # only the connection broke

    def stop(self) -> None:
        """The run saves and ends; the TPU stays."""
        self.on_all(f"kill -TERM $(cat {REMOTE}/run.pid)")

    def delete(self) -> None:
        self.tools.run(self.delete_command())

    def status(self) -> str:
        """For people: of the TPU, and of the run on it."""
        state = self.state(dry_answer=READY[self.queued])
        text = f"{self.job.name}: {state or 'there is no such TPU'}"
        if state not in READY:
            return text
        alive = f'kill -0 "$(cat {REMOTE}/run.pid)" 2>/dev/null'
        asked = (
            f"if {alive}; then echo running; else echo ended, exit code $(cat {REMOTE}/run.exit); "
            f"fi; tail -n 1 {REMOTE}/run.log"
        )
        return f"{text}\n{self.on_first(asked) or 'worker 0 cannot be reached'}"

    def logs(self) -> None:
        self.tools.stream(self.ssh_command(follow_script("100"), "0"))


def follow_script(lines: str) -> str:
    """Prints the log from there on, as long as the run lives."""
    return f"tail -n {lines} -s 0.2 -F --pid=$(cat {REMOTE}/run.pid) {REMOTE}/run.log"


def show_scripts(files: Sequence[Path]) -> None:
    """What the workers will be told, as comments between the commands."""
    for file in files:
        if file.suffix == ".sh":
            lines = file.read_text().splitlines()
            print("\n".join([f"# {file.name}:", *(f"#   {line}" for line in lines)]))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
