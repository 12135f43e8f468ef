"""Backends `skypilot` and `gke`: hand the job to an engine that schedules and restarts it.

SkyPilot receives a YAML task (`sky jobs launch`), GKE a JobSet (`xpk workload create`). Both
restart a preempted job and clean up by themselves.
"""

import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from widenet_jax.errors import BadInputError
from widenet_jax.ops.launch.job import NOT_ON_GKE, ROOT, Job, tracked_files, write_secrets
from widenet_jax.ops.launch.tools import Tools


class Readable(yaml.SafeDumper):
    """Writes multi-line text as a block instead of one line with escapes."""


def as_block(dumper: Readable, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Readable.add_representer(str, as_block)
MAX_RESTARTS = 1000  # JobSet counts every preemption as a restart


def copy_tracked(into: Path) -> None:
    """Copies the files that git tracks, as they are in the working tree."""
    for name in tracked_files():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, into / name)


class SkyPilot:
    """A managed job. SkyPilot finds the TPU, recovers from preemption and deletes the TPU."""

    def __init__(self, job: Job, tools: Tools):
        self.job, self.tools = job, tools

    def task(self, code: str) -> dict:
        """Returns the SkyPilot task; `code` is the directory that is copied to every host."""
        job = self.job
        task = {
            "name": job.name,
            "workdir": code,
            "resources": {
                "infra": f"gcp/{job.zone.rpartition('-')[0]}/{job.zone}" if job.zone else "gcp",
                "accelerators": f"tpu-{job.tpu.accelerator_type}",
                "accelerator_args": {"runtime_version": job.runtime_version, "tpu_vm": True},
                "use_spot": job.spot,
            },
            "setup": (
                "python3 -m pip install --user --quiet --upgrade uv\n"
                "python3 -m uv venv --quiet --python 3.12 ~/venv\n"
                f"python3 -m uv pip install --quiet --python ~/venv/bin/python "
                f"-e '.[{job.extras()}]'\n"
            ),
            "run": f"~/venv/bin/python -m widenet_jax.main {shlex.join(job.arguments)}\n",
        }
        if job.secrets():
            # SkyPilot reads the values from the environment.
            task["secrets"] = dict.fromkeys(job.secrets())
        return task

    def launch(self, plan: Callable[[], None]) -> int:
        """Hands the job over, if `plan` does not raise, and returns 0."""
        plan()
        with tempfile.TemporaryDirectory(prefix="widenet_launch_") as directory:
            code, file = Path(directory) / "code", Path(directory) / "task.yaml"
            copy_tracked(code)
            text = yaml.dump(self.task(str(code)), Dumper=Readable, sort_keys=False, width=1000)
            file.write_text(text)
            if self.tools.dry:
                print(f"# {file}\n{text}")
            secrets = [word for name in self.job.secrets() for word in ("--secret", name)]
            launch = ["sky", "jobs", "launch", "--yes", "--detach-run"]
            self.tools.run([*launch, *secrets, str(file)])
        return 0

    def status(self) -> str:
        return self.tools.run(["sky", "jobs", "queue"])

    def logs(self) -> None:
        self.tools.stream(["sky", "jobs", "logs", "--name", self.job.name])

    def delete(self) -> None:
        """Cancels the job; SkyPilot then deletes its TPU."""
        self.tools.run(["sky", "jobs", "cancel", "--yes", "--name", self.job.name])

    stop = delete


class Gke:
    """A JobSet on a GKE cluster with TPUs, through xpk; restarted whenever a host is lost."""

    def __init__(self, job: Job, tools: Tools):
        self.job, self.tools = job, tools
        if not job.cluster:
            raise BadInputError("--backend=gke needs --cluster=NAME, a cluster that xpk created")
        if job.tpu.generation in NOT_ON_GKE:
            raise BadInputError(
                f"--tpu={job.tpu.name}: xpk does not support it; use --backend=tpu-vm"
            )
        if job.spot:
            raise BadInputError(
                "--spot: on GKE this is a property of the cluster; use `xpk cluster create --spot`"
            )

    def workload(self, verb: str) -> list[str]:
        return ["xpk", "workload", verb, f"--cluster={self.job.cluster}", *self.job.place]

    def create_command(self, code: Path, env: Path) -> list[str]:
        job = self.job
        run = f"python -m widenet_jax.main {shlex.join(job.arguments)}"
        secrets = [f"--env-file={env}"] if job.secrets() else []
        return [
            *self.workload("create"),
            *(f"--workload={job.name}", f"--tpu-type={job.tpu.accelerator_type}"),
            *("--num-slices=1", f"--max-restarts={MAX_RESTARTS}"),
            *("--base-docker-image=python:3.12", f"--script-dir={code}", *secrets),
            f"--command=pip install --quiet -e '.[{job.extras()}]' && exec {run}",
        ]

    def launch(self, plan: Callable[[], None]) -> int:
        """Hands the job over, if `plan` does not raise, and returns 0."""
        plan()
        with tempfile.TemporaryDirectory(prefix="widenet_launch_") as directory:
            code = Path(directory) / "code"
            copy_tracked(code)
            env = write_secrets(self.job, Path(directory) / "env")
            self.tools.run(self.create_command(code, env))
        return 0

    def status(self) -> str:
        return self.tools.run([*self.workload("list"), f"--filter-by-job={self.job.name}"])

    def logs(self) -> None:
        first = f"jobset-name={self.job.name},batch.kubernetes.io/job-completion-index=0"
        selector = f"--selector=jobset.sigs.k8s.io/{first}"
        self.tools.stream(["kubectl", "logs", "--follow", "--tail=100", selector])

    def delete(self) -> None:
        self.tools.run([*self.workload("delete"), f"--workload={self.job.name}"])

    stop = delete
