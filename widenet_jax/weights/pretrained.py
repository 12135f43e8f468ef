"""What `config.init_from` may name: a run, an exported directory, or somebody else's weights."""

import jax
from etils import epath

from widenet_jax.checkpoint.checkpoints import absolute, load_params
from widenet_jax.errors import BadInputError
from widenet_jax.sharding import to_host
from widenet_jax.weights.arrays import SUFFIXES, read_arrays
from widenet_jax.weights.exported import is_exported, read_exported
from widenet_jax.weights.google import from_google, is_google
from widenet_jax.weights.huggingface import from_huggingface, is_huggingface


def load_pretrained(place: str, sharding: jax.sharding.Sharding) -> dict:
    """Parameters (host arrays, in the names of our models) to start another run from.

    Args:
      place: the workdir of a run; a directory that `scripts/export.py` wrote; a `.npz` of Google's
        ViT; a `.safetensors` of Hugging Face's, or the directory that holds it.
      sharding: over all devices of all hosts, whole on each: how a run's checkpoint is read. The
        other kinds every host reads for itself.

    Raises:
      BadInputError: nothing of that kind there, or a damaged file.
      RunFailedError: a run none of whose checkpoints is whole.
    """
    path = absolute(place)
    if is_exported(path):
        return read_exported(path).params
    if files := weight_files(path):
        arrays = {}
        for file in files:
            arrays |= read_arrays(file)
        return to_our_names(arrays, source=place)
    return to_host(load_params(place, sharding))


def weight_files(path: epath.Path) -> list[epath.Path]:
    """The files of flat arrays that `path` is or holds; large models come in several."""
    if path.suffix in SUFFIXES:
        return [path]
    return sorted(path.glob("model*.safetensors")) if path.is_dir() else []


def to_our_names(arrays: dict, *, source: str) -> dict:
    """Raises BadInputError for a layout that is not known."""
    for known, convert in ((is_google, from_google), (is_huggingface, from_huggingface)):
        if known(arrays):
            return convert(arrays, source=source)
    raise BadInputError(
        f"config.init_from={source}: neither Google's ViT nor Hugging Face's; for a model of ours "
        "give the workdir of its run, or the directory that scripts/export.py wrote"
    )
