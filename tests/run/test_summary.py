"""What a run says of a metric's baseline: beside the loss, in the result, at the end."""

from pathlib import Path

import pytest
from preparing import run, write

from widenet_jax.corpus.novel import FOLDER
from widenet_jax.data.sources import build_source
from widenet_jax.main import metric_rows
from widenet_jax.run.summary import loss_text, result_metrics, unbeaten, unread
from widenet_jax.text.classification import TextClassification
from widenet_jax.text.masked_lm import MaskedLm

TASK = MaskedLm(vocab_size=8000, example={}, unigram_entropy=6.62)
UNKNOWN = MaskedLm(vocab_size=8000, example={}, unigram_entropy=None)
METRICS = {"mlm_loss": 6.71, "order_loss": 0.69, "sequences": 4700, "bad_examples": 0}


def test_the_baseline_stands_beside_the_loss():
    step = {"loss": 7.4, "mlm_loss": 6.71}
    assert loss_text(TASK, step) == "loss 7.4000, mlm loss 6.7100 (unigram entropy 6.6200)"
    assert loss_text(UNKNOWN, step) == "loss 7.4000"


def test_the_result_names_the_baseline():
    result = result_metrics(METRICS, TASK)
    assert result["baseline"]["value"] == 6.62
    assert metric_rows(result | {"split": "test"}) == [
        ("test mlm loss", "6.7100 of 4,700 sequences (unigram entropy 6.6200)"),
        ("test order loss", "0.6900"),
    ]
    assert "baseline" not in result_metrics(METRICS, UNKNOWN)


def test_what_was_left_out_is_said_at_the_end():
    result = {"unit": "images", "train_bad_examples": 6, "bad_examples": 2}
    unread_text = "6 times training met images that could not be read, and took others; "
    assert unread(result) == unread_text + "the evaluation left out 2 images that could not be read"
    assert unread({"unit": "images"}) == ""
    assert result_metrics(METRICS | {"bad_examples": 2}, TASK)["bad_examples"] == 2


@pytest.mark.parametrize(("loss", "beaten"), [(6.71, False), (6.62, False), (6.61, True)])
def test_a_run_says_so_if_it_learned_word_frequencies_only(loss: float, beaten: bool):
    message = unbeaten(TASK, {"mlm_loss": loss})
    assert (message == "") == beaten
    if not beaten:
        assert message.startswith(f"mlm loss {loss:.4f} is not below the unigram entropy 6.6200: ")
        assert "config.duration" in message and "\n" not in message
    assert unbeaten(UNKNOWN, {"mlm_loss": loss}) == ""


@pytest.mark.parametrize(("accuracy", "beaten"), [(0.7, False), (0.3, False), (0.71, True)])
def test_a_classifier_of_one_class_is_told(accuracy: float, beaten: bool):
    """Whichever class it is; the learning curve has the share in place of guessing."""
    task = TextClassification(100, 2, {}, largest_share=0.7)
    assert task.baseline.metric == task.primary_metric.name
    message = unbeaten(task, {"accuracy": accuracy})
    assert (message == "") == beaten
    if not beaten:
        line = f"accuracy {accuracy:.4f} is not above the share of the largest class 0.7000: "
        assert message.startswith(line) and "config.duration" in message and "\n" not in message
    assert TextClassification(100, 2, {}).baseline is None


def test_sequences_shorter_than_the_set_s_are_noted(tmp_path: Path):
    text, valid = (write(tmp_path / name, "One. Two.") for name in ("a.txt", "b.txt"))
    options = ("--tokenizer", FOLDER, "--valid", valid, "--workers=1", "--max_length=32")
    out = tmp_path / "out"
    assert run("text", text, "--out", out, *options) == 0
    notes = {}
    for length in (16, 32):
        data = {"source": "text", "path": str(out), "max_length": length}
        notes[length] = build_source(data, "train").note
    assert "was prepared with --max_length=32: longer sequences are cut at both" in notes[16]
    assert notes[32] == notes[16].split("\n")[0]  # what the tokenizer loses
