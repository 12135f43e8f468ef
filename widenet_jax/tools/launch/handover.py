"""Backends `skypilot` and `gke`: engines that schedule, restart and clean up by themselves.

What is generated is a task for them: a YAML file for `sky jobs launch`, or an `xpk workload create`
command, which makes a JobSet.
"""

import shlex
import shutil
import tempfile
from pathlib import Path

import yaml

from widenet_jax.errors import BadInputError
from widenet_jax.tools.launch.job import ROOT, Job, tracked_files, write_secrets
from widenet_jax.tools.launch.tools import Tools


class Readable(yaml.SafeDumper):
    """Text of several lines as such, not as one line with escapes."""


Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)
MAX_RESTARTS = 1000  # of a JobSet: every preemption counts as one


def copy_tracked(into: Path) -> None:
    for name in tracked_files():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, into / name)


class SkyPilot:
    """A managed job: SkyPilot finds the TPU, recovers after preemption, deletes it at the end."""

    def __init__(self, job: Job, tools: Tools):
        self.job, self.tools = job, tools

    def task(self, code: str) -> dict:
        """Args:
        code: the directory that is copied to every host.
        """
        job = self.job
        version = job.runtime_version or job.tpu.family.runtime_version
        task = {
            "name": job.name,
            "workdir": code,
            "resources": {
                "infra": f"gcp/{job.zone.rpartition('-')[0]}/{job.zone}",
                "accelerators": f"tpu-{job.tpu.accelerator_type}",
                "accelerator_args": {"runtime_version": version, "tpu_vm": True},
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
            task["secrets"] = dict.fromkeys(job.secrets())  # the value comes from the environment
        return task

    def launch(self) -> int:
        with tempfile.TemporaryDirectory(prefix="widenet_launch_") as directory:
            code, file = Path(directory) / "code", Path(directory) / "task.yaml"
            copy_tracked(code)
            text = yaml.dump(self.task(str(code)), Dumper=Readable, sort_keys=False, width=1000)
            file.write_text(text)
            if self.tools.dry:
                print(f"# {file}\n{text}")
            secrets = [word for name in self.job.secrets() for word in ("--secret", name)]
            self.tools.run(
                ["sky", "jobs", "launch", "--yes", "--detach-run", *secrets, str(file)]
            )  # fmt: skip
        return 0

    def status(self) -> str:
        return self.tools.run(["sky", "jobs", "queue"])

    def logs(self) -> None:
        self.tools.stream(["sky", "jobs", "logs", "--name", self.job.name])

    def delete(self) -> None:
        """The job ends, and its TPU with it."""
        self.tools.run(["sky", "jobs", "cancel", "--yes", "--name", self.job.name])

    stop = delete


class Gke:
    """A JobSet on a GKE cluster that has TPUs, by xpk; restarted whenever a host is lost."""

    def __init__(self, job: Job, tools: Tools):
        self.job, self.tools = job, tools
        if not job.cluster:
            raise BadInputError("--backend=gke needs --cluster=NAME, a cluster that xpk made")
        if not job.tpu.family.on_gke:
            raise BadInputError(f"--tpu={job.tpu.name}: xpk has no such TPU; use --backend=tpu-vm")
        if job.spot:
            raise BadInputError(
                "--spot: on GKE the cluster's node pool says so; `xpk cluster create --spot`"
            )

    def workload(self, verb: str) -> list[str]:
        job = self.job
        where = [f"--cluster={job.cluster}", f"--zone={job.zone}"]
        where += [f"--project={job.project}"] if job.project else []
        return ["xpk", "workload", verb, *where]

    def create_command(self, code: Path, env: Path) -> list[str]:
        job = self.job
        run = f"python -m widenet_jax.main {shlex.join(job.arguments)}"
        secrets = [f"--env-file={env}"] if job.secrets() else []
        return [
            *self.workload("create"),
            f"--workload={job.name}",
            f"--tpu-type={job.tpu.accelerator_type}",
            "--num-slices=1",
            f"--max-restarts={MAX_RESTARTS}",
            "--base-docker-image=python:3.12",
            f"--script-dir={code}",
            *secrets,
            f"--command=pip install --quiet -e '.[{job.extras()}]' && exec {run}",
        ]

    def launch(self) -> int:
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
