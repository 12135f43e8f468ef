"""Exported models: a directory of plain files that needs neither this package nor a checkpoint.

params.safetensors or params.npz   every parameter under its path, float32
config.json  class_names.json      what was trained, on what
export.json                        format version, step, hash of the parameters, results
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
from widenet_jax.errors import BadInputError, choose
from widenet_jax.weights.arrays import read_arrays, write_arrays
from widenet_jax.weights.model_card import model_card

FORMAT_VERSION = 1
FORMATS = {"safetensors": "params.safetensors", "npz": "params.npz"}
RECORD = "export.json"


@dataclass(frozen=True)
class Exported:
    """A trained model as a file holds it.

    Attributes:
      params: host arrays.
      config: of the run, plain dicts.
      class_names: label k is class_names[k].
      step: of the checkpoint.
      result: the run's `result.json`; empty where the run has not ended.
    """

    params: dict
    config: dict[str, Any]
    class_names: Sequence[str]
    step: int
    result: Mapping[str, Any] = field(default_factory=dict)


def is_exported(directory: epath.Path) -> bool:
    return (directory / RECORD).exists()


def write_exported(directory: epath.Path, model: Exported, *, file_format: str) -> None:
    """Writes the files; `export.json` last, so that what was cut off is not taken for whole.

    Raises:
      BadInputError: an unknown format, or a directory that is not empty.
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
    (directory / "README.md").write_text(model_card(model.config, model.class_names, record))
    for name, value in (
        ("config.json", model.config),
        ("class_names.json", list(model.class_names)),
        (RECORD, record),
    ):
        (directory / name).write_text(json.dumps(value, indent=1) + "\n")


def read_exported(directory: epath.Path) -> Exported:
    """What `write_exported` wrote.

    Raises:
      BadInputError: a file is missing or damaged, or of a newer version.
    """
    record = read_json(directory / RECORD)
    if record.get("format_version") != FORMAT_VERSION:
        raise BadInputError(
            f"{directory / RECORD} has format_version {record.get('format_version')!r}, and this "
            f"version of widenet_jax reads {FORMAT_VERSION}; use the version that wrote it"
        )
    arrays = read_arrays(directory / choose(PARAMS_FILES, record["params_file"], field=RECORD))
    params = flax.traverse_util.unflatten_dict(arrays, sep="/")
    if params_sha256(params) != record["params_sha256"]:
        raise BadInputError(
            f"{directory / record['params_file']}: other numbers than were exported; copy or "
            "export it again"
        )
    return Exported(
        params=params,
        config=read_json(directory / "config.json"),
        class_names=tuple(read_json(directory / "class_names.json")),
        step=record["step"],
        result=record["result"],
    )


# What a record may name: nothing outside its directory.
PARAMS_FILES = {name: name for name in FORMATS.values()}


def read_json(path: epath.Path) -> Any:
    """Raises BadInputError where a file is missing or no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadInputError(f"{path}: {reason}; copy or export it again") from None
