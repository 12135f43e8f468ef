"""Programs that stand in for gcloud, ssh-add and ssh-keygen, and for the workers of a TPU.

The programs record every call and answer as `Cloud.states` and `Cloud.fails` tell them. `ssh` runs
its command in a home directory for each of two workers, and `scp` copies into it, so that commands
pass through every layer of quoting. In those homes `python3 -m uv` creates a "python" that records
its arguments and exits with the next of `Cloud.exit_codes`. `gcloud config` is not recorded; there
is no default project unless a test writes the file `project`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from widenet_jax.cli.launch_tpu import main
from widenet_jax.config.parser import exit_code_of

ROOT = Path(__file__).parents[3]
WORKERS = 2

GCLOUD = """
import json, os, shutil, subprocess, sys
from pathlib import Path
cloud = Path(os.environ["STAND_IN"])
words = sys.argv[1:]
if words[0] == "config":
    project = cloud / "project"
    sys.exit(print(project.read_text() if project.exists() else ""))
with (cloud / "calls.jsonl").open("a") as file:
    file.write(json.dumps([Path(sys.argv[0]).name, *words]) + "\\n")
def take(name):
    left = json.loads((cloud / name).read_text())
    if len(left) > 1:
        (cloud / name).write_text(json.dumps(left[1:]))
    return left[0] if left else ""
verb = next((word for word in words if word in ("create", "describe", "delete", "ssh", "scp")), "")
fails = json.loads((cloud / "fails.json").read_text())
if fails.get(verb):
    message = fails[verb].pop(0)
    (cloud / "fails.json").write_text(json.dumps(fails))
    if message:
        sys.exit(message)
homes = sorted(cloud.glob("worker_*"))
if verb == "describe":
    state, _, initiator = take("states.json").partition(" ")
    if state == "NOT_FOUND":
        sys.exit("ERROR: (gcloud.compute.tpus.tpu-vm.describe) NOT_FOUND: Resource was not found")
    type = cloud / "accelerator_type"
    count = cloud / "node_count"
    nodes = count.read_text() if count.exists() else ""
    more = [initiator, nodes] if "queued-resources" in words else []
    print(state, type.read_text() if type.exists() else "", *more, sep="\\t")
if verb == "create":
    types = [word.partition("=")[2] for word in words if word.startswith("--accelerator-type=")]
    (cloud / "accelerator_type").write_text("".join(types))
    counts = [word.partition("=")[2] for word in words if word.startswith("--node-count=")]
    (cloud / "node_count").write_text("".join(counts))
if verb == "delete":
    for home in homes:
        shutil.rmtree(home)
        home.mkdir()
if verb == "ssh":
    command = next(word for word in words if word.startswith("--command="))[len("--command="):]
    which = next(word for word in words if word.startswith("--worker="))[len("--worker="):]
    if "queued-resources" in words and which == "all" and "--node=all" not in words:
        sys.exit("only the workers of the first node")
    for home in homes if which == "all" else [homes[int(which)]]:
        env = os.environ | {"HOME": str(home), "PATH": f"{cloud}/machine:{os.environ['PATH']}"}
        code = subprocess.run(["bash", "-c", command], cwd=home, env=env).returncode
        if code:
            sys.exit(code)
if verb == "scp":
    *files, target = [word for word in words[words.index("scp") + 1:] if not word.startswith("--")]
    for home in homes:
        for file in files:
            shutil.copy(file, home / target.partition(":")[2])
"""

# `python3 -m uv venv ... venv` creates the recording python; `pip install` does nothing.
MACHINE_PYTHON = """#!/bin/bash
if [[ "$*" == *"uv venv"* ]]; then
  mkdir -p venv/bin && cp "$STAND_IN/machine/training" venv/bin/python
fi
echo "$@" >> ~/python3.calls
"""
TRAINING = """
import json, os, sys, time
from pathlib import Path
home = Path.home()
with (home / "argv.jsonl").open("a") as file:
    file.write(json.dumps([sys.argv[1:], os.environ.get("WANDB_API_KEY", "")]) + "\\n")
# Hosts wait for each other, as `jax.distributed` does.
def starts(host):
    file = host / "argv.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0
end = time.monotonic() + 5
while time.monotonic() < end and any(
    starts(host) < starts(home) for host in home.parent.glob("worker_*")
):
    time.sleep(0.02)
codes = Path(os.environ["STAND_IN"]) / f"exit_codes_{home.name}.json"
left = json.loads(codes.read_text())
codes.write_text(json.dumps(left[1:]))
print(f"{home.name}: step 1 of 1", flush=True)
if left[0] is None:
    time.sleep(60)  # hangs, as where another host was lost
