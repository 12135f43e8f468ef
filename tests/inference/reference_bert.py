"""BERT and ALBERT in plain NumPy, and their weights under the names of Hugging Face's files."""

from collections.abc import Callable, Mapping

import numpy as np
from inference.reference_vit import gelu_erf, gelu_tanh, layer_norm

# Embedding, model, heads, feed-forward, layers, vocabulary, positions, segments, classes.
E, D, N, F, L, V, P, S, C = 6, 8, 2, 12, 3, 13, 10, 2, 4
H = D // N
ACTIVATIONS = {"gelu": gelu_erf, "gelu_new": gelu_tanh, "relu": lambda x: np.maximum(x, 0)}
TOKENS = np.random.default_rng(1).integers(0, V, (3, 7)).astype(np.int32)
LENGTHS = (7, 4, 2)  # of each row of TOKENS
SEGMENTS = np.broadcast_to(np.arange(7) > 2, (3, 7)).astype(np.int32)

LAYER = {"bert": "encoder.layer.{}", "albert": "encoder.albert_layer_groups.{}.albert_layers.0"}
# Names within a layer: query, key, value, out, norm, wi, wo, norm.
IN_LAYER = {
    "bert": (
        *(f"attention.{n}" for n in ("self.query", "self.key", "self.value", "output.dense")),
        *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
    "albert": (
        *(f"attention.{name}" for name in ("query", "key", "value", "dense", "LayerNorm")),
        *("ffn", "ffn_output", "full_layer_layer_norm"),
    ),
}
HEADS = {
    "bert": {
        "pooler": "bert.pooler.dense",
        "mlm": "cls.predictions",
        "mlm_dense": "cls.predictions.transform.dense",
        "mlm_norm": "cls.predictions.transform.LayerNorm",
        "order": "cls.seq_relationship",
    },
    "albert": {
        "pooler": "albert.pooler",
        "mlm": "predictions",
        "mlm_dense": "predictions.dense",
        "mlm_norm": "predictions.LayerNorm",
        "order": "sop_classifier.classifier",
    },
}


def random_arrays(kind: str, *, groups: int = 1) -> dict[str, np.ndarray]:
    """Draws the weights of a model with pooler, pretraining heads, classifier and span head."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape, scale=0.5).astype(np.float32)  # noqa: E731
    made = {}

    def linear(name: str, out: int, into: int) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = draw(out, into), draw(out)

    def norm(name: str, size: int) -> None:
        made[f"{name}.weight"], made[f"{name}.bias"] = 1 + draw(size), draw(size)

    width = E if kind == "albert" else D
    for table, rows in (("word", V), ("position", P), ("token_type", S)):
        made[f"{kind}.embeddings.{table}_embeddings.weight"] = draw(rows, width)
    norm(f"{kind}.embeddings.LayerNorm", width)
    if kind == "albert":
        linear("albert.encoder.embedding_hidden_mapping_in", D, E)
    for i in range(L if kind == "bert" else groups):
        place = f"{kind}.{LAYER[kind].format(i)}"
        query, key, value, out, norm_1, wi, wo, norm_2 = IN_LAYER[kind]
        for name in (query, key, value, out):
            linear(f"{place}.{name}", D, D)
        norm(f"{place}.{norm_1}", D)
        linear(f"{place}.{wi}", F, D)
        linear(f"{place}.{wo}", D, F)
        norm(f"{place}.{norm_2}", D)
    heads = HEADS[kind]
    linear(heads["pooler"], D, D)
    linear(heads["mlm_dense"], width, D)
    norm(heads["mlm_norm"], width)
    made[f"{heads['mlm']}.bias"] = draw(V)
    linear(heads["order"], 2, D)
    linear("classifier", C, D)
    linear("qa_outputs", 2, D)
    return made


def config_of(kind: str, *, groups: int = 1, **changes: object) -> dict[str, object]:
    """Returns their `config.json`."""
    own = {"embedding_size": E, "num_hidden_groups": groups} if kind == "albert" else {}
    return {
        "model_type": kind,
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": L,
        "num_attention_heads": N,
        "intermediate_size": F,
        "max_position_embeddings": P,
        "type_vocab_size": S,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        **own,
        **changes,
    }


def outputs(
    kind: str, arrays: Mapping[str, np.ndarray], config: Mapping, row: int
) -> dict[str, np.ndarray]:
    """Computes one row of TOKENS without its padding, in float64.

    Returns:
      hidden [n, D], mlm [n, V], order [2], classes [C], span [n, 2].
    """
    w = {name.removeprefix(f"{kind}."): a.astype(np.float64) for name, a in arrays.items()}
    heads = {key: name.removeprefix(f"{kind}.") for key, name in HEADS[kind].items()}
    activation, epsilon = ACTIVATIONS[config["hidden_act"]], config["layer_norm_eps"]
    n = LENGTHS[row]

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], epsilon)

    table = w["embeddings.word_embeddings.weight"]
    x = table[TOKENS[row, :n]] + w["embeddings.token_type_embeddings.weight"][SEGMENTS[row, :n]]
    x = norm("embeddings.LayerNorm", x + w["embeddings.position_embeddings.weight"][:n])
    if kind == "albert":
        x = linear("encoder.embedding_hidden_mapping_in", x)
    groups = config.get("num_hidden_groups", L)
    for i in range(L):
        place = LAYER[kind].format(i * groups // L)
        x = layer(x, [f"{place}.{name}" for name in IN_LAYER[kind]], linear, norm, activation)
    pooled = np.tanh(linear(heads["pooler"], x[0]))
    h = norm(heads["mlm_norm"], activation(linear(heads["mlm_dense"], x)))
    return {
        "hidden": x,
        "mlm": h @ table.T + w[f"{heads['mlm']}.bias"],
        "order": linear(heads["order"], pooled),
        "classes": linear("classifier", pooled),
        "span": linear("qa_outputs", x),
    }


def layer(
    x: np.ndarray, names: list[str], linear: Callable, norm: Callable, activation: Callable
) -> np.ndarray:
    """One post-norm layer, head by head."""
    query, key, value, out, norm_1, wi, wo, norm_2 = names
    q, k, v = (linear(name, x) for name in (query, key, value))
    heads = []
    for head in range(N):
        own = slice(head * H, (head + 1) * H)
        scores = np.exp(q[:, own] @ k[:, own].T / np.sqrt(H))
        heads.append(scores / scores.sum(-1, keepdims=True) @ v[:, own])
    x = norm(norm_1, x + linear(out, np.concatenate(heads, axis=1)))
    return norm(norm_2, x + linear(wo, activation(linear(wi, x))))
