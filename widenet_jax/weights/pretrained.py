"""Weights that `config.init_from` names: a run, an exported directory, or public ViT weights."""

from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

from widenet_jax.errors import BadInputError
from widenet_jax.files import absolute
from widenet_jax.weights import google, huggingface
from widenet_jax.weights.arrays import SUFFIXES, read_arrays
from widenet_jax.weights.exported import check_image_classifier, read_json
from widenet_jax.weights.trained import read_model

# Fields of `config.model` that change what a backbone computes and no shape of its parameters.
CHECKED = ("num_heads", "norm_epsilon", "activation", "norm_position")


def load_pretrained(place: str, sharding: jax.sharding.Sharding, *, model: Mapping) -> dict:
    """Loads parameters for a run of a vision model to start from: host arrays under our names.

    Args:
      place: the workdir of a run; a directory written by `scripts/export.py`; a `.npz` of Google's
        ViT; a `.safetensors` of Hugging Face's ViT with its `config.json` beside it, or the
        directory of both.
      sharding: over all devices of all hosts, replicated. It serves to read a run's checkpoint;
        every host reads the other kinds for itself.
      model: `config.model` of the new run.

    Raises:
      BadInputError: there are no such weights, a file is damaged, or `model` computes another
        function with them.
      RunFailedError: every checkpoint of the run is damaged.
    """
    if "patch_size" not in model:
        raise BadInputError(
            f"config.init_from={place}: only vision transformers start from stored weights, and "
            f"this run's model is {model['name']}"
        )
    if files := weight_files(absolute(place)):
        params, fields = read_public(files, source=place)
    else:
        found = read_model(place, sharding, flag="--config.init_from")
        check_image_classifier(found, f"config.init_from={place}")
        params, fields = found.params, found.config["model"]
    check_same_function(fields, model, place)
    return params


def weight_files(path: epath.Path) -> list[epath.Path]:
    """Lists the files of flat arrays that `path` is or holds; large models have several."""
    if path.suffix in SUFFIXES:
        return [path]
    return sorted(path.glob("model*.safetensors")) if path.is_dir() else []


def read_public(files: list[epath.Path], *, source: str) -> tuple[dict, dict[str, Any]]:
    """Reads public weights: our parameter tree, and the fields of `config.model` they require.

    Raises:
      BadInputError: an unknown layout, or no `config.json` beside Hugging Face's weights.
    """
    arrays = {}
    for file in files:
        arrays |= read_arrays(file)
    if google.is_google(arrays):
        fields = google.model_fields(arrays, source=source)
        return google.from_google(arrays, source=source), fields
    if not huggingface.is_huggingface(arrays):
        raise BadInputError(
            f"config.init_from={source}: neither Google's ViT nor Hugging Face's; for a model of "
            "ours give the workdir of its run, or the directory that scripts/export.py wrote"
        )
    beside = files[0].parent / "config.json"
    if not beside.exists():
        raise BadInputError(
            f"config.init_from={source}: {beside.name} is missing beside the weights; download it "
            "too: it names their number of heads, LayerNorm epsilon and activation"
        )
    fields = huggingface.model_fields(read_json(beside), source=str(beside))
    return huggingface.from_huggingface(arrays, source=source), fields


def check_same_function(stored: Mapping[str, Any], model: Mapping[str, Any], place: str) -> None:
    """Raises BadInputError, with the flags to add, where `model` computes another function."""
    differ = [name for name in CHECKED if stored[name] != model[name]]
    if differ:
        here = ", ".join(f"{name}={model[name]}" for name in differ)
        flags = " ".join(f"--config.model.{name}={stored[name]}" for name in differ)
        raise BadInputError(
            f"config.init_from={place} was trained with another function than this run's {here}; "
            f"add {flags}"
        )
