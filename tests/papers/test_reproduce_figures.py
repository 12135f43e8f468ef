"""The paper's figures, checked by the pixels of the pictures."""

from pathlib import Path

import cv2
import numpy as np
from matplotlib.colors import to_rgb

from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.norm_divergence import norm_divergence
from widenet_jax.papers.experiments import EXPERIMENTS
from widenet_jax.papers.figures import divergences, draw_against, draw_norms, draw_table
from widenet_jax.papers.runs import Measured
from widenet_jax.papers.scales import SCALES, run_of

SMALL = SCALES["small"]


def coloured(picture: Path, colour: str) -> np.ndarray:
    """[N, 2] rows and columns of the pixels of a colour."""
    image = cv2.cvtColor(cv2.imread(str(picture)), cv2.COLOR_BGR2RGB).astype(float)
    return np.argwhere(np.abs(image - 255 * np.array(to_rgb(colour))).sum(axis=-1) < 30)


def row(label: str, variant: str, mean: float, params: int = 7, paper=None, same_as=None) -> dict:
    return {
        "label": label, "variant": variant, "mean": mean, "std": None, "values": [mean],
        "params": params, "paper": paper, "same_as": same_as, "training": None,
    }  # fmt: skip


def test_a_table_shows_the_papers_numbers_and_ours(tmp_path: Path):
    """Blue dots on the left, orange dots on the right; NaN and text are written as words."""
    rows = [row("one", "v", 50.0, paper=70.0), row("two", "v", 60.0, paper=80.0)]
    lost = [row("three", "v", np.nan, paper=np.nan), row("four", "v", 55.0, paper="out of memory")]
    draw_table(EXPERIMENTS["table3"], rows, tmp_path / "two.png")
    draw_table(EXPERIMENTS["table3"], [*rows, *lost], tmp_path / "four.png")
    width = cv2.imread(str(tmp_path / "two.png")).shape[1]
    for colour, right in (("C0", False), ("C1", True)):
        dots = coloured(tmp_path / "two.png", colour)
        assert len(dots) > 20 and np.all((dots[:, 1] > width / 2) == right)
        upper, lower = (dots[:, 0] < dots[:, 0].mean()), (dots[:, 0] > dots[:, 0].mean())
        assert dots[upper, 1].mean() < dots[lower, 1].mean()  # the second row has the larger number
    blue = [len(coloured(tmp_path / name, "C0")) for name in ("two.png", "four.png")]
    assert blue[0] == blue[1]  # neither NaN nor text is a dot


def test_accuracy_against_experts_and_groups(tmp_path: Path, drawn):
    """Points stand by number; equal runs are one point."""
    rows = [
        row("E = 4", "vit_moe_s", 50.0) | {"training": 10.0},
        row("E = 16", "vit_moe_s,experts=16", 30.0) | {"training": 20.0},
        row("E = 8", "vit_moe_s,experts=8", 40.0),
    ]
    draw_against(EXPERIMENTS["fig2"], SMALL, rows, tmp_path / "fig2.png")
    rows = [
        row("G = 12", "widenet_s", 50.0),
        row("G = 3", "widenet_s,routing_groups=1", 40.0),
        row("G = 2", "widenet_s,routing_groups=1", 40.0, same_as="G = 3"),
    ]
    draw_against(EXPERIMENTS["fig3"], SMALL, rows, tmp_path / "fig3.png")
    test, training = (figure_line.get_xydata().tolist() for figure_line in data_lines(drawn[0]))
    assert test == [[4, 50], [8, 40], [16, 30]] and training == [[4, 10], [16, 20]]
    (groups,) = data_lines(drawn[1])
    assert groups.get_xydata().tolist() == [[1, 40], [4, 50]]


def data_lines(figure) -> list:
    """The lines of a figure; errorbar adds lines for its caps, which are no data."""
    return [line for line in figure.axes[0].lines if line.get_linestyle() != "None"]


def test_divergence_of_every_seed(digits_run, tmp_path: Path):
    """The same run counts as two seeds here; a model without finished runs has no curve."""
    wide, plain = EXPERIMENTS["fig4"].rows[1], EXPERIMENTS["fig4"].rows[0]
    measured = {
        run_of(SMALL, EXPERIMENTS["fig4"], wide): Measured((), (str(digits_run),) * 2),
        run_of(SMALL, EXPERIMENTS["fig4"], plain): Measured(()),
    }
    curves = divergences(EXPERIMENTS["fig4"], SMALL, measured)
    alone = norm_divergence(open_trained(str(digits_run)).params)["gamma"].block
    assert list(curves) == ["WideNet-B"]
    np.testing.assert_allclose(curves["WideNet-B"], [alone, alone])
    draw_norms(EXPERIMENTS["fig4"], {"ViT-B": alone[None] / 2} | curves, tmp_path / "fig4.png")
    middle = [
        np.median(coloured(tmp_path / "fig4.png", colour)[:, 0]) for colour in ("C0", "C1")
    ]  # fmt: skip
    assert middle[1] < middle[0]  # the larger one is higher
