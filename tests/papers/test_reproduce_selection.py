"""Figures of experts and units: their numbers by hand, and pictures of a run."""

import json
from pathlib import Path

import cv2
import numpy as np
from untrained import export_untrained

from configs import language_model
from widenet_jax.cli.reproduce import main
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.active_units import ActiveUnits, measure_active
from widenet_jax.ops.analysis.expert_usage import ExpertUsage
from widenet_jax.papers import selection
from widenet_jax.papers.experiments import chosen
from widenet_jax.papers.figures import draw_curves, evaluations
from widenet_jax.papers.report import write
from widenet_jax.papers.runs import Measured
from widenet_jax.papers.scales import SCALES, run_of, runnable

SMOKE = SCALES["smoke"]


def usage_of(importance: np.ndarray) -> ExpertUsage:
    """Two blocks of 4 experts; tokens choose experts 0 and 1, or 0 and 2, twice as often."""
    chosen_by = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]])
    together = np.stack([chosen_by.T @ chosen_by] * 2)
    none = np.zeros(2)
    return ExpertUsage(
        (0, 1), "kind", ("one",), sent=none, pairs=none, importance=importance, drop_rate=none,
        router_entropy=none, together=none, selected_together=together,
    )  # fmt: skip


EVEN = usage_of(np.full((2, 4), 0.25))
# A tenth of an equal share is 0.025.
COLLAPSED = usage_of(np.array([[0.25, 0.25, 0.25, 0.25], [0.86, 0.06, 0.06, 0.02]]))


def figure(name: str):
    (found,) = [one for one in chosen([name]) if one.language == "e8"]
    return found


def test_shares_in_numbers(tmp_path: Path):
    experiment, found = figure("sigma_fig3"), {"sigma-MoE": EVEN, "softmax": COLLAPSED}
    text = selection.markdown(experiment, SMOKE, found)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["sigma-MoE", "25.0%; 0 of 4", "25.0%; 0 of 4"] in rows
    assert ["softmax", "25.0%; 0 of 4", "86.0%; 1 of 4"] in rows
    assert "- Switch, K = 1, G = 512: not run." in text
    selection.draw(experiment, found, tmp_path / "shares.png")
    assert np.ptp(cv2.imread(str(tmp_path / "shares.png"))) > 100


def test_pairs_in_numbers():
    """Two thirds of expert 0's tokens go to 2 as well, and all tokens of 1 go to 0."""
    assert selection.cells(EVEN, "together") == ["1 with 0: 100%", "1 with 0: 100%"]


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
    assert facts["selection"]["dense"] == json.loads(json.dumps(active.as_json()))
    assert f"| {active.mean[0]:.1f} of" in (tmp_path / "sigma_fig1_e8.md").read_text()
    assert cv2.imread(str(tmp_path / "sigma_fig1_e8.png")).size
    write(experiment, SMOKE, {run: Measured(())}, made_by, tmp_path / "model")
    assert not (tmp_path / "model" / "sigma_fig1_e8.png").exists()


def test_a_dry_run_of_a_figure(tmp_path: Path, capsys):
    """Fig. 3 shares its five runs with Table 4, where K = 1 and 2 of 4 are both 1 of 2 here."""
    flags = ["--scale=smoke", "--dry_run", f"--workdir={tmp_path}"]
    for names, count in ((["sigma_fig3"], 5), (["sigma_table4"], 18)):
        assert main([*names, *flags]) == 0
        assert f"{count} runs of {count} models" in capsys.readouterr().out
    assert main(["sigma_fig3", "sigma_table4", *flags]) == 0
    assert "18 runs of 18 models" in capsys.readouterr().out


def test_a_table_of_language_models_has_learning_curves(tmp_path: Path):
    """K = 1 and K = 2 are one run at this scale, which is drawn once; others did not run."""
    (experiment,) = runnable(SMOKE, [figure("sigma_table4")])
    measured = {run_of(SMOKE, experiment, row): Measured(()) for row in experiment.rows}
    (again,) = [row for row in experiment.rows if row.label.strip() == "K = 2"]
    seeds = [{5: 3.0, 9: 2.0}, {5: 4.0, 9: 3.0, 12: 2.5}]  # step -> bits a byte
    for seed, curve in enumerate(seeds):
        records = [{"step": 7, "split": "train", "bits_per_byte": 9.0}]
        records += [{"step": s, "split": "eval", "bits_per_byte": y} for s, y in curve.items()]
        (tmp_path / f"{seed}").mkdir()
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{seed}" / "metrics.jsonl").write_text(lines)
    draw_curves(experiment, SMOKE, measured, tmp_path / "curves.png")
    assert not list(tmp_path.glob("*.png"))
    workdirs = (str(tmp_path / "0"), str(tmp_path / "1"))
    measured[run_of(SMOKE, experiment, again)] = Measured((), workdirs)
    draw_curves(experiment, SMOKE, measured, tmp_path / "curves.png")
    assert cv2.imread(str(tmp_path / "curves.png")).size
    steps, values = evaluations(workdirs, experiment.metric)
    assert steps == [5, 9] and values.tolist() == [[3, 2], [4, 3]]  # 12: of one seed only
