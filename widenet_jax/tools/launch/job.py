"""What is launched: a run, on a TPU, in a zone; and the files that go to its machines."""

import os
import re
import shlex
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from widenet_jax.errors import BadInputError
from widenet_jax.tools.launch.tpus import Tpu

ROOT = Path(__file__).parents[3]
REMOTE = "widenet_run"  # a directory in the home directory of every worker
SECRETS = ("WANDB_API_KEY",)  # from the environment here to a file of mode 0600 there

# TPU VM images have Python 3.10; uv brings its own 3.12 without touching the system.
SETUP = """\
set -eu
cd ~/{remote}
python3 -m pip install --user --quiet --upgrade uv
rm -rf code && mkdir code && tar -xzf code.tar.gz -C code
[ -x venv/bin/python ] || python3 -m uv venv --quiet --python 3.12 venv
python3 -m uv pip install --quiet --python venv/bin/python -e './code[{extras}]'
"""

# The run outlives the ssh connection that starts it. Its exit code is the last thing written.
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
setsid nohup bash run.sh < /dev/null > /dev/null 2>&1 &
until [ -s run.pid ]; do sleep 0.1; done
"""


@dataclass(frozen=True)
class Job:
    """Attributes:
    name: of the TPU, the job and the workload.
    arguments: of `python -m widenet_jax.main`, `--distributed` among them.
    project: "" for gcloud's default.
    cluster: of GKE.
    """

    name: str
    tpu: Tpu
    zone: str
    arguments: tuple[str, ...]
    project: str = ""
    spot: bool = False
    runtime_version: str = ""
    cluster: str = ""

    def secrets(self) -> dict[str, str]:
        """Those that are set here."""
        return {name: os.environ[name] for name in SECRETS if os.environ.get(name)}

    def extras(self) -> str:
        """Of the package, that the run needs there."""
        return ",".join(["tpu", "gcs", *(["wandb"] if "WANDB_API_KEY" in self.secrets() else [])])

    def run_script(self) -> str:
        return RUN.format(remote=REMOTE, arguments=shlex.join(self.arguments))

    def setup_script(self) -> str:
        return SETUP.format(remote=REMOTE, extras=self.extras())

    def start_script(self) -> str:
        return START.format(remote=REMOTE)


def check_name(name: str) -> str:
    """Raises BadInputError unless Google's tools take it."""
    if not re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", name):
        raise BadInputError(
            f"--name={name}: use up to 40 lower-case letters, digits and hyphens, starting with a "
            "letter"
        )
    return name


def default_name(config: str) -> str:
    """ "configs/imagenet.py:widenet_b" -> "imagenet-widenet-b"."""
    path, _, argument = config.partition(":")
    text = re.sub(r"[^a-z0-9]+", "-", f"{Path(path).stem}-{argument}".lower())
    return text.lstrip("-0123456789")[:34].strip("-") or "widenet"


def tracked_files(root: Path = ROOT) -> list[str]:
    """What git tracks, as it is in the working tree.

    Raises:
      BadInputError: the package is not in a git checkout.
    """
    command = ["git", "-C", str(root), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise BadInputError(
            f"{root} is no git checkout: what is copied to the TPU is the files that git tracks"
        ) from None
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


def check_config(config: str, root: Path = ROOT) -> str:
    """The config's path from the root of the checkout, with its argument.

    Raises:
      BadInputError: its file is not among those that are copied.
    """
    path, colon, argument = config.partition(":")
    inside = os.path.relpath(path, root)
    if inside not in tracked_files(root):
        raise BadInputError(
            f"--config={config}: git does not track {path}, so it would not be copied; git add it"
        )
    return inside + colon + argument


def check_places(config: ConfigDict) -> None:
    """Raises BadInputError where the config reads from a directory of this machine."""
    for field, place in (("data.path", config.data.path), ("init_from", config.init_from)):
        if place and not place.startswith(("gs://", "/")):
            raise BadInputError(
                f"config.{field}={place} is relative, and the TPU's workers get the code alone; "
                f"give --config.{field}=gs://BUCKET/DIR, or where it lies on every worker as /DIR"
            )


def stage(job: Job, into: Path, root: Path = ROOT) -> list[Path]:
    """Writes what goes to the workers; only the user may read it.

    Returns:
      code.tar.gz, setup.sh, start.sh, run.sh and env, with the secrets, in `into`.
    """
    into.chmod(0o700)
    archive = into / "code.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in tracked_files(root):
            tar.add(root / name, arcname=name, recursive=False)
    written = [archive]
    for name, text in (
        ("setup.sh", job.setup_script()),
        ("start.sh", job.start_script()),
        ("run.sh", job.run_script()),
    ):
        (into / name).write_text(text)
        written.append(into / name)
    return [*written, write_secrets(job, into / "env")]


def write_secrets(job: Job, path: Path) -> Path:
    """NAME='value' lines, mode 0600 from the start."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in job.secrets().items()]
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.writelines(lines)
    return path
