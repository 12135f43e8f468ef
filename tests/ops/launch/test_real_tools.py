"""The installed gcloud and SkyPilot accept the launcher's commands and file, without a network.

Each test is skipped where its program is not on PATH. SkyPilot may have its own environment.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from stand_in import ROOT, Cloud

pytestmark = pytest.mark.slow

LAUNCH = (
    "--config=configs/digits.py:vit_tiny", "--tpu=v5e-16", "--workdir=gs://bucket/a run",
    "--name=mine", "--skip_plan", "--dry_run",
)  # fmt: skip
ZONE = "--zone=us-west4-a"


def installed(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is not installed")


def interpreter(program: str) -> str:
    """Returns the Python that runs an installed program, from the first line of its script."""
    return Path(shutil.which(program)).read_text().splitlines()[0].removeprefix("#!")


def dry_run(tmp_path: Path, *arguments: str) -> str:
    """Returns what a dry run of the launcher prints."""
    cloud = Cloud(tmp_path / f"cloud_{len(list(tmp_path.iterdir()))}")
    done = cloud.launch(*arguments, "--dry_run")
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands(printed: str, program: str) -> list[list[str]]:
    """Returns the commands of a program in the output of a dry run, each as its words."""
    lines = [line for line in printed.splitlines() if line.startswith(f"$ {program} ")]
    return [shlex.split(line[2:]) for line in lines]


@pytest.fixture
def stranger(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who never logged in, and whose network leads nowhere."""
    home = tmp_path / "home"
    home.mkdir()
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
    return os.environ | nowhere | {
        "HOME": str(home), "CLOUDSDK_CONFIG": str(home / "gcloud"),
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false", "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    }  # fmt: skip


@installed("gcloud")
def test_gclouds_parser_accepts_every_command(tmp_path: Path, stranger: dict[str, str]):
    """The first thing that gcloud misses is a login: it checks that after all flags."""
    flags = "--network=n --subnetwork=s --labels=team=vision --service-account=a@b.c --internal-ips"
    found = []
    for backend in ("tpu-vm", "queued-resource"):
        place = (ZONE, "--project=project1", f"--backend={backend}")
        printed = dry_run(tmp_path, *LAUNCH, *place, f"--gcloud_flags={flags} --reserved")
        printed += dry_run(tmp_path, *LAUNCH, *place, "--spot", "--delete_when_done")
        found += commands(printed, "gcloud")
    found += commands(dry_run(tmp_path, *LAUNCH, *place, "--tpu=2xv5e-16"), "gcloud")
    unique = [list(words) for words in dict.fromkeys(map(tuple, found))]
    verbs = {
        next(w for w in ("create", "describe", "delete", "ssh", "scp") if w in c) for c in unique
    }
    assert verbs == {"create", "describe", "delete", "ssh", "scp"}
    for command in unique:
        done = subprocess.run(command, env=stranger, capture_output=True, text=True)
        assert done.returncode == 1
        assert "You do not currently have an active account" in done.stderr, command
    wrong = subprocess.run([*unique[0], "--nett=n"], env=stranger, capture_output=True, text=True)
    assert "unrecognized arguments: --nett=n" in wrong.stderr


def commands_of_the_page(program: str) -> list[list[str]]:
    """Returns the commands of a program on the page about launching, each as its words."""
    text = (ROOT / "docs" / "howto" / "launch.md").read_text().replace("\\\n", " ")
    lines = re.findall(r"^    (?:[A-Z_]+=\w+ )?(.*)", text, re.MULTILINE)
    parts = [part for line in lines for part in re.split(" && (?=gcloud )", line)]
    return [shlex.split(part, comments=True) for part in parts if part.startswith(f"{program} ")]


@installed("gcloud")
def test_gclouds_parser_accepts_the_commands_of_the_page(stranger: dict[str, str]):
    """Of a group of machines, too, which the launcher does not create."""
    needs_login = [
        command for command in commands_of_the_page("gcloud")
        if command[1] not in ("auth", "config", "projects")
    ]  # fmt: skip
    assert len(needs_login) >= 9
    env = stranger | {"CLOUDSDK_CORE_PROJECT": "project1"}
    for command in needs_login:
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 1
        assert "You do not currently have an active account" in done.stderr, (command, done.stderr)


# docs.cloud.google.com/cluster-toolkit/docs/reference: `gcluster-job`, `gcluster-job-submit`, and
# cmd/job/submit.go of Cluster Toolkit 1.95.0.
GCLUSTER_FLAGS = {
    "project", "cluster", "location", "name", "compute-type", "num-slices", "restarts",
    "grace-period", "base-image", "build-context", "command", "service-account",
}  # fmt: skip


def test_gcluster_documents_the_flags_of_the_page():
    (submit,) = commands_of_the_page("gcluster")
    assert submit[:3] == ["gcluster", "job", "submit"]
    names = [word.partition("=")[0].removeprefix("--") for word in submit[3:]]
    assert set(names) <= GCLUSTER_FLAGS and len({*names}) == len(names)
    assert {"name", "compute-type", "command", "base-image", "build-context"} <= set(names)


SKY = """
import json, sys, yaml
import sky
given = [("WANDB_API_KEY", "s3cr3t")]
task = sky.Task.from_yaml_config(yaml.safe_load(open(sys.argv[1])), secrets_overrides=given)
(one,) = task.resources
print(json.dumps([str(one.cloud), one.accelerators, one.accelerator_args, list(task.secrets)]))
"""


@installed("sky")
def test_skypilot_accepts_the_task(stranger: dict[str, str]):
    run = [interpreter("sky"), "-c", SKY, str(ROOT / "scripts" / "skypilot.yaml")]
    done = subprocess.run(run, env=stranger, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    cloud, accelerators, options, secrets = json.loads(done.stdout.splitlines()[-1])
    assert (cloud, accelerators) == ("GCP", {"tpu-v5litepod-16": 1})
    assert options == {"runtime_version": "v2-alpha-tpuv5-lite", "tpu_vm": True}
    assert secrets == ["WANDB_API_KEY"]
