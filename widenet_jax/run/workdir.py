"""The records of a run in its workdir: config, environment, git state, info of the data."""

import fcntl
import json
import math
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict
from ml_collections import ConfigDict

from widenet_jax import files
from widenet_jax.checkpoint.checkpoints import LAST
from widenet_jax.checkpoint.series import steps_in
from widenet_jax.config.durations import to_steps
from widenet_jax.config.fields import rows_of, task_of
from widenet_jax.errors import BadInputError, refuse, refuse_value
from widenet_jax.experiment import Experiment
from widenet_jax.nn.loop import draw_loops
from widenet_jax.optim.build import build_learning_rate
from widenet_jax.run.stopping import say

# A resumed run may change these fields: they place work or add records, and no number depends on
# them. (Sharding changes the order of additions, so numbers are equal up to rounding only.)
MAY_CHANGE = (
    "imports",  # see `changed_imports`
    "model.attention.implementation",  # see `run.attention`
    "sharding.",
    "data.path",
    "data.num_workers",
    "data.prefetch",
    "checkpoint.",
    "tracking.",
    "watchdog.",
    "evaluation.patience",
    # How to treat bad numbers and bad examples may be decided when they occur.
    "on_nonfinite",
    "max_skipped_updates",
    "data.on_bad_example",
    "data.max_bad_fraction",
)
# Those on which the result of a finished run does not depend; with more patience it would go on.
MAY_CHANGE_AFTER = tuple(name for name in MAY_CHANGE if name != "evaluation.patience")
# Hosts may differ in these fields: where the data lies, and how it is read.
MAY_DIFFER = ("data.path", "data.num_workers", "data.prefetch")
CONTENT = "content_sha256"  # of the facts of the data
COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
COMPILERS += ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
PACKAGES = (*COMPILERS, "flax", "optax", "orbax-checkpoint", "grain", "numpy", "widenet_jax")


def plain(config: ConfigDict) -> dict[str, Any]:
    """Returns a config as JSON stores it: plain dicts and lists."""
    return json.loads(json.dumps(config.to_dict()))


flatten = partial(flatten_dict, sep=".")  # {"a": {"b": 1}} -> {"a.b": 1}


def shared_fields(config: ConfigDict) -> dict[str, Any]:
    """Returns the fields that must be the same on all hosts of a run."""
    return {k: v for k, v in flatten(plain(config)).items() if k not in MAY_DIFFER}


def check_workdir(workdir: epath.Path, config: ConfigDict, *, mode: str) -> None:
    """Raises BadInputError where the workdir holds a run of another config, or none to evaluate."""
    if problem := problem_of(workdir, config, mode):
        raise BadInputError(f"--workdir={workdir}{problem}")


def problem_of(workdir: epath.Path, config: ConfigDict, mode: str) -> str:
    """Returns why a start cannot have a workdir, to stand behind its name; "" if it can."""
    if workdir.exists() and not workdir.is_dir():
        return " is a file; name a directory"
    if mode == "train" and (workdir / files.EXPORT).exists():
        return f" is an export; name a new one, and --config.init_from={workdir} to start from it"
    if not (workdir / "config.json").exists():
        if mode != "train":
            return ": no run there; give the --workdir of a training run"
        files.check_name(workdir)
        names = {path.name for path in workdir.iterdir()} if workdir.exists() else set()
        # A start that was cut off, or that W&B refused, may have left these.
        names -= {files.STARTS, *files.BEGUN}
        own = "config.json", "probe-"  # the latter: see `object_store.probe`
        begun = {n for n in names if n.startswith(own) and n.endswith(files.UNFINISHED)}
        return " is not empty and holds no run of this program; name another" * (begun != names)
    if mode == "train" and files.may_replace(workdir):
        return ""  # its only start failed, perhaps by a mistake in the config, see `write_run`
    changed = changed_fields(workdir, config)
    changed.pop("data.tokenizer", None)  # the same one may lie elsewhere: see `check_info`
    if mode == "train":
        changed.pop("duration", None)  # see `check_length`
    return (
        ""
        if not changed
        else (
            f" holds a run of another config ({list_changes(changed)}); name a new --workdir, or "
            "repeat that run's config; scripts/evaluate.py evaluates other data"
        )
    )


