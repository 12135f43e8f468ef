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
probabilities nor sum to 1. `router_probs` must be both. Before a run a user's router is tried on
random tokens: masked tokens must get gate 0, and in a language model a token's routing must not
change with later tokens in evaluation. A router sees neither the step nor the tokens' ids, and
keeps no state but parameters. A parameter may follow statistics: "balance_bias" [E], added to the
scores for the choice alone and returned as `Routing.balance_bias`, which `moe.losses` and the
optimizer move towards equal loads. The products of the projection run in float32 at
Precision.HIGHEST: rounding would move tokens between experts. A router whose own loss needs more
than the fields of `Routing` puts it into `Routing.extra` and adds a function to `losses.LOSSES`.

A router with the class attribute `mixes = True` lets experts choose: each token asks all E experts,
and each expert takes the tokens with the largest `router_probs` for it, which become their gates
(`slots.assign_by_experts`).

The routers here are modules around pure functions; `scoring.py` holds what they share.

To add a router: one file here, and one entry below; a user's entry is the class or its dotted name.
"""

from typing import NamedTuple

PLACE = "widenet_jax.nn.moe.routers"


class Router(NamedTuple):
    """A router of this project, without JAX.

    Attributes:
      module: dotted name of its class.
      fields: its own, which its section of a config has.
      idle: own fields that no section needs, as they change nothing.
      mixes: whether experts choose tokens.
      own_noise: whether it learns the size of its noise, which the loss `load` needs.
    """

    module: str
    fields: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    mixes: bool = False
    own_noise: bool = False


BIAS = ("bias_balancing",)
DROPPING = ("expert_dropout", *BIAS)
ROUTERS: dict[str, Router | type | str] = {
    "top_k": Router(f"{PLACE}.softmax:TopKRouter", ("noise_std",)),  # WideNet
    "softmax": Router(f"{PLACE}.softmax:SoftmaxRouter", DROPPING),
    "softmax_renormalized": Router(f"{PLACE}.softmax:SoftmaxRenormalizedRouter", DROPPING),
    # Shazeer et al. 2017
    "noisy_top_k": Router(f"{PLACE}.noisy:NoisyTopKRouter", own_noise=True),
    "switch": Router(f"{PLACE}.softmax:SwitchRouter"),  # Fedus et al. 2021
    "sigmoid": Router(f"{PLACE}.sigmoid:SigmoidRouter", DROPPING),  # sigma-MoE
    # S-BASE, and as Csordás et al. released it
    "sinkhorn": Router(f"{PLACE}.sigmoid:SinkhornRouter", DROPPING[:1], BIAS),
    "sinkhorn_released": Router(f"{PLACE}.sigmoid:ReleasedSinkhornRouter", DROPPING[:1], BIAS),
    # Shazeer et al. 2017, appendix B
    "hierarchical": Router(
        f"{PLACE}.noisy:HierarchicalRouter", ("groups", "selected_groups"), own_noise=True
    ),
    # Zhou et al. 2022
    "expert_choice": Router(f"{PLACE}.softmax:ExpertChoiceRouter", mixes=True),
}
