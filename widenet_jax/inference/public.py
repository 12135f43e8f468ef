"""Public models, opened for predictions without a run of ours."""

import jax
import jax.numpy as jnp

from widenet_jax.data.contract import DataInfo
from widenet_jax.errors import BadInputError, first_line
from widenet_jax.experiment import build_task, input_spec
from widenet_jax.files import absolute, is_remote
from widenet_jax.inference.finetune import finetune_params
from widenet_jax.inference.pretrained import read_public, weight_files
from widenet_jax.inference.trained import open_trained
from widenet_jax.nn.build import build_model
from widenet_jax.nn.counting import parameter_shapes
from widenet_jax.specs import model_spec, resolve, task_spec
from widenet_jax.trained import Trained

# Packages, which may be absent, whose errors tell of credentials and networks.
REMOTE_PACKAGES = {"aiohttp", "fsspec", "gcsfs", "google", "requests"}


def is_public(place: str) -> bool:
    """Returns whether a directory or file holds public weights, and not a run or an export."""
    return bool(weight_files(absolute(place)))


def open_model(place: str, *, checkpoint: str | None = None) -> Trained:
    """Opens a run, an export or public weights: `open_trained` or `open_public`.

    Raises:
      BadInputError: as these do, or a checkpoint is chosen of public weights, or a bucket cannot be
        reached.
      RunFailedError: as `open_trained`.
    """
    try:
        if not is_public(place):
            return open_trained(place, checkpoint=checkpoint)
        if not checkpoint:
            return open_public(place)
    except Exception as error:
        if not is_remote(place) or not _is_of_access(error):
            raise
        raise BadInputError(
            f"{place} cannot be read: {first_line(error)}; log in with `gcloud auth "
            "application-default login`, or copy the directory to this machine"
        ) from error
    raise BadInputError(
        f"--workdir={place} holds public weights, and only a run has checkpoints to choose "
        f"from; leave the choice of {checkpoint} out"
    )


def _is_of_access(error: Exception) -> bool:
    """Returns whether an error comes from a file system, a network or a login."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or not packages.isdisjoint(REMOTE_PACKAGES)


def open_public(place: str) -> Trained:
    """Opens public weights that predict as they are, such as a BERT that fills masks.

    Parameters that the files lack and predictions do not read are zeros.

    Args:
      place: a directory with weights, `config.json` and tokenizer.

    Raises:
      BadInputError: a file is missing or damaged, or no task can use the model as it is.
    """
    public, fields, _ = read_public(weight_files(absolute(place)), source=f"--workdir={place}")
    usable = resolve(model_spec(fields["name"]).usable)
    found = usable and usable(place, public, fields)
    if not found:
        raise BadInputError(
            f"--workdir={place} holds public weights without a head for masked words, the only one "
            "that can be used as it is; finetune them on your data, from "
            f"--config.init_from={place}, and give the --workdir of that run"
        )
    config, info = found
    example = resolve(task_spec(config.task.name).example)(config, public)
    task = build_task(config, DataInfo(0, example, info))
    model = build_model(config.model, **task.model_fields)
    shapes = parameter_shapes(model, input_spec(task))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    params, _ = finetune_params(jax.device_get(zeros), public, model=config.model, source=place)
    return Trained(place, config, info, task, model, params, step=0)
