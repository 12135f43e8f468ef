"""Figures of routing and norms, read back by their colours."""

import numpy as np
from matplotlib.colors import to_rgb

from widenet_jax.ops.analysis.figures import COLOURS, draw_divergence, expert_colours
from widenet_jax.ops.analysis.norm_divergence import Divergence


def test_more_experts_than_colours_stay_apart():
    colours = expert_colours(25)
    np.testing.assert_allclose(colours[0], to_rgb(COLOURS[0]))
    assert len({tuple(c.round(3)) for c in colours}) == 25
    assert colours.min() >= 0 and colours.max() <= 1


def test_divergence_has_a_line_for_each_model(tmp_path, drawn):
    def vectors(y: float) -> dict[str, Divergence]:
        return dict.fromkeys(("gamma", "beta"), Divergence(np.zeros(2), np.full(4, y)))

    draw_divergence({"WideNet": vectors(2.0), "ViT": vectors(1.0)}, tmp_path / "d.png")
    for panel in drawn[0].axes:
        assert [list(line.get_ydata()) for line in panel.lines] == [[2.0] * 4, [1.0] * 4]
