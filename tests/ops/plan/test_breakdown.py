"""Parts of the step from the scopes of operations."""

import pytest

from widenet_jax.ops.plan.breakdown import breakdown, part_of
from widenet_jax.ops.plan.hlo import parse_instruction
from widenet_jax.ops.plan.pricing import Price

FORWARD = "jit(train_step)/jvp(VisionTransformer)"
BACKWARD = "jit(train_step)/transpose(jvp(VisionTransformer))"


@pytest.mark.parametrize(
    ("op_name", "part"),
    [
        (f"{FORWARD}/encoder/block_03/block_03_attention/query/dot_general", "attention"),
        (f"{BACKWARD}/encoder/block_03/attention/vmap(BTNH,BSNH->BNTS)/dot_general", "attention"),
        (f"{FORWARD}/encoder/block_03/moe/router/moe.route/router/dot_general", "router"),
        (f"{BACKWARD}/encoder/block_03/moe/combine/gsec,egcd->gsd/dot_general", "dispatch"),
        (f"{FORWARD}/encoder/block_03/moe/experts/experts/experts.dense/dot_general", "experts"),
        (f"{FORWARD}/encoder/block_03/block_03_norm_ffn/reduce_sum", "norms"),
        (f"{FORWARD}/embed/projection/dot_general", "embedding"),
        (f"{FORWARD}/head/dot_general", "head"),
        ("jit(train_step)/jvp(TextEncoder)/embeddings/norm/mul", "embedding"),
        ("jit(train_step)/transpose(jvp(TextEncoder))/mlm/bpe,ve->bpv/dot_general", "head"),
        ("jit(train_step)/jvp(LanguageModel)/output/btd,df->btf/dot_general", "head"),
        (f"{FORWARD}/encoder/block_03/block_03_product_key/dot_general", "feed-forward"),
        ("jit(train_step)/jvp(LanguageModel)/encoder/block_00_top_k_mlp/wi/add", "feed-forward"),
        (f"{FORWARD}/convert_element_type", "rest of the model"),
        ("jit(train_step)/jvp(jit(log_softmax))/reduce_sum", "loss and mixup"),
        ("jit(train_step)/reduce_sum", "optimizer"),
        ("reduce_window_sum", "no scope"),
        ("", "no scope"),
    ],
)
def test_parts(op_name: str, part: str):
    assert part_of(op_name) == part


def test_sums_per_part_slowest_first():
    def price(op_name: str, **ms: float) -> Price:
        line = f'  %x = f32[] negate(%y), metadata={{op_name="{op_name}"}}'
        return Price(parse_instruction(line), 1, **ms)

    parts = breakdown(
        [
            price("jit(train_step)/add", compiler_ms=1.0),
            price(f"{FORWARD}/head/add", compiler_ms=2.0, roofline_ms=0.5),
            price("jit(train_step)/add", collective_ms=3.0),
        ]
    )
    assert list(parts.items()) == [
        ("head", {"ms": 2.5, "roofline_ms": 0.5, "collective_ms": 0.0}),
        ("optimizer", {"ms": 1.0, "roofline_ms": 0.0, "collective_ms": 3.0}),
    ]
