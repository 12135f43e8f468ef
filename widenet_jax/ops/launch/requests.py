"""A job on a Cloud TPU: its checks, the commands that gcloud receives, what runs on the workers.

Several slices are the nodes of one queued resource. The job needs no variables for them: Cloud TPU
gives every worker MEGASCALE_COORDINATOR_ADDRESS, MEGASCALE_NUM_SLICES and MEGASCALE_SLICE_ID, which
`jax.distributed.initialize` reads (jax/_src/clusters/cloud_tpu_cluster.py).
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from widenet_jax.config.files import find_config
from widenet_jax.errors import BadInputError, RunFailedError, refusing
from widenet_jax.files import SHIPPED, check_store, find_model
from widenet_jax.ops.plan.topology import Topology

REMOTE = "widenet_run"  # directory in the home directory of every worker
ROOT = Path(__file__).parents[3]
CREATE_FOLDER = f"mkdir -p -m 700 {REMOTE}"
LAUNCHER = "widenet_jax.cli.launch_tpu"  # scripts/launch_tpu.py, which no wheel has
SSH_KEY = "~/.ssh/google_compute_engine"  # the key that gcloud uses, and creates where it is absent
SECRET = "WANDB_API_KEY"  # an environment variable, copied to a file of mode 0600
# Flags of `gcloud ... create` that the launcher sets, or that would change what it waits for.
OWN_FLAGS = {"--zone", "--project", "--spot", "--accelerator-type", "--type", "--topology",
             "--version", "--runtime-version", "--node-id", "--node-prefix", "--node-count",
             "--async", "--quiet"}  # fmt: skip
# Without these ssh would wait for two minutes, ten times over, for a machine that is gone, and for
# two hours where the machine went while it was connected.
SSH_OPTIONS = ("ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=4")

# Lines of gcloud about its connections to the workers, around the lines of the workers.
ABOUT_CONNECTIONS = re.compile(
    r"#####|SSH:|SCP:|Retrying:|Using (ssh|scp) batch|Failed to execute command on multiple|"
    r"Finished preparing|Completed execution"
)
# gcloud (528.0.0) leaves out nodes of a queued resource that it does not reach, and succeeds.
LEFT_OUT = "Could not prepare all"
NAMES_ERROR = re.compile(r"ERROR|\berror:|\bfatal:|×")  # gcloud, pip, git and uv
LAST_LINES = 20  # of a failed command's stderr, which are printed before the one line
# Pattern in a tool's message -> exception with advice; the first match counts.
CAUSES = {
    r"(attribute|property) \[project\]": BadInputError(
        "no project; give --project=ID, or run `gcloud config set project ID`"
    ),
    r"no more capacity|stockout|ZONE_RESOURCE_POOL_EXHAUSTED|enough resources": RunFailedError(
        "no free TPU in the zone; --backend=queued-resource waits for one"
    ),
    r"quota|RESOURCE_EXHAUSTED": RunFailedError(
        "the quota for this TPU in this zone is used up or was never granted; ask for more at "
        "https://console.cloud.google.com/iam-admin/quotas, or name another zone or size"
    ),
    r"(unknown|invalid|unsupported|bad).{0,20}(zone|location)|(zone|location)\b.{0,80}"
    r"(not found|invalid|unknown|does not exist|doesn't exist)": BadInputError(
        "--zone does not offer this TPU; `gcloud compute tpus accelerator-types list "
        "--zone=ZONE` lists what a zone offers"
    ),
    r"active account|UNAUTHENTICATED|reauthenticat|auth login": BadInputError(
        "gcloud is not logged in; run `gcloud auth login`"
    ),
    r"PERMISSION_DENIED|does not have permission": BadInputError(
        "permission denied; check --project, and that the Cloud TPU API is enabled there"
    ),
}


@dataclass(frozen=True)
class Job:
    """A run to launch, and its commands.

    Attributes:
      name: of the TPU.
      tpu: the TPU type, and the number of slices; None where an existing TPU is managed.
      zone: Google Cloud zone.
      arguments: command line of `python -m widenet_jax.main`, including `--distributed`.
      project: Google Cloud project; "" for gcloud's default.
      queued: whether to request the TPU as a queued resource, which waits for capacity.
      spot: whether to use preemptible capacity.
      runtime_version: TPU VM image.
      gcloud_flags: further flags of the command by which gcloud creates the TPU.
    """

    name: str
    tpu: Topology | None
    zone: str
    arguments: tuple[str, ...] = ()
    project: str = ""
    queued: bool = False
    spot: bool = False
    runtime_version: str = ""
    gcloud_flags: tuple[str, ...] = ()

    @property
    def place(self) -> list[str]:
        """The flags that name the TPU's zone and project."""
        project = [f"--project={self.project}"] if self.project else []
        return [f"--zone={self.zone}", *project]

    def request(self, verb: str, *flags: str) -> list[str]:
        """Returns gcloud's command that creates, describes, starts or deletes the TPU."""
        kind = "queued-resources" if self.queued else "tpu-vm"
        return ["gcloud", "compute", "tpus", kind, verb, self.name, *self.place, *flags]

    def create(self) -> list[str]:
        type_ = f"--accelerator-type={self.tpu.accelerator_type}"
        if self.queued:
            # Nodes of several slices are NAME-0, NAME-1, ...
            several = self.tpu.slices > 1
            nodes = f"--node-count={self.tpu.slices}" if several else f"--node-id={self.name}"
            flags = [nodes, type_, f"--runtime-version={self.runtime_version}"]
        else:
            flags = [type_, f"--version={self.runtime_version}"]
        return self.request("create", *flags, *["--spot"] * self.spot, *self.gcloud_flags)

    def describe(self) -> list[str]:
        spec = "tpu.nodeSpec[0]"
        queued = f"state.state,{spec}.node.acceleratorType,state.stateInitiator"
        queued += f",{spec}.multisliceParams.nodeCount"
        fields = queued if self.queued else "state,acceleratorType"
        return self.request("describe", f"--format=value({fields})")

    def delete(self) -> list[str]:
        return self.request("delete", *["--force"] * self.queued, "--quiet")

    def ssh(self, command: str, worker: str) -> list[str]:
        return self._connect("ssh", [self.name], f"--worker={worker}", f"--command={command}")

    def scp(self, files: Sequence[Path]) -> list[str]:
        return self._connect("scp", [*map(str, files), f"{self.name}:{REMOTE}/"], "--worker=all")

    def _connect(self, tool: str, words: Sequence[str], *flags: str) -> list[str]:
        options = [f"--{tool}-flag=-o{option}" for option in SSH_OPTIONS]
        start = ["gcloud", "compute", "tpus", "queued-resources" if self.queued else "tpu-vm", tool]
        if self.queued and "--worker=all" in flags:  # of every slice; otherwise of the first one
            options.append("--node=all")
        return [*start, *words, *self.place, "--quiet", *options, *flags]

    def managing(self, verb: str) -> str:
        """Returns the launcher's own command for this TPU, such as `stop`, for any directory."""
        place = [*self.place, *["--backend=queued-resource"] * self.queued]
        return shlex.join([sys.executable, "-m", LAUNCHER, verb, self.name, *place])


