"""scripts/launch_tpu.py with stand-ins on PATH: commands, their order, what the workers receive."""

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import gethostname
from threading import Thread
from types import SimpleNamespace

import pytest
from stand_in import ROOT, Cloud, program

from widenet_jax.cli.launch_tpu import main
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.ops.launch import following
from widenet_jax.ops.launch.requests import (
    Job,
    Tools,
    cause,
    check_config,
    check_name,
    default_name,
)
from widenet_jax.ops.plan.topology import parse_topology

ARGUMENTS = (
    "--config=configs/digits.py:vit_tiny", "--tpu=v5e-16", "--zone=us-west4-a",
    "--workdir=gs://bucket/a run", "--name=mine", "--skip_plan", "--poll_seconds=0.02",
)  # fmt: skip
DELETE = f"{sys.executable} -m widenet_jax.cli.launch_tpu delete mine --zone=us-west4-a"
HARD = '/it\'s "5" $HOME `x`; 7 steps'  # a value that every layer of quoting must preserve
START = [
    "ssh all mkdir", "scp", "ssh all setup", "ssh all start", "ssh 0 log", "ssh 0 state",
]  # fmt: skip


def launched(
    directory: Path, *flags: str, code: int = 0, **cloud: object
) -> tuple[Cloud, subprocess.CompletedProcess]:
    """Launches in a new cloud, and expects the exit code."""
    cloud = Cloud(directory / "cloud", **cloud)
    done = cloud.launch(*ARGUMENTS, *flags)
    assert done.returncode == code, done.stderr
    return cloud, done


def test_creates_waits_sets_up_runs_and_follows(tmp_path: Path):
    """Every worker gets the arguments unchanged; secrets go in a file, in no command line."""
    cloud, secret = Cloud(tmp_path / "cloud"), "s3cr3t 'key'"
    flag = f"--config.data.path={HARD}"
    done = cloud.launch(*ARGUMENTS, "--extend", flag, WANDB_API_KEY=secret)
    assert done.returncode == 0, done.stderr
    assert cloud.steps() == ["describe", "create", "describe", "describe", *START]
    create = cloud.calls()[1]
    assert create == [
        "gcloud", "compute", "tpus", "tpu-vm", "create", "mine", "--zone=us-west4-a",
        "--accelerator-type=v5litepod-16", "--version=v2-alpha-tpuv5-lite",
    ]  # fmt: skip
    assert done.stdout == "worker_0: step 1 of 1\n"
    assert DELETE in done.stderr
    for call in cloud.calls():
        assert f"$ {shlex.join(call)}" in done.stderr
        if (tool := call[4]) in ("ssh", "scp"):
            flags = [word for word in call if word.startswith(f"--{tool}-flag=-o")]
            options = dict(flag.partition("=-o")[2].split("=") for flag in flags)
            # A machine that is gone is given up within a quarter of a minute, a silent one a minute
            alive = int(options["ServerAliveInterval"]) * int(options["ServerAliveCountMax"])
            assert (options["ConnectTimeout"], alive) == ("15", 60)

    for worker in (0, 1):
        ((arguments, key),) = cloud.trainings(worker)
        assert arguments == [
            "-m", "widenet_jax.main", "--config=configs/digits.py:vit_tiny",
            "--workdir=gs://bucket/a run", "--distributed", "--extend", flag,
        ]  # fmt: skip
        assert key == secret
    assert "s3cr3t" not in json.dumps(cloud.calls()) + done.stdout + done.stderr
    there = cloud.directory / "worker_1" / "widenet_run"
    code = there / "code"
    ours, theirs = (place / "widenet_jax/main.py" for place in (ROOT, code))
    assert theirs.read_bytes() == ours.read_bytes()
    assert not (code / ".git").exists()
    assert stat.S_IMODE((there / "env").stat().st_mode) == 0o600
    assert stat.S_IMODE(there.stat().st_mode) == 0o700


