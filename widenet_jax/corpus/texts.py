"""What the tasks on texts share: arrays of a batch, inputs of the encoder, the baseline."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from widenet_jax.data.contract import ArraySpec
from widenet_jax.task import Baseline
from widenet_jax.typing import Array, Shapes

ADVICE = (
    "the model predicts this text no better than one that knows only how frequent its tokens are. "
    "If it was trained for such text, and its core for this number of loops, train longer "
    "(config.duration), or with another config.optimizer.learning_rate"
)


def batch_spec(example: Mapping[str, ArraySpec], batch_size: int) -> Shapes:
    """Returns shapes and dtypes of the stacked arrays of examples."""
    return {
        name: jax.ShapeDtypeStruct((batch_size, *spec.shape), spec.dtype)
        for name, spec in example.items()
    }


def encoder_inputs(batch: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the text encoder's inputs: tokens, token_types and mask [B, T], False at padding."""
    tokens = batch["tokens"]
    mask = jnp.arange(tokens.shape[1]) < batch["length"][:, None]
    return {"tokens": tokens, "token_types": batch["token_types"], "mask": mask}


def unigram_baseline(metric: str, entropy: float | None) -> Baseline | None:
    """Returns the baseline of a metric: the entropy of the tokens; None where that is unknown."""
    return None if entropy is None else Baseline(metric, entropy, "unigram entropy", ADVICE)
