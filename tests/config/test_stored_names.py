"""Conversion of configs that earlier versions stored, field by field."""

import copy

import pytest

from configs.sizes import parse_variant, vision_model
from widenet_jax.config.stored_names import upgrade
from widenet_jax.nn.build import build_model

# config.model of `widenet_tiny` and of `vit_tiny` as stored up to November 2026.
OLD_DENSE = {
    "name": "vision_transformer",
    "patch_size": 2,
    "embed_dim": 64,
    "depth": 3,
    "num_heads": 4,
    "mlp_dim": 64,
    "cls_token": "learned",
    "pool": "token",
    "representation": True,
    "dropout": 0.1,
    "dtype": "bfloat16",
    "share_attention": False,
    "share_ffn": False,
    "share_norms": False,
    "norm_position": "pre",
    "ffn_output_gelu": False,
    "unroll": True,
    "remat": "none",
    "moe": None,
}
# Losses that came later.
LATER = ("switch", "importance", "load", "entropy", "entropy_of_chosen", "z")
OLD_WIDENET = OLD_DENSE | {
    "cls_token": "none",
    "pool": "mean",
    "share_attention": True,
    "share_ffn": True,
    "moe": {
        "blocks": "all",
        "routing_groups": 0,
        "mlp_dim": 64,
        "num_experts": 4,
        "num_selected_experts": 2,
        "capacity_factor": 1.2,
        "capacity_factor_eval": 2.0,
        "capacity": "paper",
        "images_per_group": 4,
        "priority": "token_order",
        "router": "top_k",
        "noise_std": 1.0,
        "load_balance_weight": 0.01,
        "dispatch": "auto",
    },
}
# The same config in today's names.
NEW_WIDENET = {
    "name": "vision_transformer",
    "patch_size": 2,
    "embed_dim": 64,
    "depth": 3,
    "attention": {"name": "full", "num_heads": 4, "head_dim": 0},
    "mlp_dim": 64,
    "cls_token": "none",
    "pool": "mean",
    "representation": True,
    "dropout": 0.1,
    "dtype": "bfloat16",
    "share_attention": True,
    "share_ffn": True,
    "share_norms": False,
    "norm_position": "pre",
    "norm_epsilon": 1e-6,
    "activation": "gelu_tanh",
    "kernel_init": "glorot_uniform",
    "ffn_output_activation": False,
    "unroll": True,
    "remat": "none",
    "ffn": "moe",
    "ffn_blocks": "all",
    "routing_groups": 0,
    "moe": {
        "mlp_dim": 64,
        "num_experts": 4,
        "num_selected_experts": 2,
        "capacity_factor": 1.2,
        "capacity_factor_eval": 2.0,
        "capacity_rule": "paper",
        "examples_per_group": 4,
        "priority": "token_order",
        "router": {"name": "top_k", "noise_std": 1.0},
        "losses": {
            "load_balance": 0.01,
            **dict.fromkeys(LATER, 0.0),
            "over": "group",
        },
        "dispatch": "auto",
        "activation": "gelu_tanh",
        "use_bias": True,
        "output_dropout": 0.0,
    },
}


def test_old_names_become_new_ones():
    old = {"seed": 0, "batch_size": 64, "model": OLD_WIDENET}
    before = copy.deepcopy(old)
    assert upgrade(old) == {"seed": 0, "batch_size": 64, "model": NEW_WIDENET}
    assert old == before


def test_every_old_value_is_kept():
    """Every renamed or moved field keeps a value that differs from the default."""
    moe = OLD_WIDENET["moe"] | {
        "blocks": "every_3",
        "routing_groups": 2,
        "capacity": "authors_code",
        "images_per_group": 7,
        "noise_std": 0.5,
        "load_balance_weight": 0.3,
    }
    model = upgrade({"model": OLD_WIDENET | {"ffn_output_gelu": True, "moe": moe}})["model"]
    assert model["ffn_output_activation"] is True
    assert (model["ffn_blocks"], model["routing_groups"]) == ("every_3", 2)
    moe = model["moe"]
    assert (moe["capacity_rule"], moe["examples_per_group"]) == ("authors_code", 7)
    assert moe["router"]["noise_std"] == 0.5
    assert moe["losses"]["load_balance"] == 0.3


@pytest.mark.parametrize("old", [OLD_WIDENET, OLD_DENSE], ids=["widenet", "dense"])
def test_twice_is_once(old: dict):
    once = upgrade({"model": old})
    assert upgrade(once) == once


@pytest.mark.parametrize(
    ("variant", "old"), [("widenet_tiny", OLD_WIDENET), ("vit_tiny", OLD_DENSE)]
)
def test_what_comes_out_is_todays_model(variant: str, old: dict):
    model = upgrade({"model": old})["model"]
    assert model == vision_model(*parse_variant(variant))
    build_model(model, num_classes=10)


def test_a_config_without_a_model():
    assert upgrade({"learning_rate": 0.1}) == {"learning_rate": 0.1}


def test_routing_groups_of_a_model_without_experts_had_no_effect():
    models = [{"ffn": ffn, "moe": None, "routing_groups": 3} for ffn in ("mlp", "moe", "mine")]
    upgraded = [upgrade({"model": model})["model"]["routing_groups"] for model in models]
    assert upgraded == [0, 3, 3]


def test_losses_of_later_versions_have_weight_zero():
    """A section with the names of today and the losses of another version, or of one's own."""
    moe = {"router": {"name": "top_k"}, "losses": {"mine": 0.5, "over": "batch"}}
    losses = upgrade({"model": {"moe": moe}})["model"]["moe"]["losses"]
    assert losses.pop("mine") == 0.5 and losses.pop("over") == "batch"
    assert losses == dict.fromkeys(LATER, 0.0)


def test_the_embedded_novel_was_a_source_that_read_no_path():
    old = {"data": {"source": "tiny_stream", "path": "mine.txt", "max_length": 64}}
    new = {"data": {"source": "token_stream", "path": "", "max_length": 64}}
    assert upgrade(old) == upgrade(new) == new