def test_a_preempted_tpu_is_created_again_and_the_run_restarted(tmp_path: Path):
    states = ("CREATING", "READY", "READY", "PREEMPTED", "PREEMPTED", "CREATING", "READY")
    cloud, done = launched(tmp_path, "--spot", states=("NOT_FOUND", *states), exit_codes=(134, 0))
    assert cloud.steps() == [
        *("describe", "create", "describe", "describe"), *START,
        *("describe", "describe"),  # the run failed; the preemption is reported a moment later
        *("describe", "delete", "create", "describe", "describe"), *START,
    ]  # fmt: skip
    assert "mine is PREEMPTED; creating it again" in done.stderr
    creates = [call for call in cloud.calls() if "create" in call]
    assert creates[0] == creates[1]
    assert "--spot" in creates[0]
    assert len(cloud.trainings()) == 1  # the first one's machine was deleted


@pytest.mark.slow
def test_a_run_whose_store_does_not_answer_is_started_again(tmp_path: Path):
    """On the same TPU."""
    cloud, done = launched(tmp_path, states=("NOT_FOUND", "READY"), exit_codes=(75, 75, 0))
    assert cloud.steps().count("create") == 1
    assert len(cloud.trainings()) == 3
    assert done.stderr.count("mine: gs:// does not answer; starting the run again\n") == 2


def test_which_runs_are_started_again():
    """Those that their store did not answer, but not for ever; others would fail once more."""
    tpu = following.CloudTpu(SimpleNamespace(name="mine"), Tools(), poll_seconds=0.0)
    line = "host: failed: checkpoint 9 could not be written: gs:// does not answer (503): see"
    assert not tpu.starts_again("host: warning: gs:// does not answer (503)")
    assert not tpu.starts_again("host: failed: the loss is nan at step 9")
    assert [tpu.starts_again(f"host: step 9\n{line}\n") for _ in range(31)] == [True] * 30 + [False]


@pytest.mark.parametrize("state", ["NOT_FOUND", "STOPPED"])
@pytest.mark.slow
def test_a_tpu_that_a_person_deletes_or_stops_is_not_created_again(tmp_path: Path, state: str):
    """While the run is followed. The service itself leaves a TPU listed, as PREEMPTED or alike."""
    doing = {"NOT_FOUND": "DELETING", "STOPPED": "STOPPING"}[state]
    states = ("NOT_FOUND", "READY", doing, doing, state)
    cloud = Cloud(tmp_path / "cloud", states=states, exit_codes=(134,))
    done = cloud.launch(*ARGUMENTS)
    assert (done.returncode, cloud.steps().count("create")) == (3, 1)
    *_, cost, line = done.stderr.splitlines()
    if state == "NOT_FOUND":
        assert line == "failed: mine was deleted by someone; the same command creates it again"
        assert "cost money" not in done.stderr
        return
    start = "gcloud compute tpus tpu-vm start mine --zone=us-west4-a"
    assert line.startswith(f"failed: mine was stopped by someone; start it (`{start}`)")
    assert cost.startswith("mine may exist and cost money")
    before = len(cloud.calls())
    again = cloud.launch(*ARGUMENTS)  # the boot disk may hold something
    assert (again.returncode, cloud.steps()[before:]) == (2, ["describe"])
    assert f"or delete it with its disk (`{DELETE}`)" in again.stderr


