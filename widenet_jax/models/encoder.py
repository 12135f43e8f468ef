"""The sharing loop: a stack of transformer blocks that own or share their parts.

A vanilla transformer shares nothing; ALBERT shares attention, feed-forward and norms; WideNet
shares attention and a mixture of experts and gives each block its own norms.
"""

from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError
from widenet_jax.layers.attention import MultiHeadAttention
from widenet_jax.layers.mlp import Mlp
from widenet_jax.moe.layer import MoeLayer
from widenet_jax.typing import Array, Aux, Routing


class Encoder(nn.Module):
    """`depth` blocks: x + attention(norm(x)), then x + ffn(norm(x)) (WideNet, eqs. 6 and 7).

    Parameters of a shared part are named `attention`, `mlp`, `moe`, `norm_attention`, `norm_ffn`;
    those of a block's own part `block_03_attention` and so on; the last norm `norm_out`.

    Attributes:
      depth: L, number of blocks.
      num_heads: N.
      mlp_dim: F of the dense feed-forward.
      share_attention, share_ffn, share_norms: one set of weights for all blocks.
      moe: fields of `MoeLayer`, and which `blocks` have one ("all", "every_6": blocks 5, 11, ...,
        "last_2") and `routing_groups`: 0, every MoE block routes for itself; G, routing is shared
        by G groups of depth/G consecutive blocks (Fig. 3). None in a dense model.
      norm_position: "pre" (the above) or "post": norm(x + f(x)), and no last norm.
      dropout: after attention and after both feed-forward layers.
      ffn_output_gelu: see `layers.mlp.Mlp`.
      dtype: of the computation.
    """

    depth: int
    num_heads: int
    mlp_dim: int
    share_attention: bool = False
    share_ffn: bool = False
    share_norms: bool = False
    moe: Mapping | None = None
    norm_position: str = "pre"
    dropout: float = 0.0
    ffn_output_gelu: bool = False
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D]
        *,
        mask: Array | None = None,  # [B, T] True for real tokens
        train: bool,
    ) -> tuple[Array, Aux]:
        """Returns [B, T, D] and the blocks' aux, stacked over the routing operations."""
        moe_blocks, blocks_per_routing = self.moe_layout()
        pre = self.norm_position == "pre"
        built: dict[str, nn.Module] = {}

        def part(kind: str, index: int, shared: bool, build: Callable[[str], nn.Module]):
            name = kind if shared else f"block_{index:02d}_{kind}"
            if name not in built:
                built[name] = build(name)
            return built[name]

        aux: list[Aux] = []
        routing: Routing | None = None
        for i in range(self.depth):
            if i % blocks_per_routing == 0:
                routing = None
            attention = part("attention", i, self.share_attention, self.build_attention)
            norm_attention = part("norm_attention", i, self.share_norms, self.build_norm)
            if i in moe_blocks:
                ffn = part("moe", i, self.share_ffn, self.build_moe)
            else:
                ffn = part("mlp", i, self.share_ffn, self.build_mlp)
            norm_ffn = part("norm_ffn", i, self.share_norms, self.build_norm)

            with jax.named_scope(f"block_{i:02d}"):
                x = x + attention(norm_attention(x) if pre else x, mask=mask, train=train)
                x = x if pre else norm_attention(x)
                output = ffn(norm_ffn(x) if pre else x, mask=mask, train=train, routing=routing)
                x = x + output.y
                x = x if pre else norm_ffn(x)
            routing = output.routing
            if output.aux:
                aux.append(output.aux)
        if pre:
            x = self.build_norm("norm_out")(x)
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *aux) if aux else {}

    def moe_layout(self) -> tuple[tuple[int, ...], int]:
        """The blocks with a mixture of experts, and how many consecutive blocks share a routing.

        Raises:
          BadInputError: fields that contradict each other.
        """
        if self.norm_position not in ("pre", "post"):
            raise BadInputError(
                f"config.model.norm_position={self.norm_position!r} is not known; known: pre, post"
            )
        if self.moe is None:
            return (), 1
        blocks = moe_block_indices(self.moe["blocks"], self.depth)
        groups = self.moe["routing_groups"]
        if not groups:
            return blocks, 1
        if groups < 0 or self.depth % groups or len(blocks) != self.depth:
            fits = [g for g in range(1, self.depth + 1) if self.depth % g == 0]
            raise BadInputError(
                f"config.model.moe.routing_groups={groups} needs config.model.moe.blocks=all and "
                f"must divide the depth {self.depth}: one of {fits}, or 0 for none"
            )
        return blocks, self.depth // groups

    def build_norm(self, name: str) -> nn.Module:
        return nn.LayerNorm(epsilon=1e-6, dtype=self.dtype, name=name)

    def build_attention(self, name: str) -> nn.Module:
        return MultiHeadAttention(self.num_heads, self.dropout, self.dtype, name=name)

    def build_mlp(self, name: str) -> nn.Module:
        return Mlp(self.mlp_dim, self.dropout, self.ffn_output_gelu, self.dtype, name=name)

    def build_moe(self, name: str) -> nn.Module:
        layer = {k: v for k, v in self.moe.items() if k not in ("blocks", "routing_groups")}
        return MoeLayer(
            **layer,
            dropout=self.dropout,
            output_gelu=self.ffn_output_gelu,
            dtype=self.dtype,
            name=name,
        )


def moe_block_indices(rule: str, depth: int) -> tuple[int, ...]:
    """Blocks with a mixture of experts: "all"; "every_n": n-1, 2n-1, ...; "last_n"; "last".

    "last" is the released code's habit: as many as every_6 gives, at the end.
    The paper's parameter counts fix how many blocks of ViT-MoE are MoE, not which.

    Raises:
      BadInputError: another rule, or n outside 1..depth.
    """
    kind, _, count = rule.partition("_")
    n = int(count) if count.isdigit() else 0
    if rule == "all":
        return tuple(range(depth))
    if rule == "last":
        return tuple(range(depth - max(1, depth // 6), depth))
    if kind == "every" and 1 <= n <= depth:
        return tuple(range(n - 1, depth, n))
    if kind == "last" and 1 <= n <= depth:
        return tuple(range(depth - n, depth))
    raise BadInputError(
        f"config.model.moe.blocks={rule!r} is not known; known: all, last, every_N and last_N "
        f"with N from 1 to {depth}"
    )
