"""Pictures, read back by their colours."""

import cv2
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from widenet_jax.tools.analysis.norm_divergence import Divergence
from widenet_jax.tools.analysis.routing import TokenRouting
from widenet_jax.tools.analysis.routing_figures import (
    COLOURS,
    TINT,
    draw_divergence,
    draw_overlay,
    expert_colours,
)
from widenet_jax.weights.trained import open_trained


def count(path, colour) -> int:
    """Pixels near an RGB colour in [0, 1]."""
    image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB).astype(float)
    return int((np.abs(image - 255 * np.asarray(colour)).sum(axis=-1) < 12).sum())


def routing_of(experts: list[int]) -> TokenRouting:
    """Of 16 tokens in each of 2 blocks: first choices as given in block 0, expert 3 in block 1;
    the second choices are the first."""
    first = np.array([experts, [3] * 16])[:, None, :, None]
    index = np.concatenate([first, first], axis=-1)
    return TokenRouting(index, np.ones(index.shape), np.ones((2, 1, 16, 4)), index < 0)


def test_patches_have_the_colours_of_their_experts(digits_run, tmp_path):
    """12 of 16 patches of block 0 go to expert 1, 4 to expert 0: three times as many pixels; all of
    block 1 to expert 3: 4/3 as many as to expert 1. Grey pictures: every tint is one colour."""
    trained = open_trained(str(digits_run))
    picture = np.full((8, 8, 1), 128, np.uint8)
    draw_overlay(
        trained, [picture], [routing_of([1] * 12 + [0] * 4)], tmp_path / "o.png", titles=["grey"]
    )
    tints = (1 - TINT) * 128 / 255 + TINT * expert_colours(4)
    pixels = [count(tmp_path / "o.png", tint) for tint in tints]
    assert pixels[1] / pixels[0] == pytest.approx(3, rel=0.1)
    assert pixels[3] / pixels[1] == pytest.approx(4 / 3, rel=0.1)
    assert pixels[2] == 0


def test_dropped_patches_are_crossed_out(digits_run, tmp_path):
    trained = open_trained(str(digits_run))
    picture, routing = np.full((8, 8, 1), 255, np.uint8), routing_of([1] * 16)
    black = []
    for name, dropped in (("none.png", False), ("all.png", True)):
        lost = routing.replace(dropped=np.full(routing.dropped.shape, dropped))
        draw_overlay(trained, [picture], [lost], tmp_path / name, titles=[""])
        black.append(count(tmp_path / name, (0, 0, 0)))
    assert black[1] > black[0] + 32 * 10  # 32 crosses


def test_more_experts_than_colours_stay_apart():
    colours = expert_colours(25)
    np.testing.assert_allclose(colours[0], to_rgb(COLOURS[0]))
    assert len({tuple(c.round(3)) for c in colours}) == 25
    assert colours.min() >= 0 and colours.max() <= 1


def test_divergence_has_a_line_a_model(tmp_path):
    """The higher one is drawn higher; rows count downwards."""

    def vectors(y: float) -> dict[str, Divergence]:
        return dict.fromkeys(("gamma", "beta"), Divergence(np.zeros(2), np.full(4, y)))

    draw_divergence({"WideNet": vectors(2.0), "ViT": vectors(1.0)}, tmp_path / "d.png")
    image = cv2.cvtColor(cv2.imread(str(tmp_path / "d.png")), cv2.COLOR_BGR2RGB).astype(float)
    rows = []
    for colour in ("C0", "C1"):
        near = np.abs(image - 255 * np.array(to_rgb(colour))).sum(axis=-1) < 30
        near[image.shape[0] * 2 // 3 :] = False  # the legend is below
        rows.append(np.argwhere(near)[:, 0].mean())
    assert rows[0] < rows[1]