@pytest.mark.slow
def test_queued_resource(tmp_path: Path):
    states = ("NOT_FOUND", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
    cloud = Cloud(tmp_path / "cloud", states=states)
    done = cloud.launch(
        *ARGUMENTS, "--backend=queued-resource", "--project=p", "--delete_when_done"
    )
    assert done.returncode == 0, done.stderr
    queued = ["gcloud", "compute", "tpus", "queued-resources"]
    place = ["mine", "--zone=us-west4-a", "--project=p"]
    calls = [call for call in cloud.calls() if "queued-resources" in call]
    fields = "state.state,tpu.nodeSpec[0].node.acceleratorType,state.stateInitiator"
    fields += ",tpu.nodeSpec[0].multisliceParams.nodeCount"
    assert calls[0] == [*queued, "describe", *place, f"--format=value({fields})"]
    assert calls[1] == [
        *queued, "create", *place, "--node-id=mine", "--accelerator-type=v5litepod-16",
        "--runtime-version=v2-alpha-tpuv5-lite",
    ]  # fmt: skip
    assert calls[-1] == [*queued, "delete", *place, "--force", "--quiet"]
    assert "WAITING_FOR_RESOURCES" in done.stderr


def test_several_slices_are_the_nodes_of_a_queued_resource():
    job = Job("mine", parse_topology("2xv5e-16"), "z", queued=True, runtime_version="r", spot=True)
    queued = ["gcloud", "compute", "tpus", "queued-resources"]
    assert job.create() == [
        *queued, "create", "mine", "--zone=z", "--node-count=2",
        "--accelerator-type=v5litepod-16", "--runtime-version=r", "--spot",
    ]  # fmt: skip
    everywhere, first = job.ssh("true", "all"), job.ssh("true", "0")
    assert everywhere[:6] == first[:6] == [*queued, "ssh", "mine"]
    assert {"--node=all", "--worker=all"} <= {*everywhere}
    assert not {word for word in first if word.startswith("--node")}  # gcloud's default: node 0
    assert "--node=all" in job.scp([Path("a")])


@pytest.mark.slow
def test_a_lost_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two nodes of one worker each: the run is started again, unless it was lost at its start."""
    monkeypatch.setattr(following, "SHORT_RUN_SECONDS", 0)
    slices = ("--tpu=2xv5e-8", "--backend=queued-resource")
    states = ("NOT_FOUND", "ACTIVE")
    cloud, _ = launched(tmp_path, *slices, states=states, exit_codes=(134, 0, 76, 134, 3))
    begun = ["describe", "create", "describe", *START]
    checks = [*["describe"] * 4, "ssh all end_of_log", "describe", "describe"]
    assert cloud.steps() == [*begun, *checks, *START]
    for worker in (0, 1):
        assert len(cloud.trainings(worker)) == 2
    other = cloud.launch(*ARGUMENTS, *slices, "--tpu=4xv5e-8")
    line = other.stderr.splitlines()[-1]
    assert line.startswith("error: mine exists and is a 2xv5litepod-8, not a 4xv5litepod-8; delete")
    assert cloud.launch(*ARGUMENTS, *slices).returncode == 134  # it would meet the mistake again
    monkeypatch.setattr(following, "SHORT_RUN_SECONDS", 600)
    done = cloud.launch(*ARGUMENTS, *slices)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("failed: mine: a host was lost; its log: `")


def test_the_runs_own_failure_is_the_exit_code_and_keeps_the_tpu(tmp_path: Path):
    cloud, done = launched(tmp_path, "--delete_when_done", code=3, exit_codes=(3,))
    assert "delete" not in cloud.steps()
    first, *ends = done.stdout.splitlines()
    assert first == "worker_0: step 1 of 1"
    # Worker 1 may not have logged anything yet when worker 0 fails.
    both = [f"{gethostname()}: worker_{worker}: step 1 of 1" for worker in (0, 1)]
    assert ends in (both, both[:1], both[1:])


@pytest.mark.slow
def test_an_outage_does_not_end_a_launch_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No answer to 2 checks while the TPU is created, and to 2 while the run is followed."""
    monkeypatch.setattr(following, "CHECKS_WITHOUT_ANSWER", 3)
    outage = ["ERROR: 503", "ERROR: no active account"]
    fails = {"ssh": ["", "", "", "Connection reset", "Connection reset"]}
    fails["describe"] = ["", *outage, "", *outage]
    cloud, done = launched(tmp_path, states=("NOT_FOUND", "READY"), fails=fails)
    assert done.stderr.count("mine: its state is unknown, asking again: ") == 4
    checks = ["describe"] * 3
    begun = ["describe", "create", *checks, *START]
    assert cloud.steps() == [*begun, *checks, "ssh 0 log", "ssh 0 state"]
    cloud = Cloud(tmp_path / "other", fails={"describe": ["", *["ERROR: 503"] * 4]})
    assert cloud.launch(*ARGUMENTS).returncode == 3
    assert cloud.steps() == ["describe", "create", *checks]


@pytest.mark.slow
def test_a_run_that_left_no_exit_code_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As after a reboot; unless it was lost soon after its start, which would be so again."""
    monkeypatch.setattr(following, "SHORT_RUN_SECONDS", 0)
    cloud, done = launched(tmp_path, states=("NOT_FOUND", "READY"), exit_codes=(-9, 0, -9))
    assert "mine: the run left no exit code" in done.stderr
    begun = ["describe", "create", "describe", *START]
    assert cloud.steps() == [*begun, "describe", "describe", "describe", *START]
    assert len(cloud.trainings(0)) == len(cloud.trainings(1)) == 2
    logs = [cloud.directory / "worker_0" / "widenet_run" / f"run.log{end}" for end in ("", ".old")]
    assert [log.read_text() for log in logs] == ["worker_0: step 1 of 1\n"] * 2
    monkeypatch.setattr(following, "SHORT_RUN_SECONDS", 600)
    done = cloud.launch(*ARGUMENTS)
    assert done.returncode == 3
    assert f"its log: `{DELETE.replace('delete', 'logs')}`" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_repaired_tpu_is_kept_and_the_run_restarted_on_all_workers(tmp_path: Path):
    """Worker 0 fails; worker 1 hangs, and would keep the second run from starting there."""
    states = ("NOT_FOUND", "READY", "REPAIRING", "REPAIRING", "REPAIRING", "READY")
    cloud = Cloud(tmp_path / "cloud", states=states, exit_codes=(134, 0))
    (cloud.directory / "exit_codes_worker_1.json").write_text("[null, 0]")
    done = cloud.launch(*ARGUMENTS)
    assert done.returncode == 0, done.stderr
    assert "mine: REPAIRING" in done.stderr
    assert cloud.steps().count("create") == 1
    assert len(cloud.trainings(0)) == len(cloud.trainings(1)) == 2


@pytest.mark.slow
def test_workers_that_accept_connections_late_or_never(tmp_path: Path):
    late = Cloud(tmp_path / "late", fails={"ssh": ["Connection refused", "Connection refused"]})
    assert late.launch(*ARGUMENTS).returncode == 0
    assert late.steps().count("ssh all mkdir") == 3
    cloud, done = launched(tmp_path, code=3, fails={"ssh": ["Connection refused"] * 9})
    assert done.stderr.splitlines()[-1].endswith("Connection refused")
    done = cloud.launch("status", "mine", "--zone=z")
    assert done.stdout.splitlines() == ["mine: READY", "worker 0 cannot be reached"]
    absent = Cloud(tmp_path / "absent", states=("NOT_FOUND",))
    assert "there is no such TPU" in absent.launch("status", "mine", "--zone=z").stdout


def test_a_failed_set_up_is_reported_in_one_line(tmp_path: Path):
    """After the end of what the hosts said: the last 20 lines."""
    reason = "× No solution found: requires Python>=3.13"
    failed = "##### Command execution on worker 3 failed with exit status 1. Continuing."
    said = [
        "Using scp batch size of 1.Attempting to SCP into 1 nodes with a total of 4 workers.",
        *(f"SCP: Attempting to connect to worker {worker}..." for worker in range(4)),
        *(f"Resolved {count} packages" for count in range(30)), f"  {reason}", failed,
    ]  # fmt: skip
    cloud, done = launched(tmp_path, code=3, fails={"scp": ["\n".join(said)]})
    *shown, cost, line = done.stderr.splitlines()[-26:]
    assert shown[:20] == said[-20:]
    checks = shown[20:]  # a preemption is reported a moment later
    assert len(checks) == 4 and all("tpu-vm describe mine" in check for check in checks)
    assert line.endswith(f" scp ...: {reason}")
    assert cost == f"mine may exist and cost money: {DELETE}"
    assert cloud.launch(*shlex.split(DELETE)[3:]).returncode == 0
    assert cloud.steps()[-1] == "delete"


def test_a_preemption_during_the_set_up_that_is_told_late(tmp_path: Path):
    states = ("NOT_FOUND", "READY", "READY", "PREEMPTED", "PREEMPTED", "READY")
    fails = {"scp": ["Connection timed out"]}
    cloud, _ = launched(tmp_path, "--spot", states=states, fails=fails)
    assert cloud.steps().count("create") == 2


def test_a_spot_run_that_saved_at_the_notice_goes_on(tmp_path: Path):
    """It ends with 143; the workers cannot be reached then, and the preemption is told later."""
    states = ("NOT_FOUND", *["READY"] * 5, "PREEMPTED", "PREEMPTED", "READY")
    fails = {"ssh": [""] * 5 + ["Connection timed out"]}
    cloud, _ = launched(tmp_path, "--spot", states=states, exit_codes=(143, 0), fails=fails)
    assert cloud.steps().count("create") == 2


@pytest.mark.slow
def test_a_tpu_whose_deletion_fails_once_is_deleted(tmp_path: Path):
    """After its run; and where one that was preempted goes on being deleted."""
    fails, states = {"delete": ["ERROR: 503 UNAVAILABLE"]}, ("NOT_FOUND", "READY")
    cloud, _ = launched(tmp_path / "a", "--delete_when_done", states=states, fails=fails)
    assert cloud.steps()[-3:] == ["delete", "describe", "delete"]
    gone = ("DELETING", "NOT_FOUND", "READY")
    for name, told, *messages in (
        ("b", gone, "Connection reset"),
        ("c", ("PREEMPTED", *gone), "Connection reset", "it is being deleted"),
        ("d", gone, "reauthentication is needed"),
    ):
        seen = (*states, "READY", "PREEMPTED", "PREEMPTED", *told)
        how = {"exit_codes": (134, 0), "fails": {"delete": messages}}
        cloud, _ = launched(tmp_path / name, states=seen, **how)
        assert cloud.steps().count("create") == 2, name


def test_a_login_that_is_not_found_is_no_tpu_that_was_deleted(tmp_path: Path):
    lost = "ERROR: problem refreshing your auth tokens: ('invalid_grant: account not found')"
    states, fails = ("NOT_FOUND", "READY"), {"describe": ["", "", lost, lost]}
    _, done = launched(tmp_path, states=states, exit_codes=(3,), fails=fails, code=3)
    assert "was deleted" not in done.stderr and "mine still costs money" in done.stderr


@pytest.mark.slow
def test_a_run_is_not_lost_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a TPU that stays, each time before it has saved."""
    monkeypatch.setattr(following, "SHORT_RUN_SECONDS", 0)
    monkeypatch.setattr(following, "CHECKS_WITHOUT_ANSWER", 2)
    cloud, done = launched(tmp_path, states=("NOT_FOUND", "READY"), exit_codes=(-1,) * 9, code=3)
    assert len(cloud.trainings()) == 3
    assert "failed: mine: the run left no exit code" in done.stderr.splitlines()[-1]


@pytest.fixture
def still_running() -> Iterator[subprocess.Popen]:
    """A process that stands in for the run on worker 0."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_node_that_gcloud_leaves_out_runs_no_job_that_is_known(
    tmp_path: Path, still_running: subprocess.Popen
):
    """gcloud succeeds and prints nothing, which is no reason to end the run that is there."""
    queued = ("--backend=queued-resource",)
    cloud, _ = launched(tmp_path, *queued, states=("NOT_FOUND", "ACTIVE"), exit_codes=(0, 0))
    (cloud.directory / "worker_0/widenet_run/run.pid").write_text(str(still_running.pid))
    Thread(target=still_running.wait, daemon=True).start()  # a zombie would count as running
    tool = cloud.directory / "bin" / "gcloud"
    tool.rename(cloud.directory / "bin" / "gcloud_real")
    told = "WARNING: Could not prepare all 1 nodes, attempting to ssh into the rest."
    left_out = f'if [[ "$*" == *"worker.sh job"* ]]; then echo "{told}" >&2; exit 0; fi'
    program(tool, f'#!/bin/bash\n{left_out}\nexec "$0_real" "$@"\n')
    done = cloud.launch(*ARGUMENTS, *queued)
    assert done.returncode == 3 and "worker 0 of mine" in done.stderr.splitlines()[-1]
    assert still_running.poll() is None


@pytest.mark.slow
def test_the_same_launch_again_follows_the_running_job(
    tmp_path: Path, still_running: subprocess.Popen
):
    """SIGTERM ends the launcher, not the run. A run without an exit code is started again."""
    cloud, _ = launched(tmp_path, states=("NOT_FOUND", "READY"), exit_codes=(0, 0))
    home = cloud.directory / "worker_0" / "widenet_run"
    (home / "run.pid").write_text(str(still_running.pid))
    other = cloud.launch(*ARGUMENTS, "--config.seed=1")
    assert other.returncode == 2
    assert "running another job" in other.stderr

    def once_followed(then: Callable[[], object]) -> None:
        before = len(cloud.calls())

        def wait() -> None:
            while "ssh 0 log" not in cloud.steps()[before:]:
                time.sleep(0.05)
            then()

        Thread(target=wait, daemon=True).start()

    once_followed(lambda: os.kill(os.getpid(), signal.SIGTERM))
    ended = cloud.launch(*ARGUMENTS)
    assert (ended.returncode, still_running.poll()) == (143, None)
    assert ended.stderr.splitlines()[-1] == f"mine may exist and cost money: {DELETE}"
    before = len(cloud.calls())
    # `wait`, so that its pid disappears
    once_followed(lambda: (still_running.terminate(), still_running.wait()))
    assert cloud.launch(*ARGUMENTS).returncode == 0
    assert cloud.steps()[before:] == ["describe", "ssh 0 job", *START[-2:]]
    assert len(cloud.trainings(0)) == len(cloud.trainings(1)) == 1


@pytest.mark.slow
def test_the_remains_of_a_run_on_another_worker_are_ended(
    tmp_path: Path, still_running: subprocess.Popen
):
    cloud = Cloud(tmp_path / "cloud", states=("READY",))
    there = cloud.directory / "worker_1" / "widenet_run"
    there.mkdir()
    (there / "run.pid").write_text(str(still_running.pid))
    assert cloud.launch(*ARGUMENTS).returncode == 0
    assert cloud.steps() == ["describe", "ssh 0 job", "describe", *START]
    assert still_running.wait(10) == -signal.SIGKILL


@pytest.mark.slow
def test_a_tpu_of_that_name_but_of_another_type_is_not_used(tmp_path: Path):
    cloud, _ = launched(tmp_path, "--tpu=v3-8", states=("NOT_FOUND", "READY"))
    before = len(cloud.calls())
    done = cloud.launch(*ARGUMENTS, "--tpu=v3-256")
    assert (done.returncode, cloud.steps()[before:]) == (2, ["describe"])
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: mine exists and is a v3-8, not a v3-256; delete it (`/")


@pytest.mark.slow
def test_the_default_project_is_read_once(tmp_path: Path):
    """It may change while the run is followed: the TPU would be taken for one that was deleted."""
    cloud = Cloud(tmp_path / "cloud")
    (cloud.directory / "project").write_text("first")
    done = cloud.launch(*ARGUMENTS)
    assert done.returncode == 0, done.stderr
    assert all("--project=first" in call for call in cloud.calls())
    assert done.stderr.splitlines()[-1].endswith(f"{DELETE} --project=first")


def test_gcloud_flags_go_to_the_command_that_creates(tmp_path: Path):
    flags = "--network=mine --labels='team=a b,x=1' --reserved"
    _, done = launched(tmp_path, f"--gcloud_flags={flags}", "--dry_run")
    assert "# if describe reports PREEMPTED: " in done.stdout
    printed = [shlex.split(line[2:]) for line in done.stdout.splitlines() if line[:2] == "$ "]
    for command in printed:
        own = command[-3:] == ["--network=mine", "--labels=team=a b,x=1", "--reserved"]
        assert own == ("create" in command)


@pytest.mark.slow
def test_a_plan_that_cannot_be_made_stops_the_launch(tmp_path: Path):
    """The set's size is unknown. The line names flags of the launcher, and nothing is created."""
    arguments = [word for word in ARGUMENTS if word not in (ARGUMENTS[0], "--skip_plan")]
    cloud = Cloud(tmp_path / "cloud")
    own = ("--config=configs/imagenet.py", "--config.data.path=gs://bucket/own")
    done = cloud.launch(*arguments, *own)
    assert (done.returncode, cloud.steps()) == (2, ["describe"])
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: no plan: the size of the set 'own' is unknown; add --num_exampl")
    assert "--skip_plan" in line
    done = cloud.launch(*arguments, *own, "--num_examples=1000", "--config.batch_size=0")
    assert "batch_size" in done.stderr.splitlines()[-1]  # one of the two sizes is known now


def test_gclouds_key_is_checked_before_anything_is_created(tmp_path: Path):
    cloud = Cloud(tmp_path / "cloud", agent="3072 SHA256:other me@here (RSA)")
    done = cloud.launch(*ARGUMENTS, HOME=str(tmp_path))
    assert (done.returncode, cloud.steps()) == (2, ["describe"])
    assert "ssh-keygen -t rsa -f ~/.ssh/google_compute_engine" in done.stderr.splitlines()[-1]
    one_worker = [word.replace("v5e-16", "v5e-8") for word in ARGUMENTS]
    assert cloud.launch(*one_worker, HOME=str(tmp_path)).returncode == 0


# How gcloud ends, and the beginning of our line.
MISTAKES_OF_GCLOUD = {
    "Error parsing [tpu].\nThe [tpu] resource is not properly specified.\nFailed to find attribute "
    "[project]. The attribute can be set in the following ways: \n- provide the argument "
    "`--project` on the command line": "no project; give --project=ID, or run `gcloud config set ",
    "INVALID_ARGUMENT: Location us-west4-a is not found or access is unauthorized.":
        "--zone does not offer this TPU",
    "You do not currently have an active account selected.": "gcloud is not logged in; run `gcloud",
    "PERMISSION_DENIED: Cloud TPU API has not been used in project p before": "permission denied",
}  # fmt: skip
FAILURES_OF_GCLOUD = {
    "RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProjectPerZone' has been exceeded. Limit: 0":
        "the quota for this TPU in this zone is used up",
    'There is no more capacity in the zone "us-west4-a"; you can try in another zone':
        "no free TPU in the zone; --backend=queued-resource waits",
    "something new": "gcloud compute tpus tpu-vm create ...: ERROR: (gcloud.create) something new",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "answers"), [(BadInputError, MISTAKES_OF_GCLOUD), (RunFailedError, FAILURES_OF_GCLOUD)]
)
def test_errors_of_gcloud_are_reported_in_one_line(kind: type, answers: dict[str, str]):
    create = ["gcloud", "compute", "tpus", "tpu-vm", "create", "mine"]
    for message, answer in answers.items():
        stderr = f"ERROR: (gcloud.create) {message}"
        found = cause(subprocess.CompletedProcess(create, 1, "", stderr))
        assert type(found) is kind and str(found).startswith(answer), message
        assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--tpu=v9-8"], "v9-8 is no TPU"),
        (["--tpu=2xv5e-16"], "--tpu=2xv5e-16: several slices need --backend=queued-resource"),
        (["--tpu=2xv3-256"], "joins slices of v4 and later"),
        (["--tpu=v3-255", "--dry_run"], "powers of two of at least 8 cores"),
        (["--workdir=runs/here"], "give a gs:// directory"),
        (["--workdir=gs://"], "give a gs:// directory"),
        (["--workdir=gs://b/a*"], "gs://b/a*: * in a name would be taken as a wildcard"),
        (["--config.init_from=gs://b/a?"], "gs://b/a?: ? in a name would be taken as a wildcard"),
        (["--config=configs/none.py"], "git does not track configs/none.py"),
        (["--config.sed=1"], "did you mean --config.seed?"),
        (["--config.data.path=photos"], "--config.data.path=gs://BUCKET/DIR"),
        (
            ["--config.data.source=image_folder", "--config.data.path=gs://b/photos"],
            "config.data.path=gs://b/photos: image folders are read from local disks only",
        ),
        (["--gcloud_flags=--labels='a"], "No closing quotation"),
        (["--gcloud_flags=--zone=z"], "--gcloud_flags: leave --zone out"),
    ],
)
def test_mistakes_are_found_before_anything_is_created(
    tmp_path: Path, changes: list[str], words: str
):
    cloud, done = launched(tmp_path, *changes, code=2)
    (line,) = done.stderr.splitlines()
    assert words in line
    assert cloud.calls() == []


