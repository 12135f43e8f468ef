"""Trained models: a run's workdir or an exported directory, read and opened for use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from etils import epath
from ml_collections import ConfigDict

from widenet_jax.checkpoint.checkpoints import load_newest
from widenet_jax.config.files import override
from widenet_jax.config.stored_names import upgrade
from widenet_jax.data.contract import ArraySpec, DataFacts
from widenet_jax.data.text.tokenizer import Tokenizer
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_task
from widenet_jax.files import absolute, read_json
from widenet_jax.models.build import build_model
from widenet_jax.models.counting import parameter_shapes
from widenet_jax.param_names import named_leaves
from widenet_jax.sharding import to_host
from widenet_jax.tasks.contract import ArraySpecs, Task
from widenet_jax.typing import PyTree
from widenet_jax.weights.exported import Exported, is_exported, read_exported

# Entries of a checkpoint's meta that are no facts of the data.
OF_THE_RUN = {"format_version", "step", "fingerprint", "counters", "config", "evaluation_due"}


@dataclass(frozen=True)
class Trained:
    """A model ready for evaluation, prediction and analysis.

    Attributes:
      place: the directory it was read from, for messages.
      config: the config of its run, with the caller's changes.
      info: facts of the data that it was trained on: class_names, pairs, tokenizer, vocab_size.
      task: that of its run. Its `batch_spec` describes images only.
      model: the Linen module.
      params: host arrays.
      step: the checkpoint's step.
    """

    place: str
    config: ConfigDict
    info: Mapping[str, Any]
    task: Task
    model: nn.Module
    params: PyTree
    step: int

    @property
    def class_names(self) -> tuple[str, ...]:
        """Label k is class_names[k]; empty for a task without classes."""
        return tuple(self.info.get("class_names", ()))

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a text model; None for a model of bytes."""
        return Tokenizer(self.info["tokenizer"]) if "tokenizer" in self.info else None

    def require_task(self, *names: str) -> None:
        """Raises BadInputError unless the model was trained for one of these tasks."""
        if self.config.task.name not in names:
            raise BadInputError(
                f"{self.place} holds a model of the task {self.config.task.name}; here it must be "
                f"{' or '.join(names)}"
            )


def open_trained(place: str, changes: Sequence[str] = ()) -> Trained:
    """Opens a run's newest intact checkpoint, or an exported model.

    Args:
      place: a workdir, or a directory that `scripts/export.py` wrote.
      changes: changes to the config, as `--config.FIELD=VALUE`.

    Raises:
      BadInputError: there is no model, or a change does not fit it.
      RunFailedError: every checkpoint of the run is damaged.
    """
    found = read_model(place)
    config = override(ConfigDict(found.config), changes)
    example = images_of(config, found.params) if "image_size" in config.data else {}
    task = build_task(config, DataFacts(0, example, found.info))
    model = build_model(config.model, **task.model_fields)
    check_fits(model, found.params, model_inputs(config, example), place)
    return Trained(place, config, found.info, task, model, found.params, found.step)


def images_of(config: ConfigDict, params: PyTree) -> dict[str, ArraySpec]:
    """Returns the images that a stored model takes: its first layer has their channels."""
    size, kernel = config.data.image_size, params["embed"]["projection"]["kernel"]
    return {"image": ArraySpec((size, size, kernel.shape[2]), "uint8")}


def model_inputs(config: ConfigDict, example: Mapping[str, ArraySpec]) -> ArraySpecs:
    """Returns inputs of one example that reach every parameter of a model."""
    if "image" in example:
        return {"image": jax.ShapeDtypeStruct((1, *example["image"].shape), jnp.float32)}
    spec = lambda *shape: jax.ShapeDtypeStruct((1, *shape), jnp.int32)  # noqa: E731
    T = config.data.max_length
    if config.model.name == "language_model":
        shape = (1, config.model.depth, 0, config.model.embed_dim)
        memory = jax.ShapeDtypeStruct(shape, config.model.dtype)
        return {"tokens": spec(T), "memory": memory, "memory_length": spec()}
    of_tokens = dict.fromkeys(("tokens", "segments"), spec(T))
    masks = dict.fromkeys(("mask", "allowed"), jax.ShapeDtypeStruct((1, T), jnp.bool_))
    return {**of_tokens, **masks, "mlm_positions": spec(1), "start": spec()}


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
        info={k: v for k, v in newest.meta.items() if k not in OF_THE_RUN},
        step=step,
        result=result_at(path / "result.json", step),
    )


def result_at(path: epath.Path, step: int) -> dict[str, Any]:
    """Reads a run's `result.json`; {} if the run has none, or one of another step."""
    result = read_json(path) if path.exists() else {}
    return result if result.get("steps") == step else {}


def check_fits(model: nn.Module, params: PyTree, inputs: ArraySpecs, place: str) -> None:
    """Raises BadInputError, naming the first parameter, unless `params` are those of `model`."""
    wanted, there = shapes(parameter_shapes(model, inputs)), shapes(params)
    odd = [name for name in sorted(wanted | there) if wanted.get(name) != there.get(name)]
    if odd:
        raise BadInputError(
            f"{place}: {odd[0]} is {there.get(odd[0], 'missing')} there, and its config asks for "
            f"{wanted.get(odd[0], 'none')}; leave --config.model and the input size as they were"
        )


def shapes(tree: PyTree) -> dict[str, list[int]]:
    """Returns every array's shape by its path."""
    return {name: list(leaf.shape) for name, leaf in named_leaves(tree)}
