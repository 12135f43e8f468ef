"""Vision models: ViT, ViT-MoE and WideNet are settings of one module."""

from collections.abc import Mapping
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError, check_range, choose
from widenet_jax.layers.dropout import Dropout
from widenet_jax.layers.embeddings import PatchEmbed, PositionEmbed
from widenet_jax.layers.pool import POOLS
from widenet_jax.models.blocks import Encoder, layer_fields
from widenet_jax.moe.layer import MoeLayer
from widenet_jax.typing import Array, Aux

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
CLS_TOKENS = dict.fromkeys(("learned", "zero", "none"))


class VisionTransformer(nn.Module):
    """Patches, positions, an `Encoder`, a pooled vector, a classifier.

    Attributes:
      num_classes: V.
      patch_size: in pixels.
      embed_dim: D.
      cls_token: "learned", "zero" or "none", see `layers.embed.PositionEmbed`.
      pool: "token" (the CLS token) or "mean".
      representation: a tanh layer D -> D before the classifier (pretraining).
      dropout: after the embedding and wherever `Encoder` drops.
      dtype: "float32" or "bfloat16" of the computation; parameters and logits are float32. With
        "float32" nothing is multiplied in fewer bits (`experiment.in_precision_of`).
      The rest: see `Encoder`.
    """

    num_classes: int
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    mlp_dim: int
    cls_token: str
    pool: str
    representation: bool
    dropout: float = 0.0
    dtype: str = "float32"
    share_attention: bool = False
    share_ffn: bool = False
    share_norms: bool = False
    norm_position: str = "pre"
    ffn_output_gelu: bool = False
    unroll: bool = True
    remat: str = "none"
    moe: Mapping | None = None

    @nn.compact
    def __call__(
        self,
        images: Array,  # [B, height, width, channels] float, in [-1, 1]
        *,
        mask: Array | None = None,  # [B] True for real images
        train: bool,
    ) -> tuple[Array, Aux]:
        """Returns logits [B, V] float32 and the encoder's aux."""
        dtype = DTYPES[self.dtype]
        x = PatchEmbed(self.patch_size, self.embed_dim, dtype, name="embed")(images.astype(dtype))
        x = PositionEmbed(self.cls_token, name="position")(x)
        x = Dropout(self.dropout)(x, train=train)
        token_mask = None if mask is None else jnp.broadcast_to(mask[:, None], x.shape[:2])
        x, aux = Encoder(
            depth=self.depth,
            num_heads=self.num_heads,
            mlp_dim=self.mlp_dim,
            share_attention=self.share_attention,
            share_ffn=self.share_ffn,
            share_norms=self.share_norms,
            moe=self.moe,
            norm_position=self.norm_position,
            dropout=self.dropout,
            ffn_output_gelu=self.ffn_output_gelu,
            unroll=self.unroll,
            remat=self.remat,
            dtype=dtype,
            name="encoder",
        )(x, mask=token_mask, train=train)
        x = POOLS[self.pool](x.astype(jnp.float32), token_mask)

        def dense(features: int, name: str) -> nn.Module:
            return nn.Dense(features, kernel_init=nn.initializers.glorot_uniform(), name=name)

        if self.representation:
            x = jnp.tanh(dense(self.embed_dim, "representation")(x))
        return dense(self.num_classes, "head")(x), aux


MODELS = {"vision_transformer": VisionTransformer}


def num_tokens(model: Mapping, image_shape: tuple[int, int, int]) -> int:
    """T: patches, and a CLS token where there is one."""
    height, width, _ = image_shape
    patches = (height // model["patch_size"]) * (width // model["patch_size"])
    return patches + (model["cls_token"] != "none")


def dispatch_methods(
    model: Mapping, image_shape: tuple[int, int, int], *, platform: str
) -> dict[str, str] | None:
    """What `config.model.moe.dispatch` comes to: {"training": "einsum", "evaluation": "ragged"};
    None in a model without experts."""
    if not model["moe"]:
        return None
    layer = MoeLayer(**layer_fields(model["moe"]))
    tokens = layer.images_per_group * num_tokens(model, image_shape)
    modes = {"training": True, "evaluation": False}
    return {
        mode: layer.method(tokens, train=train, platform=platform) for mode, train in modes.items()
    }


def dispatch_text(methods: Mapping[str, str]) -> str:
    """ "einsum in training, ragged in evaluation"."""
    return ", ".join(f"{method} in {mode}" for mode, method in methods.items())


def build_model(model: Mapping, num_classes: int) -> nn.Module:
    """The module of `config.model`, whose fields are the module's own plus `name`.

    Raises:
      BadInputError: a name or a value that does not exist.
    """
    fields = {k: dict(v) if isinstance(v, Mapping) else v for k, v in model.items()}
    build = choose(MODELS, fields.pop("name"), field="config.model.name")
    for field, known in (("dtype", DTYPES), ("pool", POOLS), ("cls_token", CLS_TOKENS)):
        choose(known, fields[field], field=f"config.model.{field}")
    if fields["embed_dim"] % fields["num_heads"]:
        raise BadInputError(
            f"config.model.num_heads={fields['num_heads']} must divide "
            f"config.model.embed_dim={fields['embed_dim']}"
        )
    check_range("config.model.dropout", fields["dropout"], 0.0, 0.99)
    if fields["pool"] == "token" and fields["cls_token"] == "none":
        raise BadInputError(
            "config.model.pool=token needs a CLS token: set config.model.cls_token=learned"
        )
    return build(num_classes=num_classes, **fields)


def parameter_shapes(model: nn.Module, image_shape: tuple[int, int, int]) -> dict:
    """Shapes and dtypes of the parameters, without allocating any."""
    images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)  # one image is one group
    return jax.eval_shape(partial(model.init, train=False), jax.random.key(0), images)["params"]


def count_parameters(shapes: dict) -> int:
    """Number of scalars in a tree of arrays or shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def count_unrolled(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Parameters of the same model with nothing shared: what its blocks apply."""
    apart = model.clone(share_attention=False, share_ffn=False, share_norms=False)
    return count_parameters(parameter_shapes(apart, image_shape))
