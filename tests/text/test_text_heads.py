"""The heads of the text encoder against restatements in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init

from configs.variants import model_section
from widenet_jax.nn.build import build_model
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.param_names import map_with_path
from widenet_jax.text.encoder import rows_at
from widenet_jax.text.heads import BEAM, SpanBeamHead

B, T, D = 3, 12, 8


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum())


def beam_head() -> tuple[SpanBeamHead, dict, jax.Array, jax.Array]:
    """Returns the head, random parameters, tokens, and the places that an answer may have."""
    head = SpanBeamHead(1e-12, KernelInit("truncated_normal"))
    x = jax.random.normal(jax.random.key(1), (B, T, D))
    allowed = jnp.arange(T) > 3
    allowed = jnp.stack([allowed.at[0].set(True)] * B)  # [CLS], and the context from 4 on
    inputs = {"allowed": allowed}
    params = init(head, x, inputs)
    rng = np.random.default_rng(2)
    params = map_with_path(
        lambda _, p: p + rng.normal(size=p.shape).astype(np.float32), jax.device_get(params)
    )
    return head, params, x, allowed


def restated_ends(params: dict, x: np.ndarray, start: int) -> np.ndarray:
    """Returns the end logits of one example, given a start."""
    of, logits = params["end"], []
    for token in x:
        h = np.tanh(np.concatenate([token, x[start]]) @ of["hidden_kernel"] + of["hidden_bias"])
        h = (h - h.mean()) / np.sqrt(h.var() + 1e-12) * of["norm"]["scale"] + of["norm"]["bias"]
        logits.append(h @ of["out"]["kernel"][:, 0] + of["out"]["bias"][0])
    return np.array(logits)


def test_span_beam_scores_as_albert():
    head, params, x, allowed = beam_head()
    start = jnp.array([4, 11, 0])
    found = apply(head, params, x, {"allowed": allowed, "start": start}, train=False)
    exact = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    x, places = np.asarray(x, np.float64), np.flatnonzero(allowed[0])
    for i in range(B):
        starts = x[i] @ exact["start"]["kernel"][:, 0] + exact["start"]["bias"][0]
        np.testing.assert_allclose(found["start_logits"][i][places], starts[places], atol=1e-5)
        ends = restated_ends(exact, x[i], int(start[i]))
        np.testing.assert_allclose(found["end_logits"][i][places], ends[places], atol=1e-4)

        weights = np.exp(log_softmax(starts[places]))
        summary = np.concatenate([weights @ x[i][places], x[i][0]])
        hidden = exact["null_hidden"]
        h = np.tanh(summary @ hidden["kernel"] + hidden["bias"])
        null = h @ exact["null"]["kernel"][:, 0]
        np.testing.assert_allclose(found["null_logit"][i], null, atol=1e-4)


def test_span_beam_keeps_the_best_starts_and_ends():
    head, params, x, allowed = beam_head()
    found = apply(head, params, x, {"allowed": allowed}, train=False)
    assert "end_logits" not in found
    exact = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    x, places = np.asarray(x, np.float64), np.flatnonzero(allowed[0])
    for i in range(B):
        starts = x[i][places] @ exact["start"]["kernel"][:, 0] + exact["start"]["bias"][0]
        best = np.argsort(-starts)[:BEAM]
        assert found["beam_start"][i].tolist() == places[best].tolist()
        for k, s in enumerate(best):
            ends = log_softmax(restated_ends(exact, x[i], places[s])[places])
            order = np.argsort(-ends)[:BEAM]
            assert found["beam_end"][i, k].tolist() == places[order].tolist()
            expected = log_softmax(starts)[s] + ends[order]
            np.testing.assert_allclose(found["beam_log_prob"][i, k], expected, atol=1e-4)


@pytest.mark.parametrize("head", ["span", "classification"])
def test_heads_of_a_small_encoder(head: str):
    """Two texts of 12 and 7 tokens: one logit a class; padding has no chance in a span."""
    fields = model_section("albert_tiny,depth=1")
    model = build_model(fields, vocab_size=30, head=head, num_classes=3)
    mask = jnp.arange(T) < jnp.array([[T], [7]])
    tokens = jnp.where(mask, jnp.arange(T) + 5, 0)
    texts = {"tokens": tokens, "token_types": jnp.zeros_like(tokens), "mask": mask}
    found = apply(model, init(model, texts), texts, train=False)[0]
    if head == "classification":
        assert found.shape == (2, 3)
        return
    for logits in (found["start_logits"], found["end_logits"]):
        assert (logits[1, 7:] < -1e8).all() and (jnp.abs(logits[1, :7]) < 1).all()


def test_rows_of_a_float32_table_are_not_rounded():
    """The backend would otherwise multiply in bfloat16, as TPUs do; the gradient neither."""
    table, index = jnp.ones((4, 3)), jnp.array([[3, 0]])
    made = jax.make_jaxpr(jax.value_and_grad(lambda x: rows_at(x, index).sum()))(table)
    products = [str(eqn) for eqn in made.eqns if eqn.primitive.name == "dot_general"]
    assert products and all("HIGHEST" in product for product in products)
