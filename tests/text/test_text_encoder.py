"""The text encoder against a restatement in float64, with padding and with packed rows."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import apply, init, initial
from inference.reference_vit import gelu_tanh, layer_norm

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.build import build_model
from widenet_jax.param_names import map_with_path

V, T, P = 50, 12, 3
# One token group; so much capacity that no token is dropped.
ROOMY = {"examples_per_group": 1, "capacity_factor": 4.0}


def small(variant: str, *, head: str = "pretraining", moe: dict | None = None, **changes):
    fields = model_section(f"{variant}_tiny,depth=2")
    fields |= {"num_positions": 2 * T} | changes
    if fields["moe"]:
        quiet = {"router": {"name": "top_k", "noise_std": 0.0}}
        fields["moe"] = fields["moe"] | quiet | (moe or {})
    return build_model(fields, vocab_size=V, head=head, num_classes=3)


def texts(lengths: list[int], size: int = T) -> dict[str, jax.Array]:
    """Random texts, padded to `size`; the first three tokens of each are predicted."""
    rng = np.random.default_rng(0)
    B, mask = len(lengths), np.arange(size) < np.array(lengths)[:, None]
    return {
        "tokens": jnp.asarray(np.where(mask, rng.integers(5, V, (B, size)), 0), jnp.int32),
        "token_types": jnp.asarray(mask & (np.arange(size) > 4), jnp.int32),
        "mask": jnp.asarray(mask),
        "mlm_positions": jnp.tile(jnp.arange(P, dtype=jnp.int32), (B, 1)),
    }


def evaluate(model, params: dict, inputs: dict) -> dict:
    return apply(model, params, inputs, train=False)[0]


def parameters(model, inputs: dict) -> dict:
    """Random parameters of the size of trained ones: biases and scales do something, too."""
    rng = np.random.default_rng(0)

    def larger(path: str, x: np.ndarray) -> np.ndarray:
        noise = rng.normal(size=x.shape) * x.shape[-1] ** -0.5 / 2
        return x + noise.astype(np.float32)

    return map_with_path(larger, jax.device_get(init(model, inputs)))


# --- The restatement ---------------------------------------------------------------------------


def affine(x: np.ndarray, of: dict) -> np.ndarray:
    return x @ of["kernel"] + of["bias"]


def norm(x: np.ndarray, of: dict) -> np.ndarray:
    return layer_norm(x, of["scale"], of["bias"], 1e-12)


def attention(x: np.ndarray, of: dict, heads: int) -> np.ndarray:
    """Each token looks at all tokens, head by head."""
    query, key, value = (np.split(affine(x, of[n]), heads, 1) for n in ("query", "key", "value"))
    out = []
    for q, k, v in zip(query, key, value, strict=True):
        weights = np.exp(q @ k.T / math.sqrt(q.shape[1]))
        out.append(weights / weights.sum(1, keepdims=True) @ v)
    return affine(np.concatenate(out, 1), of["out"])


def feed_forward(x: np.ndarray, of: dict) -> np.ndarray:
    """Dense, or the two best of four experts, weighted by the router's probabilities."""
    if "experts" not in of:
        return affine(gelu_tanh(affine(x, of["wi"])), of["wo"])
    logits = x @ of["router"]["kernel"]
    probs = np.exp(logits) / np.exp(logits).sum()
    y = np.zeros_like(x)
    for e in np.argsort(-probs)[:2]:
        expert = {n: {k: v[e] for k, v in of["experts"][n].items()} for n in ("wi", "wo")}
        y += probs[e] * feed_forward(x, expert)
    return y


def restated(model, params: dict, tokens: np.ndarray, token_types: np.ndarray) -> np.ndarray:
    """Returns the tokens of one text after the last block: [T, D]."""
    of, blocks = params["embeddings"], params["encoder"]
    x = of["token"][tokens] + of["token_type"][token_types] + of["position"][: len(tokens)]
    x = affine(norm(x, of["norm"]), params["projection"])
    is_pre = model.norm_position == "pre"
    for i in range(model.depth):
        part = lambda name, i=i: blocks.get(f"block_{i:02d}_{name}", blocks.get(name))  # noqa: E731
        for name in ("norm_attention", "norm_ffn"):
            y = norm(x, part(name)) if is_pre else x
            if name == "norm_attention":
                y = attention(y, part("attention"), 4)
            else:
                y = np.array([feed_forward(token, part(model.ffn)) for token in y])
            x = x + y if is_pre else norm(x + y, part(name))
    return norm(x, blocks["norm_out"]) if is_pre else x


