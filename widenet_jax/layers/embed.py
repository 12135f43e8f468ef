"""Images to tokens: patches, an optional CLS token, learned positions."""

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.typing import Array


class PatchEmbed(nn.Module):
    """One linear map per non-overlapping patch, as a strided convolution (ViT, eq. 1).

    Attributes:
      patch_size: side of a patch in pixels; must divide the image's sides.
      embed_dim: D.
      dtype: of the computation.
    """

    patch_size: int
    embed_dim: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, images: Array) -> Array:  # [B, height, width, channels] -> [B, T, D]
        P = self.patch_size
        if images.shape[1] % P or images.shape[2] % P:
            raise BadInputError(
                f"config.model.patch_size={P} must divide the image size "
                f"{images.shape[1]}x{images.shape[2]} (config.data.image_size)"
            )
        x = nn.Conv(
            self.embed_dim,
            (P, P),
            strides=(P, P),
            padding="VALID",
            kernel_init=nn.initializers.glorot_uniform(),
            dtype=self.dtype,
            name="projection",
        )(images)
        return x.reshape(x.shape[0], -1, self.embed_dim)  # [B, h, w, D] -> [B, T, D]


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
        return x + position.astype(x.dtype)
