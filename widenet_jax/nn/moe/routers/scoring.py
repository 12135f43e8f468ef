"""What routers share: the projection to scores, the choice of K experts, expert dropout."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.moe.slots import pick
from widenet_jax.param_names import BALANCE_BIAS
from widenet_jax.typing import Array


class ScoringRouter(nn.Module):
    """Base of the routers that score the experts by a linear map of the token, without bias.

    Attributes:
      num_experts: E.
      num_selected_experts: K.
      kernel_init: initialisers of the stack.
    """

    num_experts: int
    num_selected_experts: int
    kernel_init: KernelInit = KernelInit()

    def scores(self, x: Array) -> Array:
        """Returns x times the parameter `kernel`, [G, S, E]."""
        return self.project(x, "kernel", self.num_experts, self.kernel_init.router())

    def project(self, x: Array, name: str, columns: int, init: nn.initializers.Initializer):
        """Returns x [G, S, D] times the parameter `name` [D, columns], in full float32."""
        kernel = self.param(name, init, (x.shape[-1], columns))
        return jnp.einsum("gsd,de->gse", x, kernel, precision=jax.lax.Precision.HIGHEST)


class DroppingRouter(ScoringRouter):
    """Base of the routers with expert dropout, and with a bias that balances the experts.

    Attributes:
      expert_dropout: share of the (token, expert) pairs that are not to be chosen, in training.
      bias_balancing: whether the K largest of s + b are chosen, s the scores of all experts and b
        [E] the parameter `balance_bias`, 0 at first (Wang et al. 2024, arXiv:2408.15664). The gates
        are of s alone. `moe.losses.balance_bias_loss` and the optimizer move b.
      The rest: see `ScoringRouter`.
    """

    expert_dropout: float = 0.0
    bias_balancing: bool = False

    def balance_bias(self) -> Array | None:
        """Returns b [E]; None without."""
        if not self.bias_balancing:
            return None
        return self.param(BALANCE_BIAS, nn.initializers.zeros, (self.num_experts,))

    def draw_keep(self, shape: tuple[int, ...], key: Array | None, *, train: bool) -> Array | None:
        """Draws which experts each token may choose, [G, S, E]; None without expert dropout."""
        if not (train and self.expert_dropout):
            return None
        return jax.random.bernoulli(needed(key), 1 - self.expert_dropout, shape)


def needed(key: Array | None) -> Array:
    """Returns the key of training, which routing with noise or expert dropout needs."""
    assert key is not None, "training needs the random stream 'router': pass rngs={'router': key}"
    return key


def choose_experts(scores: Array, num_selected_experts: int, keep: Array | None = None) -> Array:
    """Returns [..., K] int32, the experts with the largest scores, best first.

    Ties go to the lower expert index. A dropped expert is chosen only where fewer than K are kept.

    Args:
      scores: [..., E], finite.
      num_selected_experts: K.
      keep: [..., E], False for dropped experts; None: all are kept.
    """
    if keep is not None:
        scores = jnp.where(keep, scores, -jnp.inf)
    return jax.lax.top_k(scores, num_selected_experts)[1].astype(jnp.int32)


def gates(values: Array, expert_index: Array, mask: Array, keep: Array | None = None) -> Array:
    """Returns `values` of the chosen experts, [G, S, K]; 0 for masked tokens, dropped experts."""
    real = mask[..., None]
    if keep is not None:
        real = real & pick(keep, expert_index).astype(bool)
    return jnp.where(real, pick(values, expert_index), 0)