def read_config(workdir: epath.Path) -> dict[str, Any]:
    """Returns a run's config.json; raises BadInputError where it is no config of a run."""
    file = workdir / "config.json"
    try:
        config = {**files.parse_json(file.read_text())}
        if all(isinstance(text, str) for text in (config["duration"], *config.get("imports", ()))):
            return config
    except (ValueError, TypeError, KeyError):
        pass
    raise BadInputError(
        f"{file} is no config of a run, so it was changed or damaged; restore it from a copy (every"
        " checkpoint's meta/metadata has one), or name a new --workdir"
    )


def earlier_config(workdir: epath.Path) -> dict[str, Any] | None:
    """Returns the config.json of the run that a start resumes; None of a new run."""
    new = files.may_replace(workdir) or not (workdir / "config.json").exists()
    return None if new else read_config(workdir)


def changed_fields(
    workdir: epath.Path, config: ConfigDict, free: tuple[str, ...] = MAY_CHANGE
) -> dict[str, str]:
    """Returns how a run's config.json differs from a config: {"seed": "0 there, 1 here"}.

    Leaves out the fields that are `free` to change. An older run has a new field's default.
    """
    theirs, ours = flatten(read_config(workdir)), flatten(plain(config))
    sections = {name.rpartition(".")[0] for name in theirs}
    for name, row in rows_of(task_of(config)).items():
        section = name.rpartition(".")[0]
        if section not in theirs and section.rpartition(".")[0] in sections:  # None is no default
            sections.add(section)
        if name in ours and section in sections:
            theirs.setdefault(name, json.loads(json.dumps(row[0])))
    return {
        key: f"{theirs.get(key)!r} there, {ours.get(key)!r} here"
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key) != ours.get(key) and not key.startswith(free)
    }


def list_changes(changed: Mapping[str, str]) -> str:
    """Returns the first of `changed_fields` in one line."""
    texts = [f"{key}: {change}" for key, change in changed.items()]
    return "; ".join(texts[:4] + ["and more"] * (len(texts) > 4))


def changed_imports(workdir: epath.Path, config: ConfigDict) -> str:
    """Returns a line on imported files that have changed since the run's start; "" if none have."""
    stored = earlier_config(workdir) or config
    before = {record.partition(" ")[0] for record in stored.get("imports", ())}
    now = dict(record.split(" ", 1) for record in config.get("imports", ()))
    changed = ", ".join(sorted(now[digest] for digest in now.keys() - before))
    return changed and f"changed since this run began: {changed}"


def missing_imports(workdir: str, config: ConfigDict) -> str:
    """Returns the rest of a line on files that a run imports, and this start not; "" of none."""
    file = files.absolute(workdir) / "config.json"
    stored = files.read_object(file).get("imports", ()) if file.exists() else ()
    now = {Path(record).name for record in config.get("imports", ())}
    paths = [record.partition(" ")[2] for record in stored if Path(record).name not in now]
    named = " ".join(f"--import={path}" for path in paths)
    return named and f"; --workdir={workdir} was started with {named}: give it again"


