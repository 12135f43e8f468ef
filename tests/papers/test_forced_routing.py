"""Forced routing by hand, and of a model: its losses are the evaluation's."""

import json
from pathlib import Path

import pytest
from untrained import export_untrained

from configs import language_model
from widenet_jax.files import write_json
from widenet_jax.inference.over_source import metrics_over_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.sweep.trials import Outcome, Status, Trial
from widenet_jax.papers import forced_routing
from widenet_jax.papers.experiments import EXPERIMENTS
from widenet_jax.papers.report import write
from widenet_jax.papers.runs import Measured
from widenet_jax.papers.scales import SCALES, run_of

SMALL = SCALES["small"]
ROUTING = EXPERIMENTS["loops_routing"]
MADE_BY = {"command": "x", "commits": [], "devices": []}


def measured(workdirs: dict[str, str]) -> dict:
    """Returns the first row's measurements, of seeds whose parameters have these hashes."""
    done = [
        Outcome(Trial(f"{i}", "c", {"seed": i}), Status.DONE, result={"params_sha256": sha})
        for i, sha in enumerate(workdirs)
    ]
    lost = Outcome(Trial("x", "c", {"seed": 9}), Status.DIVERGED)
    runs = {run_of(SMALL, ROUTING, row): Measured(()) for row in ROUTING.rows}
    first = run_of(SMALL, ROUTING, ROUTING.rows[0])
    return runs | {first: Measured((*done, lost), tuple(workdirs.values()))}


def test_differences_by_hand(tmp_path: Path, drawn):
    """0.1 and 0.3 lost: 0.2 on average; 12.706 standard errors of 0.1 to each side.

    Parameters that were measured before are not measured again: these workdirs do not exist.
    """
    shares = {"first_changes": 0.25, "first_changes_by_chance": 0.5, "all_change": 0.125}
    own = {"metric": "bits_per_byte", "own": 3.0} | shares
    models = {name: own | {"first": first} for name, first in (("a", 3.1), ("b", 3.3), ("c", 3.1))}
    write_json(tmp_path / "loops_routing_models.json", models)
    text, facts = write(ROUTING, SMALL, measured({"a": "none", "b": "none"}), MADE_BY, tmp_path)
    (row,) = facts["rows"]
    assert forced_routing.differences(row) == pytest.approx([0.1, 0.3])
    cells = (
        "| MoE 1x9 | 3.0000 | 3.2000 | +0.2000 (-1.0706 to +1.4706) | 25.0% | 50.0% | 12.5% | 2 |"
    )
    assert cells in " ".join(text.split())
    assert "- MoE 3x3: not run." in text
    text, _ = write(ROUTING, SMALL, measured({"a": "none", "c": "none"}), MADE_BY, tmp_path)
    assert "| +0.1000 (no spread) |" in " ".join(text.split())
    lost, shown = drawn[0].axes
    assert lost.lines[1].get_xdata() == pytest.approx([0.1, 0.3])
    assert [line.get_xdata()[0] for line in shown.lines] == [0.25, 0.5, 0.125]
    text, _ = write(ROUTING, SMALL, measured({}), MADE_BY, tmp_path)
    assert "|" not in text and "- MoE 1x9: not run." in text


@pytest.mark.slow
def test_a_model_is_measured_once(tmp_path: Path):
    """Its losses are those of evaluation, with and without the field."""
    config = language_model.get_config("tiny,attention=full,ffn=moe,loop=1x2")
    config.evaluation.batch_size = 64
    place = str(export_untrained(config, {"vocab_size": 256}, tmp_path / "model"))
    of = measured({"sha": place})
    (row,) = forced_routing.measure(ROUTING, SMALL, of, tmp_path)
    own, forced = (
        metrics_over_source(open_trained(place, fields))[0]["bits_per_byte"]
        for fields in ([], ["--config.model.loop.routing=first"])
    )
    assert (row["own"], row["first"]) == (pytest.approx([own]), pytest.approx([forced]))
    assert row["seeds"] == [0] and own != forced
    kept = json.loads((tmp_path / "loops_routing_models.json").read_text())
    assert kept.keys() == {"sha"}
    (tmp_path / "model").rename(tmp_path / "gone")
    assert forced_routing.measure(ROUTING, SMALL, of, tmp_path) == [row]
