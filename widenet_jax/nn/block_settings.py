"""The settings of a stack of blocks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from widenet_jax.errors import BadInputError, check_range, choose
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.feed_forwards import COMMON, FEED_FORWARDS, PLAIN
from widenet_jax.nn.initializers import KERNEL_INITS, KernelInit
from widenet_jax.nn.loop import Step, steps_of
from widenet_jax.nn.loop_settings import LoopSettings
from widenet_jax.nn.mlp import ACTIVATIONS
from widenet_jax.nn.rules import check_rules, stacked_loop_rules
from widenet_jax.specs import resolve

NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

# Fields of `BlockSettings` that are names, with the names that exist.
NAMES = {
    "norm": NORMS,
    "norm_position": dict.fromkeys(("pre", "post", "sandwich", "peri")),
    "activation": ACTIVATIONS,
    "kernel_init": KERNEL_INITS,
    "remat": dict.fromkeys(("none", "block")),
    "dtype": DTYPES,
    "ffn": FEED_FORWARDS,
}


class BlockSettings(nn.Module):
    """The fields of a stack of blocks, which every model with such a stack has, too.

    Attributes:
      loop: which weights run in which order; its depth L is the number of blocks.
      attention: `name` in `attention.ATTENTIONS`, and that layer's own fields.
      ffn: name in `feed_forwards.FEED_FORWARDS` of the feed-forward of the blocks that `ffn_blocks`
        chooses; the other blocks have `feed_forwards.PLAIN`.
      ffn_blocks: "all", "every_6" (blocks 5, 11, ...), "last_2", see `block_indices`.
      routing_groups: 0, every block routes for itself; G, routing is shared by G groups of
        depth/G consecutive blocks (WideNet, Fig. 3).
      feed_forwards: the fields of each feed-forward, by its name.
      norm: "layer", LayerNorm; or "rms", x / sqrt(mean(x^2) + epsilon) times a scale.
      norm_position: "pre": x + f(norm(x)); "post": norm(x + f(x)); "sandwich": norm2(x +
        f(norm(x))) (arXiv:2502.05171); "peri": x + f(x), where the norm feeds queries, keys and
        routers alone (MoEUT, arXiv:2405.16039). All but "post" end with a last norm.
      norm_epsilon: added to the variance in every norm.
      dropout: rate after attention and in the feed-forward.
      ffn_dropout: whether dropout acts within the feed-forward, after its activation, too.
      activation: a name in `nn.mlp.ACTIVATIONS`.
      kernel_init: a name in `nn.initializers.KERNEL_INITS`.
      ffn_output_activation, ffn_bias: `output_activation` and `use_bias` of each part that has
        them, such as `nn.mlp.Mlp`, where its section does not.
      unroll: compiles the blocks one by one; otherwise once, in a loop: a shorter compilation, a
        slower step. Parameters are stored the same way.
      remat: "none", or "block": the backward pass recomputes each block, or the blocks that share a
        routing together, instead of keeping their intermediate results.
      dtype: "float32" or "bfloat16" of the computation; parameters are float32.
      causal: whether tokens see earlier ones only; the model decides, no config does.
    """

    loop: LoopSettings
    attention: Mapping[str, Any]
    ffn: str = PLAIN
    ffn_blocks: str | tuple[int, ...] = "all"
    routing_groups: int = 0
    feed_forwards: Mapping[str, Mapping] = FrozenDict()
    norm: str = "layer"
    norm_position: str = "pre"
    norm_epsilon: float = 1e-6
    dropout: float = 0.0
    ffn_dropout: bool = True
    activation: str = "gelu_tanh"
    kernel_init: str = "glorot_uniform"
    ffn_output_activation: bool = False
    ffn_bias: bool = True
    unroll: bool = True
    remat: str = "none"
    dtype: str = "float32"
    causal: bool = False

    exits = False  # whether the model predicts after each loop where `loop.exit` says so

    @property
    def depth(self) -> int:
        """L, the number of blocks as they run."""
        return self.loop.depth

    @property
    def outer_init(self) -> KernelInit:
        """Initialisers of the layers around the stack, which are drawn as for a depth of 1."""
        return KernelInit(self.kernel_init)

    def check(self) -> None:
        """Raises BadInputError where a field is unknown, out of range or contradicts another."""
        for field, known in NAMES.items():
            choose(known, getattr(self, field), field=f"config.model.{field}")
        check_range("config.model.dropout", self.dropout, 0.0, 0.99)
        check_range("config.model.norm_epsilon", self.norm_epsilon, 0.0, 1.0)
        if self.ffn not in self.feed_forwards:
            raise BadInputError(
                f"config.model.ffn={self.ffn} needs the section config.model.{self.ffn}"
            )
        for part, own in (("attention", self.attention), (self.ffn, self.feed_forwards[self.ffn])):
            place, init = f"config.model.{part}", own.get("kernel_init", self.kernel_init)
            choose(KERNEL_INITS, init, field=f"{place}.kernel_init")
            check_range(f"{place}.dropout", own.get("dropout", self.dropout), 0.0, 0.99)
        self.check_peri()
        check_rules(stacked_loop_rules(self))

    def check_peri(self) -> None:
        """Raises BadInputError where the norms are to feed what a part does not tell apart."""
        place = "config.model.norm_position=peri"
        if self.norm_position == "peri" and set(map(self.routing_ffn, self.ffn_names())) != {True}:
            raise BadInputError(
                f"{place} normalises what routers read, and config.model.ffn={self.ffn} in the "
                f"blocks config.model.ffn_blocks={self.ffn_blocks} leaves blocks without; give "
                "ffn=moe and ffn_blocks=all, or another norm_position"
            )
        if self.norm_position == "peri" and not getattr(
            self.build_attention(), "takes_values", False
        ):
            raise BadInputError(
                f"{place} normalises queries and keys alone, and config.model.attention.name="
                f"{self.attention['name']} has no values apart; give full or switch_head"
            )

    def check_attention(self, embed_dim: int) -> None:
        """Checks the attention of a model whose blocks have a width D.

        Raises:
          BadInputError: it needs a memory, which only causal models have; or it has none and cannot
            be causal, and the model is; or its own fields do not fit D.
        """
        part = self.build_attention()
        if not fits_model(part, causal=self.causal):
            fits = [k for k in ATTENTIONS if fits_model(resolve(ATTENTIONS[k]), causal=self.causal)]
            field, tokens = "config.model.attention.name", "earlier" if self.causal else "all"
            raise BadInputError(
                f"{field}={self.attention['name']}: tokens of this model see {tokens} tokens; "
                f"give {field}={' or '.join(fits)}"
            )
        if hasattr(part, "check"):
            part.check(embed_dim)

    def ffn_names(self) -> tuple[str, ...]:
        """Returns the name of each block's feed-forward.

        Raises:
          BadInputError: the rule `ffn_blocks` is unknown.
        """
        chosen = block_indices(self.ffn_blocks, self.depth)
        return tuple(self.ffn if i in chosen else PLAIN for i in range(self.depth))

    def blocks_per_routing(self) -> int:
        """Returns how many consecutive blocks share one routing.

        Raises:
          BadInputError: routing groups that do not divide the depth or lack feed-forwards that
            route.
        """
        groups, depth = self.routing_groups, self.depth
        if not groups:
            return 1
        if not self.routes:
            raise BadInputError(
                f"config.model.routing_groups={groups} has no effect on config.model.ffn="
                f"{self.ffn}, which routes nothing; give 0, or choose a model with experts"
            )
        if groups < 0 or depth % groups or set(self.ffn_names()) != {self.ffn}:
            fits = [g for g in range(1, depth + 1) if depth % g == 0]
            raise BadInputError(
                f"config.model.routing_groups={groups} needs config.model.ffn_blocks=all and must "
                f"divide the depth {depth}: one of {fits}, or 0 for none"
            )
        return depth // groups

    def steps(self, *, train: bool = True) -> tuple[Step, ...]:
        """Returns the blocks in the order in which they run, in training or evaluation."""
        norms = {"norms_out": self.norm_position == "sandwich"}
        return steps_of(
            self.loop, self.ffn_names(), self.blocks_per_routing(), **norms, train=train
        )

    @property
    def has_memory(self) -> bool:
        """Whether attention sees tokens before the window."""
        return needs_memory(self.attention)

    @property
    def routes(self) -> bool:
        """Whether the feed-forward routes tokens."""
        return self.routing_ffn(self.ffn)

    def routing_ffn(self, kind: str) -> bool:
        """Whether the feed-forward `kind` routes tokens."""
        return getattr(self.build_ffn(kind), "routes", False)

    @property
    def examples_per_group(self) -> int:
        """Number of consecutive examples that a feed-forward works on together; 1 if each alone."""
        return self.feed_forwards.get(self.ffn, {}).get("examples_per_group", 1)

    def summarize(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Turns the sums of a model's aux, added up over batches, into metrics."""
        metrics = {}
        for part in (self.build_attention(), self.build_ffn(self.ffn)):
            if sums and hasattr(part, "summarize"):
                metrics |= part.summarize(sums)
        return metrics

    def build_attention(self, name: str | None = None) -> nn.Module:
        """Returns an attention layer: with a name a submodule, otherwise unbound."""
        fields = {key: value for key, value in self.attention.items() if key != "name"}
        return self.build_part(ATTENTIONS[self.attention["name"]], fields, name)

    def build_ffn(self, kind: str, name: str | None = None) -> nn.Module:
        """Returns the feed-forward `kind`: with a name a submodule, otherwise unbound."""
        return self.build_part(FEED_FORWARDS[kind], self.feed_forwards[kind], name)

    def build_part(self, part: type | str, section: Mapping, name: str | None) -> nn.Module:
        """Builds a part of a block from its section and the common fields that it has."""
        part = resolve(part)
        common = {field: getattr(self, model_field) for field, model_field in COMMON.items()}
        common |= {"dtype": DTYPES[self.dtype], "causal": self.causal}
        fields = common | dict(section)
        fields["kernel_init"] = KernelInit(fields["kernel_init"], self.depth)
        own = {field.name for field in dataclasses.fields(part)}
        fields = {key: value for key, value in fields.items() if key in own}
        return part(**fields, parent=self if name else None, name=name)

    def settings(self) -> dict:
        """Returns the fields above, for another module that has them."""
        names = BlockSettings.__annotations__.keys() - {"parent", "name"}
        return {name: getattr(self, name) for name in names}


