"""MoEUT against its equations, written out in float64 from the paper and its released code."""

import jax
import jax.numpy as jnp
import numpy as np
from gradients import assert_gradients
from inference.reference_vit import layer_norm

from configs.variants import model_section
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.param_names import map_with_path

D, V, T, L, G, N, H, A, E, K = 16, 11, 6, 4, 2, 2, 4, 3, 5, 2


def tiny() -> tuple:
    """A MoEUT of two layers that run twice, and parameters none of which is 0 or 1."""
    fields = model_section(f"moeut_44m,loop={G}x{L // G}") | {"embed_dim": D, "dtype": "float32"}
    fields["attention"].update(num_heads=N, head_dim=H, num_experts=A)
    fields["moe"].update(mlp_dim=6, num_experts=E, num_selected_experts=K)
    model = build_model(fields, vocab_size=V)
    rng = np.random.default_rng(1)
    spec = {"tokens": jax.ShapeDtypeStruct((2, T), jnp.int32)}

    def drawn(path: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        mean = 1.0 if path.endswith("scale") else 0.0
        return jnp.asarray(rng.normal(mean, 0.3, leaf.shape), jnp.float32)

    params = map_with_path(drawn, parameter_shapes(model, spec))
    return model, params, rng.integers(0, V, (2, T + 1))


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def norm(x: np.ndarray, of: dict) -> np.ndarray:
    return layer_norm(x, of["scale"], of["bias"], 1e-5)


def best(logits: np.ndarray) -> np.ndarray:
    """Sigmoids of the K largest of the last axis, 0 for the others."""
    least = np.sort(logits, -1)[..., -K, None]
    return np.where(logits >= least, 1 / (1 + np.exp(-logits)), 0)


def entropy(logits: np.ndarray) -> np.ndarray:
    """sum p log p, p the mean over the tokens, the first axis."""
    p = softmax(logits).mean(0)
    return (p * np.log(p)).sum(-1)


def turned(x: np.ndarray) -> np.ndarray:
    """RoPE on half of the dimensions: here one pair, which turns by t at place t."""
    z = (x[..., 0] + 1j * x[..., 1]) * np.exp(1j * np.arange(T))[:, None]
    return np.concatenate([np.stack([z.real, z.imag], -1), x[..., 2:]], -1)


def attention(x: np.ndarray, y: np.ndarray, of: dict) -> tuple[np.ndarray, float]:
    """SwitchHead of a sequence: queries, keys and choices see y, the normed x; values see x."""
    query, key = (turned((y @ of[k]["kernel"]).reshape(T, N, H)) for k in ("query", "key"))
    logits = {side: (y @ of[f"{side}_router"]).reshape(T, N, A) for side in ("value", "out")}
    each = np.einsum("td,adnh->tnah", x, of["value_experts"]["kernel"].reshape(A, D, N, H))
    value = np.einsum("tnah,tna->tnh", each, best(logits["value"]))
    scores = np.einsum("qnh,knh->nqk", query, key) / np.sqrt(H)
    scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
    mixed = np.einsum("nqk,knh->qnh", softmax(scores), value)
    kernel = of["out_experts"]["kernel"].reshape(A, N, H, D)
    out = np.einsum("tnh,anhd,tna->td", mixed, kernel, best(logits["out"]))
    return out, 0.001 * G / L * sum(entropy(one).mean() for one in logits.values())


def experts(x: np.ndarray, y: np.ndarray, of: dict) -> tuple[np.ndarray, float]:
    """sigma-MoE: the choice sees y, the normed x; the experts see x."""
    logits = y @ of["router"]["kernel"]
    hidden = np.maximum(np.einsum("td,edf->tef", x, of["experts"]["wi"]["kernel"]), 0)
    outputs = np.einsum("tef,efd->ted", hidden, of["experts"]["wo"]["kernel"])
    return np.einsum("ted,te->td", outputs, best(logits)), 0.01 * G / L * entropy(logits)


def equations(params: dict, tokens: np.ndarray) -> float:
    """The loss: cross-entropy, and each layer's entropy losses, the mean over its loops."""
    total = 0.0
    for row in tokens:
        x, of = params["embedding"][row[:-1]], params["encoder"]
        for step in range(L):
            layer = f"core_0_{step % G}_"
            y = norm(x, of[f"{layer}norm_attention"])
            out, loss = attention(x, y, of[f"{layer}attention"])
            x, total = x + out, total + loss / len(tokens)
            out, loss = experts(x, norm(x, of[f"{layer}norm_ffn"]), of[f"{layer}moe"])
            x, total = x + out, total + loss / len(tokens)
        logits = norm(x, of["norm_out"]) @ params["output"]["kernel"] + params["output"]["bias"]
        chosen = softmax(logits)[np.arange(T), row[1:]]
        total -= np.log(chosen).mean() / len(tokens)
    return total


def test_loss_and_gradients():
    model, params, tokens = tiny()

    def loss(params: dict) -> jax.Array:
        inputs = {"tokens": jnp.asarray(tokens[:, :-1])}
        with jax.default_matmul_precision("highest"):
            outputs, aux = model.apply({"params": params}, inputs, train=True)
        scores = jax.nn.log_softmax(outputs["logits"])
        chosen = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)
        return aux["loss"].sum() - chosen.mean()

    found, gradients = jax.jit(jax.value_and_grad(loss))(params)
    expected = equations(jax.tree.map(np.float64, params), tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert_gradients(lambda params: equations(params, tokens), params, gradients)
