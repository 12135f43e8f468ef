"""A trained model from where it lies: the workdir of a run, or a directory it was exported to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from ml_collections import ConfigDict

from widenet_jax.checkpoint.checkpoints import absolute, load_newest
from widenet_jax.config.files import override
from widenet_jax.errors import BadInputError
from widenet_jax.models.vit import build_model, parameter_shapes
from widenet_jax.param_names import path_names
from widenet_jax.typing import PyTree
from widenet_jax.weights.exported import Exported, is_exported, read_exported, read_json


@dataclass(frozen=True)
class Trained:
    """What evaluation, prediction and analysis need of a model.

    Attributes:
      place: where it was read from, for messages.
      config: of its run, with the caller's changes.
      class_names: label k is class_names[k].
      model: the Linen module.
      params: host arrays.
      image_shape: (height, width, channels) of the images it takes.
      step: of the checkpoint.
    """

    place: str
    config: ConfigDict
    class_names: tuple[str, ...]
    model: nn.Module
    params: PyTree
    image_shape: tuple[int, int, int]
    step: int


def open_trained(place: str, changes: Sequence[str] = ()) -> Trained:
    """The newest whole checkpoint of a run, or an exported model.

    Args:
      place: a workdir, or a directory that `scripts/export.py` wrote.
      changes: to the config, as `--config.FIELD=VALUE`.

    Raises:
      BadInputError: neither is there, or a change that cannot be made.
      RunFailedError: no checkpoint of the run is whole.
    """
    found = read_model(place)
    config = ConfigDict(found.config)
    override(config, ["", *changes])
    class_names = tuple(found.class_names)
    model = build_model(config.model, len(class_names))
    size = config.data.image_size
    channels = found.params["embed"]["projection"]["kernel"].shape[2]
    check_fits(model, found.params, (size, size, channels), place)
    return Trained(
        place, config, class_names, model, found.params, (size, size, channels), found.step
    )


def read_model(place: str) -> Exported:
    """A run's newest whole checkpoint, or an exported directory, as `scripts/export.py` takes it.

    Raises: as `open_trained`.
    """
    path = absolute(place)
    if is_exported(path):
        return read_exported(path)
    one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    newest = load_newest(path, one_device) if path.is_dir() else None
    if newest is None:
        raise BadInputError(
            f"--workdir={place}: no finished checkpoint there; give the workdir of a training run, "
            "or a directory that scripts/export.py wrote"
        )
    step = newest.meta["step"]
    return Exported(
        params=jax.device_get(newest.items["params"]),
        config=newest.meta["config"],
        class_names=newest.meta["class_names"],
        step=step,
        result=result_at(path / "result.json", step),
    )


def result_at(path: Any, step: int) -> dict[str, Any]:
    """The run's result, if it is that of this step: of an unfinished run there is none."""
    result = read_json(path) if path.exists() else {}
    return result if result.get("steps") == step else {}


def check_fits(
    model: nn.Module, params: PyTree, image_shape: tuple[int, int, int], place: str
) -> None:
    """Raises BadInputError, naming the first parameter, unless `params` are those of `model`."""
    wanted, there = shapes(parameter_shapes(model, image_shape)), shapes(params)
    odd = [name for name in sorted(wanted | there) if wanted.get(name) != there.get(name)]
    if odd:
        raise BadInputError(
            f"{place}: {odd[0]} is {there.get(odd[0], 'missing')} there, and its config asks for "
            f"{wanted.get(odd[0], 'none')}; leave --config.model and image_size as they were"
        )


def shapes(tree: PyTree) -> dict[str, list[int]]:
    return {
        name: list(np.shape(leaf))
        for name, leaf in zip(path_names(tree), jax.tree.leaves(tree), strict=True)
    }
