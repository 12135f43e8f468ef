"""Backends `tpu-vm` and `queued-resource`: create, use and delete a Cloud TPU through gcloud."""

import hashlib
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.ops.launch.job import REMOTE, Job, stage
from widenet_jax.ops.launch.ssh_key import check_ssh_key
from widenet_jax.ops.launch.tools import LAUNCHER, NOT_FOUND, Tools, known_cause
from widenet_jax.run.stopping import say

ABSENT = ""
READY = ("READY", "ACTIVE")
COMING = (
    *("CREATING", "STARTING", "RESTARTING", "REIMAGING", "REPAIRING"),
    *("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"),
)
# What the service does to a TPU: it stays listed. Only a person makes one ABSENT or STOPPED.
# UNKNOWN is what a failed repair leaves.
TAKEN = ("PREEMPTED", "TERMINATED", "SUSPENDING", "SUSPENDED", "FAILED", "UNKNOWN")
STOPPED = "STOPPED"
# A queued resource whose TPU a person deleted stays listed: SUSPENDED, as after a preemption.
DELETED_BY_USER = "SUSPENDED by USER"
ENDING = ("DELETING", "STOPPING", "SUSPENDING by USER")
# State checks after a failed run. A run fails as soon as a host is lost, but the service reports
# the preemption later: a single check would take a preempted run for a failed one.
CHECKS_AFTER_FAILURE = 4
CONNECTION_ATTEMPTS = 5
CHECKS_WITHOUT_ANSWER = 30  # in a row, before the launcher gives up: ten minutes by default
# Of a ready TPU whose worker 0 does not answer: two minutes where gcloud refuses at once, as of a
# stopped TPU; half an hour where each ssh waits for a silent host.
CHECKS_UNREACHED = 5
# Without these ssh would wait for two minutes, ten times over, for a machine that is gone, and for
# two hours where the machine went while it was connected.
SSH_OPTIONS = ("ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=4")
LOG = f"{REMOTE}/run.log"
START_RUN = f"bash {REMOTE}/start.sh"
# On a worker where the run has ended since its set-up, this does nothing; nor where it is alive.
START_MISSED = f"[ -s {REMOTE}/run.exit ] || {START_RUN}"
ALIVE = f'kill -0 "$(cat {REMOTE}/run.pid)" 2>/dev/null'  # on a worker: whether the run is alive
# On worker 0: prints "alive", the exit code, or nothing if the run was lost and left none.
ENDED = f"if {ALIVE}; then echo alive; else cat {REMOTE}/run.exit 2>/dev/null || true; fi"
# On worker 0, for people: the state of the run and the last line of its log.
STATUS = (
    f"if {ALIVE}; then echo running; elif [ -s {REMOTE}/run.exit ]; then echo ended, exit code "
    f"$(cat {REMOTE}/run.exit); elif [ -e {REMOTE}/run.pid ]; then echo ended without an exit "
    f"code; else echo no run; fi; tail -n 1 {LOG} 2>/dev/null || true"
)
# The code is written a moment after the run has ended: one check could come between.
CHECKS_OF_A_LOST_RUN = 2
# Runs lost in a row, each within an hour, before the launcher gives up: the next is lost as well.
LOST_RUNS = 3
LONG_RUN_SECONDS = 3600.0
# On every worker: ends what is left of a run that lost a worker. It cannot save without that.
KILL = f'if {ALIVE}; then kill -KILL "$(cat {REMOTE}/run.pid)"; fi'


class UnusableTpuError(RunFailedError):
    """The TPU was deleted, stopped or hidden, not by the service: it is not created again."""


