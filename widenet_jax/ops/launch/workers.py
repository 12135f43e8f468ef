"""What runs on the workers of a TPU: the files that they receive, and the verbs of worker.sh."""

import os
import shlex
import subprocess
import tarfile
from pathlib import Path

from widenet_jax.config.files import find_config
from widenet_jax.errors import BadInputError
from widenet_jax.ops.launch.requests import REMOTE, Job

ROOT = Path(__file__).parents[3]
CREATE_FOLDER = f"mkdir -p -m 700 {REMOTE}"


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
      The paths of code.tar.gz, worker.sh, command.sh and env (the secrets).
    """
    into.chmod(0o700)
    archive, script, command, env = (
        into / name for name in ("code.tar.gz", "worker.sh", "command.sh", "env")
    )
    with tarfile.open(archive, "w:gz") as tar:
        for name in tracked_files():
            tar.add(ROOT / name, arcname=name, recursive=False)
    script.write_bytes(Path(__file__).with_name("worker.sh").read_bytes())
    command.write_text(run_command(job))
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in job.secrets().items()]
    env.touch(mode=0o600)
    env.write_text("".join(lines))
    return [archive, script, command, env]


def tracked_files(root: Path = ROOT) -> list[str]:
    """Lists the files that git tracks and that exist in the working tree.

    Raises:
      BadInputError: `root` is not a git checkout.
    """
    command = ["git", "-C", str(root), "ls-files", "-z"]
    found = subprocess.run(command, capture_output=True, text=True)
    if not found.stdout:  # also where an installation lies inside another project's checkout
        raise BadInputError(
            f"{root} is not a git checkout of this project, and the launcher copies the files that "
            "git tracks to the TPU; clone the project and install it by `pip install -e .`"
        )
    return [name for name in found.stdout.split("\0") if name and (root / name).is_file()]


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
