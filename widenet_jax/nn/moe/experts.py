"""The experts: E feed-forward layers side by side, on slots, on sorted rows, or on all tokens."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from flax.typing import Initializer

from widenet_jax.nn.dense import KernelAndBias, Words, draw_words, drop, linear
from widenet_jax.nn.mlp import ACTIVATIONS, activate
from widenet_jax.nn.module import Module
from widenet_jax.nn.rules import GATED
from widenet_jax.nn.settings import FfnSettings
from widenet_jax.param_names import EXPERTS
from widenet_jax.sharding import platform
from widenet_jax.typing import Array

# Random words of the dropout after the hidden and after the output layer; None: no dropout there.
LayerWords = tuple[Words | None, Words | None]


@flax.struct.dataclass
class ExpertFfn:
    """E layers as `nn.mlp.Mlp`, each with its own weights: a function and its arrays.

    A pytree rather than a module, so that it may be called inside `jax.shard_map`.

    Attributes:
      wi: [E, D, F] float32; wi_bias: [E, F]; wo: [E, F, D]; wo_bias: [E, D]. Biases may be None.
      wg, wg_bias: of the gates, as wi's; None without gates.
      key: key of the dropout; None is no dropout.
      dropout: its rate.
      drops_hidden, drops_output: whether it acts after the hidden layer, after the output layer.
      activation: a name in `nn.mlp.ACTIVATIONS`.
      output_activation: applies the activation to the output too.
      product: of sorted rows; None is `jax.lax.ragged_dot`.
    """

    wi: Array
    wi_bias: Array | None
    wo: Array
    wo_bias: Array | None
    key: Array | None
    dropout: float = flax.struct.field(pytree_node=False)
    drops_hidden: bool = flax.struct.field(pytree_node=False)
    drops_output: bool = flax.struct.field(pytree_node=False)
    activation: str = flax.struct.field(pytree_node=False)
    output_activation: bool = flax.struct.field(pytree_node=False)
    wg: Array | None = None
    wg_bias: Array | None = None
    product: Callable[..., Array] | None = flax.struct.field(pytree_node=False, default=None)

    def dropout_words(self, rows: tuple[int, ...]) -> LayerWords:
        """Draws the dropout's random words for tokens laid out as [*rows, D]."""
        if self.key is None:
            return None, None
        hidden_key, output_key = jax.random.split(self.key)
        _, D, F = self.wi.shape
        hidden = draw_words(hidden_key, rows, F) if self.drops_hidden else None
        output = draw_words(output_key, rows, D) if self.drops_output else None
        return hidden, output

    def on_buffers(self, x: Array) -> Array:  # [E, G, C, D] -> [E, G, C, D]
        """Applies each expert to its buffers."""
        hidden_words, output_words = self.dropout_words(x.shape[:-1])
        dense = partial(linear, "egci,eio->egco")
        h = self.hidden(partial(dense, x), hidden_words)
        return self.output(dense(h, self.wo, self.wo_bias), output_words)

    def on_rows(
        self, x: Array, expert: Array, sizes: Array, words: LayerWords, gate: Array | None = None
    ) -> Array:
        """Applies the experts to rows [N, D] sorted by expert.

        Rows past the last expert are padding: their values have no effect, and their results have
        no meaning.

        Args:
          x: [N, D].
          expert: [N] int32, ascending; E for padding.
          sizes: [E] int32, the number of rows of each expert.
          words: as from `dropout_words((N,))`.
          gate: [N] float32, a factor of each result, which multiplies the F hidden entries instead
            of the D outputs; None: 1. Not with `output_activation`.
        """
        of_expert = jax.nn.one_hot(expert, sizes.shape[0])  # [N, E]
        real = (expert < sizes.shape[0])[:, None]
        product = self.product or jax.lax.ragged_dot

        def dense(x: Array, of_expert: Array, kernel: Array, bias: Array | None) -> Array:
            # A ragged product may leave anything in the padding rows, forwards and backwards: even
            # NaN, which times 0 would still be NaN in the bias's gradient.
            x = jnp.where(real, x, 0)
            y = product(x, kernel.astype(x.dtype), sizes)
            y = jnp.where(real, y, 0)
            if bias is None:
                return y
            # The bias is added as a product, because the product's gradient scatters nothing; in
            # float32, because that gradient is a sum over rows.
            return y + (of_expert @ bias).astype(x.dtype)

        hidden_words, output_words = words
        h = self.hidden(partial(dense, x, of_expert), hidden_words)
        if gate is not None:
            h, of_expert = scaled(h, gate), of_expert * gate[:, None]
        return self.output(dense(h, of_expert, self.wo, self.wo_bias), output_words)

    def on_all(self, x: Array, gate: Array) -> Array:  # [G, S, D], [G, S, E] -> [G, S, D]
        """Applies all experts to all tokens, and sums the results times the gates, mostly 0.

        The gates multiply the F hidden entries, which is equal, so that the sum over experts is
        part of the second product; but not where something follows that product in an expert.
        """
        E, D, F = self.wi.shape
        hidden_words, output_words = self.dropout_words(gate.shape)

        def dense(kernel: Array, bias: Array | None) -> Array:
            # One layer of width E * F. The transpose is of the small kernel, not of hidden entries.
            kernel = kernel.swapaxes(0, 1).reshape(D, E * F)
            bias = None if bias is None else bias.reshape(E * F)
            return linear("bsd,df->bsf", x, kernel, bias)

        h, by_expert = self.hidden(dense, None), (*gate.shape, F)
        if hidden_words is not None:
            h = drop(h.reshape(by_expert), hidden_words, self.dropout).reshape(h.shape)
        if self.output_activation or output_words is not None:
            h = h.reshape(by_expert)
            # "x" is the experts' axis: under "e" the gradient would be sharded over experts,
            # although the tokens are sharded over all axes of the mesh.
            y = self.output(linear("bsxf,xfd->bsxd", h, self.wo, self.wo_bias), output_words)
            return jnp.einsum("bsxd,bsx->bsd", y, gate.astype(x.dtype))
        h = scaled_side_by_side(h, gate)
        y = linear("bsf,fd->bsd", h, self.wo.reshape(E * F, D), None)
        if self.wo_bias is None:
            return y
        return y + linear("bsx,xd->bsd", gate.astype(x.dtype), self.wo_bias, None)

    def hidden(self, dense: Callable[..., Array], words: Words | None) -> Array:
        """Returns the hidden entries, in the layout of `dense(kernel, bias)`."""
        h = dense(self.wi, self.wi_bias)
        gate = None if self.wg is None else dense(self.wg, self.wg_bias)
        return drop(activate(self.activation, h, gate), words, self.dropout)

    def output(self, y: Array, words: Words | None) -> Array:
        """Applies what follows the second product; any layout."""
        y = ACTIVATIONS[self.activation](y) if self.output_activation else y
        return drop(y, words, self.dropout)


