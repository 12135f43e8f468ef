"""The axis key of the whole code base, and the two structures that cross package borders.

Axes: B batch, T tokens an image, D embed, N heads, H head dim, F mlp, V classes, L depth;
routing: G groups, S tokens a group, E experts, C capacity (slots an expert has), K selected.
Shapes are written as comments in these letters, and einsum strings use them in lower case.
"""

from typing import Any

import flax.struct
import jax

Array = jax.Array
PyTree = Any
Aux = dict[str, Array]


@flax.struct.dataclass
class Routing:
    """Which experts see which token, for one routing operation.

    Attributes:
      expert_index: [G, S, K] int32, the chosen experts, best first.
      gate: [G, S, K] float32, the weight of each chosen expert's output.
      probs: [G, S, E] float32, the router's (noisy) probabilities.
      slot: [G, S, K] int32, place in the expert's buffer; C (one past the last) where the choice
        was dropped or the token is masked. None as it comes from a router; `moe.dispatch` fills it.
    """

    expert_index: Array
    gate: Array
    probs: Array
    slot: Array | None = None


@flax.struct.dataclass
class FfnOutput:
    """What every feed-forward returns, dense or mixture.

    Attributes:
      y: [B, T, D] the output.
      aux: losses and statistics by name; empty for a dense MLP.
      routing: the routing used, for later blocks of the same routing group; None when dense.
    """

    y: Array
    aux: Aux
    routing: Routing | None = None
