"""Exported models with random parameters: what the commands read, without a run."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.data.contract import DataInfo
from widenet_jax.experiment import build_task, input_spec
from widenet_jax.inference.exported import write_exported
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.specs import resolve, task_spec
from widenet_jax.trained import Stored
from widenet_jax.typing import Shapes


def image_spec(image_shape: tuple[int, int, int]) -> Shapes:
    """Returns the shapes of a `VisionTransformer`'s inputs for one image (height, width, C)."""
    return {"image": jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)}


def export_untrained(config: ConfigDict, info: dict[str, Any], directory: Path) -> Path:
    """Exports the model of a config, for data with such facts; returns the directory."""
    example = resolve(task_spec(config.task.name).example)(config, None)
    task = build_task(config, DataInfo(0, example, info))
    model = build_model(config.model, **task.model_fields)
    rng = np.random.default_rng(0)
    draw = lambda spec: rng.normal(scale=0.3, size=spec.shape).astype(np.float32)  # noqa: E731
    params = jax.tree.map(draw, parameter_shapes(model, input_spec(task)))
    stored = Stored(params, json.loads(json.dumps(config.to_dict())), info, step=0)
    write_exported(epath.Path(directory), stored, file_format="npz")
    return directory


def export_texts(config: ConfigDict, words: Path, directory: Path, **info: Any) -> Path:
    """Exports a model of one block for texts of 16 tokens; `words` has its tokenizer."""
    config.update_from_flattened_dict({"model.loop.core": ((1, 1),), "data.max_length": 16})
    tokenizer = load_tokenizer(str(words))
    facts = {"tokenizer": tokenizer.json, "vocab_size": tokenizer.vocab_size, **info}
    return export_untrained(config, facts, directory)
