"""A product-key memory as feed-forward: a token reads the values whose keys are nearest to it."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from widenet_jax.nn.dense import Dense, Dropout, linear
from widenet_jax.nn.initializers import uniform_between
from widenet_jax.nn.module import Module
from widenet_jax.nn.selection import floats_of, keys_of, kth_largest
from widenet_jax.nn.settings import ProductKeySettings
from widenet_jax.typing import Array, FfnOutput, Routing

# From the scores [..., n, n] and which pairs are chosen to the weights of the pairs.
WEIGHTS: dict[str, Callable[[Array, Array], Array]] = {
    "relu": lambda scores, chosen: jnp.where(chosen, jax.nn.relu(scores), 0),
    "softmax": lambda scores, chosen: jax.nn.softmax(
        jnp.where(chosen, scores, -jnp.inf), axis=(-2, -1)
    ),
}


class ProductKey(Module):
    """y = sum over heads and chosen pairs (i, j) of weight_ij V_(i n + j) (Lample et al. 2019).

    The halves q_a and q_b of a head's query [d] are scored against n sub-keys each; the score of
    the pair (i, j) is A_i q_a + B_j q_b. The `knn` pairs with the largest scores are chosen, for
    each head exactly, and all heads read one table V [n^2, D]. Csordás et al. 2023 take the token
    itself for the query and relu for the weights; Lample et al. a projection and a softmax.

    The choice costs n per head and half and about knn ln(knn) sums. The weighted sum is a product
    with the whole table, 2 n^2 D operations a token, which for n up to some hundred is much cheaper
    on every processor than gathering and, for the gradient, scattering knn rows per head.

    In the runs of Csordás et al. knn was at least n. There their released code takes every pair and
    adds the heads' scores before relu or softmax, as if one head had the summed sub-keys:
    `combine_heads` = "before".

    Parameters: keys [2, heads, n, d/2], values [n^2, D], with a projection query/{kernel, bias}.
    """

    settings: ProductKeySettings

    @nn.compact
    def __call__(
        self,
        x: Array,  # [B, T, D], D even
        *,
        mask: Array | None = None,
        train: bool,
        routing: Routing | None = None,
    ) -> FfnOutput:
        """Ignores `mask` and `routing`, which belong to the feed-forward contract."""
        del mask, routing
        s, D = self.settings, x.shape[-1]
        n, h, d = s.num_keys, s.num_heads, s.query_dim or D
        of_keys, of_values = self.table_initializers(D)
        keys = self.param("keys", of_keys, (2, h, n, d // 2))
        values = self.param("values", of_values, (n * n, D))

        # In full float32, as the routers' logits: rounding would change which pairs are chosen.
        query, spec = x.astype(jnp.float32), "btd,hnd->bthn"
        with jax.default_matmul_precision("highest"):
            if s.query_dim:
                init = self.kernels.kernel()
                query = Dense(h * d, jnp.float32, init, name="query")(query)
                query, spec = query.reshape(*x.shape[:2], h, d), "bthd,hnd->bthn"
            halves = jnp.split(query, 2, axis=-1)
            scores = [linear(spec, half, keys[i], None) for i, half in enumerate(halves)]
        every = s.combine_heads == "before" and s.knn >= n
        if s.combine_heads == "before":
            scores = [score.sum(axis=2, keepdims=True) for score in scores]
        last = None if every else last_pair(*scores, s.knn)
        weights = pair_weights(*scores, last, s.weights)  # [B, T, n^2]
        y = linear("btn,nd->btd", weights.astype(self.dtype), values, None)
        return FfnOutput(y=Dropout(s.dropout)(y, train=train), aux={})

    def table_initializers(self, embed_dim: int) -> tuple:
        """Returns the initialisers of keys and values."""
        s, D = self.settings, embed_dim
        if s.table_init == "lample":
            d = s.query_dim or D
            return uniform_between((d // 2) ** -0.5), nn.initializers.normal(D**-0.5)
        fan = D if s.table_init == "embed_fan" else s.num_keys**2
        return (self.kernels.kernel(batch_axis=(0, 1), fan_in=D), self.kernels.kernel(fan_in=fan))


def last_pair(a: Array, b: Array, knn: int) -> tuple[Array, Array] | None:
    """Finds the last of the knn pairs with the largest a_i + b_j; None if there are no more pairs.

    Of pairs with equal sums those with the lower index i n + j come first. The chosen are those
    with a larger sum than the last, and with an equal one and no larger index.

    Args:
      a, b: [..., n] float32.
      knn: at least 1.

    Returns:
      The sum's key, as from `selection.keys_of`, and the index, both [..., 1] int32.
    """
    n = a.shape[-1]
    if knn >= n * n:
        return None
    a, b = jax.lax.stop_gradient((a, b))
    key, above = kth_largest_sum(a, b, knn)
    # How many pairs with this sum may be chosen, and in which row and column the last of them is.
    # One count of all n^2 is fused with the sums, which two would keep in memory.
    rest = knn - above
    equal = keys_of(a[..., :, None] + b[..., None, :]) == key[..., None]
    up_to = jnp.cumsum(count(equal, -1), axis=-1)  # [..., n], the row included
    i = count(up_to < rest[..., None], -1)[..., None]
    rest -= jnp.where(up_to < rest[..., None], up_to, 0).max(-1)
    row = keys_of(jnp.take_along_axis(a, i, axis=-1) + b) == key
    j = count(jnp.cumsum(row, axis=-1, dtype=jnp.int32) < rest[..., None], -1)[..., None]
    return key, i * n + j


def kth_largest_sum(a: Array, b: Array, k: int) -> tuple[Array, Array]:
    """Returns the key [..., 1] of the k-th largest a_i + b_j, and how many are larger [...]."""
    # Sorted first, for which integers alone are what XLA does fastest on a CPU. The pair of the
    # i-th and the j-th largest, from 1, follows i j - 1 others: it is among the k only if i j <= k.
    n = a.shape[-1]
    rank = np.arange(1, min(k, n) + 1)
    i, j = np.nonzero(rank[:, None] * rank <= k)
    a, b = (floats_of(jax.lax.sort(keys_of(x), is_stable=False))[..., ::-1] for x in (a, b))
    keys = keys_of(a[..., i] + b[..., j])
    key = kth_largest(keys, k)
    return key, count(keys > key, -1)


def count(chosen: Array, axis: int | tuple[int, ...]) -> Array:
    """Returns how many are true along an axis."""
    return chosen.sum(axis, dtype=jnp.int32)


# The backward pass recomputes what has n^2 numbers per head, which would fill the memory.
@partial(jax.checkpoint, static_argnums=3)
def pair_weights(a: Array, b: Array, last: tuple[Array, Array] | None, weights: str) -> Array:
    """Computes the weight of every pair, summed over heads.

    Args:
      a, b: [B, T, h, n] float32 scores of the halves.
      last: the last pair of each head, as from `last_pair`, or None for all.
      weights: a key of `WEIGHTS`.

    Returns:
      [B, T, n^2] float32; 0 for pairs that no head has chosen.
    """
    n = a.shape[-1]
    scores = a[..., :, None] + b[..., None, :]  # [B, T, h, n, n]
    chosen = jnp.ones((), bool)
    if last is not None:
        last_key, last_index = (x[..., None] for x in last)
        keys = keys_of(jax.lax.stop_gradient(scores))
        index = jnp.arange(n * n, dtype=jnp.int32).reshape(n, n)
        chosen = (keys > last_key) | ((keys == last_key) & (index <= last_index))
    total = WEIGHTS[weights](scores, chosen).sum(axis=2)
    return total.reshape(*total.shape[:2], n * n)
