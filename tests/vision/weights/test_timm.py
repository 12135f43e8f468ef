"""timm's layouts of a ViT in plain NumPy against the reading of Google's file."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from inference import reference_vit as reference
from inference.ours import our_logits
from refusals import refuses

from widenet_jax.inference.exported import read_arrays
from widenet_jax.vision.weights.google import from_google
from widenet_jax.vision.weights.timm import ARCHITECTURE, read_timm

D, F, L = reference.D, reference.F, reference.L
CONFIG = {"model_args": {"num_heads": reference.N}, "mean": [0.5] * 3, "std": [0.5] * 3}


def without_row(vit: reference.Vit) -> reference.Vit:
    """Moves the class token's position into the token, as with timm's `no_embed_class`."""
    rows = vit.outside["positions"]
    apart = {"positions": rows[:, 1:], "cls": vit.outside["cls"] + rows[:, :1]}
    return reference.Vit(vit.outside | apart, vit.blocks)


def read(arrays: dict, place: Path, name: str = "vit.safetensors", config: dict = CONFIG):
    """Reads through a file; returns what `read_timm` does."""
    place.mkdir(exist_ok=True)
    whole = {k: np.ascontiguousarray(v, np.float32) for k, v in arrays.items()}
    safetensors.numpy.save_file(whole, place / name)
    if config:
        (place / "config.json").write_text(json.dumps(config))
    arrays = read_arrays(epath.Path(place / name))
    return read_timm(arrays, epath.Path(place), f"config.init_from={place / name}")


TIMM, DEIT3 = ("ls1.gamma", "ls2.gamma"), ("gamma_1", "gamma_2")
DINO = {"head.mlp.0.weight": np.ones((3, D)), "head.last_layer.weight_v": np.ones((3, D))}
MAE = {"mask_token": np.ones((1, 1, D)), "decoder_blocks.0.attn.qkv.weight": np.ones((6, 2))}


@pytest.mark.parametrize(
    ("shape", "scales", "prefix", "beside"),
    [
        ({}, (), "", {}),
        ({"pre_logits": True}, (), "", {}),
        ({"cls": False}, TIMM, "", {}),
        ({}, TIMM, "", {}),
        ({"row": False}, TIMM, "", {}),
        ({"row": False}, DEIT3, "module.", {}),
        ({"bias": False}, (), "timm_model.", {}),
        ({"head": False}, (), "backbone.", DINO),
        ({"head": False}, (), "module.backbone.", {}),
        ({"head": False}, TIMM, "", MAE),
    ],
)
def test_each_layout(shape: dict, scales: tuple, prefix: str, beside: dict, tmp_path: Path):
    """Every tensor is random, and arrives where Google's file of the same ViT puts it."""
    sizes = {name: value for name, value in shape.items() if name in ("cls", "pre_logits")}
    vit = reference.random_vit(**sizes)
    if not shape.get("bias", True):
        for block in vit.blocks:
            block |= {f"{x}_bias": np.zeros(D, np.float32) for x in ("query", "key", "value")}
    vit = vit if shape.get("row", True) else without_row(vit)
    arrays = reference.timm_names(vit, scales)
    left_out = "attn.qkv.bias" if not shape.get("bias", True) else "no part"
    left_out = ("head.weight", "head.bias") if not shape.get("head", True) else left_out
    arrays = {prefix + k: v for k, v in arrays.items() if not k.endswith(left_out)}
    found, _, note = read(arrays | beside, tmp_path)
    expected = from_google(reference.google_names(vit), source="vit.npz")
    if not shape.get("head", True):
        del expected["head"]
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    dropped = sorted({name.partition(".")[0] for name in beside})
    assert note == "; ".join(f"not used: {name}" for name in dropped)


def test_the_function_is_timms(tmp_path: Path):
    """LayerNorm's epsilon is 1e-6, GELU the exact one."""
    vit = reference.random_vit()
    params, fields, _ = read(reference.timm_names(vit, TIMM), tmp_path)
    assert fields["attention"] == {"name": "full", "num_heads": reference.N}
    expected = reference.logits(vit, reference.IMAGES, activation=reference.gelu_erf)
    np.testing.assert_allclose(our_logits(params, reference.IMAGES, **fields), expected, atol=1e-5)
    other = {"norm_epsilon": 1e-3}
    assert np.abs(our_logits(params, reference.IMAGES, **fields | other) - expected).max() > 1e-4


WHOLE = reference.timm_names(reference.random_vit(), TIMM)
ELSEWHERE = "has no place in a ViT; is this another model?"
PARTS = ("reg_token", "dist_token", "head_dist.weight", "fc_norm.weight", "norm_pre.weight")
PARTS += ("rope.freqs", "attn_pool.latent", "layers.0.blocks.0.attn.qkv.weight")
IN_BLOCK = (
    "attn.relative_position_bias_table",
    "attn.q_norm.weight",
    "attn.q_bias",
    "mlp.w12.weight",
)
PARTS += tuple(f"blocks.1.{name}" for name in IN_BLOCK)
OPTIONAL = ("cls_token", "head.", ".attn.qkv.bias", ".gamma")
REFUSED = [({name: np.ones((2, 2))}, f"{name} {ELSEWHERE}") for name in PARTS]
REFUSED += [
    ({name: None}, f"(no )?{name}(, so| is missing; download)")
    for name in WHOLE
    if name not in ("patch_embed.proj.weight",) and not any(x in name for x in OPTIONAL)
]
REFUSED += [
    ({name: np.ones((*array.shape[:-1], array.shape[-1] + 1), np.float32)}, "(shape|scale of|fit)")
    for name, array in WHOLE.items()
    if not name.startswith(("pos_embed", "patch_embed.proj.weight", "blocks.0.mlp.fc2.weight"))
]
REFUSED += [
    (
        {f"blocks.{i}.mlp.fc1.{end}": np.ones((2 * F, *rest)) for i in range(L) for end, rest in
         (("weight", (D,)), ("bias", ()))},
        r"blocks.0.mlp.fc1.weight has the shape \(24, 8\), and .* need \(12, 8\): SwiGLU with one",
    ),
    ({"blocks.0.gamma_1": np.ones(D)}, "are the same parameter; remove one"),
    ({"blocks.3.norm1.weight": np.ones(D)}, "blocks.2.attn.qkv.weight is missing"),
    ({"pos_embed": np.ones((5, D))}, r"pos_embed has the shape \[5, 8\], as in no ViT of timm"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), REFUSED)
