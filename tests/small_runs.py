"""Small runs of every kind, in this process or in separate processes."""

import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
import text_sets
from ml_collections import ConfigDict

from widenet_jax import train
from widenet_jax.config.files import load_config
from widenet_jax.data.contract import ArraySpec, DataInfo
from widenet_jax.experiment import Experiment, build_experiment, lengths
from widenet_jax.run.stopping import Stop
from widenet_jax.run.workdir import flatten, plain

ROOT = Path(__file__).parents[1]
# 20 steps; the fields of every small run.
SHORT = {
    "duration": "20 steps",
    "log_every_steps": 1,
    "optimizer.warmup": "2 steps",
    "evaluation.every": "20 steps",
    "checkpoint.every": "10 steps",
    "tracking.tensorboard": False,
}
# Batches of 64 digits. The capacity is so small that tokens are dropped, in evaluation too. 16
# token groups of 4 images are two groups for each of 8 devices. The rate is constant, so that
# longer runs are the same program.
OVERRIDES = SHORT | {
    "optimizer.schedule": "constant",
    "model.loop.core": ((1, 2),),
    "model.embed_dim": 32,
    "model.moe.capacity_factor": 1.0,
    "model.moe.capacity_factor_eval": 1.0,
    "model.moe.examples_per_group": 4,
    "augment.mixup_alpha": 0.5,
    "augment.mixup_group_size": 4,
    "evaluation.batch_size": 384,
}
# Batches of 16 embedded sequences, with a WideNet whose capacity drops tokens.
TEXT_OVERRIDES = SHORT | {
    "batch_size": 16,
    "model.loop.core": ((1, 2),),
    "model.moe.capacity_factor": 1.0,
    "data.max_length": 32,
    "evaluation.batch_size": 64,
}
# Batches of 16 windows of the questions that `text_sets` writes.
SQUAD_OVERRIDES = TEXT_OVERRIDES | {
    "data.max_length": 16,
    "data.max_question_length": 8,
    "data.stride": 4,
}
# Batches of 16 rows of the embedded novel's bytes, for a language model.
LANGUAGE_OVERRIDES = SHORT | {
    "model.embed_dim": 32,
    "model.dropout": 0.1,
    "data.max_length": 32,
    "evaluation.batch_size": 64,
}
# A kind of small run -> its config and what differs from it.
RUNS = {
    "squad": ("configs/squad.py:v2,model=widenet_4_tiny", SQUAD_OVERRIDES),
    "scores": ("configs/glue.py:scores,model=widenet_4_tiny", TEXT_OVERRIDES),
    "digits": ("configs/digits.py", OVERRIDES),
    "language": ("configs/language_model.py:tiny", LANGUAGE_OVERRIDES),
    # With experts, some of which are hidden from each token, or balanced over the batch.
    "sigma_moe": ("configs/language_model.py:tiny,preset=sigma_moe", LANGUAGE_OVERRIDES),
    "s_base": ("configs/language_model.py:tiny,preset=s_base", LANGUAGE_OVERRIDES),
    "expert_choice": ("configs/digits.py:widenet_tiny,router=expert_choice", OVERRIDES),
    "soft_moe": (
        "configs/digits.py:widenet_tiny,ffn=soft_moe",
        {name: value for name, value in OVERRIDES.items() if ".moe." not in name},
    ),
    # Without a memory, whose attention has experts, too.
    "switch_head": (
        "configs/language_model.py:tiny,preset=sigma_moe,attention=switch_head",
        LANGUAGE_OVERRIDES | {"model.attention.num_experts": 3, "model.attention.rope": 0.5},
    ),
    "text_tiny": ("configs/text_tiny.py:widenet_4_tiny", TEXT_OVERRIDES),
}
# Of the digits, with the names of two classes.
EXAMPLE = {"image": ArraySpec((8, 8, 1), "uint8"), "label": ArraySpec((), "int32")}
DIGITS = DataInfo(1437, EXAMPLE, {"class_names": ["0", "1"]})
PATIENCE_SECONDS = 240
# Fields that no compiled program depends on.
NOT_COMPILED = ("checkpoint.", "tracking.", "watchdog.", "evaluation.every", "evaluation.patience")
NOT_COMPILED += ("log_every_steps", "data.path", "data.num_workers", "data.prefetch", "data.on_bad")
NOT_COMPILED += ("data.max_bad", "data.tokenizer")
EXPERIMENTS: dict[str, Experiment] = {}


def run_of(kind: str) -> tuple[str, dict[str, object]]:
    """Returns the config of a kind of small run and what differs from it, with its data written."""
    config, overrides = RUNS[kind]
    if kind not in ("squad", "scores"):
        return config, overrides
    path = text_sets.text_directory()
    return config, {**overrides, "data.path": path, "data.tokenizer": f"{path}/vocab.txt"}


def small_config(*, run: str = "digits", **changes: object) -> ConfigDict:
    """Returns the config of a small run with `changes`."""
    file, overrides = run_of(run)
    config = load_config(f"{ROOT}/{file}")
    config.update_from_flattened_dict(overrides | changes)
    return config


def run_here(
    workdir: Path,
    *,
    run: str = "digits",
    devices: int = 1,
    mode: str = "train",
    stop: Stop | None = None,
    **changes: Any,
) -> dict:
    """Does what `command` does, in this process; returns the result."""
    config = small_config(run=run, **changes)
    return train_here(config, workdir, devices=devices, mode=mode, stop=stop)


