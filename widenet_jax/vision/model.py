"""Vision models: ViT, ViT-MoE and WideNet are settings of one module."""

import math
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.nn.block_settings import BlockSettings
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.dense import Dropout, KernelAndBias, linear
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.param_names import ENCODER
from widenet_jax.typing import Array, Aux, Shapes
from widenet_jax.vision.settings import VisionSettings


def pool_token(x: Array, mask: Array | None) -> Array:  # [B, T, D] -> [B, D]
    """Returns the first token (CLS)."""
    return x[:, 0]


def pool_mean(x: Array, mask: Array | None) -> Array:  # [B, T, D], [B, T] -> [B, D]
    """Returns the mean over real tokens; zero for an example that is all padding."""
    if mask is None:
        return x.mean(axis=1)
    weight = mask[..., None].astype(x.dtype)
    return (x * weight).sum(axis=1) / jnp.maximum(weight.sum(axis=1), 1)


POOLS = {"token": pool_token, "mean": pool_mean}


class VisionTransformer(BlockSettings):
    """Patches, positions, blocks, a pooled vector, a classifier.

    Logits are float32, whatever the dtype. With "float32" no product runs in fewer bits
    (`step.precision_of`).
    """

    stack: VisionSettings

    @nn.compact
    def __call__(self, inputs: Mapping[str, Array], *, train: bool) -> tuple[Array, Aux]:
        """Classifies images.

        Args:
          inputs: image [B, height, width, C] float32 in [-1, 1]; optionally mask [B] bool, True
            for real images.
          train: with dropout and routing noise.

        Returns:
          Logits [B, V] float32, and the blocks' aux.
        """
        dtype, mask = self.float_type, inputs.get("mask")
        embed = PatchEmbed(self.patch_size, self.embed_dim, self.outer_init, dtype, name="embed")
        x = embed(inputs["image"].astype(dtype))
        x = PositionEmbed(self.cls_token, name="position")(x)
        x = Dropout(self.dropout)(x, train=train)
        token_mask = None if mask is None else jnp.broadcast_to(mask[:, None], x.shape[:2])
        blocks = Blocks(self.stack, name=ENCODER)
        x, aux, _ = blocks(x, mask=token_mask, loops=inputs.get("loops"), train=train)
        x = POOLS[self.pool](x.astype(jnp.float32), token_mask)

        def dense(features: int, name: str) -> nn.Module:
            return nn.Dense(features, kernel_init=self.outer_init.kernel(), name=name)

        if self.pre_logits:
            x = jnp.tanh(dense(self.embed_dim, "pre_logits")(x))
        return dense(self.num_classes, "head")(x), aux

    def outside_flops(self, input_spec: Shapes) -> int:
        """Returns the FLOPs of an example's patch embedding and classifier."""
        D, pixels = self.embed_dim, math.prod(input_spec["image"].shape[1:])
        pre_logits = 2 * D * D if self.pre_logits else 0
        return 2 * pixels * D + pre_logits + 2 * D * self.num_classes

    def num_tokens(self, input_spec: Shapes) -> int:
        """Returns T of an example: its patches, and a CLS token where there is one."""
        _, height, width, _ = input_spec["image"].shape
        patches = (height // self.patch_size) * (width // self.patch_size)
        return patches + (self.cls_token != "none")


class PatchEmbed(nn.Module):
    """One linear map per non-overlapping patch (ViT, eq. 1), with a convolution's kernel.

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
        # A product rather than a strided convolution, which on a TPU transposes the images first.
        D, init = self.embed_dim, self.kernel_init.kernel()
        kernel, bias = KernelAndBias((P, P, channels, D), (D,), init, name="projection")()
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
