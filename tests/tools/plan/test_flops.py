"""FLOPs against sums written out by hand."""

import pytest

from widenet_jax.models.sizes import parse_variant, vision_model
from widenet_jax.models.vit import num_tokens
from widenet_jax.tools.plan.flops import forward_flops, train_flops

IMAGE = (224, 224, 3)


def model_of(variant: str) -> dict:
    return vision_model(*parse_variant(variant))


def test_vit_b():
    """ViT-B/16: T = 14 * 14 + 1, D = 768, F = 3072, 12 blocks, 1000 classes."""
    T, D, F = 197, 768, 3072
    patches = 2 * (14 * 14) * (16 * 16 * 3) * D
    block = 4 * (2 * T * D * D) + 2 * (2 * T * T * D) + 2 * (2 * T * D * F)
    head = 2 * D * D + 2 * D * 1000
    assert forward_flops(model_of("vit_b"), IMAGE, 1000) == patches + 12 * block + head


def test_widenet_counts_the_experts_a_token_sees_and_no_capacity():
    """WideNet-L: no CLS token, 2 of 4 experts a token; C = 1.2 does not enter."""
    T, D, F = 196, 1024, 4096
    patches = 2 * T * (16 * 16 * 3) * D
    block = 4 * (2 * T * D * D) + 2 * (2 * T * T * D) + 2 * (2 * 2 * T * D * F)
    head = 2 * D * D + 2 * D * 1000
    expected = patches + 24 * block + head
    for variant in ("widenet_l", "widenet_l,capacity_factor=4", "widenet_l,experts=16"):
        assert forward_flops(model_of(variant), IMAGE, 1000) == expected


def test_vit_moe_has_experts_in_two_blocks_only():
    dense, sparse = model_of("vit_b"), model_of("vit_moe_b,mlp_dim=3072")
    dense |= {"cls_token": "none"}
    more = forward_flops(sparse, IMAGE, 1000) - forward_flops(dense, IMAGE, 1000)
    assert more == 2 * (2 * 2 * 196 * 768 * 3072)  # one more expert a token in 2 of 12 blocks


@pytest.mark.parametrize(("variant", "ms"), [("vit_b", 27.5), ("vit_l", 96), ("widenet_l", 157)])
def test_milliseconds_at_full_speed(variant: str, ms: float):
    """16 images on a TPUv3 core of 61.5 TFLOP/s, as the figures of this project count."""
    seconds = 16 * train_flops(model_of(variant), IMAGE, 1000) / 61.5e12
    assert 1e3 * seconds == pytest.approx(ms, rel=5e-3)


def test_tokens():
    assert num_tokens(model_of("vit_b"), IMAGE) == 197
    assert num_tokens(model_of("widenet_h"), IMAGE) == 256
