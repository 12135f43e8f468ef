"""Figures and tables as pictures, and the numbers beside them."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from untrained import export_untrained

from configs import language_model
from widenet_jax.files import write_json
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.usage import ActiveUnits, ExpertUsage, measure_active
from widenet_jax.papers import figures
from widenet_jax.papers.experiments import EXPERIMENTS, chosen
from widenet_jax.papers.figures import draw_table
from widenet_jax.papers.report import write
from widenet_jax.papers.runs import Measured
from widenet_jax.papers.scales import SCALES, run_of

SMALL, SMOKE = SCALES["small"], SCALES["smoke"]
OVER_D, _, _ = chosen(["sigma_fig2"])


def row(label: str, variant: str, mean: float, params: int = 7, paper=None, same_as=None) -> dict:
    return {
        "label": label, "variant": variant, "mean": mean, "std": None, "values": [mean],
        "params": params, "paper": paper, "same_as": same_as,
    }  # fmt: skip


def test_a_table_shows_the_papers_numbers_and_ours(tmp_path: Path, drawn):
    """Dots of the paper's numbers on the left, ours on the right; NaN and text are words."""
    rows = [row("one", "v", 50.0, paper=70.0), row("two", "v", 60.0, paper=80.0)]
    rows += [row("three", "v", np.nan, paper=np.nan), row("four", "v", 55.0, paper="no memory")]
    draw_table(EXPERIMENTS["table3"], rows, tmp_path / "four.png")
    alike = rows[0] | {"values": [50.0, 50.0], "std": 0.0}
    draw_table(EXPERIMENTS["table3"], [alike], tmp_path / "alike.png")
    said = "top-1 %, ours\nseeds without a bar: no spread\nstrokes: seeds"
    assert drawn[1].axes[1].get_xlabel() == said and not drawn[1].axes[1].collections
    paper, own = drawn[0].axes
    assert [line.get_xydata().tolist() for line in paper.lines] == [[[70, 0]], [[80, 1]]]
    assert [text.get_text() for text in paper.texts] == ["NaN", "no memory"]
    dots = [line.get_xydata().tolist()[0] for line in own.lines if line.get_marker() == "o"]
    assert dots == [[50, 0], [60, 1], [55, 3]]
    assert [text.get_text() for text in own.texts] == ["NaN"]
    assert own.get_xlabel() == "top-1 %, ours"  # one seed has neither bars nor strokes
    assert paper.get_yticklabels()[0].get_text() == "one\n(here v)"


def usage_of(importance: np.ndarray) -> ExpertUsage:
    """Two blocks of 4 experts; tokens choose experts 0 and 1, or 0 and 2, twice as often."""
    chosen_by = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]])
    together = np.stack([chosen_by.T @ chosen_by] * 2)
    none = np.zeros(2)
    return ExpertUsage(
        (0, 1), "kind", ("one",), sent=none, pairs=none, importance=importance, drop_rate=none,
        router_entropy=none, together=none, selected_together=together,
    )  # fmt: skip


def labels(axis, side: str) -> set[str]:
    """Returns the labels of the ticks that lie within the axis."""
    of = getattr(axis, f"{side}axis")
    low, high = of.get_view_interval()
    ticks = zip(of.get_ticklocs(), of.get_ticklabels(), strict=True)
    return {label.get_text() for at, label in ticks if low <= at <= high}


EVEN = usage_of(np.full((2, 4), 0.25))
# A tenth of an equal share is 0.025.
COLLAPSED = usage_of(np.array([[0.25, 0.25, 0.25, 0.25], [0.86, 0.06, 0.06, 0.02]]))


def figure(name: str):
    (found,) = [one for one in chosen([name]) if one.language == "e8"]
    return found


def test_the_bands_over_seeds_are_whole_and_the_models_are_named(tmp_path: Path, drawn):
    """The higher seed of WideNet-B is at 8; a small run does not carry the big name alone."""
    experiment = EXPERIMENTS["fig5"]
    found = {"ViT-B": np.array([[2.0, 1.0]]), "WideNet-B": np.array([[0.5, 4.0], [3.0, 8.0]])}
    figures.draw(experiment, SCALES["small"], found, tmp_path / "fig5.png")
    (axis,) = drawn[0].axes
    assert axis.get_ylim()[1] > 8
    texts = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert texts == ["ViT-B (here vit_s)", "WideNet-B (here widenet_s)"]