class CloudTpu:
    """A Cloud TPU and the run on it.

    Args:
      job: the run to launch.
      tools: executes the commands.
      queued: whether to request the TPU as a queued resource, which waits for capacity.
      poll_seconds: pause between two checks of the TPU's state.

    Attributes:
      may_exist: whether this launch has created or used the TPU, which then costs money.
    """

    def __init__(self, job: Job, tools: Tools, *, queued: bool, poll_seconds: float = 20.0):
        self.job, self.tools, self.queued, self.poll_seconds = job, tools, queued, poll_seconds
        self.may_exist = False
        self.lost_runs = 0

    def create_command(self) -> list[str]:
        job = self.job
        flags = [f"--accelerator-type={job.tpu.accelerator_type}"]
        if self.queued:
            flags = [f"--node-id={job.name}", *flags, f"--runtime-version={job.runtime_version}"]
        else:
            flags.append(f"--version={job.runtime_version}")
        spot = ["--spot"] if job.spot else []
        return [*self.request("create"), *flags, *spot, *job.gcloud_flags]

    def describe_command(self) -> list[str]:
        queued = "state.state,tpu.nodeSpec[0].node.acceleratorType,state.stateInitiator"
        fields = queued if self.queued else "state,acceleratorType"
        return [*self.request("describe"), f"--format=value({fields})"]

    def delete_command(self) -> list[str]:
        return [*self.request("delete"), *(["--force"] if self.queued else []), "--quiet"]

    def request(self, verb: str) -> list[str]:
        kind = "queued-resources" if self.queued else "tpu-vm"
        return ["gcloud", "compute", "tpus", kind, verb, self.job.name, *self.job.place]

    def ssh_command(self, command: str, worker: str) -> list[str]:
        ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", self.job.name, *self.job.place]
        flags = ["--quiet", *ssh_flags("ssh"), f"--worker={worker}"]
        return [*ssh, *flags, f"--command={command}"]

    def launch(self, plan: Callable[[], None]) -> int:
        """Creates the TPU, runs the job through any preemptions and returns its exit code.

        Args:
          plan: called before anything is created or started; raises where the run does not fit.
        """
        self.keep_project()
        state, accelerator_type = self.describe()
        self.check_type(accelerator_type)
        if state in ENDING:
            state = self.polled_state()
        if state == STOPPED:
            raise BadInputError(self.stopped_text())
        runs = self.runs_already() if state in READY else None
        self.may_exist = bool(runs)
        if not runs:
            if self.job.tpu.several_hosts:
                check_ssh_key(self.tools)
            plan()
            self.bring_up(state)
            if runs is False:  # asked again, since another launch may have begun during the plan
                runs = self.runs_already()
            if runs is False:
                self.end_leftovers()
            if not runs:
                self.begin()
        elif self.job.tpu.several_hosts:
            self.start_missed()
        while (code := self.follow()) is None:
            self.replace(self.polled_state())
            self.begin()
        if self.tools.dry:
            lost = "SUSPENDED" if self.queued else "PREEMPTED"
            print(f"# if describe reports {lost}: delete the TPU, then repeat from create")
        return code

    def start_missed(self) -> None:
        """Starts the run on workers that missed its start, where ssh to all asks for nothing."""
        try:
            check_ssh_key(self.tools)
        except BadInputError as error:  # worker 0 alone needs no agent, and can be followed
            say(f"warning: {error}")
        else:
            self.tools.stream(self.ssh_command(START_MISSED, "all"))

    def keep_project(self) -> None:
        """Names gcloud's default project in all commands: it may change before the run ends."""
        if not self.job.project:
            project = self.tools.run(["gcloud", "config", "get-value", "project"])
            self.job = replace(self.job, project=project)

    def begin(self) -> None:
        """Starts the run on the ready TPU; on another one if it is preempted meanwhile.

        Raises:
          RunFailedError: a command failed on a TPU that stays.
        """
        while True:
            try:
                return self.start()
            except RunFailedError:
                if (state := self.polled_state()) in READY:
                    raise
            self.replace(state)

    def replace(self, state: str) -> None:
        """Brings up a TPU in place of a lost one; tries until there is capacity for it.

        One that the service repairs or restarts is waited for; what still runs there is ended.

        Raises:
          UnusableTpuError: as `check_usable`.
        """
        self.check_usable(state)
        kept = state not in TAKEN
        if not kept:
            say(f"{self.job.name} is {state}; creating it again, the run then resumes")
            self.lost_runs = 0
        while True:
            try:
                self.bring_up(state)
                break
            except UnusableTpuError:
                raise
            except (BadInputError, RunFailedError) as error:  # an expired login, too
                say(f"{error}; trying again")
            time.sleep(self.poll_seconds)
            state = self.polled_state()
        if kept:
            self.end_leftovers()

    def end_leftovers(self) -> None:
        """Ends on every worker what is left of a run that worker 0 no longer runs."""
        self.tools.attempt(self.ssh_command(KILL, "all"))

    def state(self, *, dry_answer: str = ABSENT) -> str:
        """Returns the TPU's state as the service names it; ABSENT if there is no such TPU.

        "by USER" follows SUSPENDING and SUSPENDED where a person has deleted the TPU.
        """
        return self.describe(dry_answer=dry_answer)[0]

    def describe(self, *, dry_answer: str = ABSENT) -> tuple[str, str]:
        """Returns the TPU's state and its type, such as "v3-8"; "" for what is not known."""
        found = self.tools.attempt(self.describe_command(), dry_answer=dry_answer)
        if found.returncode and NOT_FOUND.search(found.stderr):
            return ABSENT, ""
        if found.returncode:
            raise self.tools.cause(self.describe_command(), found.stderr)
        fields = found.stdout.rstrip("\n").split("\t")
        state, accelerator_type, initiator = [*fields, "", ""][:3]
        if state in ("SUSPENDING", "SUSPENDED") and initiator == "USER":
            state = f"{state} by USER"
        return state, accelerator_type

    def check_type(self, found: str) -> None:
        """Raises BadInputError if the TPU of this name is of another type than the job's."""
        wanted = self.job.tpu.accelerator_type
        if found and found != wanted:
            raise BadInputError(
                f"{self.job.name} exists and is a {found}, not a {wanted}; delete it "
                f"(`{self.managing('delete')}`) or choose another --name"
            )

    def check_usable(self, state: str) -> None:
        """Raises UnusableTpuError unless the TPU is ready, will be, or was taken by the service."""
        if state == ABSENT:
            self.may_exist = False
            raise UnusableTpuError(
                f"{self.job.name} was deleted by someone; the same command creates it again"
            )
        if state == DELETED_BY_USER:
            self.may_exist = False
            raise UnusableTpuError(
                f"the TPU of {self.job.name} was deleted by someone; the same command creates it "
                f"again, and `{self.managing('delete')}` removes its queued resource"
            )
        if state == STOPPED:
            raise UnusableTpuError(self.stopped_text())
        if state not in (*READY, *COMING, *TAKEN):  # such as HIDDEN
            raise UnusableTpuError(self.unready_text(state))

    def unready_text(self, state: str) -> str:
        describe = " ".join(self.request("describe"))
        return f"{self.job.name} is {state} instead of ready; for the reason run `{describe}`"

    def stopped_text(self) -> str:
        """Returns what to tell about a TPU that a person stopped: its disk is still there."""
        start = " ".join(self.request("start"))
        return (
            f"{self.job.name} was stopped by someone; start it (`{start}`) or delete it with its "
            f"disk (`{self.managing('delete')}`), then run the same command"
        )

    def polled_state(self, *, dry_answer: str = ABSENT) -> str:
        """Returns what `state` does, once the TPU is neither being deleted nor being stopped.

        While the service cannot be asked, waits and asks again: an expired login or a sleeping
        laptop must not end a launch that has begun.
        """
        unanswered = 0
        while True:
            try:
                if (state := self.state(dry_answer=dry_answer)) not in ENDING:
                    return state
                unanswered = 0
            except (BadInputError, RunFailedError) as error:
                unanswered += 1
                if unanswered == CHECKS_WITHOUT_ANSWER:
                    raise
                say(f"{self.job.name}: its state is unknown, asking again: {error}")
            time.sleep(self.poll_seconds)

    def bring_up(self, state: str) -> None:
        """Creates the TPU unless it exists, and waits until it is ready."""
        if state in (*TAKEN, DELETED_BY_USER):
            self.tools.run(self.delete_command())
            state = ABSENT
        self.may_exist = True  # while it is created, too: Ctrl-C does not end the creation
        if state == ABSENT:
            self.create()
        shown = None
        while (state := self.polled_state(dry_answer=READY[self.queued])) not in READY:
            self.check_usable(state)
            if state in TAKEN:
                raise RunFailedError(self.unready_text(state))
            if state != shown:
                say(f"{self.job.name}: {state}")
                shown = state
            time.sleep(self.poll_seconds)

    def create(self) -> None:
        created = self.tools.attempt(self.create_command())
        if created.returncode:
            # The known causes are refusals. But a login may also expire while the TPU comes up.
            self.may_exist = known_cause(created.stderr) is None or not self.is_absent()
            raise self.tools.cause(self.create_command(), created.stderr)

    def is_absent(self) -> bool:
        """Returns whether the service says that there is no such TPU."""
        try:
            return self.state() == ABSENT
        except (BadInputError, RunFailedError):
            return False

    def start(self) -> None:
        """Copies the code to every worker, installs it and starts the run on all of them."""
        self.reach(f"mkdir -p -m 700 {REMOTE}")
        with tempfile.TemporaryDirectory(prefix="widenet_launch_") as directory:
            files = stage(self.job, Path(directory))
            if self.tools.dry:
                show_scripts(files)
            target = f"{self.job.name}:{REMOTE}/"
            copy = ["gcloud", "compute", "tpus", "tpu-vm", "scp", *map(str, files), target]
            flags = ["--quiet", *ssh_flags("scp"), "--worker=all"]
            self.tools.run([*copy, *self.job.place, *flags])
        self.on_all(f"chmod 600 {REMOTE}/env && bash {REMOTE}/setup.sh")
        self.on_all(START_RUN)

    def reach(self, command: str) -> None:
        """Runs the first command on all workers; retries until they accept connections.

        A TPU is reported as ready some time before its workers accept ssh.
        """
        for _ in range(CONNECTION_ATTEMPTS - 1):
            ssh = self.ssh_command(command, "all")
            if self.tools.attempt(ssh).returncode == 0:
                return
            time.sleep(self.poll_seconds)
        self.on_all(command)

    def on_all(self, command: str) -> None:
        self.tools.run(self.ssh_command(command, "all"))

    def on_first(self, command: str, *, dry_answer: str = "") -> str | None:
        """Returns what a command on worker 0 printed; None if the command failed."""
        found = self.tools.attempt(self.ssh_command(command, "0"), dry_answer=dry_answer)
        return None if found.returncode else found.stdout.strip()

    def runs_already(self) -> bool | None:
        """Returns whether the TPU is running this job; None if worker 0 cannot be reached.

        Raises:
          BadInputError: it is running another one.
        """
        there = self.on_first(f"if {ALIVE}; then sha256sum < {REMOTE}/run.sh; fi")
        if not there:
            return None if there is None else False
        if there.split()[0] != hashlib.sha256(self.job.run_script().encode()).hexdigest():
            raise BadInputError(
                f"{self.job.name} is running another job; stop it (`{self.managing('stop')}`) or "
                "choose another --name"
            )
        return True

    def follow(self) -> int | None:
        """Prints worker 0's log until the run ends; if it failed, the end of every worker's log.

        Returns:
          The run's exit code; None if the TPU is not ready, or the run left no code.

        Raises:
          RunFailedError: worker 0 cannot be reached for long, though the TPU is ready.
        """
        # Not the whole log: gcloud repeats the command by itself whenever the connection breaks.
        lines, lost, unreached, began = "100", 0, 0, time.monotonic()
        while True:
            self.tools.stream(self.ssh_command(follow_script(lines), "0"))
            said = self.on_first(ENDED, dry_answer="0")  # None: the connection broke
            if said == "0":
                return 0
            failed = bool(said) and said.isdigit()
            for _ in range(CHECKS_AFTER_FAILURE if failed else 1):
                if self.polled_state() not in READY:
                    return None
                time.sleep(self.poll_seconds)
            if failed:
                self.show_ends()
                return int(said)
            unreached = unreached + 1 if said is None else 0
            if unreached == CHECKS_UNREACHED:
                raise RunFailedError(self.unreached_text())
            lost = lost + 1 if said == "" else 0
            if lost == CHECKS_OF_A_LOST_RUN:
                self.count_lost_run(time.monotonic() - began)
                return None
            lines = "10"  # the connection broke, or the run has only just ended

    def unreached_text(self) -> str:
        """Returns what to tell where only ssh fails: a stopped TPU's queued resource is ACTIVE."""
        node = shlex.join([self.job.name, *self.job.place])
        return (
            f"worker 0 of {self.job.name} cannot be reached; whether the TPU was stopped, "
            f"`gcloud compute tpus tpu-vm describe {node}` tells"
        )

    def count_lost_run(self, seconds: float) -> None:
        """Counts the runs in a row that left no exit code, after so many seconds each.

        Raises:
          RunFailedError: these were LOST_RUNS, none of which lasted for LONG_RUN_SECONDS.
        """
        self.lost_runs = 1 if seconds > LONG_RUN_SECONDS else self.lost_runs + 1
        lost = f"{self.job.name}: the run left no exit code, as after a reboot"
        if self.lost_runs == LOST_RUNS:
            raise RunFailedError(
                f"{lost}, {LOST_RUNS} times in a row; its log: `{self.managing('logs')}`"
            )
        say(f"{lost}; starting it again")

    def show_ends(self) -> None:
        """Prints the last lines of every worker's log, since any worker may have failed first."""
        if self.job.tpu.several_hosts:
            ends = f'tail -n 10 {LOG} | sed "s/^/$(hostname): /"'
            self.tools.stream(self.ssh_command(ends, "all"))

    def tell_cost(self) -> None:
        """Prints how the TPU is deleted, if it may exist."""
        if self.may_exist:
            say(f"{self.job.name} may exist and cost money: {self.managing('delete')}")

    def managing(self, verb: str) -> str:
        """Returns the launcher's own command for this TPU, such as `stop`, for any directory."""
        place = [*self.job.place, *(["--backend=queued-resource"] if self.queued else [])]
        return shlex.join([sys.executable, "-m", LAUNCHER, verb, self.job.name, *place])

    def stop(self) -> None:
        """Asks the run to save and end; the TPU stays."""
        self.on_all(f"kill -TERM $(cat {REMOTE}/run.pid)")

    def delete(self) -> None:
        self.tools.run(self.delete_command())

    def status(self) -> str:
        """Describes the state of the TPU and of the run, for people."""
        state = self.state(dry_answer=READY[self.queued])
        text = f"{self.job.name}: {state or 'there is no such TPU'}"
        if state not in READY:
            return text
        return f"{text}\n{self.on_first(STATUS) or 'worker 0 cannot be reached'}"

    def logs(self) -> None:
        self.tools.stream(self.ssh_command(follow_script("100"), "0"))


def ssh_flags(tool: str) -> list[str]:
    """Returns the flags by which gcloud gives SSH_OPTIONS to `tool`, ssh or scp."""
    return [f"--{tool}-flag=-o{option}" for option in SSH_OPTIONS]


def follow_script(lines: str) -> str:
    """Returns a command that prints the last `lines` of the log, and what follows, to its end."""
    return f"tail -n {lines} -s 0.2 -F --pid=$(cat {REMOTE}/run.pid) {LOG}"


def show_scripts(files: Sequence[Path]) -> None:
    """Prints the scripts for the workers, as comments between the commands."""
    for file in files:
        if file.suffix == ".sh":
            lines = file.read_text().splitlines()
            print("\n".join([f"# {file.name}:", *(f"#   {line}" for line in lines)]))
