"""How many hidden units of a dense feed-forward are active (sigma-MoE, figs. 1, 4 and 5)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from widenet_jax.inference.over_source import real_token_mask, sums_over_source
from widenet_jax.param_names import ENCODER, split_block_part
from widenet_jax.trained import Trained
from widenet_jax.typing import Array, PyTree

MLP = "mlp"  # the dense feed-forward, by its name
HIDDEN = "wi"  # its first layer
QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class ActiveUnits:
    """Counts over a source, for L blocks with a dense feed-forward of F hidden units.

    Attributes:
      blocks: those blocks.
      tokens: [L, F + 1] tokens with 0, 1, ..., F units whose ReLU is above 0.
    """

    blocks: tuple[int, ...]
    tokens: np.ndarray

    @property
    def width(self) -> int:
        """F."""
        return self.tokens.shape[-1] - 1

    @property
    def mean(self) -> np.ndarray:
        """[L] active units of a token, on average."""
        return self.tokens @ np.arange(self.width + 1) / self.tokens.sum(axis=-1)

    def quantile(self, share: float) -> np.ndarray:
        """[L] the least number of units that `share` of the tokens do not exceed."""
        below = self.tokens.cumsum(axis=-1) / self.tokens.sum(axis=-1, keepdims=True)
        return (below >= share - 1e-12).argmax(axis=-1)

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers by block, as `scripts/analyze.py` writes them."""
        quantiles = {f"{100 * q:.0f}%": self.quantile(q).tolist() for q in QUANTILES}
        mean = self.mean.round(4).tolist()
        return {"blocks": list(self.blocks), "of": self.width, "mean": mean} | quantiles


def dense_blocks(model: nn.Module) -> tuple[int, ...]:
    """Lists the blocks with a dense feed-forward of ReLUs; units of other kinds are never 0."""
    if model.activation != "relu":
        return ()
    return tuple(i for i, name in enumerate(model.ffn_names()) if name == MLP)


def measure_active(trained: Trained) -> ActiveUnits:
    """Counts the active units over the evaluation split that the model's config names.

    Raises:
      BadInputError: as `over_source.open_source`.
    """
    sums = sums_over_source(trained, partial(active_sums, trained))
    return ActiveUnits(dense_blocks(trained.model), sums["tokens"])


def active_sums(
    trained: Trained, params: PyTree, batch: dict[str, Array]
) -> tuple[PyTree, dict[str, Array]]:
    """Returns the model's outputs, and `ActiveUnits.tokens` over a batch, in float32."""
    inputs = trained.task.inputs(batch)
    outputs, counts, F = active_counts(trained.model, params, inputs)
    L, B, T = counts.shape
    mask = jnp.broadcast_to(real_token_mask(batch, inputs, (B, T)), (L, B, T))
    block = jnp.arange(L)[:, None, None]
    tokens = jnp.zeros((L, F + 1)).at[block, counts].add(mask.astype(jnp.float32))
    return outputs, {"tokens": tokens}


def active_counts(
    model: nn.Module, params: PyTree, inputs: Mapping[str, Array]
) -> tuple[PyTree, Array, int]:
    """Returns the model's outputs in evaluation, the active units of every token, and F.

    Args:
      model: a model with `dense_blocks`.
      params: its parameters.
      inputs: arrays [B, ...], as the model takes them.

    Returns:
      The outputs; int32 [L, B, T]; F.
    """

    def is_hidden_layer(module: nn.Module, method: str) -> bool:
        return module.name == HIDDEN and method == "__call__"

    # As in `routing.token_routing`: a loop or a recomputed block would hide the layer.
    plain = model.clone(unroll=True, remat="none")
    (outputs, _), state = plain.apply(
        {"params": params},
        inputs,
        train=False,
        capture_intermediates=is_hidden_layer,
        mutable=["intermediates"],
    )
    layers = state["intermediates"][ENCODER]
    # One layer is called in every block, or each block has its layer; their names sort by block.
    names = [name for name in sorted(layers) if split_block_part(name)[1] == MLP]
    dense = [layers[name][HIDDEN] for name in names]
    hidden = [call for layer in dense for call in layer["__call__"]]
    counts = jnp.stack([(z > 0).sum(axis=-1, dtype=jnp.int32) for z in hidden])
    return outputs, counts, hidden[0].shape[-1]
