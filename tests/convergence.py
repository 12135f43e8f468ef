"""Reference convergence: how each family of models trains, over seeds, in `convergence.json`.

`test_convergence.py` trains two other seeds of each family and compares them. After a change that
is meant to alter how a family trains, make its reference again and say why in the commit:

  .venv/bin/python tests/convergence.py digits_widenet     # without a name: every family

A run takes 10 to 40 seconds on two cores. The seeds of a family share the compiled steps of the
first one, and so its dropout masks and noise; initial parameters and the order of data differ.
CIFAR-10 is read from WIDENET_DATA_DIR/cifar10 (train_a_25000.npz, test_9000.npz).
docs/log/convergence.md says why each family is as it is.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from scipy import special

from widenet_jax import train
from widenet_jax.cli import prepare_data
from widenet_jax.config.files import load_config
from widenet_jax.experiment import Experiment, build_experiment
from widenet_jax.run.workdir import flatten, plain

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "convergence.json"
CONFIDENCE = 0.999
SEEDS = 8
NEW_SEEDS = (1000, 1001)
LAST_STEPS = 50  # of which "train" averages the loss


class Family(NamedTuple):
    """A model with its training, and the cross entropy that is compared.

    Attributes:
      config: file and variant.
      fields: that differ from it.
      split: "train", the mean over the last steps, or "eval", after the last step.
      reads: by split, the files in WIDENET_DATA_DIR; none where the package has the data.
    """

    config: str
    fields: Mapping[str, Any]
    split: str
    reads: Mapping[str, str] = MappingProxyType({})


# Without crops, 300 steps come close to the 0.500 that label smoothing leaves, where seeds agree.
DIGITS = {"duration": "300 steps", "augment.pad_pixels": 0}
# 60 steps of the embedded novel: later on, seeds find copying within the context at other times.
TEXT = {"duration": "60 steps", "data.path": ""}
COMMON = {  # evaluated and saved after the last step alone
    "log_every_steps": 1,
    "optimizer.warmup": "10 steps",
    "evaluation.every": "1000 epochs",
    "checkpoint.every": "1000 epochs",
    "tracking.tensorboard": False,
}
# Batches of 32 make 300 steps short enough for a test. Balanced slices have multiples of 10 images.
CIFAR = {"duration": "300 steps", "batch_size": 32, "data.eval_split": "test[:3000]"}
CIFAR_FILES = {"train": "cifar10/train_a_25000.npz", "test": "cifar10/test_9000.npz"}
BYTES = "configs/language_model.py:byte_s"
FAMILIES = {
    "digits_widenet": Family("configs/digits.py:widenet_tiny", DIGITS, "train"),
    "digits_vit": Family("configs/digits.py:vit_tiny", DIGITS, "train"),
    "digits_vit_moe": Family("configs/digits.py:vit_moe_tiny", DIGITS, "train"),
    "byte_dense": Family(f"{BYTES},dropout=0.3", TEXT, "eval"),
    "byte_sigma_moe": Family(f"{BYTES},preset=sigma_moe", TEXT | {"duration": "40 steps"}, "eval"),
    "byte_looped_moe": Family(f"{BYTES},preset=sigma_moe,loop=1x3", TEXT, "eval"),
    "cifar_widenet": Family("configs/cifar10.py:widenet_s", CIFAR, "eval", CIFAR_FILES),
}


def config_of(name: str, seed: int) -> Any:
    """Returns the config of a family's run."""
    family = FAMILIES[name]
    config = load_config(f"{ROOT}/{family.config}")
    config.update_from_flattened_dict(COMMON | family.fields | {"seed": seed})
    return config


def train_seeds(name: str, seeds: Sequence[int]) -> list[dict[str, float]]:
    """Trains seeds of a family, on one device.

    Returns: "seed" and "loss" of each run, and "load_cv" if it has experts: the standard deviation
      of their loads over the mean load, in the last evaluation, averaged over blocks.
    """
    first: list[Experiment] = []

    def with_first_steps(*args: Any, **options: Any) -> Experiment:
        new = build_experiment(*args, **options)
        first.append(new)
        steps = {"train_step": first[0].train_step, "eval_step": first[0].eval_step}
        return dataclasses.replace(new, **steps)

    found, reads = [], FAMILIES[name].reads
    with (
        tempfile.TemporaryDirectory() as scratch,
        mock.patch.object(train, "build_experiment", with_first_steps),
    ):
        fields = {"data.path": packed(reads, f"{scratch}/data")} if reads else {}
        for seed in seeds:
            config, workdir = config_of(name, seed), Path(scratch) / f"seed_{seed}"
            config.update_from_flattened_dict(fields)
            train.run(config, str(workdir), devices=jax.devices()[:1])
            records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
            found.append({"seed": seed} | measured(records, FAMILIES[name].split))
    return found