def check_info(
    meta: Mapping[str, Any],
    info: Mapping[str, Any],
    *,
    workdir: epath.Path,
    extend: bool | None = False,
) -> str:
    """Compares the data that a checkpoint saw with the data that is there now.

    Args:
      meta: of the checkpoint; {} in a new run.
      info: of the data that is there now.
      workdir: named in the message.
      extend: whether the user has asked to continue on other examples (--extend); None: cannot.

    Returns:
      A line where the examples are others; "" where all is the same.

    Raises:
      BadInputError: it is other data, as with another tokenizer.
    """
    odd = changed_fact(meta, info)
    if odd and not (odd == CONTENT and extend):
        may = odd == CONTENT and extend is not None
        more = "; to continue this run on other examples add --extend" * may
        raise BadInputError(
            f"--workdir={workdir} was trained on data with another {odd.removesuffix('_sha256')} "
            "than the data that it is given now; give that run's data, or name a new --workdir, in "
            f"which --config.init_from={workdir} starts from this model{more}"
        )
    return "the data has changed since this run began" if odd else ""


def changed_fact(meta: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    """Returns the first name of `info` whose value is another in `meta`; "" if there is none.

    CONTENT comes last, as it changes with every other fact.
    """

    def same(there: Any, here: Any) -> bool:
        if isinstance(there, float) and isinstance(here, float):
            return math.isclose(there, here, rel_tol=1e-6)  # other machines may round otherwise
        return there == here

    here = json.loads(json.dumps(dict(info)))
    odd = [name for name in here if name in meta and not same(meta[name], here[name])]
    return min(odd, key=CONTENT.__eq__, default="")


# Files that a start writes of its data; those of before November 2026 do not list them.
OLDER = ("class_names", "content_sha256", "pairs", "tokenizer", "unigram_entropy", "vocab_size")


def write_run(
    workdir: epath.Path, config: ConfigDict, info: Mapping[str, Any], **more: Any
) -> None:
    """Writes config.json, a file for each entry of `info`, and environment.json.

    config.json comes first, because it marks a workdir. It holds the config of the first start that
    saved anything, except the duration, which may become longer. environment.json lists every start
    since, each with its versions, devices and commit.

    Args:
      workdir: of the run.
      config: of the run.
      info: what tasks need of the data: {"class_names": [...]} goes to class_names.json.
      **more: on this start, for environment.json.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    file = workdir / "config.json"
    starts = workdir / files.STARTS
    if files.may_replace(workdir):
        begun = {name for start in earlier_starts(starts) for name in start.get("info", OLDER)}
        others = [workdir / f"{name}.json" for name in begun]
        for path in (*others, file, starts):  # in this order: a kill leaves no odd directory
            path.unlink(missing_ok=True)
    stored = json.loads(file.read_text()) if file.exists() else plain(config)
    if not file.exists() or stored["duration"] != config.duration:
        files.write_json(file, stored | {"duration": config.duration})
    for name, value in info.items():
        files.write_json(workdir / f"{name}.json", value)
    start = environment() | {"info": [*info], **more}
    files.write_json(starts, [*earlier_starts(starts), start])


def earlier_starts(path: epath.Path) -> list[dict]:
    """Reads environment.json; [] where it is missing, or damaged, with a warning."""
    try:
        return [{**start} for start in json.loads(path.read_text())] if path.exists() else []
    except (ValueError, TypeError):
        say(f"warning: {path} is damaged; a new list of starts begins")
        return []


def last_start(workdir: epath.Path) -> dict[str, Any]:
    """Returns what environment.json has of the newest start; {} without one."""
    return (earlier_starts(workdir / files.STARTS) or [{}])[-1]


@contextmanager
def locked(workdir: epath.Path) -> Iterator[None]:
    """Locks a local workdir against another start; the lock ends with the process, however it ends.

    A start that fails before it writes anything removes the directory, if it made it.

    Raises:
      BadInputError: another process holds the lock.
    """
    if files.is_remote(workdir):  # object stores have no locks
        yield
        return
    made = not workdir.exists()
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / files.LOCK).open("w") as file:
        if not files.lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            raise BadInputError(
                f"--workdir={workdir}: another process is training there; wait for it, stop it, or "
                "name a new --workdir"
            )
        try:
            yield
        except BaseException:
            if made and [path.name for path in workdir.iterdir()] == [files.LOCK]:
                (workdir / files.LOCK).unlink()
                workdir.rmdir()
            raise


def environment() -> dict[str, Any]:
    """Returns versions, devices, the command and the state of the code."""
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
    """Returns a package's version; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state(directory: Path) -> dict[str, Any] | None:
    """Returns the commit and whether files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(directory), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def check_length(workdir: epath.Path, experiment: Experiment, *, extend: bool) -> str:
    """Compares the length of an experiment with the length of the run in its workdir, if any.

    Args:
      workdir: of the run.
      experiment: of the run, with the duration that it has now.
      extend: whether the user has asked to change with the length what follows it (--extend).

    Returns:
      A line on how the learning rate and growing loops change; "" if all past steps keep theirs.

    Raises:
      BadInputError: the run is to become shorter; or longer, with another learning rate or other
        loops for steps that are done, and `extend` is False; or there is no run to extend.
    """
    config, earlier, place = experiment.config, earlier_config(workdir), f"--workdir={workdir}"
    if earlier is None:
        refuse("--extend", (extend, f"{place} holds no run yet; leave it out"))
        return ""
    stored = earlier["duration"]
    sizes = {"batch_size": config.batch_size, "num_examples": experiment.data_info.num_examples}
    before, now = to_steps(stored, field="config.duration", **sizes), experiment.total_steps
    done = max(steps_in(workdir / LAST), default=0)
    there = f"duration: {stored!r} there, {config.duration!r} here, which is shorter"
    shorter = (
        f"holds a run of another config ({there}); a run can only become longer: repeat its config "
        "to resume it, or name a new --workdir"
    )
    # Of fewer examples epochs have fewer steps. Without `extend`, `check_info` refuses them.
    fewer = (
        f"has trained {done:,} steps, and config.duration={config.duration!r} of the "
        f"{sizes['num_examples']:,} examples that there are now is {now:,}; give a longer "
        "--config.duration"
    )
    refuse_value(place, (now < before, shorter), (extend and now < done, fewer))
    if extend:
        before = last_start(workdir).get("total_steps", before)  # an older run's has none
    changes = changes_by_length(experiment, before, done)
    change = "; ".join(changes.values())
    change += f". A run of {now:,} steps from the start would have had others"
    longer = (
        f"holds a run of {before:,} steps, and config.duration={config.duration!r} makes it "
        f"{now:,}, with {' and '.join(changes)}: {change}. To continue like this add --extend"
    )
    refuse_value(place, (changes and not extend, longer))
    became = "extended" if now > before else "shortened"
    return f"{became} from {before:,} to {now:,} steps: {change}" if changes else ""


def changes_by_length(experiment: Experiment, before: int, done: int) -> dict[str, str]:
    """Returns what `done` steps of a run of `before` steps had otherwise than they would have now.

    {"another cosine schedule": "the learning rate of step 12 was ..."}
    """
    config, now, found = experiment.config, experiment.total_steps, {}
    sizes = {"batch_size": config.batch_size, "num_examples": experiment.data_info.num_examples}
    rate = partial(build_learning_rate, config.optimizer, **sizes)
    steps, (old, new) = np.arange(done), (rate(total_steps=end) for end in (before, now))
    if now != before and not np.array_equal(old(steps), new(steps)):
        found[f"another {config.optimizer.schedule} schedule"] = (
            f"the learning rate of step {done:,} was {old(done - 1):.3g}, the next one's is "
            f"{new(done):.3g}, and the last one's, of step {now:,}, is {new(now - 1):.3g}"
        )
    loop = experiment.model.loop
    if loop.counts.train == "grow":
        first, then = (
            draw_loops(loop, None, np.append(steps, done) / end) for end in (before, now)
        )
        if not np.array_equal(first[:-1], then[:-1]):
            found["other loops"] = (
                f"the loops of step {done:,} were {first[-2]}, the next one's are {then[-1]}"
            )
    return found
