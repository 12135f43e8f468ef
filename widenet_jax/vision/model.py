"""Vision models: ViT, ViT-MoE and WideNet are settings of one module."""

import math
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError, choose
from widenet_jax.nn.block_settings import DTYPES, BlockSettings
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.dropout import Dropout
from widenet_jax.param_names import ENCODER
from widenet_jax.typing import Array, Aux, Shapes
from widenet_jax.vision.embeddings import PatchEmbed, PositionEmbed
from widenet_jax.vision.pool import POOLS

CLS_TOKENS = dict.fromkeys(("learned", "zero", "none"))


def image_spec(image_shape: tuple[int, int, int]) -> Shapes:
    """Returns the shapes of a `VisionTransformer`'s inputs for one image (height, width, C)."""
    return {"image": jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)}


class VisionTransformer(BlockSettings, kw_only=True):
    """Patches, positions, blocks, a pooled vector, a classifier.

    Attributes:
      num_classes: V.
      patch_size: in pixels.
      embed_dim: D.
      cls_token: "learned", "zero" or "none", see `layers.embeddings.PositionEmbed`.
      pool: "token" (the CLS token) or "mean".
      pre_logits: a tanh layer D -> D before the classifier (pretraining).
      dropout: rate after the embedding, too.
      dtype: logits are float32 in any case. With "float32" no product runs in fewer bits
        (`step.precision_of`).
      The rest: see `block_settings.BlockSettings`.
    """

    num_classes: int
    patch_size: int
    embed_dim: int
    cls_token: str
    pool: str
    pre_logits: bool

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
        dtype, mask = DTYPES[self.dtype], inputs.get("mask")
        embed = PatchEmbed(self.patch_size, self.embed_dim, self.outer_init, dtype, name="embed")
        x = embed(inputs["image"].astype(dtype))
        x = PositionEmbed(self.cls_token, name="position")(x)
        x = Dropout(self.dropout)(x, train=train)
        token_mask = None if mask is None else jnp.broadcast_to(mask[:, None], x.shape[:2])
        x, aux, _ = Blocks(**self.settings(), name=ENCODER)(x, mask=token_mask, train=train)
        x = POOLS[self.pool](x.astype(jnp.float32), token_mask)

        def dense(features: int, name: str) -> nn.Module:
            return nn.Dense(features, kernel_init=self.outer_init.kernel(), name=name)

        if self.pre_logits:
            x = jnp.tanh(dense(self.embed_dim, "pre_logits")(x))
        return dense(self.num_classes, "head")(x), aux

    def check(self) -> None:
        """Raises BadInputError where a field is unknown, out of range or contradicts another."""
        super().check()
        choose(POOLS, self.pool, field="config.model.pool")
        choose(CLS_TOKENS, self.cls_token, field="config.model.cls_token")
        self.check_attention(self.embed_dim, memory=False)
        if self.pool == "token" and self.cls_token == "none":
            raise BadInputError(
                "config.model.pool=token needs a CLS token: set config.model.cls_token=learned"
            )

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