def packed(files: Mapping[str, str], out: str) -> str:
    """Packs images of WIDENET_DATA_DIR, a file for each split; returns the folder `out`."""
    here = os.environ["WIDENET_DATA_DIR"]
    splits = [f"--split={split}={here}/{name}" for split, name in files.items()]
    assert prepare_data.main(["npz", *splits, f"--out={out}"]) == 0
    return out


def measured(records: Any, split: str) -> dict[str, float]:
    """Returns the loss and the load's CV of a run's records."""
    records = list(records)
    losses = [record["cross_entropy"] for record in records if record["split"] == split]
    found = {"loss": float(np.mean(losses[-LAST_STEPS:] if split == "train" else losses[-1:]))}
    if "load" in records[-1]:
        load = np.array(records[-1]["load"])
        found["load_cv"] = float((load.std(axis=1) / load.mean(axis=1)).mean())
    return {name: round(value, 6) for name, value in found.items()}


def prediction_interval(values: Sequence[float], draws: int) -> tuple[float, float]:
    """Returns the mean of values, and the half-width of the interval of the mean of new draws."""
    n = len(values)
    t = special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)
    return float(np.mean(values)), float(t * np.std(values, ddof=1) * math.sqrt(1 / n + 1 / draws))


def compared(name: str, runs: Sequence[Mapping[str, float]]) -> list[tuple[str, bool]]:
    """Returns a line for each measure of new runs, and whether their mean is outside its interval.

    A line has the interval of the mean that the reference predicts, and its half-width in percent.
    """
    reference, found = json.loads(FILE.read_text())[name]["runs"], []
    for measure in [key for key in runs[0] if key != "seed"]:
        values = [run[measure] for run in reference]
        mean, half = prediction_interval(values, draws=len(runs))
        new = sum(run[measure] for run in runs) / len(runs)
        line = f"{name}: {measure} {new:.4f}; the reference predicts {mean:.4f} +- {half:.4f}"
        found.append((f"{line} ({half / mean:.1%})", abs(new - mean) > half))
    return found


# Fields that were added after the references were made; with these values nothing has changed.
ADDED = {
    "checkpoint.retry_minutes": 10.0,
    "model.adapter.alpha": 8.0,
    "model.adapter.rank": 0,
    "model.adapter.tie": "weights",
    "model.drop_path": 0.0,
}


def settings_hash(name: str) -> str:
    """Returns a hash of all fields of a family's config."""
    fields = flatten(plain(config_of(name, 0))).items()
    known = {field: value for field, value in fields if (field, value) not in ADDED.items()}
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def reference_of(name: str, runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Returns a family's entry of the file."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    entry = {
        "command": f"python tests/convergence.py {name} --seeds={len(runs)}",
        "commit": subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip(),
        "settings": settings_hash(name),
    }
    for measure in [key for key in runs[0] if key != "seed"]:
        values = [run[measure] for run in runs]
        spread = {"mean": float(np.mean(values)), "deviation": float(np.std(values, ddof=1))}
        entry[measure] = {key: round(value, 6) for key, value in spread.items()}
    return entry | {"runs": list(runs)}


def main(argv: Sequence[str] | None = None) -> None:
    """Makes the reference of the families named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0")
    flags = parser.parse_args(argv)
    if unknown := set(flags.families) - FAMILIES.keys():
        parser.error(f"no family {min(unknown)}; there are {', '.join(FAMILIES)}")
    for name in flags.families or FAMILIES:
        entry = reference_of(name, train_seeds(name, range(flags.seeds)))
        written = json.loads(FILE.read_text()) if FILE.exists() else {}
        FILE.write_text(json.dumps(written | {name: entry}, indent=1) + "\n")


if __name__ == "__main__":
    main()
