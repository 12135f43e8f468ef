"""Patches, positions and pooling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.vision.model import PatchEmbed, PositionEmbed, pool_mean, pool_token


def test_a_patch_is_one_linear_map_of_its_pixels():
    """Row-major patches: token 1 of a 4x4 image in 2x2 patches is its upper right corner."""
    image = jax.random.normal(jax.random.key(1), (1, 4, 4, 3))
    layer = PatchEmbed(patch_size=2, embed_dim=3)
    params = layer.init(jax.random.key(0), image)["params"]
    tokens = layer.apply({"params": params}, image)
    kernel = np.asarray(params["projection"]["kernel"])
    assert kernel.shape == (2, 2, 3, 3)
    expected = np.einsum("pqc,pqcd->d", image[0, :2, 2:], kernel)
    np.testing.assert_allclose(tokens[0, 1], expected, rtol=1e-5)
    assert tokens.shape == (1, 4, 3)


def test_patches_must_fit():
    with pytest.raises(BadInputError, match="must divide the image size 4x4"):
        PatchEmbed(patch_size=3, embed_dim=3).init(jax.random.key(0), jnp.zeros((1, 4, 4, 1)))


@pytest.mark.parametrize(("cls_token", "rows"), [("none", 4), ("zero", 5), ("learned", 5)])
def test_positions_are_added_after_the_cls_token(cls_token: str, rows: int):
    x = jax.random.normal(jax.random.key(0), (2, 4, 3))
    layer = PositionEmbed(cls_token)
    params = layer.init(jax.random.key(1), x)["params"]
    if cls_token == "learned":
        params["cls_token"] = jnp.full((1, 1, 3), 7.0)
    y = layer.apply({"params": params}, x)
    first = {"none": x[:, :0], "zero": jnp.zeros((2, 1, 3)), "learned": jnp.full((2, 1, 3), 7.0)}
    tokens = jnp.concatenate([first[cls_token], x], axis=1)
    np.testing.assert_allclose(y, tokens + params["position_embedding"], rtol=1e-6)
    assert y.shape == (2, rows, 3)


def test_the_gradient_of_positions_is_added_up_in_float32():
    """Over 1000 images in bfloat16: within 1e-6; a sum in bfloat16 would be off by 1e-2."""
    tokens = jax.random.normal(jax.random.key(0), (1000, 3, 4)).astype(jnp.bfloat16)
    layer = PositionEmbed("learned")
    params = layer.init(jax.random.key(1), tokens)["params"]
    y, pull = jax.vjp(lambda p: layer.apply({"params": p}, tokens), params)
    dy = jax.random.normal(jax.random.key(2), y.shape).astype(jnp.bfloat16)
    expected = np.float64(dy).sum(axis=0)
    (found,) = pull(dy)
    np.testing.assert_allclose(found["position_embedding"][0], expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found["cls_token"][0, 0], expected[0], rtol=1e-5, atol=1e-4)


def test_pools_by_hand():
    """The first token, or the mean over real tokens; an example that is all padding has 0."""
    x = jnp.array([[[1.0], [2.0], [6.0]], [[4.0], [8.0], [0.0]]])
    mask = jnp.array([[True, True, False], [False, False, False]])
    assert pool_token(x, None).tolist() == [[1], [4]]
    assert pool_mean(x, None).tolist() == [[3], [4]]
    assert pool_mean(x, mask).tolist() == [[1.5], [0]]
