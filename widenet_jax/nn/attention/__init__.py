"""The attention layers, or other token mixers, that a block may have, by name.

Such a layer is a Linen module. It has the fields of the section `config.model.attention` beside
`name`, and any of `feed_forwards.COMMON`, which have the model's values where the section sets
none. `kernel_init` is a `KernelInit`. It is called as

    attention(x, train=train, mask=mask, segment_ids=segment_ids) -> (y, aux)
      x          [B, T, D] tokens
      train      True in training
      mask       [B, T] bool, True for real tokens; None: all are real
      segment_ids  [B, T] int32: tokens see only their own number; None: all of the example

or, where the class attribute `needs_memory` is True, as

    attention(x, train=train, memory=memory, memory_length=memory_length) -> (y, aux)
      memory         [B, M, D], the tokens before x, normed like x
      memory_length  [B] int32: how many rows of the memory, the latest, are not empty

Tokens of a language model must not see later ones: without a memory, the class has a field `causal`
that the model sets.

    y    [B, T, D]
    aux  as a feed-forward's, see `feed_forwards`, with other names of losses and sums; {} for none

With `takes_values = True` it may also be called with `values=` [B, T, D], from which it computes
values in place of x: for `config.model.norm_position=peri`.

It may have

    check(embed_dim)                            raises BadInputError where fields do not fit D; of
                                                this project's layers `rules.width_rules` does
    forward_flops(B, T, D, memory=M) -> int     as `ops.plan` counts them; it needs this method, of
                                                this project's layers on their settings
    summarize(sums) -> metrics                  static, as a feed-forward's

Before a run a user's layer is tried on random tokens: values must be finite, and in a language
model a token's output must not change with later tokens.

To add one: a file with a class, its settings in `settings`, and one entry below; a user's entry is
the class, which has fields in place of settings, or its dotted name.
"""

from widenet_jax.nn.settings import FullSettings, RelativeSettings, SwitchHeadSettings

ATTENTIONS: dict[str, type | str] = {
    "full": FullSettings,
    "relative": RelativeSettings,
    "switch_head": SwitchHeadSettings,
}
