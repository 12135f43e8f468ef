"""A Cloud TPU from its creation to the end of the run: states, preemptions, the run's log."""

import hashlib
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from widenet_jax.errors import NO_ANSWER, BadInputError, RunFailedError
from widenet_jax.ops.launch import requests
from widenet_jax.ops.launch.requests import Job, Tools, cause, verb
from widenet_jax.run.stopping import say

NOT_FOUND = re.compile(r"\bNOT_FOUND\b")  # gcloud's; "not found" may be said of a login, too
READY = ("READY", "ACTIVE")
# The service leaves a TPU that it takes away in the list; only a person makes one ABSENT or
# STOPPED. A failed repair leaves UNKNOWN. The launcher waits for a TPU in any other state.
TAKEN = ("PREEMPTED", "TERMINATED", "SUSPENDING", "SUSPENDED", "FAILED", "UNKNOWN")
ABSENT, STOPPED = "", "STOPPED"
# State checks after a failed run. A run fails as soon as a host is lost, but the service reports
# the preemption later: a single check would take a preempted run for a failed one.
CHECKS_AFTER_FAILURE = 4
CHECKS_WITHOUT_ANSWER = 30  # in a row, before the launcher gives up: ten minutes by default
# A TPU is reported as ready some time before its workers accept ssh. Two minutes where gcloud
# refuses at once; half an hour where each ssh waits for a silent host.
CONNECTION_ATTEMPTS = 5
# Of worker 0 if another host is lost or ends: JAX aborts. Of several slices Cloud TPU replaces one
# and restarts the others, docs.cloud.google.com/tpu/docs/multislice-introduction ("auto-repair").
LOST_HOST = "134"
# A run that is lost sooner, as where the host lacks memory, would be lost again.
SHORT_RUN_SECONDS = 600.0


class UnusableTpuError(RunFailedError):
    """A person deleted or stopped the TPU: it is not created again."""