@pytest.mark.parametrize("tpu", ["v3-256", "v5e-16"])
def test_the_dry_run_prints_the_commands_that_the_docs_link_to(tmp_path: Path, tpu: str):
    """Equal except for the name of the temporary directory; without the plan."""
    cloud = Cloud(tmp_path / "cloud")
    done = cloud.launch(
        "--config=configs/imagenet.py:widenet_b", f"--tpu={tpu}", "--zone=europe-west4-a",
        "--workdir=gs://BUCKET/widenet_b", "--config.data.path=gs://BUCKET/imagenet", "--skip_plan",
        "--dry_run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == []
    printed = re.sub(r"\S*/widenet_launch_\w+", "/tmp/widenet_launch_XXXX", done.stdout)
    assert printed == Path(__file__).with_name(f"dry_run_{tpu}.txt").read_text()


def test_status_logs_stop_delete(tmp_path: Path):
    cloud, _ = launched(tmp_path, states=("NOT_FOUND", "READY"))
    where = ("mine", "--zone=us-west4-a")
    status = cloud.launch("status", *where)
    assert status.stdout == "mine: READY\nexit 0\nworker_0: step 1 of 1\n"
    home = cloud.directory / "worker_0" / "widenet_run"
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as two:
        for worker, process in ((0, one), (1, two)):
            file = cloud.directory / f"worker_{worker}" / "widenet_run" / "run.pid"
            file.write_text(str(process.pid))
        assert "running" in cloud.launch("status", *where).stdout
        assert cloud.launch("stop", *where).returncode == 0
        assert (one.wait(10), two.wait(10)) == (-15, -15)
    assert "step 1 of 1" in cloud.launch("logs", *where).stdout
    assert cloud.launch("delete", *where).returncode == 0
    assert cloud.calls()[-1][4:] == ["delete", "mine", "--zone=us-west4-a", "--quiet"]
    assert not home.exists()


def test_a_dry_status_asserts_no_state(capsys: pytest.CaptureFixture):
    assert main(["status", "mine", "--zone=us-west4-a", "--dry_run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.startswith("$ gcloud ") for line in lines)


def test_names_of_tpus():
    """The default comes from the config; Google refuses some others."""
    names = {"imagenet.py:widenet_b,moe=false": "imagenet-widenet-b-moe-false", "1.py": "widenet"}
    for config, name in names.items():
        assert check_name(default_name(f"configs/{config}")) == name
    for name in ("", "Upper", "under_score", "1st", "ends-", "a" * 41, "two\nlines"):
        with pytest.raises(BadInputError, match="--name=") as caught:
            check_name(name)
        assert "\n" not in str(caught.value)


def test_an_installation_without_a_checkout_cannot_launch(tmp_path: Path):
    """Whether or not it lies inside another project's checkout."""
    for _ in range(2):
        with pytest.raises(BadInputError, match=r"is not a git checkout .*clone the project"):
            check_config("configs/digits.py", root=tmp_path)
        subprocess.run(["git", "init", "-q", tmp_path], check=True)


def test_a_config_is_found_from_another_directory(tmp_path, monkeypatch):
    """As every command finds it; the workers read it in their copy of the checkout."""
    monkeypatch.chdir(tmp_path)
    assert check_config("configs/digits.py:vit_tiny") == "configs/digits.py:vit_tiny"
