"""What a workdir says about its run: config, environment, git state, class names."""

import fcntl
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from widenet_jax.errors import BadInputError

# A resumed run may change these: they move work about or add records, and no number depends on
# them. (Sharding changes the order of additions, so exactness ends at rounding.)
MAY_CHANGE = (
    "sharding.",
    "data.path",
    "data.num_workers",
    "data.prefetch",
    "checkpoint.",
    "tracking.",
    "watchdog.",
    # What to do about trouble is decided when it is there. It changes no number before.
    "on_nonfinite",
    "max_skipped_updates",
    "data.on_bad_example",
    "data.max_bad_fraction",
)
# Several hosts may differ in these: where the data lies, and how it is read.
MAY_DIFFER = ("data.path", "data.num_workers", "data.prefetch")
WRITING = ".tmp"  # a file that is being written
LOCK = ".lock"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "widenet_jax")


def plain(config: ConfigDict) -> dict[str, Any]:
    """A config as JSON would store it: plain dicts and lists."""
    return json.loads(json.dumps(config.to_dict()))


def flatten(tree: dict, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def shared_fields(config: ConfigDict) -> dict[str, Any]:
    """The fields that have to be the same on all hosts of a run."""
    return {k: v for k, v in flatten(plain(config)).items() if k not in MAY_DIFFER}


def check_workdir(workdir: epath.Path, config: ConfigDict, *, mode: str) -> None:
    """Raises BadInputError where the workdir holds a run of another config, or none to evaluate."""
    if str(workdir).startswith("gs://") and importlib.util.find_spec("gcsfs") is None:
        raise BadInputError(f"--workdir={workdir} needs the gcsfs package: pip install -e '.[gcs]'")
    stored_file = workdir / "config.json"
    if workdir.exists() and not workdir.is_dir():
        raise BadInputError(f"--workdir={workdir} is a file; name a directory")
    if not stored_file.exists():
        if mode != "train":
            raise BadInputError(
                f"--workdir={workdir}: no run there; give the --workdir of a training run"
            )
        begun = {stored_file.name + WRITING, LOCK}  # a start that was cut off leaves no more
        if workdir.exists() and {path.name for path in workdir.iterdir()} - begun:
            raise BadInputError(
                f"--workdir={workdir} is not empty and holds no run of this program; name a new "
                "directory"
            )
        return
    try:
        stored = flatten(json.loads(stored_file.read_text()))
    except (ValueError, AttributeError):
        raise BadInputError(
            f"{stored_file} is no JSON object, so it was changed or damaged; restore it from a "
            "copy (every checkpoint's meta/metadata has one), or name a new --workdir"
        ) from None
    ours = flatten(plain(config))
    changed = [
        f"{key}: {stored.get(key)!r} there, {ours.get(key)!r} here"
        for key in sorted(stored.keys() | ours.keys())
        if stored.get(key) != ours.get(key) and not key.startswith(MAY_CHANGE)
    ]
    if changed and mode != "train":
        raise BadInputError(
            f"--workdir={workdir} holds a run of another config ({'; '.join(changed[:4])}); leave "
            "the config out, and to evaluate on other data use scripts/evaluate.py"
        )
    if changed:
        raise BadInputError(
            f"--workdir={workdir} holds a run of another config ({'; '.join(changed[:4])}"
            f"{'; and more' if len(changed) > 4 else ''}); name a new --workdir, or repeat that "
            "run's config to go on with it"
        )


def write_run(
    workdir: epath.Path, config: ConfigDict, class_names: tuple[str, ...], *, main_host: bool
) -> None:
    """Writes config.json (first: it marks a workdir), class_names.json and environment.json.

    The last lists every start of the run, each with its versions, devices and commit.
    """
    if not main_host:
        return
    workdir.mkdir(parents=True, exist_ok=True)
    if not (workdir / "config.json").exists():
        write_json(workdir / "config.json", plain(config))
    write_json(workdir / "class_names.json", list(class_names))
    starts = workdir / "environment.json"
    write_json(starts, [*earlier_starts(starts), environment()])


def earlier_starts(path: epath.Path) -> list[dict]:
    """What is in environment.json; where that is damaged, it is put aside with a warning."""
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text()))
    except (ValueError, TypeError):
        aside = epath.Path(f"{path}.damaged")
        path.replace(aside)
        print(f"warning: {path} is damaged; now {aside.name}", file=sys.stderr)
        return []


@contextmanager
def locked(workdir: epath.Path) -> Iterator[None]:
    """The only start of a run in a local workdir; the lock goes with the process, however it ends.

    Raises:
      BadInputError: there is another.
    """
    if "://" in str(workdir):  # object stores have no locks
        yield
        return
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInputError(
                f"--workdir={workdir}: another process is training there; wait for it, stop it, or "
                "name a new --workdir"
            ) from None
        yield


def write_json(path: epath.Path, value: Any) -> None:
    """Whole or not at all: a reader, or a killed run, never leaves half a file."""
    beside = epath.Path(f"{path}{WRITING}")
    with beside.open("w") as file:
        file.write(json.dumps(value, indent=1) + "\n")
        file.flush()
        if "://" not in str(path):
            os.fsync(file.fileno())
    beside.replace(path)


def environment() -> dict[str, Any]:
    """Versions, devices, the command and the state of the code."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processes": jax.process_count(),
        "argv": sys.argv,
        "git": git_state(Path(__file__).parent),
    }


def version(package: str) -> str | None:
    """None where it is not installed, as this package when it runs from its directory."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state(directory: Path) -> dict[str, Any] | None:
    """Commit and whether files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(directory), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None
