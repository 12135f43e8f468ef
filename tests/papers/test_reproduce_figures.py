"""The paper's figures, checked by the pixels of the pictures."""

from pathlib import Path

import cv2
import numpy as np
from matplotlib.colors import to_rgb

from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.norm_divergence import norm_divergence
from widenet_jax.papers.experiments import FIGURE_2, FIGURE_3, FIGURE_4, TABLE_3
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
    draw_table(TABLE_3, rows, tmp_path / "two.png")
    draw_table(TABLE_3, [*rows, *lost], tmp_path / "four.png")
    width = cv2.imread(str(tmp_path / "two.png")).shape[1]
    for colour, right in (("C0", False), ("C1", True)):
        dots = coloured(tmp_path / "two.png", colour)
        assert len(dots) > 20 and np.all((dots[:, 1] > width / 2) == right)
        upper, lower = (dots[:, 0] < dots[:, 0].mean()), (dots[:, 0] > dots[:, 0].mean())
        assert dots[upper, 1].mean() < dots[lower, 1].mean()  # the second row has the larger number
    blue = [len(coloured(tmp_path / name, "C0")) for name in ("two.png", "four.png")]
    assert blue[0] == blue[1]  # neither NaN nor text is a dot


def test_accuracy_against_experts_falls_where_parameters_grow(tmp_path: Path):
    rows = [
        row("E = 4", "vit_moe_s", 50.0, params=10**6) | {"training": 10.0},
        row("E = 16", "vit_moe_s,experts=16", 30.0, params=10**7) | {"training": 20.0},
        row("E = 8", "vit_moe_s,experts=8", 40.0, params=4 * 10**6),
    ]
    draw_against(FIGURE_2, SMALL, rows, tmp_path / "fig2.png")
    for colour, falls in (("C0", True), ("C1", False), ("C2", False)):
        line = coloured(tmp_path / "fig2.png", colour)
        line = line[(line[:, 1] > 80) & (line[:, 1] < 640)]  # between the axes' names
        ends = [line[line[:, 1] == end(line[:, 1]), 0].mean() for end in (np.min, np.max)]
        assert (ends[1] > ends[0]) == falls  # rows count downwards


def test_groups_are_numbers_of_routings_and_equal_runs_are_one_point(tmp_path: Path):
    rows = [
        row("G = 12", "widenet_s", 50.0),
        row("G = 6", "widenet_s,routing_groups=2", 45.0),
        row("G = 3", "widenet_s,routing_groups=1", 40.0),
    ]
    again = row("G = 2", "widenet_s,routing_groups=1", 40.0, same_as="G = 3")
    draw_against(FIGURE_3, SMALL, rows, tmp_path / "three.png")
    draw_against(FIGURE_3, SMALL, [*rows, again], tmp_path / "four.png")
    assert (tmp_path / "three.png").read_bytes() == (tmp_path / "four.png").read_bytes()
    assert len(coloured(tmp_path / "three.png", "C1")) == 0  # equal sizes need no axis


def test_divergence_of_every_seed(digits_run, tmp_path: Path):
    """The same run counts as two seeds here; a model without finished runs has no curve."""
    wide, plain = FIGURE_4.rows[1], FIGURE_4.rows[0]
    measured = {
        run_of(SMALL, FIGURE_4, wide): Measured((), (str(digits_run),) * 2),
        run_of(SMALL, FIGURE_4, plain): Measured(()),
    }
    curves = divergences(FIGURE_4, SMALL, measured)
    alone = norm_divergence(open_trained(str(digits_run)).params)["gamma"].block
    assert list(curves) == ["WideNet-B"]
    np.testing.assert_allclose(curves["WideNet-B"], [alone, alone])
    draw_norms(FIGURE_4, {"ViT-B": alone[None] / 2} | curves, tmp_path / "fig4.png")
    middle = [
        np.median(coloured(tmp_path / "fig4.png", colour)[:, 0]) for colour in ("C0", "C1")
    ]  # fmt: skip
    assert middle[1] < middle[0]  # the larger one is higher
