"""Trained models: a run's workdir or an exported directory, read, and image classifiers opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from widenet_jax.checkpoint.checkpoints import load_newest
from widenet_jax.config.files import override
from widenet_jax.config.stored_names import upgrade
from widenet_jax.errors import BadInputError
from widenet_jax.files import absolute
from widenet_jax.models.build import build_model
from widenet_jax.models.counting import parameter_shapes
from widenet_jax.param_names import named_leaves
from widenet_jax.sharding import to_host
from widenet_jax.typing import PyTree
from widenet_jax.weights.exported import (
    Exported,
    check_image_classifier,
    is_exported,
    read_exported,
    read_json,
)


@dataclass(frozen=True)
class Trained:
    """An image classifier ready for evaluation, prediction and analysis.

    Attributes:
      place: the directory it was read from, for messages.
      config: the config of its run, with the caller's changes.
      class_names: label k is class_names[k].
      model: the Linen module.
      params: host arrays.
      image_shape: (height, width, channels) of the images it takes.
      step: the checkpoint's step.
    """

    place: str
    config: ConfigDict
    class_names: tuple[str, ...]
    model: nn.Module
    params: PyTree
    image_shape: tuple[int, int, int]
    step: int


def open_trained(place: str, changes: Sequence[str] = ()) -> Trained:
    """Opens an image classifier: a run's newest intact checkpoint, or an exported model.

    Args:
      place: a workdir, or a directory that `scripts/export.py` wrote.
      changes: changes to the config, as `--config.FIELD=VALUE`.

    Raises:
      BadInputError: there is no model or one of another task, or a change does not fit it.
      RunFailedError: every checkpoint of the run is damaged.
    """
    found = read_model(place)
    check_image_classifier(found, place)
    config = ConfigDict(found.config)
    override(config, changes)
    class_names = tuple(found.class_names)
    model = build_model(config.model, num_classes=len(class_names))
    size, kernel = config.data.image_size, found.params["embed"]["projection"]["kernel"]
    shape = (size, size, kernel.shape[2])
    check_fits(model, found.params, shape, place)
    return Trained(place, config, class_names, model, found.params, shape, found.step)


def read_model(
    place: str, sharding: jax.sharding.Sharding | None = None, *, flag: str = "--workdir"
) -> Exported:
    """Reads a run's newest intact checkpoint, or an exported directory, parameters on the host.

    Args:
      place: a workdir, or a directory that `scripts/export.py` wrote.
      sharding: of a checkpoint's parameters while they are read: replicated over all devices of
        all hosts where all hosts call this; by default one local device.
      flag: where `place` was given, for messages.

    Raises: as `open_trained`.
    """
    path = absolute(place)
    if is_exported(path):
        return read_exported(path)
    sharding = sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    newest = load_newest(path, sharding) if path.is_dir() else None
    if newest is None:
        raise BadInputError(
            f"{flag}={place}: no finished checkpoint there; give the workdir of a training run, "
            "or a directory that scripts/export.py wrote"
        )
    step = newest.meta["step"]
    return Exported(
        params=to_host(newest.items["params"]),
        config=upgrade(newest.meta["config"]),
        class_names=newest.meta.get("class_names", ()),
        step=step,
        result=result_at(path / "result.json", step),
    )


def result_at(path: epath.Path, step: int) -> dict[str, Any]:
    """Reads a run's `result.json`; {} if the run has none, or one of another step."""
    result = read_json(path) if path.exists() else {}
    return result if result.get("steps") == step else {}


def check_fits(
    model: nn.Module, params: PyTree, image_shape: tuple[int, int, int], place: str
) -> None:
    """Raises BadInputError, naming the first parameter, unless `params` are those of `model`."""
    inputs = {"image": jax.ShapeDtypeStruct((1, *image_shape), np.float32)}
    wanted, there = shapes(parameter_shapes(model, inputs)), shapes(params)
    odd = [name for name in sorted(wanted | there) if wanted.get(name) != there.get(name)]
    if odd:
        raise BadInputError(
            f"{place}: {odd[0]} is {there.get(odd[0], 'missing')} there, and its config asks for "
            f"{wanted.get(odd[0], 'none')}; leave --config.model and image_size as they were"
        )


def shapes(tree: PyTree) -> dict[str, list[int]]:
    """Returns every array's shape by its path."""
    return {name: list(np.shape(leaf)) for name, leaf in named_leaves(tree)}