class Tools:
    """Runs external commands; prints each before it runs. With `dry`, only prints them."""

    def __init__(self, *, dry: bool = False):
        self.dry = dry

    def run(self, command: Sequence[str]) -> str:
        """Runs a command and returns its output.

        If the command fails, prints the end of its stderr, since each of several hosts may have
        failed.

        Raises:
          BadInputError: the program is missing, or refused the user's input.
          RunFailedError: the command failed.
        """
        completed = self.attempt(command)
        if completed.returncode:
            lines = completed.stderr.splitlines()
            if len(lines) > 1:  # a single one is part of the error
                print(*lines[-LAST_LINES:], sep="\n", file=sys.stderr, flush=True)
            raise cause(completed)
        return completed.stdout.strip()

    def attempt(
        self, command: Sequence[str], *, dry_answer: str = "", captured: bool = True
    ) -> subprocess.CompletedProcess:
        """Runs a command that may fail; its output goes to the terminal unless it is captured.

        Raises:
          BadInputError: the program is missing.
        """
        print(f"$ {shlex.join(command)}", file=sys.stdout if self.dry else sys.stderr, flush=True)
        if self.dry:
            return subprocess.CompletedProcess(command, 0, dry_answer, "")
        pipe = subprocess.PIPE if captured else None
        options = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, "text": True}
        try:
            process = subprocess.Popen(list(command), errors="replace", **options)
        except FileNotFoundError:
            raise BadInputError(
                f"{command[0]} was not found on PATH; docs/howto/launch.md says what it needs"
            ) from None
        with process:
            try:
                out, err = process.communicate()
            except BaseException:
                # Not killed, as by subprocess.run: gcloud passes SIGTERM on to its ssh, which
                # would otherwise stay and print the log of the run on and on.
                process.terminate()
                raise
        code = process.returncode or 255 * (LEFT_OUT in (err or ""))
        return subprocess.CompletedProcess(command, code, out, err)