def test_what_is_no_such_vit(change: dict, line: str, tmp_path: Path):
    """Every array of another shape, every array that is missing, and parts of other models."""
    arrays = {name: array for name, array in (WHOLE | change).items() if array is not None}
    refuses(f"(?s)config.init_from=.*vit.safetensors: .*{line}", read, arrays, tmp_path)


IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
TOLD = "no config.json says its pixels: as of"
HEADS = {"model_args": CONFIG["model_args"]}


@pytest.mark.parametrize(
    ("name", "config", "mean", "told"),
    [
        ("a", HEADS | {"pretrained_cfg": IMAGENET}, 0.485, "its normalisation of pixels"),
        ("a", HEADS | IMAGENET, 0.485, "its normalisation of pixels"),
        ("mae_b", CONFIG | {"architecture": "deit3_small_patch16_224"}, 0.5, ""),
        ("vit_b.augreg_in21k", HEADS, 0.5, f"{TOLD} augreg, by the name of the file"),
        ("deit3_b", HEADS, 0.485, f"{TOLD} deit, by the name of the file; its norm"),
        ("mae_pretrain", HEADS, 0.485, f"{TOLD} mae"),
        ("x_dinov2", HEADS, 0.485, f"{TOLD} dino"),
    ],
)
def test_pixels(name: str, config: dict, mean: float, told: str, tmp_path: Path):
    """Grey pixels of their mean, p = 255 mean, are theirs of 0: the bias alone remains."""
    params, _, note = read(WHOLE, tmp_path, f"{name}.safetensors", config)
    assert note.startswith(told)
    projection, means = params["embed"]["projection"], IMAGENET["mean"] if mean < 0.5 else [0.5] * 3
    ours = np.float64(means) * 2 - 1
    patch = np.einsum("hwcd,c->d", projection["kernel"], ours) + projection["bias"]
    np.testing.assert_allclose(patch, WHOLE["patch_embed.proj.bias"], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "config", "line"),
    [
        ("vit", HEADS, r"vit.safetensors: no config.json beside it has the mean and std of its pi"),
        ("amaretto", None, r"width of 8"),
        (
            "mae",
            {"model_args": {"num_heads": 3}},
            "config.json: num_heads=3 of a width of 8; state",
        ),
        ("mae", {"model_args": {"num_heads": "2"}}, "config.json: num_heads='2' of a width of 8"),
        ("mae", {"model_args": 3}, "json: damaged .'int' object has no attribute 'get'.; down"),
        ("mae", {"pretrained_cfg": 3}, "config.json: damaged .argument of type 'int' is not"),
        (
            "mae",
            CONFIG | {"std": [0, 0, 0]},
            "json: damaged .image_std is not above 0.; download it",
        ),
        ("mae", {"pretrained_cfg": []}, "has no attribute 'get'.; download it again"),
        ("mae", {"model_args": HEADS["model_args"] | {"img_size": [4, 16]}}, "are no squares"),
        ("mae", HEADS | {"pretrained_cfg": {"input_size": [3, 4, 16]}}, "are no squares"),
        ("a", CONFIG | {"architecture": "vit_base_patch16_rpn_224"}, "may compute something else"),
        ("dinosaurs", HEADS, "and its name has not one word of"),
        ("dino_then_augreg", HEADS, "and its name has not one word of"),
        ("a", CONFIG | {"global_pool": "avg"}, "global_pool='avg' is not how models with these ar"),
        ("mae", {"model_args": HEADS["model_args"] | {"global_pool": "max"}}, "global_pool='max'"),
        (
            "a",
            CONFIG | {"model_args": HEADS["model_args"] | {"act_layer": "quick_gelu"}},
            "model_args has act_layer, wi",
        ),
    ],
)
def test_what_the_config_must_say(name: str, config: dict | None, line: str, tmp_path: Path):
    refuses(line, read, WHOLE, tmp_path, f"{name}.safetensors", config or {})


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("vit_small_patch16_224", True),
        ("deit3_medium_patch16_224", True),
        ("vit_base_patch14_dinov2", True),
        ("vit_medium_patch16_gap_240", True),
        ("vit_base_patch16_gap_224", False),
        ("vit_base_patch16_siglip_gap_224", False),
        ("vit_base_patch16_rope_ape_224", False),
        ("vit_small_patch16_18x2_224", False),
        ("deit_base_distilled_patch16_224", False),
    ],
)
def test_architectures(name: str, known: bool):
    assert bool(re.fullmatch(ARCHITECTURE, name)) == known
