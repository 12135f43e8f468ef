"""The feed-forwards that a block may have, by name.

A feed-forward is a Linen module. `Blocks` builds it with the model's values of the fields in
`COMMON`, overridden and completed by the section `config.model.NAME`, and with its name as the
module name. Its `kernel_init` is then a `KernelInit`, the name in the config and the depth of the
stack. It is called as

    ffn(x, mask=mask, train=train, routing=routing) -> FfnOutput(y, aux, routing)
      x        [B, T, D] tokens
      mask     [B, T] bool, True for real tokens; None: all are real
      train    True in training
      routing  of an earlier block that this block has to follow; None: none

    aux is {} or {"losses": {name: scalar}, "loss": scalar, "sums": {name: array}}: losses for the
    log, their weighted sum for the optimizer, and statistics that add up over batches. A
    feed-forward that follows a routing returns {}.

and has a static method

    summarize(sums) -> metrics
      sums     aux["sums"] of a set of batches added up, each [operations, ...]; metrics by name

The field `examples_per_group`, where a feed-forward has it, says how many consecutive examples of
a batch it works on together. A feed-forward that returns a routing for later blocks to follow has
the class attribute `routes = True`.

To add a feed-forward: one file, and one entry below.
"""

import flax.linen as nn

from widenet_jax.nn.mlp import Mlp
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.product_key import ProductKey
from widenet_jax.nn.top_k_mlp import TopKMlp

# The feed-forward of the blocks that `config.model.ffn_blocks` leaves out.
PLAIN = "mlp"
# field of a feed-forward -> the field of the model whose value it has where a section sets none
COMMON = {
    "dropout": "dropout",
    "hidden_dropout": "ffn_dropout",
    "activation": "activation",
    "output_activation": "ffn_output_activation",
    "kernel_init": "kernel_init",
    "dtype": "dtype",
}

FEED_FORWARDS: dict[str, type[nn.Module]] = {
    PLAIN: Mlp,
    "moe": MoeLayer,
    "top_k_mlp": TopKMlp,
    "product_key": ProductKey,
}
