"""Embeddings of images: patches, an optional CLS token, learned positions."""

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.nn.dense import linear
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.typing import Array


class PatchEmbed(nn.Module):
    """One linear map per non-overlapping patch (ViT, eq. 1).

    Attributes:
      patch_size: side of a patch in pixels; must divide the image's sides.
      embed_dim: D.
      kernel_init: initialisers.
      dtype: dtype of the computation.
    """

    patch_size: int
    embed_dim: int
    kernel_init: KernelInit = KernelInit()
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, images: Array) -> Array:  # [B, height, width, channels] -> [B, T, D]
        P = self.patch_size
        B, height, width, channels = images.shape
        if height % P or width % P:
            raise BadInputError(
                f"config.model.patch_size={P} must divide the image size "
                f"{height}x{width} (config.data.image_size)"
            )
        # Channels outermost, as a TPU keeps images: [B, h, P, w, P, C] -> [B, T, C P P].
        x = images.astype(self.dtype).reshape(B, height // P, P, width // P, P, channels)
        x = x.transpose(0, 1, 3, 5, 2, 4).reshape(B, -1, channels * P * P)
        return Projection(P, channels, self.embed_dim, self.kernel_init, name="projection")(x)


class Projection(nn.Module):
    """Maps patches [B, T, C P P] to [B, T, D] by a convolution's kernel [P, P, C, D].

    A product rather than a strided convolution, which on a TPU transposes the images first.
    """

    patch_size: int
    channels: int
    embed_dim: int
    kernel_init: KernelInit

    @nn.compact
    def __call__(self, x: Array) -> Array:
        P, C, D = self.patch_size, self.channels, self.embed_dim
        kernel = self.param("kernel", self.kernel_init.kernel(), (P, P, C, D))
        bias = self.param("bias", nn.initializers.zeros, (D,))
        return linear("btd,df->btf", x, kernel.transpose(2, 0, 1, 3).reshape(-1, D), bias)


class PositionEmbed(nn.Module):
    """Adds learned positions, N(0, 0.02), after prepending a CLS token where there is one.

    Attributes:
      cls_token: "none"; "learned" (ViT); "zero": a constant zero token whose position row acts as
        its embedding, as the authors' released code keeps even under average pooling.
    """

    cls_token: str

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [B, T, D] -> [B, T (+1), D]
        B, _, D = x.shape
        if self.cls_token == "learned":
            token = self.param("cls_token", nn.initializers.zeros, (1, 1, D))
            x = jnp.concatenate([jnp.broadcast_to(token, (B, 1, D)).astype(x.dtype), x], axis=1)
        elif self.cls_token == "zero":
            x = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))
        position = self.param(
            "position_embedding", nn.initializers.normal(0.02), (1, x.shape[1], D)
        )
        # Broadcast before rounding, so that the gradient is summed over images in float32.
        return x + jnp.broadcast_to(position, x.shape).astype(x.dtype)
