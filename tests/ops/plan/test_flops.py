"""FLOPs compared with sums written out by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from configs.variants import model_section
from widenet_jax.errors import BadInputError
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.feed_forwards import FEED_FORWARDS
from widenet_jax.ops.plan.planner import forward_flops

INPUTS = {"image": jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)}


def test_vit_b():
    """ViT-B/16: T = 14 * 14 + 1, D = 768, F = 3072, 12 blocks, 1000 classes."""
    T, D, F = 197, 768, 3072
    patches = 2 * (14 * 14) * (16 * 16 * 3) * D
    block = 4 * (2 * T * D * D) + 2 * (2 * T * T * D) + 2 * (2 * T * D * F)
    head = 2 * D * D + 2 * D * 1000
    assert (
        forward_flops(model_section("vit_b"), INPUTS, num_classes=1000)
        == patches + 12 * block + head
    )


def test_widenet_counts_the_selected_experts_and_no_capacity():
    """WideNet-L: no CLS token, 2 of 4 experts per token; the capacity factor does not matter."""
    T, D, F = 196, 1024, 4096
    patches = 2 * T * (16 * 16 * 3) * D
    block = 4 * (2 * T * D * D) + 2 * (2 * T * T * D) + 2 * (2 * 2 * T * D * F)
    head = 2 * D * D + 2 * D * 1000
    expected = patches + 24 * block + head
    for variant in ("widenet_l", "widenet_l,capacity_factor=4", "widenet_l,experts=16"):
        assert forward_flops(model_section(variant), INPUTS, num_classes=1000) == expected


@pytest.mark.parametrize(
    ("table", "changes", "field"),
    [
        (ATTENTIONS, {"attention": {"name": "new"}}, "attention.name=new"),
        (FEED_FORWARDS, {"ffn": "new", "new": {}}, "ffn=new"),
    ],
)
def test_a_part_that_is_not_counted_is_named(table, changes: dict, field: str, monkeypatch):
    monkeypatch.setitem(table, "new", nn.LayerNorm)
    with pytest.raises(BadInputError, match=rf"{field}: its FLOPs are not counted"):
        forward_flops(model_section("vit_b") | changes, INPUTS, num_classes=1000)


def text_flops(variant: str, head: str = "pretraining", *, predictions: int = 20, **fields) -> int:
    """FLOPs of a text of 512 tokens, V = 30,000."""
    inputs = {"tokens": jax.ShapeDtypeStruct((1, 512), jnp.int32),
              "mlm_positions": jax.ShapeDtypeStruct((1, predictions), jnp.int32)}  # fmt: skip
    model = model_section(variant)
    return forward_flops(model, inputs, vocab_size=30_000, head=head, **fields)


def test_text():
    """ALBERT base: T = 512, D = 768, F = 3072, E = 128, V = 30,000, 12 blocks; 3 classes."""
    T, D, F, E, V = 512, 768, 3072, 128, 30_000
    block = 4 * (2 * T * D * D) + 2 * (2 * T * T * D) + 2 * (2 * T * D * F)
    encoder, pooler = 12 * block + 2 * T * E * D, 2 * D * D
    assert encoder / 1e9 == pytest.approx(96.7, abs=0.05)
    for predictions, gflops in ((20, 0.16), (77, 0.61)):
        mlm = predictions * (2 * D * E + 2 * E * V)
        assert mlm / 1e9 == pytest.approx(gflops, abs=0.005)
        found = text_flops("albert", predictions=predictions)
        assert found == text_flops("bert", predictions=predictions)
        assert found == encoder + mlm + pooler + 2 * D * 2
    assert text_flops("albert", "classification", num_classes=3) == encoder + pooler + 2 * D * 3
    assert text_flops("albert", "span") == encoder + 2 * T * D * 2
    assert text_flops("widenet_16") - text_flops("albert") == 12 * 2 * (2 * T * D * F)


def language_flops(variant: str) -> int:
    """FLOPs of a window of 256 tokens after 256 others, V = 8000."""
    tokens = jax.ShapeDtypeStruct((1, 256), jnp.int32)
    memory = jax.ShapeDtypeStruct((1, 16, 256, 412), jnp.float32)
    inputs = {"tokens": tokens, "memory": memory}
    return forward_flops(model_section(variant), inputs, vocab_size=8000)


def test_language_model():
    """WT-S: D = 412, 16 blocks, 10 heads of 41, F = 2053."""
    T, M, D, W, F = 256, 256, 412, 410, 2053
    pairs = sum(M + i + 1 for i in range(T))
    attention = 2 * T * 2 * D * W + 2 * (M + T) * 2 * D * W + pairs * 3 * 2 * W
    outside = 2 * T * D * 8000
    dense = language_flops("wt_s")
    assert dense == outside + 16 * (attention + T * 4 * D * F)
    without = dense - 16 * T * 4 * D * F
    full = model_section("wt_s") | {"attention": {"name": "full", "num_heads": 10, "head_dim": 41}}
    tokens = {"tokens": jax.ShapeDtypeStruct((1, T), jnp.int32)}
    pairs = T * (T + 1) // 2
    attention = 4 * T * 2 * D * W + pairs * 2 * 2 * W
    assert forward_flops(full, tokens, vocab_size=8000) == (
        outside + 16 * (attention + T * 4 * D * F)
    )

    def feed_forward(variant: str) -> float:
        """FLOPs of one layer and token."""
        return (language_flops(variant) - without) / (16 * T)

    assert feed_forward("wt_s,preset=sigma_moe") == 4 * D * 4 * 128
    assert feed_forward("wt_s,preset=switch") == 4 * D * 512
    assert feed_forward("wt_s,preset=top_k") == 2 * D * F + 2 * D * 128
    # 4 heads, each with two times 62 sub-keys of D/2 and 128 of the values.
    keys = 4 * 2 * 62 * 2 * (D // 2)
    assert feed_forward("wt_s,ffn=product_key") == keys + 4 * 128 * 2 * D
    every = "wt_s,ffn=product_key,combine_heads=before"
    assert feed_forward(every) == keys + 62 * 62 * 2 * D
    assert feed_forward("wt_s,ffn=product_key,query_dim=64") == (
        2 * D * 4 * 64 + 4 * 2 * 62 * 2 * 32 + 4 * 128 * 2 * D
    )


def test_predictions_after_each_loop():
    """The block after three loops, and the output layer, run on three states: two more of each."""
    model = model_section("wt_s,loop=1+1x3+1,attention=full")
    tokens = {"tokens": jax.ShapeDtypeStruct((1, 256), jnp.int32)}
    once = forward_flops(model, tokens, vocab_size=8000)
    model["loop"]["exit"] |= {"loss": "mean"}
    output = 2 * 256 * 412 * 8000
    assert forward_flops(model, tokens, vocab_size=8000) - once == 2 * (
        (once - output) // 5 + output
    )
