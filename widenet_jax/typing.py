"""Names of axes used throughout the package, and types that several packages share.

Axes: B batch, T tokens per example, D embed, N heads, H head dim, F mlp, V classes or vocabulary,
L depth; routing: G groups of tokens, S tokens per group, E experts, C capacity (slots per expert),
K selected experts; text: P positions to predict, I instances packed in one row; Transformer-XL: M
rows of memory, R sinusoids of `nn.attention.distances`. Comments give shapes in these letters, but
images are [H, W, C]: height, width, channels. The letters of an einsum string are its own; the
letters of `nn.dense.linear` choose a sharding.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax

Array = jax.Array
PyTree = Any
NamedArrays = dict[str, Array]
Shapes = dict[str, jax.ShapeDtypeStruct]  # and dtypes, of arrays by name
Inputs = Mapping[str, Array]  # of a model
# Losses and statistics of a part of a block, see `nn.feed_forwards`; {} if there are none.
Aux = dict[str, Any]


@flax.struct.dataclass
class Routing:
    """The assignment of tokens to experts in one routing operation.

    Attributes:
      expert_index: [G, S, K] int32, the chosen experts, best first; where experts choose, E in
        place of those that did not.
      gate: [G, S, K] float32, the weight of each chosen expert's output. Not necessarily a
        probability.
      router_probs: [G, S, E] float32, a distribution over the experts: softmax of the scores, with
        noise, by which the router selected.
      router_logits: [G, S, E] float32, without noise; masked tokens have logits, too.
      extra: arrays [G, S, ...] by name, for the loss of this kind of router.
      balance_bias: [E] float32, added to the scores for the choice alone; None without one. See
        `moe.losses.balance_bias_loss`.
      slot: [G, S, K] int32, position in the expert's buffer; C (one past the last) if the choice
        was dropped or the token is masked. A router returns None; `moe.slots` computes it.
    """

    expert_index: Array
    gate: Array
    router_probs: Array
    router_logits: Array
    extra: Mapping[str, Array] = flax.struct.field(default_factory=dict)
    balance_bias: Array | None = None
    slot: Array | None = None


@flax.struct.dataclass
class FfnOutput:
    """The result of every feed-forward; see `nn.feed_forwards` for the contract.

    Attributes:
      y: [B, T, D], the output.
      aux: the losses and sums of this operation, or {}.
      routing: the routing used, for later blocks of the same routing group; None without experts.
    """

    y: Array
    aux: Aux
    routing: Routing | None = None
