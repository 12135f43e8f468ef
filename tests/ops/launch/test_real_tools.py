"""The installed gcloud, SkyPilot and xpk accept what the launcher writes; no network is used.

Each test is skipped where its program is not on PATH. A program may have its own environment.
"""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from stand_in import Cloud

pytestmark = pytest.mark.slow

LAUNCH = (
    "--config=configs/digits.py:vit_tiny", "--tpu=v5e-16", "--workdir=gs://bucket/a run",
    "--name=mine", "--skip_plan", "--dry_run",
)  # fmt: skip
ZONE = "--zone=us-west4-a"
HARD = '--config.data.path=/it\'s "5" $HOME `x`; 7 steps'


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


@installed("gcloud")
def test_without_a_project_gcloud_says_what_the_launcher_understands(
    tmp_path: Path, stranger: dict[str, str]
):
    """The real gcloud runs here, with a user who has no default project."""
    cloud = Cloud(tmp_path / "cloud")
    arguments = [word for word in LAUNCH if word != "--dry_run"]
    done = cloud.launch(*arguments, ZONE, path=os.environ["PATH"], **stranger)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("$ ")]
    assert line.startswith("error: no project; give --project=ID, or run `gcloud config set proj")


SKY = """
import json, os, sys
import sky, yaml
from sky.client.cli.command import cli
for file in sys.argv[1:-1]:
    given = [("WANDB_API_KEY", os.environ["WANDB_API_KEY"])]  # as `--secret WANDB_API_KEY` does
    task = sky.Task.from_yaml_config(yaml.safe_load(open(file)), secrets_overrides=given)
    (one,) = task.resources
    facts = {"cloud": str(one.cloud), "zone": one.zone, "accelerators": one.accelerators}
    facts |= {"spot": one.use_spot, "run": task.run, "secrets": list(task.secrets)}
    facts |= {"args": one.accelerator_args}
    print(json.dumps(facts))
for jobs, verb, *words in json.loads(sys.argv[-1]):
    command = cli.commands[jobs].commands[verb]
    command.make_context(verb, words)  # raises where a flag is not known
"""


@installed("sky")
def test_skypilot_accepts_the_tasks_and_the_commands(tmp_path: Path, stranger: dict[str, str]):
    stranger["WANDB_API_KEY"] = "s3cr3t"
    files, calls = [], []
    for zone in ([ZONE], []):
        cloud = Cloud(tmp_path / f"cloud_{len(zone)}")
        done = cloud.launch(
            *LAUNCH, *zone, "--backend=skypilot", "--spot", HARD, WANDB_API_KEY="s3cr3t"
        )
        task = yaml.safe_load(done.stdout.split("\n$ ")[0]) | {"workdir": str(tmp_path)}
        files.append(tmp_path / f"task_{len(zone)}.yaml")
        files[-1].write_text(yaml.safe_dump(task))
        calls += commands(done.stdout, "sky")
    for verb in ("status", "logs", "stop"):
        calls += commands(dry_run(tmp_path, verb, "mine", "--backend=skypilot"), "sky")
    assert len(calls) == 5
    calls = [[str(files[0]) if w.endswith(".yaml") else w for w in call] for call in calls]
    words = [call[1:] for call in calls]
    run = [interpreter("sky"), "-c", SKY, *map(str, files), json.dumps(words)]
    done = subprocess.run(run, env=stranger, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [facts["zone"] for facts in found] == ["us-west4-a", None]
    for facts in found:
        assert (facts["cloud"], facts["spot"]) == ("GCP", True)
        assert facts["accelerators"] == {"tpu-v5litepod-16": 1}
        assert facts["args"] == {"runtime_version": "v2-alpha-tpuv5-lite", "tpu_vm": True}
        assert facts["secrets"] == ["WANDB_API_KEY"]
        assert shlex.split(facts["run"])[-1] == HARD


XPK = """
import argparse, json, sys
from xpk.parser.core import set_parser
parser = argparse.ArgumentParser()
set_parser(parser)
for words in json.loads(sys.argv[1]):
    parser.parse_args(words)
"""


@installed("xpk")
def test_xpk_makes_the_jobset(tmp_path: Path, stranger: dict[str, str]):
    settings = Path(stranger["HOME"]) / ".config" / "xpk" / "config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("version: v1\nconfigs:\n  send-telemetry: 'false'\n")
    engine = ("--backend=gke", "--cluster=c", ZONE, "--project=project1")
    printed = "".join(dry_run(tmp_path, verb, "mine", *engine) for verb in ("status", "delete"))
    (create,) = commands(dry_run(tmp_path, *LAUNCH, *engine, HARD), "xpk")
    (tmp_path / "code").mkdir()
    given = dict(word.partition("=")[::2] for word in create if word.startswith("--"))
    given["--script-dir"] = str(tmp_path / "code")  # the launcher's is gone
    create = [*create[:3], *(f"{name}={value}" for name, value in given.items())]
    words = json.dumps([command[1:] for command in (create, *commands(printed, "xpk"))])
    parse = [interpreter("xpk"), "-c", XPK, words]
    done = subprocess.run(parse, env=stranger, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    dry = [*create, "--dry-run"]
    done = subprocess.run(dry, env=stranger, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    jobset = yaml.safe_load(
        done.stdout[done.stdout.index("apiVersion: jobset") :].split("[XPK]")[0]
    )
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 1000
    (job,) = jobset["spec"]["replicatedJobs"]
    slice_ = job["template"]["spec"]
    assert (job["replicas"], slice_["parallelism"]) == (1, 4)  # 16 chips, 4 a host
    (container,) = slice_["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    bash, flag, script = container["command"]
    assert (bash, flag) == ("bash", "-c")
    assert f"({given['--command']}) & PID=$!" in script