def needs_memory(attention: Mapping[str, Any]) -> bool:
    """Returns whether the attention of a section `config.model.attention` needs a memory."""
    kind = choose(ATTENTIONS, attention["name"], field="config.model.attention.name")
    return getattr(resolve(kind), "needs_memory", False)


def fits_model(part: nn.Module | type, *, causal: bool) -> bool:
    """Returns whether a model may have an attention layer; `nn.attention` has the contract."""
    if getattr(part, "needs_memory", False):
        return causal
    return not causal or hasattr(part, "causal")


def block_indices(rule: str | tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Returns the blocks that a rule such as `config.model.ffn_blocks` chooses.

    "all"; "every_n": n-1, 2n-1, ...; "last_n"; "last": the released code's choice, as many as
    every_6 gives, at the end; or the indices themselves.
    The paper's parameter counts fix how many blocks of ViT-MoE have experts, not which.

    Raises:
      BadInputError: another rule, n outside 1..depth, or an index of no block.
    """
    if not isinstance(rule, str):
        if odd := [index for index in rule if index not in range(depth)]:
            raise BadInputError(
                f"config.model.ffn_blocks={list(rule)}: there is no block {odd[0]!r} in a depth of "
                f"{depth}; blocks count from 0"
            )
        return tuple(rule)
    counted = {"all": "every_1", "last": f"last_{max(1, depth // 6)}"}.get(rule, rule)
    kind, _, count = counted.partition("_")
    n = int(count) if count.isdigit() else 0
    if kind in ("every", "last") and 1 <= n <= depth:
        return tuple(range(n - 1, depth, n) if kind == "every" else range(depth - n, depth))
    raise BadInputError(
        f"config.model.ffn_blocks={rule!r} is not known; known: all, last, every_N and last_N "
        f"with N from 1 to {depth}"
    )
