"""Position keys of all distances as few sinusoids, so that scores by distance need no shift.

Transformer-XL (Dai et al. 2019) adds q_i r_(i-j) to the score of query i and key j, where the
position key r_d is a linear map of the sinusoids of d. The usual way computes q_i r_d for every
distance and moves row i by i places; a TPU spends more time on that move than on all the rest of
the layer. Here angles are added instead: cos(t (i - j)) = cos(t i) cos(t j) + sin(t i) sin(t j), so
that scores by distance are one product of rotated queries with a constant table of the key's place.

Such a product costs as many terms as there are sinusoids. Their frequencies fall from 1 to 1/10000
in D / 2 steps, and over S distances most of them cannot be told apart: 128 of 512 frequencies give
all sinusoids of 1,024 distances with an error of 4e-8 (root mean square).
"""

from functools import cache

import jax.numpy as jnp
import numpy as np

from widenet_jax.typing import Array

# Largest relative error of a sinusoid over all distances, in the root mean square.
TOLERANCE = 1e-6
# Frequencies come in multiples of this, where that costs no accuracy: rows of a TPU's tile.
MULTIPLE = 8


@cache
def distance_basis(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds R / 2 frequencies that replace the D / 2 of sinusoids of `width` D over S distances.

    A Cholesky decomposition with pivots of the waves' inner products (which are known in closed
    form) takes the frequency that those taken before explain worst, until none is explained badly.

    Args:
      count: S, for the distances 0 to S - 1.
      width: D.

    Returns:
      waves [S, R] float32, whose row d has R / 2 cosines and then R / 2 sines of the angles of
      d, a distance or a place; and mixing [R, D] float32. Row d of waves @ mixing is
      sin(theta_0 d), cos(theta_0 d), sin(theta_1 d), ... for theta_k = 10000^(-2k/D).
    """
    theta = 10000.0 ** (-np.arange(0, width, 2) / width)
    delta = (theta[:, None] - theta) / 2
    product = np.sinc(count * delta / np.pi) / np.sinc(delta / np.pi)  # of exp(i theta d), centred
    rows, chosen = [], []
    while len(chosen) < len(theta):
        left = np.diag(product)
        worst = left.argmax()
        if left[worst] < (1e-15 if len(chosen) % MULTIPLE else TOLERANCE**2):
            break
        chosen.append(worst)
        rows.append(product[worst] / np.sqrt(left[worst]))
        product = product - np.outer(rows[-1], rows[-1])
    factor = np.stack(rows)
    # exp(i theta_f d) = sum_m wave[m, f] exp(i theta_m d), real around the middle of the distances.
    middle = (count - 1) / 2
    phase = np.exp(1j * middle * theta)
    wave = np.linalg.solve(factor[:, chosen], factor) * phase / phase[chosen][:, None]
    # A sinusoid s sin + c cos is the real part of (c - i s) exp(i theta d).
    of_cosine = np.stack([wave.imag, wave.real], axis=-1).reshape(len(chosen), -1)
    of_sine = np.stack([wave.real, -wave.imag], axis=-1).reshape(len(chosen), -1)
    angle = np.arange(count)[:, None] * theta[chosen]
    waves = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    return waves.astype("float32"), np.concatenate([of_cosine, of_sine]).astype("float32")


def rotate(of_cosine: Array, of_sine: Array, waves: Array) -> Array:
    """Rotates the terms of queries by their places, so that they meet the waves of the key's place.

    Args:
      of_cosine, of_sine: [..., R / 2], the terms a and b of a cos(t d) + b sin(t d).
      waves: [..., R], at the place p of each query.

    Returns:
      [..., R]; its product with the waves of place j is the sum of the terms for d = p - j.
    """
    cosines, sines = jnp.split(waves, 2, axis=-1)
    x = of_cosine * cosines + of_sine * sines
    return jnp.concatenate([x, of_cosine * sines - of_sine * cosines], axis=-1)
