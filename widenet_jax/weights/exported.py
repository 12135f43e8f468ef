"""Exported models: plain files that other programs read without this package.

params.safetensors or params.npz   every parameter by path, float32
config.json  class_names.json      the run's configuration; the classes
export.json                        format version, step, SHA-256 of the parameters, results
README.md                          the model card
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from etils import epath

from widenet_jax.checkpoint.hashes import params_sha256
from widenet_jax.config.stored_names import upgrade
from widenet_jax.errors import BadInputError, check_format, choose
from widenet_jax.files import write_json, write_text
from widenet_jax.weights.arrays import read_arrays, write_arrays
from widenet_jax.weights.model_card import model_card

FORMAT_VERSION = 1
FORMATS = {"safetensors": "params.safetensors", "npz": "params.npz"}
RECORD = "export.json"


@dataclass(frozen=True)
class Exported:
    """A stored model: everything an export or a run's checkpoint keeps of it.

    Attributes:
      params: host arrays.
      config: the run's, as plain dicts, under today's names.
      class_names: label k is class_names[k]; empty for a task without classes.
      step: the checkpoint's step.
      result: the run's `result.json`; empty if the run has not finished.
    """

    params: dict
    config: dict[str, Any]
    class_names: Sequence[str]
    step: int
    result: Mapping[str, Any] = field(default_factory=dict)


def check_image_classifier(model: Exported, place: str) -> None:
    """Raises BadInputError unless a stored model classifies images.

    Args:
      model: as read.
      place: where it was read from, for the message.
    """
    if not (model.class_names and "patch_size" in model.config["model"]):
        task, name = (model.config[section]["name"] for section in ("task", "model"))
        raise BadInputError(
            f"{place} holds a model {name} of the task {task}; only image classifiers can be "
            "evaluated, exported or finetuned here"
        )


def is_exported(directory: epath.Path) -> bool:
    """Tells whether a directory is a finished export."""
    return (directory / RECORD).exists()


def write_exported(directory: epath.Path, model: Exported, *, file_format: str) -> None:
    """Writes an export; `export.json` comes last, so that an interrupted export is not opened.

    Raises:
      BadInputError: the format is unknown, or the directory is not empty.
    """
    arrays_file = choose(FORMATS, file_format, field="format")
    if directory.exists() and any(directory.iterdir()):
        raise BadInputError(f"--out={directory} is not empty; name a new directory")
    directory.mkdir(parents=True, exist_ok=True)
    params = jax.tree.map(np.asarray, model.params)
    write_arrays(directory / arrays_file, flax.traverse_util.flatten_dict(params, sep="/"))
    record = {
        "format_version": FORMAT_VERSION,
        "params_file": arrays_file,
        "params_sha256": params_sha256(params),
        "step": model.step,
        "result": dict(model.result),
    }
    write_text(directory / "README.md", model_card(model.config, model.class_names, record))
    write_json(directory / "config.json", model.config)
    write_json(directory / "class_names.json", list(model.class_names))
    write_json(directory / RECORD, record)


def read_exported(directory: epath.Path) -> Exported:
    """Reads an export, of this version or an earlier one.

    Raises:
      BadInputError: a file is missing or damaged, or has an unknown format version.
    """
    record = read_json(directory / RECORD)
    check_format(record, FORMAT_VERSION, place=directory / RECORD)
    # A record must not name a file outside its directory.
    if record["params_file"] not in FORMATS.values():
        raise BadInputError(
            f"{directory / RECORD}: params_file {record['params_file']!r} is none of "
            f"{', '.join(FORMATS.values())}; copy or export it again"
        )
    arrays = read_arrays(directory / record["params_file"])
    params = flax.traverse_util.unflatten_dict(arrays, sep="/")
    if params_sha256(params) != record["params_sha256"]:
        raise BadInputError(
            f"{directory / record['params_file']}: the parameters differ from the exported ones; "
            "copy or export it again"
        )
    return Exported(
        params=params,
        config=upgrade(read_json(directory / "config.json")),
        class_names=tuple(read_json(directory / "class_names.json")),
        step=record["step"],
        result=record["result"],
    )


def read_json(path: epath.Path) -> Any:
    """Reads a JSON file; raises BadInputError if it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadInputError(f"{path}: {reason}; copy or export it again") from None
