"""Exported models: plain files that other programs read without this package.

params.safetensors or params.npz   every parameter by path, float32
config.json                        the run's configuration
class_names.json  tokenizer.json   facts of the data that the model needs, as in the workdir
export.json                        format version, step, SHA-256 of the parameters, results
README.md                          the model card
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from etils import epath

from widenet_jax.checkpoint.hashes import params_sha256
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.errors import BadInputError, check_format, choose
from widenet_jax.files import read_json, write_json, write_text
from widenet_jax.inference.arrays import read_arrays, write_arrays
from widenet_jax.inference.model_card import model_card
from widenet_jax.specs import model_spec, resolve

FORMAT_VERSION = 1
FORMATS = {"safetensors": "params.safetensors", "npz": "params.npz"}
RECORD = "export.json"
WEIGHTS = "model.safetensors"  # in the layout of Hugging Face


@dataclass(frozen=True)
class Exported:
    """A stored model: everything an export or a run's checkpoint keeps of it.

    Attributes:
      params: host arrays.
      config: the run's, as plain dicts, under today's names.
      info: facts of the data, as the sources gave them: {"class_names": [...], "tokenizer": ...}.
      step: the checkpoint's step.
      result: the run's `result.json`; empty if the run has not finished.
    """

    params: dict
    config: dict[str, Any]
    info: Mapping[str, Any]
    step: int
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Label k is class_names[k]; empty for a task without classes."""
        return tuple(self.info.get("class_names", ()))

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a text model."""
        return Tokenizer(self.info["tokenizer"]) if "tokenizer" in self.info else None


def is_exported(directory: epath.Path) -> bool:
    """Tells whether a directory is a finished export."""
    return (directory / RECORD).exists()


def write_exported(directory: epath.Path, model: Exported, *, file_format: str) -> None:
    """Writes an export; `export.json` comes last, so that an interrupted export is not opened.

    Raises:
      BadInputError: the format is unknown, or the directory is not empty.
    """
    arrays_file = choose(FORMATS, file_format, field="format")
    make_empty(directory)
    params = jax.tree.map(np.asarray, model.params)
    write_arrays(directory / arrays_file, flax.traverse_util.flatten_dict(params, sep="/"))
    record = {
        "format_version": FORMAT_VERSION,
        "params_file": arrays_file,
        "params_sha256": params_sha256(params),
        "info": sorted(model.info),
        "step": model.step,
        "result": dict(model.result),
    }
    write_text(directory / "README.md", model_card(model.config, model.info, record))
    write_json(directory / "config.json", model.config)
    for name, value in model.info.items():
        write_json(directory / f"{name}.json", value)
    write_json(directory / RECORD, record)


def write_huggingface(directory: epath.Path, model: Exported, *, place: str) -> None:
    """Writes a model in the layout of Hugging Face's transformers; `config.json` comes last.

    Args:
      directory: a new one.
      model: as read.
      place: where it was read from, for messages.

    Raises:
      BadInputError: their library has no such model, or the directory is not empty.
    """
    name = model.config["model"]["name"]
    layout = resolve(model_spec(name).layout)
    if layout is None:
        raise BadInputError(
            f"--format=huggingface: {place} holds a {name}; only text models go there; export it "
            "with --format=safetensors"
        )
    arrays, files = layout(model, place)
    make_empty(directory)
    write_arrays(directory / WEIGHTS, arrays)
    record = {
        "params_sha256": params_sha256(jax.tree.map(np.asarray, model.params)),
        "step": model.step,
        "result": dict(model.result),
    }
    architecture = files["config.json"]["architectures"][0]
    card = model_card(model.config, model.info, record, huggingface=architecture)
    write_text(directory / "README.md", card)
    for file, content in files.items():
        write_json(directory / file, content)


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
    facts = record.get("info", ["class_names"])  # earlier versions exported image classifiers only
    if odd := [name for name in facts if not name.isidentifier()]:
        raise BadInputError(
            f"{directory / RECORD}: info {odd[0]!r} is no name; copy or export it again"
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
        config=read_json(directory / "config.json"),
        info={name: read_json(directory / f"{name}.json") for name in facts},
        step=record["step"],
        result=record["result"],
    )


def make_empty(directory: epath.Path) -> None:
    """Makes a directory; raises BadInputError if it has files."""
    if directory.exists() and any(directory.iterdir()):
        raise BadInputError(f"--out={directory} is not empty; name a new directory")
    directory.mkdir(parents=True, exist_ok=True)
