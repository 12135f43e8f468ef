"""A trained model over every image of a source: sums of whatever is asked for, each image once."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.data.images.sources import Source, build_source
from widenet_jax.data.pipeline import build_transforms, image_shape
from widenet_jax.errors import BadInputError
from widenet_jax.evaluation import placed_batches, sum_over
from widenet_jax.run.stopping import Stop
from widenet_jax.sharding import build_mesh
from widenet_jax.typing import Array, PyTree
from widenet_jax.weights.trained import Trained

# (params, {"image", "label", "mask"}) -> sums over the batch.
BatchSums = Callable[[PyTree, Mapping[str, Array]], Mapping[str, Array]]


def sums_over_source(trained: Trained, batch_sums: BatchSums) -> dict[str, np.ndarray]:
    """`batch_sums` added up over `config.data`'s evaluation split, in float64.

    Batches are those of the run's own evaluation, so that its numbers come out again. The
    parameters are whole on every device; labels are the model's.

    Args:
      trained: the model; its config names source, split, batch size and workers.
      batch_sums: a pure function, compiled here.

    Raises:
      BadInputError: the source cannot be opened or does not fit the model.
    """
    config = trained.config
    source, transform = open_source(trained)
    group = config.model.moe.images_per_group if config.model.moe else 1
    devices = jax.local_devices()
    # As many devices as whole routing groups can be dealt out to.
    devices = devices[: math.gcd(config.evaluation.batch_size // group, len(devices))]
    mesh = build_mesh({"fsdp": 1, "expert": 1}, devices)
    whole = NamedSharding(mesh, P())
    with jax.set_mesh(mesh):
        params = jax.device_put(trained.params, whole)
        step = jax.jit(batch_sums, out_shardings=whole)
        batches = placed_batches(
            config,
            mesh,
            source,
            transform,
            stop=Stop(),
            beat=lambda what: None,
            note=partial(print, file=sys.stderr),
        )
        return sum_over(partial(step, params), batches)


def open_source(trained: Trained) -> tuple[Source, Any]:
    """The evaluation split with the model's labels, and the transform to the model's images.

    Raises:
      BadInputError: it cannot be opened, knows other classes, or has images of other channels.
    """
    config = trained.config
    source = build_source(config.data, config.data.eval_split)
    _, transform = build_transforms(config.augment, config.data.image_size)
    labels = map_classes(source.class_names, trained.class_names, place=trained.place)
    shape = image_shape(source, transform, on_bad_example=config.data.on_bad_example)
    if shape != trained.image_shape:
        raise BadInputError(
            f"config.data.source={config.data.source} has images of {shape[2]} channels, and "
            f"{trained.place} was trained on {trained.image_shape[2]}"
        )
    return Relabelled(source, trained.class_names, labels), transform


def map_classes(theirs: Sequence[str], ours: Sequence[str], *, place: str) -> np.ndarray:
    """For each label of a source the model's label of the same name: int32 [classes of the source].

    A source may have fewer classes than the model, and in another order.

    Raises:
      BadInputError: one that the model does not know.
    """
    index = {name: label for label, name in enumerate(ours)}
    if unknown := [name for name in theirs if name not in index]:
        shown = ", ".join(ours[:5]) + (", ..." if len(ours) > 5 else "")
        raise BadInputError(
            f"class {unknown[0]!r} of the data ({len(unknown)} such of {len(theirs)}) is none of "
            f"the {len(ours)} that {place} knows ({shown}); classes go together by name: rename "
            "them, or finetune on this data"
        )
    return np.asarray([index[name] for name in theirs], np.int32)


@dataclass(frozen=True)
class Relabelled:
    """A source whose label k is another's.

    Attributes:
      source: where images come from.
      class_names: of the labels given.
      labels: int32, the label given for each of the source's.
    """

    source: Source
    class_names: tuple[str, ...]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        example = self.source[index]
        return {**example, "label": int(self.labels[example["label"]])}

    def describe(self, index: int) -> str:
        return self.source.describe(index)
