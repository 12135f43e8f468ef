"""A job: a run on a TPU in a zone, its checks, and the files that its workers receive."""

import os
import re
import shlex
import subprocess
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

from ml_collections import ConfigDict

from widenet_jax.config.files import find_config
from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan.topology import Topology, parse_topology

ROOT = Path(__file__).parents[3]
REMOTE = "widenet_run"  # directory in the home directory of every worker
SECRETS = ("WANDB_API_KEY",)  # environment variables, copied to a file of mode 0600

# The TPU VM image of each generation: docs.cloud.google.com/tpu/docs/runtimes, November 2026.
RUNTIME_VERSIONS = {
    **dict.fromkeys(("v2", "v3", "v4"), "tpu-ubuntu2204-base"),
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
# Flags of `gcloud ... create` that the launcher decides -> its own flags.
OWN_FLAGS = {
    **{flag: flag for flag in ("--zone", "--project", "--spot")},
    **dict.fromkeys(("--accelerator-type", "--type", "--topology"), "--tpu"),
    **dict.fromkeys(("--node-id", "--node-prefix"), "--name"),
    **dict.fromkeys(("--version", "--runtime-version"), "--runtime_version"),
}
# Those that it has no flag for -> the reason.
NOT_TAKEN = {
    "--async": "the launcher waits for the TPU",
    "--node-count": "the launcher creates one TPU",
    **dict.fromkeys(("--quiet", "-q"), "the launcher lets gcloud ask nothing"),
}
NOT_ON_GKE = ("v2", "v3")  # generations that xpk refuses

# TPU VM images have Python 3.10; uv installs 3.12 beside it. Without run.exit the next run is known
# not to have ended yet, also on a worker that misses its start.
SETUP = """\
set -eu
cd ~/{remote}
python3 -m pip install --user --quiet --upgrade uv
rm -rf code && mkdir code && tar -xzf code.tar.gz -C code
rm -f run.exit
[ -x venv/bin/python ] || python3 -m uv venv --quiet --python 3.12 venv
python3 -m uv pip install --quiet --python venv/bin/python -e './code[{extras}]'
"""

# Runs detached from the ssh connection that starts it. run.exit is written last: once it exists,
# the run has ended.
RUN = """\
cd ~/{remote}/code
set -a; . ../env; set +a
../venv/bin/python -m widenet_jax.main {arguments} >> ../run.log 2>&1 &
echo $! > ../run.pid
wait $!
echo $? > ../run.exit
"""

START = """\
cd ~/{remote}
if kill -0 "$(cat run.pid 2>/dev/null)" 2>/dev/null; then exit 0; fi
rm -f run.pid run.exit
mv -f run.log run.log.old 2> /dev/null
setsid nohup bash run.sh < /dev/null > /dev/null 2>&1 &
until [ -s run.pid ]; do sleep 0.1; done
"""


@dataclass(frozen=True)
class Job:
    """A run to launch.

    Attributes:
      name: names the TPU, the SkyPilot job or the GKE workload.
      tpu: the TPU type, as `parse_tpu` reads it.
      zone: Google Cloud zone; "" where the backend finds one.
      arguments: command line of `python -m widenet_jax.main`, including `--distributed`.
      project: Google Cloud project; "" for gcloud's default.
      spot: whether to use preemptible capacity.
      runtime_version: TPU VM image.
      cluster: GKE cluster; "" for the other backends.
      gcloud_flags: further flags of the command by which gcloud creates the TPU.
    """

    name: str
    tpu: Topology
    zone: str
    arguments: tuple[str, ...]
    project: str = ""
    spot: bool = False
    runtime_version: str = ""
    cluster: str = ""
    gcloud_flags: tuple[str, ...] = ()

    @property
    def place(self) -> list[str]:
        """The flags that say where the TPU is."""
        places = {"zone": self.zone, "project": self.project}
        return [f"--{name}={value}" for name, value in places.items() if value]

    def secrets(self) -> dict[str, str]:
        """Returns the secrets that are set in this environment."""
        return {name: os.environ[name] for name in SECRETS if os.environ.get(name)}

    def extras(self) -> str:
        """Returns the extras of the package that the run needs, comma-separated."""
        return ",".join(["tpu", "gcs", *(["wandb"] if "WANDB_API_KEY" in self.secrets() else [])])

    def run_script(self) -> str:
        return RUN.format(remote=REMOTE, arguments=shlex.join(self.arguments))


def parse_tpu(text: str) -> Topology:
    """Reads "v3-256" or "v5e-16"; "v5litepod-16" is another name of the latter.

    The number counts cores in v2, v3, v4 and v5p, chips in v5e and v6e.

    Raises:
      BadInputError: an unknown generation, or a size that Cloud TPU does not offer.
    """
    if ":" in text:  # a shape, which `plan.py --topology` takes
        raise BadInputError(f"--tpu={text}: write generation and size, as in v3-256 or v5e-16")
    topology = parse_topology(text, field="--tpu")
    count = topology.accelerator_type.rpartition("-")[2]
    return replace(topology, name=f"{topology.generation}-{count}")


def split_gcloud_flags(text: str) -> tuple[str, ...]:
    """Splits the value of --gcloud_flags into words, as a shell would.

    Raises:
      BadInputError: a quote is not closed, the first word is no flag, or a flag is the launcher's.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise BadInputError(f"--gcloud_flags={text}: {error}") from None
    if words and not words[0].startswith("--"):
        example = "--gcloud_flags='--network=NAME --labels=team=vision'"
        raise BadInputError(f"--gcloud_flags={text}: write flags of gcloud, as in {example}")
    for name in (word.partition("=")[0] for word in words):
        if name in OWN_FLAGS:
            raise BadInputError(f"--gcloud_flags: in place of {name} give {OWN_FLAGS[name]}")
        if name in NOT_TAKEN:
            raise BadInputError(f"--gcloud_flags: leave {name} out; {NOT_TAKEN[name]}")
    return words


def check_name(name: str) -> str:
    """Returns `name`; raises BadInputError unless Google's tools accept it."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        allowed = "up to 40 lower-case letters, digits and hyphens, starting with a letter"
        raise BadInputError(f"--name={name}: use {allowed}")
    return name


def default_name(config: str) -> str:
    """ "configs/imagenet.py:widenet_b" -> "imagenet-widenet-b"."""
    path, _, argument = config.partition(":")
    text = re.sub(r"[^a-z0-9]+", "-", f"{Path(path).stem}-{argument}".lower())
    return text.lstrip("-0123456789")[:34].strip("-") or "widenet"


def tracked_files(root: Path = ROOT) -> list[str]:
    """Lists the files that git tracks and that exist in the working tree.

    Raises:
      BadInputError: `root` is not a git checkout.
    """
    command = ["git", "-C", str(root), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listed = ""
    if not listed:  # as well where an installation lies inside another project's checkout
        raise BadInputError(
            f"{root} is not a git checkout of this project, and the launcher copies what git "
            "tracks to the TPU; clone the project and install it by `pip install -e .`"
        )
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


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


def check_places(config: ConfigDict) -> None:
    """Raises BadInputError if the config reads from a place that no worker can read.

    That is a relative path, or a folder of images on gs://.
    """
    for field, place in (
        ("data.path", config.data.path),
        ("data.tokenizer", config.data.get("tokenizer", "")),
        ("init_from", config.init_from),
    ):
        if place and not place.startswith(("gs://", "/")):
            raise BadInputError(
                f"config.{field}={place} is relative, but the TPU's workers receive only the code; "
                f"give --config.{field}=gs://BUCKET/DIR, or /DIR if it exists on every worker"
            )
    if config.data.source == "image_folder":
        from widenet_jax.vision.data.folders import check_local  # imports NumPy

        check_local(config.data.path, "config.data.path=")


def stage(job: Job, into: Path, root: Path = ROOT) -> list[Path]:
    """Writes the files for the workers into `into`, readable by the user alone.

    Returns:
      The paths of code.tar.gz, setup.sh, start.sh, run.sh and env (the secrets).
    """
    into.chmod(0o700)
    archive = into / "code.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in tracked_files(root):
            tar.add(root / name, arcname=name, recursive=False)
    scripts = {
        "setup.sh": SETUP.format(remote=REMOTE, extras=job.extras()),
        "start.sh": START.format(remote=REMOTE),
        "run.sh": job.run_script(),
    }
    for name, text in scripts.items():
        (into / name).write_text(text)
    return [archive, *(into / name for name in scripts), write_secrets(job, into / "env")]


def write_secrets(job: Job, path: Path) -> Path:
    """Writes NAME='value' lines to a file that is created with mode 0600."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in job.secrets().items()]
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(lines)
    return path
