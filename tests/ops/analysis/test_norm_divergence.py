"""Eq. 9 by hand, against its triple loop, and from a model's parameters."""

import cv2
import numpy as np
import pytest

from widenet_jax.cli.analyze import report
from widenet_jax.errors import BadInputError
from widenet_jax.ops.analysis.figures import draw_divergence
from widenet_jax.ops.analysis.norm_divergence import divergence, norm_divergence


def test_two_blocks_of_two_elements_by_hand():
    """Block 0 holds (1, 2), block 1 holds (4, 8); M = N = 2.

    From block 0, element 0: |1-4| + |1-8| = 10; element 1: |2-4| + |2-8| = 8.
    From block 1, element 0: |4-1| + |4-2| = 5; element 1: |8-1| + |8-2| = 13.
    y of element i, over M N^2 = 8: (10 + 5) / 8 and (8 + 13) / 8.
    y of block j, over M^2 N = 8: (10 + 8) / 8 and (5 + 13) / 8.
    """
    y = divergence(np.array([[1.0, 2.0], [4.0, 8.0]]))
    np.testing.assert_allclose(y.element, [15 / 8, 21 / 8])
    np.testing.assert_allclose(y.block, [18 / 8, 18 / 8])


def triple_loop(gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes eq. 9 as printed for each element i, and the same sum for each block j."""
    N, M = gamma.shape
    element, block = np.zeros(M), np.zeros(N)
    for i in range(M):
        for j in range(N):
            for m in range(M):
                for n in range(N):
                    if j != n:
                        distance = abs(gamma[j, i] - gamma[n, m])
                        element[i] += distance / (M * N**2)
                        block[j] += distance / (M**2 * N)
    return element, block


@pytest.mark.parametrize("decimals", [0, 6])  # rounded to whole numbers: many ties
def test_the_sorted_sums_equal_the_loop(decimals: int):
    gamma = np.random.default_rng(0).normal(size=(5, 7), scale=2).round(decimals)
    y = divergence(gamma)
    element, block = triple_loop(gamma)
    np.testing.assert_allclose(y.element, element, rtol=1e-12)
    np.testing.assert_allclose(y.block, block, rtol=1e-12)
    assert y.element.mean() == pytest.approx(y.block.mean(), rel=1e-12)


def norm(*values: float) -> dict:
    return {"scale": np.array(values, np.float32), "bias": -2 * np.array(values, np.float32)}


def test_gamma_and_beta_of_a_model_in_the_order_of_the_blocks():
    """Only the norms before the feed-forward count; beta = -2 gamma doubles every distance."""
    encoder = {
        "norm_out": norm(50, 50),
        "block_02_norm_ffn": norm(0, 0),
        "block_10_norm_ffn": norm(9, 9),
        "block_00_norm_ffn": norm(1, 1),
        "block_00_norm_attention": norm(70, 70),
    }
    found = norm_divergence({"encoder": encoder})
    # Blocks at 1, 0, 9: distances to the two others 1 + 8, 1 + 9, 8 + 9, each over N = 3.
    np.testing.assert_allclose(found["gamma"].block, [9 / 3, 10 / 3, 17 / 3])
    np.testing.assert_allclose(found["beta"].block, [18 / 3, 20 / 3, 34 / 3])


def test_norms_without_beta(tmp_path):
    """RMSNorm has none; beside a LayerNorm's, its picture has both panels."""
    rms = {f"block_0{k}_norm_ffn": {"scale": np.arange(3.0) + k} for k in range(2)}
    layer = {f"block_0{k}_norm_ffn": norm(1, k, 2) for k in range(2)}
    found = {"rms": norm_divergence({"encoder": rms}), "layer": norm_divergence({"encoder": layer})}
    assert [*found["rms"]] == ["gamma"] and [*found["layer"]] == ["gamma", "beta"]
    widths = []
    for names in (["rms"], ["rms", "layer"]):
        draw_divergence({name: found[name] for name in names}, tmp_path / "d.png")
        widths.append(cv2.imread(str(tmp_path / "d.png")).shape[1])
    assert widths[1] == 2 * widths[0]
    as_json = {"gamma": {"block": [1.0, 2.0]}}
    assert "m: divergence of gamma 1.5000\n" in report({"norm_divergence": {"m": as_json}}, "out")


def test_a_shared_norm_has_no_divergence():
    with pytest.raises(
        BadInputError, match=r"compares blocks that have their own norms; this model has 0"
    ):
        norm_divergence({"encoder": {"norm_ffn": norm(1, 2)}})
