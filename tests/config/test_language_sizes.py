"""Names of language models, the paper's parameter counts, and equal parameters."""

import jax
import jax.numpy as jnp
import pytest

from configs import sizes
from configs.sizes import LANGUAGE_SIZES, LOOPED
from configs.variants import PRESETS, model_section
from widenet_jax.nn.build import build_model, count_parameters, parameter_shapes


def count(variant: str, vocab_size: int) -> int:
    """Counts the parameters of a model, whose blocks are equal, from a model of one block."""
    fields = model_section(variant)
    model = build_model(fields | {"loop": {"core": ((1, 1),)}}, vocab_size=vocab_size)
    memory = jax.ShapeDtypeStruct((1, 1, 8, fields["embed_dim"]), jnp.float32)
    inputs = {"tokens": jax.ShapeDtypeStruct((1, 8), jnp.int32), "memory": memory,
              "memory_length": jax.ShapeDtypeStruct((1,), jnp.int32)}  # fmt: skip
    shapes = parameter_shapes(model, inputs)
    blocks = {name: part for name, part in shapes["encoder"].items() if name != "norm_out"}
    return count_parameters(shapes) + (
        LANGUAGE_SIZES[variant.partition(",")[0]]["depth"] - 1
    ) * count_parameters(blocks)


@pytest.mark.parametrize(
    ("size", "vocab_size", "dense", "experts"),
    [
        # As printed in section 6 of the paper, less the two scalars a block of its attention.
        ("wt_s", 8000, 47_260_136 - 2 * 16, 47_260_248 - 2 * 16),
        pytest.param("wt_s_star", 8000, 237.70e6, 237.00e6, marks=pytest.mark.slow),
        pytest.param("wt_b", 8000, 262.48e6, 262.46e6, marks=pytest.mark.slow),
        pytest.param(
            "e8", 205, 41.23e6, 41.24e6, marks=pytest.mark.slow
        ),  # 205 of the 256 bytes occur in enwik8
    ],
)
def test_parameters_of_the_paper(size: str, vocab_size: int, dense: float, experts: float):
    rounding = 0 if isinstance(dense, int) else 5000
    for variant, printed in ((size, dense), (f"{size},preset=sigma_moe", experts)):
        assert count(variant, vocab_size) == pytest.approx(printed, abs=rounding), variant


# loop_s is dense at equal operations; looped models have experts (test_loop_counts.py).
OTHERS = [size for size in LANGUAGE_SIZES if size not in ("tiny", "loop_s", *LOOPED)]
SLOW = [pytest.param(size, marks=pytest.mark.slow) for size in OTHERS]


@pytest.mark.parametrize("size", ["tiny", *SLOW])
def test_every_size_has_equal_parameters(size: str):
    """Dense and product keys, as solved, are within 0.5% of the whole model with experts."""
    base = LANGUAGE_SIZES[size]
    vocab_size = 256 if size in ("byte_s", "tiny", "e8") else 8000
    expected = count(f"{size},preset=sigma_moe", vocab_size)
    D, L = base["embed_dim"], base["depth"]
    experts = sizes.experts_parameters(D, base["experts"], base["width"])
    for variant in ("", ",parameter_matched=true", ",ffn=product_key"):
        fields = model_section(size + variant)
        if fields["product_key"]:
            keys = fields["product_key"]
            own = sizes.product_key_parameters(D, keys["num_keys"], keys["num_heads"])
        else:
            own = sizes.dense_parameters(D, fields["mlp_dim"])
        assert abs(L * (own - experts)) <= 0.005 * expected, variant


def test_counts_of_layers_are_those_of_the_models():
    """The formulas of `sizes`, compared with the parameters of tiny models."""
    D, L, V = 96, 2, 256
    outside = count("tiny", V) - L * sizes.dense_parameters(D, model_section("tiny")["mlp_dim"])
    of_experts = L * sizes.experts_parameters(D, 8, 32)
    assert count("tiny,preset=sigma_moe", V) == outside + of_experts
    keys = L * sizes.product_key_parameters(D, 21, 4)
    assert count("tiny,ffn=product_key", V) == outside + keys


def test_the_paper_s_numbers_of_keys_and_widths():
    """Table 6: 62 and 89 keys with equal parameters, 46 and 64 with equal values."""
    for size, matched, values in (("wt_s", 62, 46), ("wt_b", 89, 64), ("e8", 62, 46)):
        keys = model_section(f"{size},preset=product_key")["product_key"]
        assert (keys["num_keys"], keys["num_heads"], keys["knn"]) == (matched, 4, 128)
        keys = model_section(f"{size},preset=product_key_values_softmax")["product_key"]
        assert (keys["num_keys"], keys["weights"]) == (values, "softmax")
    assert model_section("e8,parameter_matched=true")["mlp_dim"] == 2053
    assert sizes.matched_mlp_dim(sizes.dense_parameters(412, 777), 412) == 777


def moe(variant: str) -> dict:
    return model_section(variant)["moe"]


def test_rows_of_the_tables():
    sigma = moe("wt_s_star,preset=sigma_moe")
    sizes = ("num_experts", "mlp_dim", "num_selected_experts")
    assert [sigma[key] for key in sizes] == [128, 128, 4]
    router = {"name": "sigmoid", "expert_dropout": 0.05, "bias_balancing": False}
    assert sigma["router"] == router
    assert {k: v for k, v in sigma["losses"].items() if v} == {"entropy": 1e-3, "over": "batch"}
    assert (sigma["capacity_rule"], sigma["activation"]) == ("unlimited", "relu")
    assert (sigma["use_bias"], sigma["dropout"], sigma["output_dropout"]) == (False, 0.0, 0.1)
    assert sigma["kernel_init"] == "pre_norm"

    switch = moe("wt_s,preset=switch")
    assert [switch[key] for key in sizes] == [4, 512, 1]
    assert {k: v for k, v in switch["losses"].items() if v} == {"switch": 0.01, "over": "batch"}
    assert (switch["kernel_init"], switch["dropout"]) == ("switch", 0.1)
    assert moe("wt_s,preset=switch_no_dropout")["dropout"] == 0.0

    assert [moe("wt_b,preset=sigma_moe,selected=8,mlp_dim=64")[key] for key in sizes] == [64, 64, 8]
    plain = moe("wt_b,preset=unregularized")
    assert not plain["losses"]["entropy"] and not plain["router"]["expert_dropout"]
    assert moe("byte_s,preset=standard_dropout,dropout=0.1")["dropout"] == 0.1
    assert moe("wt_b,preset=standard_init")["kernel_init"] == "pre_norm_each_expert"
    assert moe("wt_b,preset=s_base_released")["router"]["name"] == "sinkhorn_released"
    balanced = moe("loop_s,ffn=moe,router=softmax_renormalized,balance=0.02")["losses"]
    assert {k: v for k, v in balanced.items() if v} == {"load_balance": 0.02, "over": "group"}
    of_chosen = moe("e8,preset=softmax_renormalized_released")
    assert of_chosen["router"]["name"] == "softmax_renormalized"
    weights = {k: v for k, v in of_chosen["losses"].items() if v}
    assert weights == {"entropy_of_chosen": 1e-4, "over": "batch"}
    assert model_section("wt_s,preset=top_k,num_active=64")["top_k_mlp"] == {
        "mlp_dim": 2053,
        "num_active": 64,
        "kernel_init": "pre_norm",
    }


def test_every_row_builds():
    for preset in PRESETS:
        build_model(model_section(f"tiny,preset={preset},dropout=0.1"), vocab_size=10)