def test_shares_in_numbers(tmp_path: Path, drawn):
    experiment, found = figure("sigma_fig3"), {"sigma-MoE": EVEN, "softmax": COLLAPSED}
    text = figures.markdown(experiment, SMOKE, found)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["sigma-MoE", "25.0%; 0 of 4", "25.0%; 0 of 4"] in rows
    assert ["softmax", "25.0%; 0 of 4", "86.0%; 1 of 4"] in rows
    assert "- Switch, K = 1, G = 512: not run." in text
    figures.draw(experiment, SMOKE, found, tmp_path / "shares.png")
    first, last = drawn[0].axes
    assert [*last.lines[1].get_ydata()] == pytest.approx([86, 6, 6, 2])
    assert 1 < first.get_ylim()[0] < 2 and first.get_ylim()[1] < 110  # the curves fill the axis
    assert labels(first, "y") == {"2", "5", "10", "20", "50", "100"}
    long = {f"S-BASE, K = 2, G = {k} (paper: K = 4, G = 128)": EVEN for k in range(3)}
    figures.draw_shares_of(long, tmp_path / "long.png", title="")
    legend = drawn[1].legends[0].get_window_extent()
    assert 0 < legend.x0 < legend.x1 < drawn[1].bbox.x1
    # Two thirds of expert 0's tokens go to 2 as well, and all tokens of 1 go to 0.
    assert figures.cells(EVEN, "together") == ["1 with 0: 100%", "1 with 0: 100%"]


@pytest.mark.slow
def test_active_units_of_the_first_seed(tmp_path: Path):
    """The command's file has the numbers of the model; without a run there is no picture."""
    experiment = figure("sigma_fig1")
    config = language_model.get_config("tiny,preset=dense,depth=1")
    config.update(evaluation={"batch_size": 64})
    place = str(export_untrained(config, {"vocab_size": 256}, tmp_path / "model"))
    run = run_of(SMOKE, experiment, experiment.rows[0])
    made_by = {"command": "x", "commits": [], "devices": []}
    _, facts = write(experiment, SMOKE, {run: Measured((), (place,))}, made_by, tmp_path)
    active = measure_active(open_trained(place))
    assert isinstance(active, ActiveUnits) and 0 < active.mean[0] < active.width
    assert facts["by_block"]["dense"] == json.loads(json.dumps(active.as_json()))
    assert f"| {active.mean[0]:.1f} of" in (tmp_path / "sigma_fig1_e8.md").read_text()
    assert cv2.imread(str(tmp_path / "sigma_fig1_e8.png")).size
    write(experiment, SMOKE, {run: Measured(())}, made_by, tmp_path / "model")
    assert not (tmp_path / "model" / "sigma_fig1_e8.png").exists()


def layer_row(method: str, embed_dim: int, ms: float | None, memory: float) -> dict:
    sizes = {"tokens": 256, "length": 128, "embed_dim": embed_dim, "expert_dim": 16}
    sizes |= {"experts": embed_dim // 4, "selected": 4, "device": "cpu"}
    return {"method": method, **sizes, "ms": ms, "guessed": None, "memory_gib": memory}


def test_layers_that_were_timed_before(tmp_path: Path):
    """The dense layer of D = 128 does not fit."""
    rows = [
        layer_row("dense", 64, 4.0, 0.8),
        layer_row("auto", 64, 2.0, 0.2),
        layer_row("dense", 128, None, 9.0),
        layer_row("auto", 128, 3.0, 0.3),
    ]
    write_json(tmp_path / f"{OVER_D.name}_rows.json", rows)
    figures.time_layers(OVER_D, SMOKE, tmp_path)  # finds the rows and times nothing
    found, text = figures.show_layers(OVER_D, SMOKE, tmp_path, tmp_path / "a.png")
    assert found == {"rows": rows} and OVER_D.claim in text
    assert cv2.imread(str(tmp_path / "a.png")).size
    _, text = figures.show_layers(OVER_D, SMOKE, tmp_path / "none", tmp_path / "b.png")
    assert "Not run." in text and not (tmp_path / "b.png").exists()


def test_norms_in_numbers():
    """Means 1.5 and 3, twice as much; above in the second block only. WideNet's seeds have the
    means 2 and 4, which are sqrt(2) from their mean by n - 1.
    """
    curves = {"ViT-B": np.array([[2.0, 1.0]]), "WideNet-B": np.array([[0.0, 4.0], [2.0, 6.0]])}
    text = figures.markdown(EXPERIMENTS["fig4"], SMALL, curves)
    assert "| WideNet-B (here widenet_s) | 1.0000 | 5.0000 | 3.0000 ± 1.4142 | 2 |" in " ".join(
        text.split()
    )
    assert "of widenet_s is 2.00 times vit_s's, and it is above in 1 of 2 blocks" in text
    alike = {"ViT-B": np.array([[2.0, 1.0], [1.0, 2.0]])}
    assert "| 1.5000 (no spread) | 2 |" in " ".join(
        figures.markdown(EXPERIMENTS["fig4"], SMALL, alike).split()
    )
    empty = figures.markdown(EXPERIMENTS["fig4"], SMALL, {})
    assert "|" not in empty and "ViT-B: not run." in empty and "WideNet-B: not run." in empty
