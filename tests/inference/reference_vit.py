"""A ViT in plain NumPy with explicit loops, and its weights under the names of public files."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

P, D, N, F, L, V, SIDE = 4, 8, 2, 12, 2, 5, 2  # patch, embed, heads, mlp, blocks, classes, grid
H = D // N
IMAGES = np.random.default_rng(1).uniform(-1, 1, (3, SIDE * P, SIDE * P, 3)).astype(np.float32)


@dataclass
class Vit:
    """Weights by plain names: kernels [in, out], one dict per block."""

    outside: dict[str, np.ndarray]
    blocks: list[dict[str, np.ndarray]]


def random_vit(*, cls: bool = True, pre_logits: bool = False) -> Vit:
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape, scale=0.5).astype(np.float32)  # noqa: E731
    outside = {
        "patch_kernel": draw(P, P, 3, D),
        "patch_bias": draw(D),
        "positions": draw(1, SIDE**2 + cls, D),
        "norm_scale": 1 + draw(D),
        "norm_bias": draw(D),
        "head_kernel": draw(D, V),
        "head_bias": draw(V),
    }
    if cls:
        outside["cls"] = draw(1, 1, D)
    if pre_logits:
        outside |= {"pre_kernel": draw(D, D), "pre_bias": draw(D)}

    def block() -> dict[str, np.ndarray]:
        ends = ("scale", "bias")
        parts = {f"norm{i}_{v}": draw(D) + (v == "scale") for i in (1, 2) for v in ends}
        for name in ("query", "key", "value", "out"):
            parts |= {f"{name}_kernel": draw(D, D), f"{name}_bias": draw(D)}
        return parts | {
            "wi_kernel": draw(D, F), "wi_bias": draw(F),
            "wo_kernel": draw(F, D), "wo_bias": draw(D),
        }  # fmt: skip

    return Vit(outside, [block() for _ in range(L)])


def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, epsilon: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale + bias


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def attention(x: np.ndarray, b: dict[str, np.ndarray]) -> np.ndarray:
    """Attention within one image [T, D], head by head; each head has H consecutive columns."""
    q, k, v = (x @ b[f"{name}_kernel"] + b[f"{name}_bias"] for name in ("query", "key", "value"))
    heads = []
    for n in range(N):
        own = slice(n * H, (n + 1) * H)
        scores = np.exp(q[:, own] @ k[:, own].T / np.sqrt(H))
        heads.append(scores / scores.sum(-1, keepdims=True) @ v[:, own])
    return np.concatenate(heads, axis=1) @ b["out_kernel"] + b["out_bias"]


def logits(
    vit: Vit,
    images: np.ndarray,
    *,
    epsilon: float = 1e-6,
    activation: Callable[[np.ndarray], np.ndarray] = gelu_tanh,
) -> np.ndarray:
    """[B, height, width, 3] to [B, V] in float64; pools the CLS token if there is one, else all.

    The defaults are Google's.
    """
    w = {k: v.astype(np.float64) for k, v in vit.outside.items()}
    rows = []
    for image in images.astype(np.float64):
        grid = [(r * P, c * P) for r in range(SIDE) for c in range(SIDE)]
        patches = [image[r : r + P, c : c + P].ravel() for r, c in grid]
        x = np.stack(patches) @ w["patch_kernel"].reshape(-1, D) + w["patch_bias"]
        x = np.concatenate([w["cls"][0], x]) if "cls" in w else x
        x = x + w["positions"][0]
        for b in vit.blocks:
            x = x + attention(layer_norm(x, b["norm1_scale"], b["norm1_bias"], epsilon), b)
            h = layer_norm(x, b["norm2_scale"], b["norm2_bias"], epsilon)
            h = activation(h @ b["wi_kernel"] + b["wi_bias"])
            x = x + h @ b["wo_kernel"] + b["wo_bias"]
        x = layer_norm(x, w["norm_scale"], w["norm_bias"], epsilon)
        y = x[0] if "cls" in w else x.mean(0)
        y = np.tanh(y @ w["pre_kernel"] + w["pre_bias"]) if "pre_kernel" in w else y
        rows.append(y @ w["head_kernel"] + w["head_bias"])
    return np.stack(rows)


def google_names(
    vit: Vit,
    *,
    positions: str = "Transformer/posembed_input/pos_embedding",
    numbered_together: bool = True,
    stacked: bool = False,
) -> dict[str, np.ndarray]:
    """Names and shapes the weights as Google's `.npz` files do."""
    w = vit.outside
    names = {"embedding": "patch", "Transformer/encoder_norm": "norm", "head": "head"}
    arrays = renamed(w, names | {"pre_logits": "pre"}) | {positions: w["positions"]}
    if "cls" in w:
        arrays["cls"] = w["cls"]
    blocks = [google_block(b, numbered_together) for b in vit.blocks]
    if stacked:
        one = {k: np.stack([b[k] for b in blocks]) for k in blocks[0]}
        return arrays | {f"Transformer/encoderblock/{k}": v for k, v in one.items()}
    for i, block in enumerate(blocks):
        arrays |= {f"Transformer/encoderblock_{i}/{k}": v for k, v in block.items()}
    return arrays