def cause(failed: subprocess.CompletedProcess) -> Exception:
    """Returns an exception with a tool's message in one line, and advice where known."""
    every = [line.strip() for line in failed.stderr.splitlines() if line.strip()]
    lines = [line for line in every if not ABOUT_CONNECTIONS.match(line)] or every or ["no message"]
    start = next((i for i, line in enumerate(lines) if NAMES_ERROR.search(line)), len(lines) - 1)
    message = " ".join(lines[start:])[:300]
    for pattern, known in CAUSES.items():
        if re.search(pattern, failed.stderr, re.IGNORECASE | re.DOTALL):
            return type(known)(f"{known} ({message})")
    return RunFailedError(f"{shlex.join(failed.args[:5])} ...: {message}")


KEY_IS_LOCKED = (
    "gcloud connects to all workers at once and cannot ask for a passphrase, so ssh-agent must "
    f"hold the key {SSH_KEY}: run `eval $(ssh-agent)` where no agent runs, "
    f"`ssh-keygen -t rsa -f {SSH_KEY}` where there is no key, then `ssh-add {SSH_KEY}`"
)


def has_open_key(tools: Tools) -> bool:
    """Tells whether gcloud would take its key, and use it without a passphrase.

    gcloud connects to several workers at once, so that ssh cannot ask for a passphrase. If
    ssh-agent holds keys, gcloud (528.0.0) refuses a key that is not among them; otherwise it uses a
    key without a passphrase, and creates one if none exists.
    """
    key = Path(SSH_KEY).expanduser()
    if agent_has_keys := tools.attempt(["ssh-add", "-l"]).returncode == 0:
        test = ["ssh-add", "-T", f"{key}.pub"]
    else:
        test = ["ssh-keygen", "-y", "-P", "", "-f", str(key)]
    none = tools.dry or not (agent_has_keys or key.exists())
    return none or tools.attempt(test).returncode == 0


def split_words(flag: str, text: str) -> list[str]:
    """Splits a flag's value into words, as a shell would.

    Raises:
      BadInputError: a quote is not closed.
    """
    with refusing(f"{flag}={text}: cannot be split into words", ValueError):
        return shlex.split(text)


def split_gcloud_flags(text: str) -> tuple[str, ...]:
    """Splits the value of --gcloud_flags into words.

    Raises:
      BadInputError: as `split_words`, or the launcher sets a flag itself.
    """
    words = tuple(split_words("--gcloud_flags", text))
    if own := OWN_FLAGS & {word.partition("=")[0] for word in words}:
        raise BadInputError(
            f"--gcloud_flags: leave {min(own)} out; the launcher sets it, by --tpu, --zone, "
            "--project, --name, --spot or --runtime_version"
        )
    return words


