"""Names of models, and the exact number of parameters of every model of the paper."""

import itertools

import jax
import pytest
from untrained import image_spec

from configs.sizes import ROUTER_FIELDS, dense_parameters
from configs.variants import model_section
from widenet_jax.nn.build import build_model, count_parameters, parameter_shapes
from widenet_jax.nn.settings import MoeSettings
from widenet_jax.ops.plan import printed as paper

# variant -> parameters at pretraining: 1000 classes, a representation layer, 224 pixels.
PRETRAINING = {
    "vit_b": 87_158_248,
    "vit_l": 305_376_232,
    "vit_h": 633_685_480,
    "vit_moe_b": 128_088_552,
    "vit_moe_l": 406_115_304,
    "widenet_b": 29_689_832,
    "widenet_l": 40_940_520,
    "widenet_h": 63_186_920,
    "widenet_b,share_norms=true": 29_656_040,
    "widenet_l,share_norms=true": 40_846_312,
    "widenet_h,share_norms=true": 63_028_200,
    "widenet_b,moe=false": 9_223_912,
    "widenet_l,moe=false": 15_755_240,
    "widenet_h,moe=false": 23_841_000,
    "vit_l,share=true": 15_757_288,
    "vit_l,share=true,mlp_dim=8192": 24_149_992,
    "widenet_l,depth=12": 40_891_368,
}
# At finetuning on CIFAR-10: 10 classes, no representation layer.
FINETUNING = {
    "vit_b": 85_806_346,
    "vit_l": 303_311_882,
    "vit_moe_b": 126_736_650,
    "vit_moe_l": 404_050_954,
    "widenet_b": 28_337_930,
    "widenet_l": 38_876_170,
}


def count(variant: str, *, num_classes: int = 1000, pre_logits: bool = True) -> int:
    fields = model_section(variant) | {"pre_logits": pre_logits}
    fields["unroll"] = False  # the same parameters, but only one block is traced
    model = build_model(fields, num_classes=num_classes)
    return count_parameters(parameter_shapes(model, image_spec((224, 224, 3))))


def some_by_default(table: dict, *default: str) -> list:
    """Returns the keys of a table as parameters of a test; others than `default` with --slow."""
    slow = pytest.mark.slow
    return [pytest.param(key, marks=() if key in default else slow) for key in table]


@pytest.mark.parametrize("variant", some_by_default(PRETRAINING, "vit_b", "widenet_l"))
def test_parameters_at_pretraining(variant: str):
    assert count(variant) == PRETRAINING[variant]


@pytest.mark.parametrize("variant", some_by_default(FINETUNING, "vit_moe_b"))
def test_parameters_at_finetuning(variant: str):
    assert count(variant, num_classes=10, pre_logits=False) == FINETUNING[variant]


@pytest.mark.parametrize(
    ("rows", "counts"), [(paper.PRETRAINING, PRETRAINING), (paper.FINETUNING, FINETUNING)]
)
def test_every_printed_figure_is_ours_truncated(rows: tuple[paper.Printed, ...], counts: dict):
    """Except for the two slips of Table 5, which must differ."""
    assert {row.variant for row in rows} == set(counts)
    for row in rows:
        if row.millions is not None:
            assert (counts[row.variant] // 10**6 == row.millions) is not row.slip, row


def test_widenet_b_by_hand():
    """D = 768, F = 4096, E = 4, 12 blocks, 196 patches; no part counted twice."""
    D, F, E = 768, 4096, 4
    patches = 16 * 16 * 3 * D + D
    positions = 196 * D
    attention = 4 * (D * D + D)
    moe = D * E + E * (D * F + F + F * D + D)
    norms = 12 * 2 * 2 * D + 2 * D
    pre_logits, head = D * D + D, D * 1000 + 1000
    total = patches + positions + attention + moe + norms + pre_logits + head
    assert total == PRETRAINING["widenet_b"]


def test_every_router_has_a_variant():
    """Of images and texts, with the losses of the router's paper."""
    for family, router in itertools.product(("vit_moe_tiny", "widenet_4_tiny"), ROUTER_FIELDS):
        moe = model_section(f"{family},router={router},depth=1,selected=2")["moe"]
        assert moe["router"]["name"] == router
        losses = {name for name, weight in moe["losses"].items() if weight} - {"over"}
        assert bool(losses) != MoeSettings(**moe).mixes


@pytest.mark.parametrize(
    ("variant", "ffn"), [("widenet_tiny,depth=2", "top_k"), ("vit_moe_tiny,depth=2", "product_key")]
)
def test_other_feed_forwards(variant: str, ffn: str):
    """As many parameters as the dense layer, in the blocks that have experts otherwise."""
    fields = model_section(f"{variant},ffn={ffn}")
    name = {"top_k": "top_k_mlp"}.get(ffn, ffn)
    assert (fields["ffn"], fields["moe"]) == (name, None)
    model = build_model(fields, num_classes=10)
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    run = lambda inputs: model.init_with_output(rngs, inputs, train=True)  # noqa: E731
    (_, aux), variables = jax.eval_shape(run, image_spec((8, 8, 3)))
    assert aux == {}
    parts = variables["params"]["encoder"]
    (found,) = [part for key, part in parts.items() if key.endswith(name)]
    D, F = fields["embed_dim"], fields["mlp_dim"]
    assert count_parameters(found) == pytest.approx(dense_parameters(D, F), rel=0.1)