def google_block(b: dict[str, np.ndarray], numbered_together: bool) -> dict[str, np.ndarray]:
    norm1, att, norm2, mlp = (0, 1, 2, 3) if numbered_together else (0, 0, 1, 0)
    shaped = b | {"out_kernel": b["out_kernel"].reshape(N, H, D)}
    for name in ("query", "key", "value"):
        shaped[f"{name}_kernel"] = b[f"{name}_kernel"].reshape(D, N, H)
        shaped[f"{name}_bias"] = b[f"{name}_bias"].reshape(N, H)
    linear = ("query", "key", "value", "out")
    names = {f"MultiHeadDotProductAttention_{att}/{name}": name for name in linear}
    names |= {f"LayerNorm_{norm1}": "norm1", f"LayerNorm_{norm2}": "norm2"}
    names |= {f"MlpBlock_{mlp}/Dense_0": "wi", f"MlpBlock_{mlp}/Dense_1": "wo"}
    return renamed(shaped, names)


def renamed(weights: dict[str, np.ndarray], names: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns the kernels, scales and biases under their names: {theirs: ours}."""
    return {
        f"{theirs}/{end}": weights[f"{ours}_{end}"]
        for theirs, ours in names.items()
        for end in ("kernel", "scale", "bias")
        if f"{ours}_{end}" in weights
    }


# Their name of each linear layer in a block: in stored files, and in the modules of transformers 5.
LINEAR = ("query", "key", "value", "out", "wi", "wo")
FILES = [f"attention.attention.{name}" for name in LINEAR[:3]]
FILES += ["attention.output.dense", "intermediate.dense", "output.dense"]
MODULES = [f"attention.{letter}_proj" for letter in "qkvo"] + ["mlp.fc1", "mlp.fc2"]
HUGGINGFACE_LINEAR = {
    "files": dict(zip(FILES, LINEAR, strict=True)),
    "modules": dict(zip(MODULES, LINEAR, strict=True)),
}


def huggingface_names(vit: Vit, *, layout: str = "files") -> dict[str, np.ndarray]:
    """Names and shapes the weights as ViTForImageClassification does: linear layers [out, in]."""
    w = vit.outside
    patches = "vit.embeddings.patch_embeddings.projection"
    arrays = {
        "vit.embeddings.cls_token": w["cls"],
        "vit.embeddings.position_embeddings": w["positions"],
        f"{patches}.weight": w["patch_kernel"].transpose(3, 2, 0, 1),
        f"{patches}.bias": w["patch_bias"],
        "vit.layernorm.weight": w["norm_scale"],
        "vit.layernorm.bias": w["norm_bias"],
        "classifier.weight": w["head_kernel"].T,
        "classifier.bias": w["head_bias"],
    }
    blocks = {"files": "vit.encoder.layer", "modules": "vit.layers"}[layout]
    for i, b in enumerate(vit.blocks):
        layer = f"{blocks}.{i}"
        for theirs, ours in HUGGINGFACE_LINEAR[layout].items():
            arrays[f"{layer}.{theirs}.weight"] = b[f"{ours}_kernel"].T
            arrays[f"{layer}.{theirs}.bias"] = b[f"{ours}_bias"]
        for theirs, ours in (("layernorm_before", "norm1"), ("layernorm_after", "norm2")):
            arrays[f"{layer}.{theirs}.weight"] = b[f"{ours}_scale"]
            arrays[f"{layer}.{theirs}.bias"] = b[f"{ours}_bias"]
    return arrays


def huggingface_config(**changes: object) -> dict[str, object]:
    """Their `config.json` for this model, as far as the import reads it; Google's values."""
    facts = {"num_attention_heads": N, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
    return facts | changes


TIMM_LINEAR = {"attn.proj": "out", "mlp.fc1": "wi", "mlp.fc2": "wo"}


def timm_names(vit: Vit, scales: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Names the weights as timm does; scales are drawn, and divide what they multiply."""
    w, draw = vit.outside, np.random.default_rng(2)
    arrays = {
        "pos_embed": w["positions"],
        "patch_embed.proj.weight": w["patch_kernel"].transpose(3, 2, 0, 1),
        "patch_embed.proj.bias": w["patch_bias"],
        "norm.weight": w["norm_scale"],
        "norm.bias": w["norm_bias"],
        "head.weight": w["head_kernel"].T,
        "head.bias": w["head_bias"],
    }
    if "cls" in w:
        arrays["cls_token"] = w["cls"]
    if "pre_kernel" in w:
        arrays |= {"pre_logits.fc.weight": w["pre_kernel"].T, "pre_logits.fc.bias": w["pre_bias"]}
    for i, b in enumerate(vit.blocks):
        own = {f"{theirs}.weight": b[f"{ours}_kernel"].T for theirs, ours in TIMM_LINEAR.items()}
        own |= {f"{theirs}.bias": b[f"{ours}_bias"] for theirs, ours in TIMM_LINEAR.items()}
        own |= {f"norm{k}.weight": b[f"norm{k}_scale"] for k in (1, 2)}
        own |= {f"norm{k}.bias": b[f"norm{k}_bias"] for k in (1, 2)}
        kernels, biases = ([b[f"{x}_{end}"] for x in ("query", "key", "value")]
                           for end in ("kernel", "bias"))  # fmt: skip
        own |= {"attn.qkv.weight": np.hstack(kernels).T, "attn.qkv.bias": np.hstack(biases)}
        for name, layer in zip(scales, ("attn.proj", "mlp.fc2"), strict=False):
            own[name] = draw.uniform(0.1, 2, D).astype(np.float32) * draw.choice([-1, 1], D)
            own[f"{layer}.weight"] = own[f"{layer}.weight"] / own[name][:, None]
            own[f"{layer}.bias"] = own[f"{layer}.bias"] / own[name]
        arrays |= {f"blocks.{i}.{name}": array for name, array in own.items()}
    return arrays
