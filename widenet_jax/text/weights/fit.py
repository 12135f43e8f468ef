"""Pretrained arrays of a text encoder in a model of another length or vocabulary."""

from collections.abc import Mapping

import numpy as np

# Tables whose last rows a smaller model does without.
TABLES = ("embeddings/position", "embeddings/token", "mlm/bias")


def fit(name: str, value: np.ndarray, shape: tuple[int, ...], model: Mapping) -> np.ndarray:
    """Takes the first positions, and the first rows of a table that was padded beyond V.

    A larger table here fails the comparison of shapes. See `specs.ModelSpec`.
    """
    del model
    return value[: shape[0]] if name in TABLES else value
