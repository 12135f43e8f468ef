"""The sharing loop: a stack of transformer blocks that own or share their parts.

A vanilla transformer shares nothing; ALBERT shares attention, feed-forward and norms; WideNet
shares attention and a mixture of experts and gives each block its own norms.
"""

from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.errors import BadInputError, choose
from widenet_jax.layers.attention import MultiHeadAttention
from widenet_jax.layers.mlp import Mlp
from widenet_jax.moe.layer import MoeLayer
from widenet_jax.typing import Array, Aux, Routing

REMAT = dict.fromkeys(("none", "block"))


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
      unroll: blocks are compiled one by one; otherwise once, in a loop: a shorter compilation, a
        slower step. Parameters are stored the same way.
      remat: "none", or "block": the backward pass computes each block again instead of keeping
        what is inside it.
      last_norm: whether pre-norm ends with a norm of its own.
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
    unroll: bool = True
    remat: str = "none"
    last_norm: bool = True
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
        # The parameters are made by running the blocks as they stand, however they run later.
        plain = self.unroll and self.remat == "none"
        run = self.run_blocks if plain or self.is_initializing() else self.run_periods
        x, aux = run(x, mask=mask, train=train)
        if self.last_norm and self.norm_position == "pre":
            x = self.build_norm("norm_out")(x)
        return x, aux

    def run_blocks(self, x: Array, *, mask: Array | None, train: bool) -> tuple[Array, Aux]:
        """One block after the other."""
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
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *aux) if aux else {}

    def run_periods(self, x: Array, *, mask: Array | None, train: bool) -> tuple[Array, Aux]:
        """The same blocks as equal runs of one function of their parameters (`remat`, `unroll`)."""
        period = self.period()
        params = self.variables["params"]
        shared = {k: v for k, v in params.items() if not k.startswith("block_") and k != "norm_out"}
        own = [
            {k.replace(f"_{first + j:02d}_", f"_{j:02d}_", 1): params[k]
             for j in range(period) for k in params if k.startswith(f"block_{first + j:02d}_")}
            for first in range(0, self.depth, period)
        ]  # fmt: skip
        blocks = self.one_period(period)
        keys = {name: self.make_rng(name) for name in ("dropout", "router") if self.has_rng(name)}

        def run(x: Array, own: dict, index: Array | int) -> tuple[Array, Aux]:
            rngs = {name: jax.random.fold_in(key, index) for name, key in keys.items()}
            return blocks.apply({"params": shared | own}, x, mask=mask, train=train, rngs=rngs)

        if self.remat == "block":
            run = jax.checkpoint(run, prevent_cse=self.unroll)
        if self.unroll:
            outputs = []
            for index, part in enumerate(own):
                x, aux = run(x, part, index)
                outputs.append(aux)
            return x, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *outputs)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *own)
        x, aux = jax.lax.scan(lambda x, part: run(x, *part), x, (stacked, jnp.arange(len(own))))
        return x, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), aux)

    def period(self) -> int:
        """After how many blocks the stack repeats itself: MoE or dense, its routing made or not."""
        moe_blocks, blocks_per_routing = self.moe_layout()
        for period in range(blocks_per_routing, self.depth):
            kinds = {tuple(i in moe_blocks for i in range(first, first + period))
                     for first in range(0, self.depth - period + 1, period)}  # fmt: skip
            if self.depth % period == 0 and len(kinds) == 1:
                return period
        return self.depth

    def one_period(self, period: int) -> "Encoder":
        """The first `period` blocks as an encoder of their own, run as they stand."""
        moe = self.moe
        if moe and moe["routing_groups"]:
            moe = {**moe, "routing_groups": period * moe["routing_groups"] // self.depth}
        if moe and len(self.moe_layout()[0]) == self.depth:
            moe = {**moe, "blocks": "all"}  # "last_N" counts the blocks of the whole
        changes = {"unroll": True, "remat": "none", "last_norm": False, "name": None}
        return self.clone(depth=period, moe=moe, parent=None, **changes)

    def moe_layout(self) -> tuple[tuple[int, ...], int]:
        """The blocks with a mixture of experts, and how many consecutive blocks share a routing.

        Raises:
          BadInputError: fields that contradict each other.
        """
        if self.norm_position not in ("pre", "post"):
            raise BadInputError(
                f"config.model.norm_position={self.norm_position!r} is not known; known: pre, post"
            )
        choose(REMAT, self.remat, field="config.model.remat")
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
        return MoeLayer(
            **layer_fields(self.moe),
            dropout=self.dropout,
            output_gelu=self.ffn_output_gelu,
            dtype=self.dtype,
            name=name,
        )


def layer_fields(moe: Mapping) -> dict:
    """Of the section `config.model.moe` those that are the layer's; the rest are the encoder's."""
    return {k: v for k, v in moe.items() if k not in ("blocks", "routing_groups")}


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
