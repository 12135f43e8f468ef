"""The experts of a text model: by kind of token, against a loop over tokens, and as pictures."""

import json
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest
from text_sets import write_table, write_tokenizer
from untrained import export_untrained

from configs import glue, text_tiny
from widenet_jax.cli import analyze, evaluate
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.inference.over_source import open_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.captured import token_routing
from widenet_jax.ops.analysis.usage import ExpertUsage, measure_usage


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports an untrained classifier of texts with 4 experts; its set has 40 texts."""
    folder = tmp_path_factory.mktemp("table")
    write_table(folder)
    tokenizer = load_tokenizer(str(write_tokenizer(folder)))
    config = glue.get_config("own,model=widenet_4_tiny,depth=2")
    config.update_from_flattened_dict(
        {"data.path": str(folder), "data.max_length": 16, "evaluation.batch_size": 16}
    )
    info = {
        "tokenizer": tokenizer.json,
        "vocab_size": tokenizer.vocab_size,
        "class_names": ["negative", "positive"],
    }
    return export_untrained(config, info, folder / "model")


@pytest.fixture(scope="module")
def usage(exported: Path) -> ExpertUsage:
    return measure_usage(open_trained(str(exported)))


def test_against_a_loop_over_tokens(usage: ExpertUsage, exported: Path):
    """40 texts are whole groups of 4; padding is not counted."""
    trained = open_trained(str(exported))
    source, transform = open_source(trained)
    rows = [transform(source[i], np.random.default_rng(0)) for i in range(40)]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    route = jax.jit(lambda x: token_routing(trained.model, trained.params, x)[1].expert_index)
    chosen = np.asarray(route(trained.task.inputs(batch)))
    expected = {name: np.zeros((2, 4)) for name in ("starts a word", "[CLS]", "[SEP]")}
    for text in range(40):
        for place in range(batch["length"][text]):
            token = trained.tokenizer.token(batch["tokens"][text, place])
            kind = token if token in expected else "starts a word"
            for block in range(2):
                for expert in chosen[block, text, place]:
                    expected[kind][block, expert] += 1
    for kind, counts in expected.items():
        np.testing.assert_array_equal(usage.sent[:, usage.names.index(kind)], counts)
    np.testing.assert_array_equal(usage.pairs, sum(expected.values()))
    assert usage.pairs[0].sum() == 2 * batch["length"].sum()
    shares = dict(zip(usage.names, usage.frequency, strict=True))
    bands = sum(share for name, share in shares.items() if name.startswith("rank"))
    assert bands + shares["[CLS]"] + shares["[SEP]"] == pytest.approx(1)


@pytest.mark.slow
def test_the_command(exported: Path, tmp_path: Path):
    """The file names the kinds of tokens; the picture is no blank page."""
    out = tmp_path / "out"
    assert analyze.main([f"--workdir={exported}", f"--out={out}"]) == 0
    of_experts = {f"expert_{name}.png" for name in ("usage", "kinds", "shares", "co_occurrence")}
    names = of_experts | {"norm_divergence.png", "loops.png", "analysis.json"}
    assert {path.name for path in out.iterdir()} == names
    facts = json.loads((out / "analysis.json").read_text())["expert_usage"]
    assert facts["most_different_block"] in facts["blocks"] and "[CLS]" in facts["kind_names"]
    assert np.ptp(cv2.imread(str(out / "expert_kinds.png"))) > 100


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """Exports an untrained dense model of masked words, with one block and the words of a file."""
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path)))
    info = {"tokenizer": tokenizer.json, "vocab_size": tokenizer.vocab_size}
    return export_untrained(text_tiny.get_config("albert_tiny,depth=1"), info, tmp_path / "model")


def test_a_dense_model_has_nothing_to_draw(dense: Path, tmp_path: Path, capsys):
    (tmp_path / "out").mkdir()
    for name in ("analysis.json", "loops.png", "expert_kinds.png"):  # of another model
        (tmp_path / "out" / name).touch()
    assert analyze.main([f"--workdir={dense}", f"--out={tmp_path / 'out'}"]) == 0
    assert "no experts: nothing to draw" in capsys.readouterr().out
    facts = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert facts["norm_divergence"] == {} and "expert_usage" not in facts
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["analysis.json"]


def test_data_of_another_tokenizer(dense: Path, capsys):
    """The embedded text has its own ids, which this model would misread."""
    assert evaluate.main([f"--workdir={dense}"]) == 2
    told = "model was trained with another tokenizer: token 0 is '[PAD]' there and '<pad>' here"
    assert told in capsys.readouterr().err
