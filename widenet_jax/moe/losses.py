"""Losses that keep the experts in use: pure functions of a routing, weighted in the config.

A loss is `f(routing, mask) -> [G]` float32, one number a group; a group without a real token is
left out of the mean. `routing` has no slots yet. To add one: a function and an entry in `LOSSES`.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from widenet_jax.errors import check_fields, choose
from widenet_jax.moe.statistics import choice_counts
from widenet_jax.typing import Array, Routing

SECTION = "config.model.moe.losses"


def load_balance_loss(routing: Routing, mask: Array) -> Array:
    """Returns E * sum_i m_i P_i of each group (WideNet, eqs. 3-5).

    m_i is the share of (token, choice) pairs sent to expert i before dropping, so that m sums to
    1 for every K; P_i the mean noisy probability of expert i. Even routing gives exactly 1.
    Differs from the paper: eq. 4 averages over the tokens and would sum to K; divided by K here,
    as in the authors' released code.
    """
    E = routing.router_probs.shape[-1]
    tokens = jnp.maximum(mask.sum(axis=1), 1)[:, None]  # [G, 1]
    K = routing.expert_index.shape[-1]
    m = choice_counts(routing, mask) / (K * tokens)  # [G, E]
    P = (routing.router_probs * mask[..., None]).sum(axis=1) / tokens
    return E * (m * P).sum(axis=-1)


LOSSES: dict[str, Callable[[Routing, Array], Array]] = {"load_balance": load_balance_loss}


# What a loss takes for a group: each routing group, or all tokens, [G, S, ...] to [1, G*S, ...].
SCOPES = {"group": lambda x: x, "batch": lambda x: x.reshape(1, -1, *x.shape[2:])}


def balance_losses(
    routing: Routing, mask: Array, settings: Mapping[str, float | str]
) -> tuple[dict[str, Array], Array]:
    """Computes the losses of one routing operation.

    Args:
      routing: without slots.
      mask: [G, S] True for real tokens.
      settings: a weight for each loss to compute, by its name in `LOSSES`; and `over`: "group"
        takes the statistics over each group and averages the losses over the groups that hold a
        real token; "batch" takes the statistics over all tokens of the batch.

    Returns:
      Each loss, unweighted, and their weighted sum; scalars float32.

    Raises:
      BadInputError: an unknown name.
    """
    check_fields([*LOSSES, "over"], settings, section=SECTION)
    weights = {name: weight for name, weight in settings.items() if name != "over"}
    scope = choose(SCOPES, settings.get("over", ""), field=f"{SECTION}.over")
    routing, mask = jax.tree.map(scope, (routing, mask))
    real = mask.any(axis=1)
    groups = jnp.maximum(real.sum(), 1)
    per_group = {name: LOSSES[name](routing, mask) for name in weights}
    losses = {name: jnp.where(real, x, 0).sum() / groups for name, x in per_group.items()}
    total = sum((weights[name] * loss for name, loss in losses.items()), start=jnp.float32(0))
    return losses, total
