"""Few sinusoids stand for all those of a model, at every distance."""

import math

import ml_dtypes
import numpy as np
import pytest
from sinusoids import sinusoids

from widenet_jax.nn.attention.distances import distance_basis, rotate


@pytest.mark.parametrize(
    ("count", "width", "most"),
    [(1024, 512, 96), (1280, 412, 96), (256, 128, 32), (1, 8, 4), (5, 2, 1)],
)
def test_sinusoids_of_all_distances_from_few_frequencies(count: int, width: int, most: int):
    """Of the windows and memories of the language models, in training and in evaluation."""
    waves, mixing = distance_basis(count, width)
    assert waves.shape == (count, len(mixing)) and len(mixing) <= 2 * most
    rebuilt = waves @ mixing.astype(np.float64)
    np.testing.assert_allclose(rebuilt, sinusoids(count, width), atol=2e-5)
    assert np.sqrt(np.square(rebuilt - sinusoids(count, width)).mean()) < 5e-7
    # Rounding the terms to bfloat16 then costs no more than rounding the position keys themselves.
    assert np.abs(mixing).max() < 3


def test_rotated_terms_meet_the_key_at_the_distance():
    """3 cos t d + 4 sin t d for t = 0.7, query at place 5, keys at places 0 to 5."""
    angle = np.arange(6)[:, None] * 0.7
    waves = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    back = angle[::-1, 0]
    rotated = np.asarray(rotate(np.array([3.0]), np.array([4.0]), waves[5]))
    np.testing.assert_allclose(waves @ rotated, 3 * np.cos(back) + 4 * np.sin(back), rtol=1e-5)


def test_scores_in_bfloat16_are_as_exact_as_with_rounded_position_keys():
    """For 64 queries after 448 keys: relative error about that of the usual way, 0.3%."""
    D, H, S = 412, 41, 512
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(D, H)) / math.sqrt(8 * D)
    query = round_bfloat16(rng.normal(size=(64, H)))
    places = np.arange(S - 64, S)
    distance = places[:, None] - np.arange(S)
    seen = distance >= 0

    def by_distance(query: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return np.take_along_axis(query @ keys.T, np.maximum(distance, 0), axis=1)[seen]

    table = sinusoids(S, D).astype(np.float64)
    exact = by_distance(query, table @ kernel)
    rounded_keys = round_bfloat16(round_bfloat16(table) @ round_bfloat16(kernel))
    usual = by_distance(query, rounded_keys)
    waves, mixing = distance_basis(S, D)
    terms = [round_bfloat16(query @ round_bfloat16(k).T) for k in np.split(mixing @ kernel, 2)]
    at_query = np.asarray(rotate(*terms, waves[places]))
    ours = round_bfloat16(at_query) @ round_bfloat16(waves).T

    def error(scores: np.ndarray) -> float:
        return np.sqrt(np.square(scores - exact).mean() / np.square(exact).mean())

    assert 0.001 < error(usual) < 0.005
    assert error(ours[seen]) < 1.5 * error(usual)


def round_bfloat16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)
