"""The feed-forwards that a block may have, by name.

A feed-forward is a Linen module. It has the fields of the section `config.model.NAME`, and any
of `COMMON`, which have the model's values where the section sets none. `kernel_init` is a
`KernelInit`. It is called as

    ffn(x, mask=mask, train=train, routing=routing) -> FfnOutput(y, aux, routing)
      x        [B, T, D] tokens
      mask     [B, T] bool, True for real tokens; None: all are real
      train    True in training
      routing  of an earlier block that this block has to follow; None: none

    aux is {} or {"losses": {name: scalar}, "loss": scalar, "sums": {name: array}}: losses for the
    log, their weighted sum for the optimizer, and statistics that add up over batches. A
    feed-forward that follows a routing returns {}.

It may have

    forward_flops(B, T, D) -> int   as `ops.plan` counts them; it needs this method
    summarize(sums) -> metrics      static; sums: aux["sums"] of a set of batches added up, each
                                    [operations, ...], with the sums of attention among them

The field `examples_per_group`, where a feed-forward has it, says how many consecutive examples of
a batch it works on together. A feed-forward that returns a routing for later blocks to follow has
the class attribute `routes = True`. To have its router tied otherwise than its experts
(`config.model.loop.tie.router`) it takes one, `router=`, which its method
`build_router(parent, name)` builds. With `config.model.norm_position=peri` it also takes
`selection=`, the normed x, which its router reads in place of x. A feed-forward in which a token's
output depends on tokens after it has the attribute `mixes = True`: a language model refuses it
unless it is asked for, and packed rows of documents do unless it `routes`.

Before a run a user's feed-forward is tried on random tokens: values must be finite, and in a
language model a token's output must not change with later tokens.

To add a feed-forward: a file with a class, its settings in `settings`, and one entry below; a
user's entry is the class, which has fields in place of settings, or its dotted name.
"""

from widenet_jax.nn.settings import (
    MlpSettings,
    MoeSettings,
    ProductKeySettings,
    SoftMoeSettings,
    TopKMlpSettings,
)

# The feed-forward of the blocks that `config.model.ffn_blocks` leaves out.
PLAIN = "mlp"
# field of a part of a block -> the field of the model whose value it has where a section sets none
COMMON = {
    "dropout": "dropout",
    "hidden_dropout": "ffn_dropout",
    "activation": "activation",
    "output_activation": "ffn_output_activation",
    "use_bias": "ffn_bias",
    "kernel_init": "kernel_init",
    "dtype": "dtype",
}

FEED_FORWARDS: dict[str, type | str] = {
    PLAIN: MlpSettings,
    "moe": MoeSettings,
    "soft_moe": SoftMoeSettings,
    "top_k_mlp": TopKMlpSettings,
    "product_key": ProductKeySettings,
}
