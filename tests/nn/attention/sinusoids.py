"""The position encoding of Transformer-XL, which the package never computes."""

import numpy as np


def sinusoids(count: int, width: int) -> np.ndarray:
    """Returns [count, width] float32: row d has sin and cos of d * 10000^(-2k/width), k = 0, 1, ...

    Columns 2k and 2k + 1 hold the sine and the cosine of one frequency. `width` must be even.
    """
    angle = np.arange(count)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(count, width).astype("float32")
