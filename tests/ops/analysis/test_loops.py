"""What loops do: hand-worked choices, loops that change nothing, and a whole analysis."""

import json
from pathlib import Path
from types import SimpleNamespace

import cv2
import jax
import numpy as np
import pytest
from untrained import export_untrained

from configs import language_model
from widenet_jax.cli import analyze
from widenet_jax.inference.over_source import metrics_over_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.nn.loop_settings import LoopSettings, parse_loop
from widenet_jax.ops.analysis import loops
from widenet_jax.ops.analysis.usage import ExpertUsage, measure_usage


def export(variant: str, directory: Path) -> str:
    config = language_model.get_config(f"tiny,attention=full,{variant}")
    config.model.embed_dim = 16
    config.model.loop.tie.norms = "loops"
    config.evaluation.batch_size = 64
    return str(export_untrained(config, {"vocab_size": 256}, directory))


def test_visits_of_each_layer():
    loop = parse_loop({"prelude": 1, "core": ((2, 3), (1, 1)), "coda": 1})
    assert loops.visits_of(loop) == {"0.0": [1, 3, 5], "0.1": [2, 4, 6]}


def test_choices_by_hand():
    """First choices 0 0 1 1, then 0 1 1 1: one token in four changes, and half would by chance.

    By chance the same: 1/2 1/4 + 1/2 3/4 = 1/2. Loads 2 2 and 1 3 spread by 0 and 1/2, and
    together, 3 and 5, by 1/4.
    """
    first = np.eye(2)[[[0, 0, 1, 1], [0, 1, 1, 1]]]  # [loop, token, expert]
    together = np.einsum("ane,bnf->abef", first, first)
    others = dict.fromkeys(("importance", "drop_rate", "router_entropy", "selected_together"))
    fields = {"blocks": (4, 5), "category": "class", "names": (), "sent": None} | others
    usage = ExpertUsage(**fields, pairs=first.sum(axis=1), together=together)
    found = loops.choices_of(usage, [0, 1])
    assert found["first_changes"] == [0.25] and found["first_changes_by_chance"] == [0.5]
    assert found["load_spread"].tolist() == [0, 0.5] and found["load_spread_of_all"] == 0.25


def test_tokens_without_an_expert_in_common():
    before, after = np.array([[0, 1], [2, 3]]), np.array([[1, 2], [0, 1]])
    assert loops.all_change(before, after).tolist() == [False, True]


def test_what_other_numbers_of_loops_need_is_said_plainly(monkeypatch, capsys):
    """WideNet's norms are each loop's own; no pass is spent on finding out."""
    changes = []
    monkeypatch.setattr(
        loops, "loss_of", lambda _, change: (changes.append(change), ("loss", 1.0))[1]
    )
    trained = SimpleNamespace(model=SimpleNamespace(loop=LoopSettings(((1, 4),))))
    found = loops.losses_of(trained, 4, experts=True)
    assert found["losses"] == {4: 1.0} and found["first_routing"] == 1.0 and len(changes) == 2
    assert found["notes"] == [
        "losses at other numbers of loops need norms that the loops share "
        "(config.model.loop.tie.norms)"
    ]
    assert capsys.readouterr().err == "losses of loops: passes over the evaluation split: 2\n"


def test_the_ticks_of_loops_are_whole_numbers(tmp_path: Path, drawn):
    """Also where there is a single loss. Legends stand below the panels (see `drawn`)."""
    routed = {"load_spread": [0.1] * 4, "load_spread_of_all": 0.1, "all_change": [0.0, 0.0, 0.1]}
    shares = ("first_changes", "first_changes_by_chance", "cosine")
    routed |= {name: [0.1, 0.6, 0.1] for name in shares}
    places = {f"0.{layer}": routed for layer in range(6)}
    found = {"loops": 4, "metric": "cross_entropy", "losses": {4: 1.2}, "places": places}
    loops.draw_loops(found, tmp_path / "a.png")
    entries = [len(axis.get_legend().get_texts()) for axis in drawn[0].axes]
    assert entries == [6, 1, 6 + 1, 6 + 3]
    for axis in drawn[0].axes:
        low, high = axis.get_xlim()
        ticks = [tick for tick in axis.get_xticks() if low <= tick <= high]
        assert ticks and all(tick == int(tick) for tick in ticks)


@pytest.mark.slow
def test_loops_that_change_nothing(tmp_path: Path):
    """Without weights each block is the identity, and so the number of loops does not matter."""
    trained = open_trained(export("ffn=dense,loop=1x2+2x3", tmp_path / "model"))
    jax.tree.map(lambda kernel: kernel.fill(0), trained.params["encoder"])
    found = loops.measure_loops(trained, None)
    assert {place: of["cosine"] for place, of in found["places"].items()} == {
        "0.0": [1],
        "1.0": [1, 1],
        "1.1": [1, 1],
    }
    assert found["loops"] == 3 and list(found["losses"]) == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(list(found["losses"].values()), found["losses"][3], rtol=1e-6)
    assert not found["notes"] and "first_routing" not in found


@pytest.mark.slow
def test_predictions_after_each_loop_change_no_choice(tmp_path: Path):
    """The coda then runs on the states after all loops; the last loop's are those that count."""
    place = export("ffn=moe,loop=1+1x2+1", tmp_path / "model")
    changes = ([], ["--config.model.loop.exit.loss=mean"])
    one, other = (measure_usage(open_trained(place, change)) for change in changes)
    np.testing.assert_array_equal(one.pairs, other.pairs)


@pytest.mark.slow
def test_the_command_on_looped_experts(tmp_path: Path, capsys):
    """Its loss is the evaluation's; where routing is forced no token changes its experts."""
    place = export("ffn=moe,loop=1+2x2+1", tmp_path / "model")
    facts = {}
    for routing in ("own", "first"):
        out = tmp_path / routing
        flags = [f"--out={out}", f"--config.model.loop.routing={routing}"]
        assert analyze.main([f"--workdir={place}", *flags]) == 0
        facts[routing] = json.loads((out / "analysis.json").read_text())["loops"]
        assert np.ptp(cv2.imread(str(out / "loops.png"))) > 100
    assert "with the experts of the first loop" in capsys.readouterr().out
    own, first = facts["own"], facts["first"]
    metrics, *_ = metrics_over_source(open_trained(place))
    assert own["losses"]["2"] == pytest.approx(metrics["bits_per_byte"], rel=1e-6)
    assert own["first_routing"] == pytest.approx(first["losses"]["2"], rel=1e-6)
    assert own["first_routing"] != pytest.approx(own["losses"]["2"], rel=1e-6)
    assert own["losses"].keys() == {"1", "2", "3", "4"}
    for of in first["places"].values():
        assert of["first_changes"] == of["all_change"] == [0]
    for of in own["places"].values():
        assert of["all_change"][0] <= of["first_changes"][0] and of["first_changes"][0] > 0