def check_name(name: str) -> str:
    """Returns `name`; raises BadInputError unless Google's tools accept it."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        allowed = "up to 40 lower-case letters, digits and hyphens, starting with a letter"
        raise BadInputError(f"--name={name!r}: use {allowed}")
    return name


def default_name(config: str) -> str:
    """ "configs/imagenet.py:widenet_b" -> "imagenet-widenet-b"."""
    path, _, argument = config.partition(":")
    text = re.sub(r"[^a-z0-9]+", "-", f"{Path(path).stem}-{argument}".lower())
    return text.lstrip("-0123456789")[:34].strip("-") or "widenet"


def unreadable(config: ConfigDict) -> Iterator[str]:
    """Yields, for each place that the config reads from and no worker can, what to do."""
    data = config.data
    places = {"data.path": data.path, "data.tokenizer": data.get("tokenizer", "")}
    if not find_model(config.init_from)[0].startswith(str(SHIPPED)):  # else a part of the code
        places["init_from"] = config.init_from
    for field, place in places.items():
        if place and not place.startswith(("gs://", "/")):
            yield (
                f"config.{field}={place} is relative, but the TPU's workers receive only the code; "
                f"give --config.{field}=gs://BUCKET/DIR, or /DIR if it exists on every worker"
            )
        check_store(place)
    if data.source == "image_folder" and data.path.startswith("gs://"):
        yield (
            f"config.data.path={data.path}: image folders are read from local disks only; "
            "pack it first (scripts/prepare_data.py image_folder)"
        )


def verb(words: str) -> str:
    """Returns the command by which a worker runs a verb of worker.sh, perhaps with an argument."""
    return f"bash {REMOTE}/worker.sh {words}"


def verb_if_set_up(words: str) -> str:
    """Returns a command that runs a verb, but prints nothing where no run was ever set up."""
    return f"[ ! -e {REMOTE}/worker.sh ] || {verb(words)}"


def run_command(job: Job) -> str:
    """Returns the content of command.sh, which identifies the job."""
    return f"exec ../venv/bin/python -m widenet_jax.main {shlex.join(job.arguments)}\n"


def stage(job: Job, into: Path) -> list[Path]:
    """Writes the files for the workers into `into`, readable by the user alone.

    Returns:
      The paths of code.tar.gz, worker.sh, command.sh and env (the secret).
    """
    into.chmod(0o700)
    names = ("code.tar.gz", "worker.sh", "command.sh", "env")
    archive, script, command, env = files = [into / name for name in names]
    with tarfile.open(archive, "w:gz") as tar:
        for name in tracked_files():
            tar.add(ROOT / name, arcname=name, recursive=False)
    script.write_bytes(Path(__file__).with_name("worker.sh").read_bytes())
    command.write_text(run_command(job))
    env.touch(mode=0o600)
    if value := os.environ.get(SECRET):
        env.write_text(f"{SECRET}={shlex.quote(value)}\n")
    return files


def tracked_files(root: Path = ROOT) -> list[str]:
    """Lists the files that git tracks and that exist in the working tree.

    Raises:
      BadInputError: `root` is not a git checkout.
    """
    command = ["git", "-C", str(root), "ls-files", "-z"]
    completed = subprocess.run(command, capture_output=True, text=True)
    if not completed.stdout:  # also where an installation lies inside another project's checkout
        raise BadInputError(
            f"{root} is not a git checkout of this project, and the launcher copies the files that "
            "git tracks to the TPU; clone the project and install it by `pip install -e .`"
        )
    return [name for name in completed.stdout.split("\0") if name and (root / name).is_file()]


def check_config(config: str, root: Path = ROOT) -> str:
    """Returns the config relative to the root of the checkout, with its argument.

    Raises:
      BadInputError: git does not track its file, so the workers would not receive it.
    """
    path, colon, argument = config.partition(":")
    inside = os.path.relpath(find_config(path), root)
    if inside not in tracked_files(root):
        raise BadInputError(
            f"--config={config}: git does not track {path}, so it would not be copied; git add it"
        )
    return inside + colon + argument