class CloudTpu:
    """A Cloud TPU and the run on it.

    Args:
      job: the run to launch.
      tools: executes the commands.
      poll_seconds: pause between two checks of the TPU's state.

    Attributes:
      may_exist: whether this launch has created or used the TPU, which then costs money.
    """

    def __init__(self, job: Job, tools: Tools, poll_seconds: float = 20.0):
        self.job, self.tools, self.poll_seconds = job, tools, poll_seconds
        self.may_exist = False
        self.unanswered = 0  # runs that ended because their store did not answer
        self.lost = 0  # runs that were lost on a TPU that stayed
        self.deleting = False  # by this launch, also where the answer was lost

    def launch(self, plan: Callable[[], None]) -> int:
        """Creates the TPU, runs the job through any preemptions and returns its exit code.

        Args:
          plan: called before anything is created or started; raises where the run does not fit.
        """
        if not self.job.project:  # gcloud's default, which may change before the run ends
            project = self.tools.run(["gcloud", "config", "get-value", "project"])
            self.job = replace(self.job, project=project)
        state = self.state()
        if state == STOPPED:
            raise BadInputError(self.stopped())
        self.may_exist = state in READY and self.runs_this_job()
        if not self.may_exist:
            if self.job.tpu.several_hosts and not requests.has_open_key(self.tools):
                raise BadInputError(requests.KEY_IS_LOCKED)
            plan()
            self.bring_up(state)
            self.begin()
        while (code := self.follow()) is None:
            self.bring_back()
            self.begin()
        if self.tools.dry:
            lost = "SUSPENDED" if self.job.queued else "PREEMPTED"
            print(f"# if describe reports {lost}: delete the TPU, then repeat from create")
        return code

    def state(self, dry_answer: str = ABSENT) -> str:
        """Returns the TPU's state as the service names it; ABSENT if there is no such TPU.

        A queued resource whose TPU a person deleted counts as STOPPED. The service lists it as
        SUSPENDED, as after a preemption.

        Raises:
          BadInputError: the TPU of this name is of another type than the job's.
        """
        completed = self.tools.attempt(self.job.describe(), dry_answer=dry_answer)
        if completed.returncode and NOT_FOUND.search(completed.stderr):
            return ABSENT
        if completed.returncode:
            raise cause(completed)
        answer = completed.stdout.rstrip("\n").split("\t")
        state, kind, initiator, count = [*answer, "", "", ""][:4]
        kind = f"{count}x{kind}" if count else kind
        if kind and self.job.tpu and kind != self.job.tpu.request:
            raise BadInputError(
                f"{self.job.name} exists and is a {kind}, not a {self.job.tpu.request}; "
                f"delete it (`{self.job.managing('delete')}`) or choose another --name"
            )
        by_user = initiator == "USER" and state in ("SUSPENDING", "SUSPENDED")
        return STOPPED if by_user else state

    def known_state(self, dry_answer: str = ABSENT) -> str:
        """Returns the state; asks again while the service cannot be asked.

        An expired login or a sleeping laptop must not end a launch that has begun.
        """
        for _ in range(CHECKS_WITHOUT_ANSWER - 1):
            try:
                return self.state(dry_answer)
            except (BadInputError, RunFailedError) as error:
                say(f"{self.job.name}: its state is unknown, asking again: {error}")
            time.sleep(self.poll_seconds)
        return self.state()

    def stopped(self) -> str:
        start, delete = " ".join(self.job.request("start")), self.job.managing("delete")
        return (
            f"{self.job.name} was stopped by someone; start it (`{start}`) or delete it with its "
            f"disk (`{delete}`), then run the same command"
        )

    def bring_up(self, state: str) -> None:
        """Creates the TPU unless it exists, and waits until it is ready.

        Raises:
          UnusableTpuError: a person deleted or stopped the TPU meanwhile.
        """
        if state in TAKEN:
            self.deleting = True
            self.delete()
            state = ABSENT
        self.may_exist = True  # while it is created, too: Ctrl-C does not end the creation
        if state == ABSENT:
            self.deleting = False
            created = self.tools.attempt(self.job.create())
            if created.returncode:
                # The TPU may come up all the same, as where the network fails.
                with suppress(BadInputError, RunFailedError):
                    self.may_exist = self.state() != ABSENT
                raise cause(created)
        shown = None
        while (state := self.known_state(dry_answer=READY[self.job.queued])) not in READY:
            if state == ABSENT and self.deleting:
                return self.bring_up(ABSENT)
            self.check_kept(state)
            if state in TAKEN:
                describe = " ".join(self.job.request("describe"))
                raise RunFailedError(f"{self.job.name} is {state}; for the reason run `{describe}`")
            if state != shown:
                say(f"{self.job.name}: {state}")
                shown = state
            time.sleep(self.poll_seconds)

    def check_kept(self, state: str) -> None:
        """Raises UnusableTpuError if a person deleted or stopped the TPU."""
        if state == ABSENT:
            self.may_exist = False
            again = "the same command creates it again"
            raise UnusableTpuError(f"{self.job.name} was deleted by someone; {again}")
        if state == STOPPED:
            raise UnusableTpuError(self.stopped())

    def begin(self) -> None:
        """Starts the run on the ready TPU; on another one if it is preempted meanwhile.

        Raises:
          RunFailedError: a command failed on a TPU that stays.
        """
        while True:
            try:
                return self.start()
            except RunFailedError:
                if self.stays():
                    raise
            self.bring_back()

    def stays(self, checks: int = CHECKS_AFTER_FAILURE) -> bool:
        """Returns whether the TPU is ready at each of some checks."""
        for _ in range(checks):
            if self.known_state() not in READY:
                return False
            time.sleep(self.poll_seconds)
        return True

    def bring_back(self) -> None:
        """Brings up a TPU in place of a lost one; tries until there is capacity for it.

        Waits for one that the service repairs or restarts.
        """
        self.check_kept(state := self.known_state())
        if state in TAKEN:
            say(f"{self.job.name} is {state}; creating it again, the run then resumes")
        while True:
            try:
                return self.bring_up(state)
            except UnusableTpuError:
                raise
            except (BadInputError, RunFailedError) as error:  # an expired login, too
                say(f"{error}; trying again")
            time.sleep(self.poll_seconds)
            state = self.known_state()

    def start(self) -> None:
        """Copies the code to every worker, installs it and starts the run on all of them."""
        slow = self.job.tpu.slices > 1  # a slice that was lost comes back
        for _ in range((CHECKS_WITHOUT_ANSWER if slow else CONNECTION_ATTEMPTS) - 1):
            if not self.tools.attempt(self.job.ssh(requests.CREATE_FOLDER, "all")).returncode:
                break
            time.sleep(self.poll_seconds)
        else:
            self.tools.run(self.job.ssh(requests.CREATE_FOLDER, "all"))
        with tempfile.TemporaryDirectory(prefix="widenet_launch_") as directory:
            self.tools.run(self.job.scp(requests.stage(self.job, Path(directory))))
        if self.tools.dry:
            print(f"# command.sh: {requests.run_command(self.job)}", end="")
        for words in ("setup", "start"):
            self.tools.run(self.job.ssh(verb(words), "all"))

    def on_first(self, command: str, *, dry_answer: str = "") -> str | None:
        """Returns the output of a command on worker 0; None if the command failed."""
        completed = self.tools.attempt(self.job.ssh(command, "0"), dry_answer=dry_answer)
        return None if completed.returncode else completed.stdout.strip()

    def runs_this_job(self) -> bool:
        """Returns whether the job is running on the ready TPU.

        Raises:
          BadInputError: another job is running there.
          RunFailedError: worker 0 cannot be reached.
        """
        running = self.on_first(requests.verb_if_set_up("job"))
        if running is None:
            raise RunFailedError(self.unreached())
        own = hashlib.sha256(requests.run_command(self.job).encode()).hexdigest()
        if running and running.split()[0] != own:
            raise BadInputError(
                f"{self.job.name} is running another job; stop it (`{self.job.managing('stop')}`) "
                "or choose another --name"
            )
        return bool(running)

    def unreached(self) -> str:  # also where the TPU of a queued resource was stopped
        first = f"{self.job.name}-0" if self.job.tpu.slices > 1 else self.job.name
        node = " ".join([first, *self.job.place])
        describe = f"gcloud compute tpus tpu-vm describe {node}"
        return f"worker 0 of {node} cannot be reached; `{describe}` shows whether it was stopped"

    def follow(self) -> int | None:
        """Prints worker 0's log until the run ends; if it failed, the end of every worker's log.

        Returns:
          The run's exit code; None if the TPU is not ready, or the run left no code, or one of
          several slices was lost.

        Raises:
          RunFailedError: worker 0 cannot be reached for long, or the run was lost soon after its
            start or too often, though the TPU is ready.
        """
        # Not the whole log: gcloud repeats the command by itself whenever the connection breaks.
        lines, unreached, began = 100, 0, time.monotonic()
        while True:
            self.stream(f"log {lines}")
            state = self.on_first(verb("state"), dry_answer="exit 0")
            if state == "exit 0":
                return 0
            word, _, code = (state or "").partition(" ")
            if not self.stays(CHECKS_AFTER_FAILURE if code else 1):
                return None
            if code:
                ended = self.tools.attempt(self.job.ssh(verb("end_of_log"), "all"))
                if ended.returncode and self.known_state() not in READY:
                    return None  # told by now
                ends = ended.stdout
                if self.job.tpu.several_hosts:  # any worker may have failed first
                    print(ends, end="", flush=True)
                if self.starts_again(ends):
                    return None
                mistake = re.search(r"^\S+: error: ", ends, re.MULTILINE)  # on any worker
                if code != LOST_HOST or self.job.tpu.slices == 1 or mistake:
                    return int(code)
            if word == "lost" or code:
                why = "a host was lost" if code else "the run left no exit code, as after a reboot"
                lost = f"{self.job.name}: {why}"
                self.lost += 1
                short = time.monotonic() - began < SHORT_RUN_SECONDS
                if short or self.lost > CHECKS_WITHOUT_ANSWER:
                    raise RunFailedError(f"{lost}; its log: `{self.job.managing('logs')}`")
                say(f"{lost}; starting it again")
                return None
            unreached = 0 if word else unreached + 1
            if unreached == CONNECTION_ATTEMPTS:
                raise RunFailedError(self.unreached())
            lines = 10

    def starts_again(self, log: str) -> bool:
        """Returns whether a run that its store did not answer is to start once more.

        However long the runs take: one that starts and can never save takes `retry_minutes`.

        Args:
          log: the end of every worker's.
        """
        if not re.search(f"failed: .*{NO_ANSWER}", log):
            return False
        self.unanswered += 1
        if again := self.unanswered <= CHECKS_WITHOUT_ANSWER:
            say(f"{self.job.name}: {NO_ANSWER}; starting the run again")
            time.sleep(self.poll_seconds)
        return again

    def stream(self, words: str) -> None:
        """Runs a verb of worker.sh on worker 0; its output goes to the terminal."""
        self.tools.attempt(self.job.ssh(verb(words), "0"), captured=False)

    def status(self) -> str:
        """Describes the state of the TPU and of the run, for people; a dry run knows neither."""
        state = self.state(dry_answer=READY[self.job.queued])
        text = f"{self.job.name}: {state or 'there is no such TPU'}"
        if state not in READY:
            return text
        run = self.on_first(requests.verb_if_set_up("status"))
        if self.tools.dry:
            return ""
        return f"{text}\n{'worker 0 cannot be reached' if run is None else run or 'no run'}"

    def logs(self) -> None:
        self.stream("log 100")

    def stop(self) -> None:
        """Asks the run to save and end; the TPU stays."""
        self.tools.run(self.job.ssh(verb("stop"), "all"))

    def delete(self) -> None:
        self.tools.run(self.job.delete())

    def delete_at_last(self) -> None:
        """Deletes the TPU after its run; tries again while the service cannot be asked."""
        for _ in range(CHECKS_WITHOUT_ANSWER - 1):
            try:
                return self.delete()
            except (BadInputError, RunFailedError) as error:
                say(f"{error}; trying again")
            time.sleep(self.poll_seconds)
            if self.known_state() == ABSENT:  # the answer alone was lost
                return
        self.delete()