def restated_heads(params: dict, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logits of the first three tokens, and those of the order."""
    h = norm(gelu_tanh(affine(x[:P], params["mlm"]["dense"])), params["mlm"]["norm"])
    logits = h @ params["embeddings"]["token"].T + params["mlm"]["bias"]
    return logits, affine(np.tanh(affine(x[0], params["pooler"])), params["order"])


@pytest.mark.parametrize(
    ("family", "position"),
    [
        ("albert", "post"),
        ("bert", "pre"),
        ("widenet_4", "post"),
        pytest.param("widenet_4", "pre", marks=pytest.mark.slow),
    ],
)
def test_equals_the_restatement(family: str, position: str):
    model = small(family, norm_position=position, moe=ROOMY)
    inputs = texts([T, 7])
    params = parameters(model, inputs)
    outputs = evaluate(model, params, inputs)
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for i, length in enumerate((T, 7)):
        ids = (np.asarray(inputs[name][i, :length]) for name in ("tokens", "token_types"))
        logits, order = restated_heads(exact, restated(model, exact, *ids))
        np.testing.assert_allclose(outputs["mlm_logits"][i], logits, atol=2e-4)
        np.testing.assert_allclose(outputs["order_logits"][i], order, atol=2e-4)


# --- Initialisation, padding, packing ------------------------------------------------------------


@pytest.mark.parametrize("family", [pytest.param("bert", marks=pytest.mark.slow), "widenet_4"])
def test_parameters_start_as_berts(family: str):
    """N(0, 0.02) cut at two deviations, whose own deviation is 0.88 of that; biases are 0."""
    model = small(family)
    params = jax.device_get(initial(model, texts([T])))

    def check(path: str, x: np.ndarray) -> None:
        if path.endswith("scale"):
            assert (x == 1).all(), path
        elif path.endswith("bias"):
            assert (x == 0).all(), path
        else:
            assert np.abs(x).max() <= 0.04, path
            assert x.std() == pytest.approx(0.0176, rel=4 / math.sqrt(x.size)), path

    map_with_path(check, params)


def test_padding_changes_nothing():
    """Other ids in the padding, or more of it: the same loss, routing counts and gradients."""
    model = small("widenet_4", moe={"examples_per_group": 3, "capacity_factor_eval": 1.0})
    short = texts([T, 7, 9])
    longer = {**texts([T, 7, 9], size=T), "mlm_positions": short["mlm_positions"]}
    for name in ("tokens", "token_types", "mask"):
        longer[name] = jnp.pad(short[name], ((0, 0), (0, 5)))
    other = short | {
        "tokens": jnp.where(short["mask"], short["tokens"], 33),
        "token_types": jnp.where(short["mask"], short["token_types"], 1),
    }
    params = parameters(model, short)

    def loss(params: dict, inputs: dict) -> tuple[jax.Array, dict]:
        outputs, aux = model.apply({"params": params}, inputs, train=False)
        mlm = -jax.nn.log_softmax(outputs["mlm_logits"])[..., 7].mean()
        order = -jax.nn.log_softmax(outputs["order_logits"])[..., 1].mean()
        return mlm + order + aux["loss"].sum(), aux["sums"]

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (of_short, sums), grads = gradient(params, short)
    assert sums["dropped"].sum() > 0  # the capacity counts real tokens alone
    assert (sums["tokens"] == T + 7 + 9).all()
    for inputs in (longer, other):
        (of_inputs, its_sums), its_grads = gradient(params, inputs)
        np.testing.assert_allclose(of_inputs, of_short, atol=1e-6)
        for name in ("load", "dropped", "tokens"):
            np.testing.assert_array_equal(its_sums[name], sums[name])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), its_grads, grads)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"projection": False}, "config.model.projection=false needs"),
        ({"head": "words"}, "pretraining, classification, span, span_beam"),
    ],
)
def test_fields_that_contradict_each_other(changes: dict, words: str):
    with pytest.raises(BadInputError, match=words):
        small("albert", **changes)


def test_a_text_longer_than_the_positions():
    model = small("albert", num_positions=T - 1)
    with pytest.raises(BadInputError, match=r"config\.data\.max_length=12 is more than the"):
        model.init(jax.random.key(0), texts([T]), train=False)
