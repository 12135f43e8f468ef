"""A language model's samples: which tokens may be drawn, how often, after what memory."""

import math
from pathlib import Path

import numpy as np
import pytest
from compiled import apply
from refusals import refuses
from untrained import export_untrained

from configs import language_model
from widenet_jax.corpus.tokenizer import printable
from widenet_jax.errors import BadInputError
from widenet_jax.inference.trained import open_trained
from widenet_jax.language.sampling import Sampling, continue_text, reader, sample
from widenet_jax.trained import Trained

# Probabilities 0.5, 0.25, 0.125, 0.125 of tokens 2, 0, 1, 3.
LOGITS = np.log([0.25, 0.125, 0.5, 0.125]) + 7.0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return exported(tmp_path_factory.mktemp("model"), "relative")


def exported(place: Path, attention: str) -> Trained:
    config = language_model.get_config("tiny")
    config.model.attention.name = attention
    config.model.loop.core = ((1, 1),)
    config.data.max_length = 8
    return open_trained(str(export_untrained(config, {"vocab_size": 256}, place / "bytes")))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.25, 0.125, 0.5, 0.125]),
        (Sampling(temperature=0.5), [4 / 22, 1 / 22, 16 / 22, 1 / 22]),
        (Sampling(temperature=0), [0, 0, 1, 0]),
        (Sampling(top_k=2), [1 / 3, 0, 2 / 3, 0]),
        (Sampling(top_k=3), [2 / 7, 1 / 7, 4 / 7, 0]),  # of equals the lower token
        (Sampling(top_p=0.5), [0, 0, 1, 0]),
        (Sampling(top_p=0.51), [1 / 3, 0, 2 / 3, 0]),  # the token that reaches it is in
        (Sampling(top_p=0.8), [2 / 7, 1 / 7, 4 / 7, 0]),
        (Sampling(top_k=2, top_p=0.6), [0, 0, 1, 0]),  # 2/3 of what top_k leaves
        (Sampling(top_k=9), [0.25, 0.125, 0.5, 0.125]),
    ],
)
def test_probabilities_by_hand(sampling: Sampling, expected: list[float]):
    np.testing.assert_allclose(sampling.probabilities(LOGITS), expected, atol=1e-12)


def test_tokens_are_drawn_as_often_as_their_probability():
    rng = np.random.default_rng(0)
    drawn = np.bincount([Sampling(top_k=3).draw(LOGITS, rng) for _ in range(7000)], minlength=4)
    np.testing.assert_allclose(drawn / 7000, [2 / 7, 1 / 7, 4 / 7, 0], atol=0.02)


def test_the_seed_decides(trained: Trained):
    prompt = np.frombuffer(b"Anne", np.uint8).astype(np.int32)
    drawn = [list(sample(trained, prompt, Sampling(), length=12, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_text_is_read_with_memory(trained: Trained):
    """In windows of 8 and token by token, and all at once: the same prediction."""
    text = np.random.default_rng(0).integers(256, size=27).astype(np.int32)
    read = reader(trained)
    read(text[:19])
    ours = read(text[19:])
    spec = trained.task.eval_carry_spec(1)
    assert spec["memory"].shape[2] == 32  # 4 windows
    carry = {name: np.zeros(x.shape, x.dtype) for name, x in spec.items()}
    inputs = {"tokens": text[None], **carry}
    whole, _ = apply(trained.model, trained.params, inputs, train=False)
    np.testing.assert_allclose(ours, whole["logits"][0, -1], atol=1e-4)
    inputs["tokens"] = inputs["tokens"][:, 19:]
    forgetful, _ = apply(trained.model, trained.params, inputs, train=False)
    assert np.abs(forgetful["logits"][0, -1] - ours).max() > 0.01


def test_without_a_memory_the_latest_window_is_read(tmp_path: Path):
    """Shorter texts as they are, of longer ones the last 8 tokens, however they come."""
    trained = exported(tmp_path, "full")
    text = np.random.default_rng(0).integers(256, size=13).astype(np.int32)
    read = reader(trained)
    for end, start in ((3, 0), (4, 0), (13, 5)):
        ours = read(text[:3] if end == 3 else text[end - 1 : end] if end == 4 else text[4:])
        inputs = {"tokens": text[None, start:end]}
        right, _ = apply(trained.model, trained.params, inputs, train=False)
        np.testing.assert_allclose(ours, right["logits"][0, -1], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("temperature", "top_k", "top_p") for value in (-1, math.nan)]
    + [("top_k", 1.5), ("top_p", 0), ("top_p", 1.5)],
)
def test_numbers_out_of_range(name: str, value: float):
    with pytest.raises(BadInputError, match=f"^{name}={value} must be"):
        Sampling(**{name: value})


def test_bytes_that_are_no_text_are_shown_safely():
    tokens = "é\t\n".encode() + bytes([0xC3, 0x28, 0x1B, 0x5B, 0x00])
    assert printable(list(tokens), None) == "é\t\n\\xc3(\\x1b[\\x00"


def test_half_a_character_is_refused(trained: Trained):
    """The bytes of a command line, which need not be text, are continued."""
    refuses(r"^text='\\ud800' cannot be continued \(.*surrogates", continue_text, trained, "\ud800")
    assert continue_text(trained, "caf\udce9", length=1).startswith("caf\\xe9")