elif left[0] < 0:  # as if the machine rebooted: the shell that would write run.exit dies, too
    pid = home / "widenet_run" / "run.pid"
    while not (pid.exists() and pid.read_text()):
        pass
    os.kill(os.getppid(), 9)
elif left[0] == 75:  # its workdir cannot be reached
    print("failed: gs:// does not answer (503): see whether", flush=True)
    left[0] = 3
elif left[0] == 76:  # a host ends by a mistake, and JAX then aborts the others
    print("error: data/train-5: cannot be read", flush=True)
    left[0] = 134
sys.exit(left[0])
"""


class Cloud:
    """A directory with the stand-ins.

    Args:
      directory: a new directory.
      states: successive answers of `describe`; the last one repeats. NOT_FOUND is an error. A
        second word is the initiator of a queued resource's state.
      exit_codes: exit codes of the training, one per start; it leaves none if negative. 75 is 3,
        of a run whose store does not answer; 76 is 134, where a host ends by a mistake.
      fails: verb -> error messages of its first calls; "" lets a call succeed.
      agent: the keys that `ssh-add -l` lists; "" if no ssh-agent runs.
    """

    def __init__(
        self,
        directory: Path,
        *,
        states: tuple[str, ...] = ("NOT_FOUND", "CREATING", "READY"),
        exit_codes: tuple[int, ...] = (0,),
        fails: dict[str, list[str]] | None = None,
        agent: str = "",
    ):
        self.directory = directory
        (directory / "bin").mkdir(parents=True)
        (directory / "machine").mkdir()
        for worker in range(WORKERS):
            (directory / f"worker_{worker}").mkdir()
            codes = directory / f"exit_codes_worker_{worker}.json"
            codes.write_text(json.dumps(exit_codes))
        (directory / "states.json").write_text(json.dumps(states))
        (directory / "fails.json").write_text(json.dumps(fails or {}))
        program(directory / "bin" / "gcloud", f"#!{sys.executable} -IS\n{GCLOUD}")
        listed = f"test \"$1\" = -l && echo '{agent}' && test '{agent}'"
        program(directory / "bin" / "ssh-add", f"#!/bin/sh\n{listed}\n")
        program(directory / "bin" / "ssh-keygen", "#!/bin/sh\n")  # the key has no passphrase
        program(directory / "machine" / "python3", MACHINE_PYTHON)
        program(directory / "machine" / "training", f"#!{sys.executable} -IS\n{TRAINING}")

    def launch(self, *arguments: str, path: str = "", **env: str) -> subprocess.CompletedProcess:
        """Runs launch_tpu.py in this process; captures its output and that of the stand-ins."""
        env |= {"STAND_IN": str(self.directory)}
        env["PATH"] = path or f"{self.directory}/bin:{os.environ['PATH']}"
        before = dict(os.environ)
        os.environ.update(env)
        try:
            with (
                printed(self.directory / "out", 1) as out,
                printed(self.directory / "err", 2) as err,
            ):
                code = exit_code_of(partial(main, arguments))
        finally:
            os.environ.clear()
            os.environ.update(before)
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())

    def calls(self) -> list[list[str]]:
        """Returns every call as [program, argument, ...]."""
        file = self.directory / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def steps(self) -> list[str]:
        """Returns the calls in short form: "create", "describe", "ssh all mkdir", ..."""
        return [short(call) for call in self.calls()]

    def trainings(self, worker: int = 0) -> list[tuple[list[str], str]]:
        """Returns arguments and WANDB_API_KEY of every start since the worker was created."""
        file = self.directory / f"worker_{worker}" / "argv.jsonl"
        return [tuple(json.loads(line)) for line in file.read_text().splitlines()]


@contextmanager
def printed(file: Path, descriptor: int) -> Iterator[Path]:
    """Redirects a descriptor of this process and its children to a file."""
    stream = (sys.stdout, sys.stderr)[descriptor - 1]
    stream.flush()
    kept = os.dup(descriptor)
    name = ("stdout", "stderr")[descriptor - 1]
    with file.open("w") as into:
        os.dup2(into.fileno(), descriptor)
        setattr(sys, name, into)
        try:
            yield file
        finally:
            into.flush()
            setattr(sys, name, stream)
            os.dup2(kept, descriptor)
            os.close(kept)


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def short(call: list[str]) -> str:
    verb = next(word for word in ("create", "describe", "delete", "ssh", "scp") if word in call)
    if verb != "ssh":
        return verb
    values = dict(word.partition("=")[::2] for word in call if word.startswith("--"))
    return f"ssh {values['--worker']} {values['--command'].split('worker.sh ')[-1].split()[0]}"