def scaled(h: Array, gate: Array) -> Array:
    """Returns h [..., F] times gate [...], multiplied in float32, in h's dtype."""
    return (h.astype(jnp.float32) * gate[..., None]).astype(h.dtype)


def scaled_side_by_side(h: Array, gate: Array) -> Array:  # [..., E F], [..., E] -> [..., E F]
    """Returns each expert's F entries times its gate, multiplied in float32, in h's dtype.

    On a TPU the gates are spread by a product with zeros and ones: there [..., E, F] is another
    layout, and reshaping h to it would copy h, forwards and backwards.
    """
    if platform() != "tpu":
        return scaled(h.reshape(*gate.shape, -1), gate).reshape(h.shape)
    E = gate.shape[-1]
    ones = jnp.repeat(jnp.eye(E), h.shape[-1] // E, axis=1)
    exact = jax.lax.Precision.HIGHEST if h.dtype == jnp.float32 else jax.lax.Precision.HIGH
    spread = jnp.einsum("...e,ef->...f", gate, ones, precision=exact)
    return (h.astype(jnp.float32) * spread).astype(h.dtype)


class Experts(Module):
    """Holds the parameters of `ExpertFfn`: wi, wg and wo, kernel [E, in, out] and bias [E, out]."""

    settings: FfnSettings  # of `MoeLayer` or `SoftMoe`

    @nn.compact
    def __call__(self, embed_dim: int, *, drops: bool) -> dict[str, Array | None]:
        """Returns the arrays of `ExpertFfn`, with a key of the dropout if it `drops`."""
        s, init = self.settings, self.kernels
        E, D, F = s.num_experts, embed_dim, s.mlp_dim

        def dense(name: str, inputs: int, outputs: int, kernel_init: Initializer) -> tuple:
            bias = (E, outputs) if s.use_bias else None
            held = KernelAndBias(
                (E, inputs, outputs), bias, kernel_init, init.scheme.ffn_bias, name=name
            )
            return held()

        # The fans belong to one expert's kernel: E is a batch axis, not part of a fan.
        wi, wi_bias = dense("wi", D, F, init.kernel(batch_axis=(0,)))
        wo, wo_bias = dense("wo", F, D, init.experts_out(E, F))
        arrays = {"wi": wi, "wi_bias": wi_bias, "wo": wo, "wo_bias": wo_bias}
        if s.activation in GATED:
            wg, wg_bias = dense("wg", D, F, init.kernel(batch_axis=(0,)))
            arrays |= {"wg": wg, "wg_bias": wg_bias}
        return arrays | {"key": self.make_rng("dropout") if drops else None}


def build_experts(
    settings: FfnSettings, embed_dim: int, *, train: bool, drops_output: bool
) -> ExpertFfn:
    """Returns a layer's experts with their parameters, and in training the key of their dropout.

    Args:
      settings: of the layer that calls this.
      embed_dim: D.
      train: whether dropout acts.
      drops_output: whether it acts after the output layer, too.
    """
    held = Experts(settings, name=EXPERTS)
    return ExpertFfn(
        **held(embed_dim, drops=train and settings.dropout > 0),
        dropout=settings.dropout,
        drops_hidden=settings.hidden_dropout,
        drops_output=drops_output,
        activation=settings.activation,
        output_activation=settings.output_activation,
    )