def train_here(config: ConfigDict, workdir: Path, *, devices: int = 1, **how: Any) -> dict:
    """Calls `train.run`; runs whose programs are the same share one `Experiment`.

    Tracing and compiling take most of a small run's time.
    """
    with mock.patch.object(train, "build_experiment", shared_experiment):
        return train.run(config, str(workdir), devices=jax.devices()[:devices], **how)


def shared_experiment(
    config: ConfigDict, data_info: DataInfo, devices: Sequence[jax.Device], **options: Any
) -> Experiment:
    """Returns what `build_experiment` returns; an earlier one's programs if they are the same."""
    fields = {k: v for k, v in flatten(plain(config)).items() if not k.startswith(NOT_COMPILED)}
    if fields["optimizer.schedule"] == "constant" and "%" not in fields["optimizer.warmup"]:
        del fields["duration"]
    key = repr((sorted(fields.items()), data_info, devices, options))
    if key not in EXPERIMENTS:
        EXPERIMENTS[key] = build_experiment(config, data_info, devices, **options)
    first, (total_steps, eval_every, save_every) = EXPERIMENTS[key], lengths(config, data_info)
    lasting = {"total_steps": total_steps, "eval_every": eval_every, "save_every": save_every}
    shared = dataclasses.replace(first, config=config, **lasting)
    vars(shared)["parameter_counts"] = first.parameter_counts  # a cached property
    return shared


def command(workdir: Path, *extra: str, run: str = "digits", **changes: object) -> list[str]:
    """Returns the command line of a small run with `changes` to its config and `extra` flags."""
    config, overrides = run_of(run)
    flags = [f"--config.{key}={value}" for key, value in (overrides | changes).items()]
    program = [sys.executable, "-m", "widenet_jax.main", f"--config={config}"]
    return [*program, f"--workdir={workdir}", *flags, *extra]


def start(arguments: list[str], devices: int = 1) -> subprocess.Popen:
    """Starts a command with the given number of CPU devices."""
    flags = re.sub(r"(device_count)=\d+", rf"\1={devices}", os.environ["XLA_FLAGS"])
    env = os.environ | {"XLA_FLAGS": flags}
    return subprocess.Popen(
        arguments, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen, code: int = 0) -> str:
    """Waits for the process to end with exit code `code`; returns its stderr."""
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code, errors
    return errors


def free_port() -> int:
    """Returns a port of this machine that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def commands_of_two(workdir: Path, *extra: str, **changes: object) -> list[list[str]]:
    """Returns the commands of two processes that make up one run."""
    coordinator = f"--coordinator=localhost:{free_port()}"
    flags = ["--distributed", coordinator, "--num_processes=2", *extra]
    return [command(workdir, *flags, f"--process_id={i}", **changes) for i in range(2)]


def start_two(workdir: Path, *extra: str, **changes: object) -> list[subprocess.Popen]:
    """Starts two processes with two devices each that make up one run."""
    return [
        start(arguments, devices=2) for arguments in commands_of_two(workdir, *extra, **changes)
    ]


def wait_until(condition: Callable[[], object], process: subprocess.Popen) -> None:
    """Waits until `condition()` holds; the process must be running until then."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def metrics_of(workdir: Path, split: str = "train") -> list[dict]:
    return [r for r in map(json.loads, lines_in(workdir)) if r["split"] == split]


def lines_in(workdir: Path) -> list[str]:
    """Returns the records so far, as text."""
    metrics = workdir / "metrics.jsonl"
    return metrics.read_text().splitlines() if metrics.exists() else []


def at_step(workdir: Path, unbroken: Path, step: int) -> Path:
    """Makes the workdir of a run that was killed just after the checkpoint of `step`."""
    shutil.copytree(unbroken, workdir)
    for path in (workdir / "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= step + 1]
    (workdir / "metrics.jsonl").write_text("".join(kept))
    (workdir / "result.json").unlink()
    return workdir


def last_step(workdir: Path) -> int:
    """Returns the step of the newest committed checkpoint, 0 if there is none."""
    directory = workdir / "checkpoints"
    names = [p.name for p in directory.iterdir()] if directory.exists() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def final_state(workdir: Path) -> dict[str, bytes]:
    """Returns the arrays of the newest checkpoint by path, read without this package."""
    step = last_step(workdir)
    # Arrays of devices that this process does not have come to its first one.
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    args = ocp.args.StandardRestore(fallback_sharding=here)
    found = {"step": str(step).encode()}
    with closing(ocp.Checkpointer(ocp.StandardCheckpointHandler())) as reader:
        for item in ("params", "opt_state", "carry"):
            if not (workdir / "checkpoints" / str(step) / item).exists():
                continue  # most tasks have no carry
            tree = reader.restore(workdir / "checkpoints" / str(step) / item, args=args)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                found[item + jax.tree_util.keystr(path)] = np.asarray(leaf).tobytes()
    return found


def assert_same_end(ours: Path, theirs: Path) -> None:
    """Asserts that metrics, result, parameters and optimizer state agree byte for byte."""
    for name in ("metrics.jsonl", "result.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    assert final_state(ours) == final_state(theirs)
