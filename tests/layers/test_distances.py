"""Few sinusoids stand for all those of a model, at every distance."""

import math

import numpy as np
import pytest

from widenet_jax.layers.distances import distance_basis, rotate, sinusoids


@pytest.mark.parametrize(
    ("count", "width", "most"),
    [(1024, 1024, 128), (512, 412, 64), (1280, 412, 96), (1024, 512, 96), (256, 128, 32),
     (9, 64, 16), (2, 8, 4), (1, 8, 4), (5, 2, 1)],
)  # fmt: skip
def test_sinusoids_of_all_distances_from_few_frequencies(count: int, width: int, most: int):
    """Of the segments and memories of the language models, in training and in evaluation."""
    basis = distance_basis(count, width)
    assert basis.cosines.shape == basis.sines.shape == (count, len(basis.mixing) // 2)
    assert len(basis.mixing) // 2 <= most
    of_cosine, of_sine = np.split(basis.mixing.astype(np.float64), 2)
    rebuilt = basis.cosines @ of_cosine + basis.sines @ of_sine
    np.testing.assert_allclose(rebuilt, sinusoids(count, width), atol=2e-5)
    assert np.sqrt(np.square(rebuilt - sinusoids(count, width)).mean()) < 5e-7
    # Rounding the terms to bfloat16 then costs no more than rounding the position keys themselves.
    assert np.abs(basis.mixing).max() < 3


def test_sines_are_those_of_the_distance_back():
    """Of i - j: positive for the token before, and side by side with their cosines."""
    table = sinusoids(3, 4)
    expected = [[math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]]
    np.testing.assert_allclose(table[1:2], expected, rtol=1e-6)
    np.testing.assert_array_equal(table[0], [0, 1, 0, 1])


def test_rotated_terms_meet_the_key_at_the_distance():
    """3 cos t d + 4 sin t d for t = 0.7, query at place 5, keys at places 0 to 5."""
    places = np.arange(6) * 0.7
    x, y = rotate(3, 4, math.cos(5 * 0.7), math.sin(5 * 0.7))
    back = places[::-1]
    expected = 3 * np.cos(back) + 4 * np.sin(back)
    np.testing.assert_allclose(x * np.cos(places) + y * np.sin(places), expected, rtol=1e-12)
