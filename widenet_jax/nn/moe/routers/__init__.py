"""Routers: which experts see which token.

A router is a Linen module that owns its projection. `MoeLayer` builds it with the fields
`num_experts`, `num_selected_experts` and `kernel_init`, with the fields of the section
`config.model.moe.router` but `name`, and with the module name "router". `kernel_init.router()`, of
`nn.initializers.KernelInit`, initialises the projection. The router is called as

    router(x, mask, *, key, train) -> Routing
      x      [G, S, D] float32 tokens
      mask   [G, S] bool, True for real tokens; masked tokens must get gate 0
      key    random key in training; None in evaluation, and in training without a stream "router"
      train  True in training

and returns a `typing.Routing` without slots. The K experts of a token must differ; a choice of an
expert that the token chose before, or that does not exist, counts as dropped. Gates need be neither
probabilities nor sum to 1. `router_probs` must be both: before a run a user's router is tried on
random tokens. A router sees neither the step nor the tokens' ids, and keeps no state but
parameters. A parameter may follow statistics: "balance_bias" [E], added to the scores for the
choice alone and returned as `Routing.balance_bias`, which `moe.losses` and the optimizer move
towards equal loads. The products of the projection run in float32 at Precision.HIGHEST: rounding
would move tokens between experts. A router whose own loss needs more than the fields of `Routing`
puts it into `Routing.extra` and adds a function to `losses.LOSSES`.

A router with the class attribute `mixes = True` lets experts choose: each token asks all E experts,
and each expert takes the tokens with the largest `router_probs` for it, which become their gates
(`slots.assign_by_experts`).

The routers here are modules around pure functions; `scoring.py` holds what they share.

To add a router: one file here, and one entry below, the class or its dotted name.
"""

import flax.linen as nn

PLACE = "widenet_jax.nn.moe.routers"
ROUTERS: dict[str, type[nn.Module] | str] = {
    "top_k": f"{PLACE}.softmax:TopKRouter",
    "softmax": f"{PLACE}.softmax:SoftmaxRouter",
    "softmax_renormalized": f"{PLACE}.softmax:SoftmaxRenormalizedRouter",
    "noisy_top_k": f"{PLACE}.noisy:NoisyTopKRouter",
    "switch": f"{PLACE}.softmax:SwitchRouter",
    "sigmoid": f"{PLACE}.sigmoid:SigmoidRouter",
    "sinkhorn": f"{PLACE}.sigmoid:SinkhornRouter",
    "sinkhorn_released": f"{PLACE}.sigmoid:ReleasedSinkhornRouter",
    "hierarchical": f"{PLACE}.noisy:HierarchicalRouter",
    "expert_choice": f"{PLACE}.softmax:ExpertChoiceRouter",
}
