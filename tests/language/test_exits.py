"""Predictions after each loop: their logits, when tokens leave, and the losses."""

import re

import compiled
import jax.numpy as jnp
import numpy as np
import pytest

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.language.model import LanguageModel, exit_loops, leaving
from widenet_jax.language.settings import LanguageSettings
from widenet_jax.language.task import exit_loss
from widenet_jax.nn.build import build_model
from widenet_jax.nn.loop_settings import Exit

TOKENS = {"tokens": jnp.array([[1, 4, 2, 2, 0], [3, 1, 1, 4, 2]])}


def model(variant: str = "tiny,attention=full,loop=1+1x3+1", **loop):
    fields = model_section(variant) | {"embed_dim": 8}
    fields["attention"] |= {"num_heads": 2, "head_dim": 4}
    fields["loop"] = fields["loop"] | {"tie": fields["loop"]["tie"] | {"norms": "loops"}} | loop
    return build_model(fields, vocab_size=5)


def test_when_tokens_leave_by_hand():
    """Gates 1/2, 1/4, anything: 1/2, 1/8 and the rest, 3/8."""
    gates = jnp.log(jnp.array([1.0, 1 / 3, 7.0]))[:, None, None]
    np.testing.assert_allclose(leaving(gates)[:, 0, 0], [1 / 2, 1 / 8, 3 / 8], rtol=1e-6)
    p = jnp.array([[[0.5, 0.2]], [[0.25, 0.2]], [[0.25, 0.6]]])
    logits = jnp.zeros((3, 1, 2, 2))
    found = [
        exit_loops(logits, p, Exit(rule=rule, threshold=threshold, loss="expected"))[0].tolist()
        for rule, threshold in (("none", 0.5), ("gate", 0.5), ("gate", 0.9))
    ]
    assert found == [[2, 2], [0, 2], [2, 2]]


def test_when_tokens_leave_by_kl_by_hand():
    """Of two words: KL(1/2, 1/2 || 9/10, 1/10) = log(5/3), the reverse 0.9 log 9 - log 5.

    Before the first loop both words are as likely, so that a token may leave there.
    """
    half, sure = jnp.zeros(2), jnp.log(jnp.array([0.9, 0.1]))
    logits = jnp.array([[half, sure, sure], [sure, half, half], [half, sure, half]]).swapaxes(0, 1)

    def leaves(threshold: float) -> list[int]:
        rule = Exit(rule="kl", threshold=threshold)
        return exit_loops(logits[:, None], jnp.zeros((3, 1, 3)), rule)[0].tolist()

    assert np.log(5 / 3) == pytest.approx(0.511, abs=1e-3)
    assert 0.9 * np.log(9) - np.log(5) * (0.9 + 0.1) == pytest.approx(0.368, abs=1e-3)
    assert leaves(1e-3) == [0, 2, 0]
    assert leaves(0.45) == [0, 1, 0]
    assert leaves(0.6) == [0, 0, 0]


def test_a_model_of_plain_fields_is_that_of_its_settings():
    attention = {"name": "full", "num_heads": 2}
    fields = {"vocab_size": 5, "embed_dim": 8, "attention": attention}
    fields |= {"feed_forwards": {"mlp": {"mlp_dim": 16}}}
    fields["loop"] = {"core": ((1, 3),), "exit": {"loss": "mean"}}
    assert LanguageModel(**fields).stack == LanguageSettings(**fields)


def test_losses_by_hand():
    """Two loops with cross-entropies log 2 and log 4 of the one token."""
    logits = jnp.log(jnp.array([[[[1.0, 1.0]]], [[[3.0, 1.0]]]]))
    outputs = {"loop_logits": logits, "leaves": jnp.array([[[0.25]], [[0.75]]])}
    labels = jnp.array([[1]])

    def loss(**of) -> float:
        return float(exit_loss(outputs, labels, Exit(**of)))

    assert loss() == pytest.approx(np.log(4))
    assert loss(loss="mean") == pytest.approx(1.5 * np.log(2))
    entropy = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    expected = 0.25 * np.log(2) + 0.75 * np.log(4)
    assert loss(loss="expected", entropy=0.2) == pytest.approx(expected - 0.2 * entropy)


def test_each_loop_predicts_as_a_model_of_so_many():
    """With a coda, and injection; by evaluation with one, two and three loops."""
    inject = {"inject": "linear", "state_norm": True}
    exits = model(exit={"loss": "expected", "rule": "kl", "threshold": 1e-9}, **inject)
    params = compiled.init(exits, TOKENS)
    outputs, _ = exits.apply({"params": params}, TOKENS, train=False)
    assert outputs["loop_logits"].shape == (3, 2, 5, 5)
    plain = {name: of for name, of in params.items() if name != "exit_gate"}
    assert params["exit_gate"]["kernel"].shape == (8, 1)
    for loops in (1, 2, 3):
        one = model(counts={"eval": loops}, **inject)
        expected = one.apply({"params": plain}, TOKENS, train=False)[0]["logits"]
        np.testing.assert_allclose(outputs["loop_logits"][loops - 1], expected, atol=2e-5)
    np.testing.assert_array_equal(outputs["logits"], outputs["loop_logits"][2])
    np.testing.assert_allclose(outputs["leaves"].sum(0), 1, rtol=1e-6)
    trained = model(exit={"loss": "mean"}, **inject).apply({"params": plain}, TOKENS, train=True)
    np.testing.assert_allclose(trained[0]["loop_logits"], outputs["loop_logits"], atol=2e-5)


def test_one_example_of_token_groups():
    """Experts of two examples a group; after the loops each state of one example is a group.

    So is initialisation, with one example.
    """
    fields = model_section("tiny,ffn=moe,attention=full,loop=1x3+1") | {"embed_dim": 8}
    fields["moe"] |= {"examples_per_group": 2, "mlp_dim": 4}
    fields["loop"]["exit"]["loss"] = "mean"
    exits = build_model(fields, vocab_size=5)
    one = {"tokens": TOKENS["tokens"][:1]}
    params = compiled.init(exits, one)
    logits = [
        compiled.apply(exits, params, inputs, train=False)[0]["loop_logits"][:, 0]
        for inputs in (one, TOKENS)
    ]
    np.testing.assert_allclose(*logits, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "changes", "need"),
    [
        ("tiny,loop=1x3", {}, "a language model without a memory (config.model.attention.name="),
        ("loop_s,loop=1x3", {"unroll": False}, "config.model.unroll=true and config.model.remat="),
        ("loop_s,loop=1x3", {"remat": "block"}, "config.model.unroll=true and config.model.remat="),
        ("loop_s,loop=1x3,ffn=moe", {"routing_groups": 1}, "config.model.routing_groups=0"),
    ],
)
def test_what_predictions_after_each_loop_need(variant: str, changes: dict, need: str):
    fields = model_section(variant) | changes
    fields["loop"]["exit"] = {"loss": "mean"}
    with pytest.raises(BadInputError, match=re.escape(f"config.model.loop.exit needs {need}")):
        build_model(fields, vocab_size=5)
