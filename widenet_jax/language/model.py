"""The language model: it predicts each token from those before it, with a memory or without."""

import math
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.language.settings import LanguageSettings
from widenet_jax.nn.block_settings import BlockSettings
from widenet_jax.nn.blocks import Blocks
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.initializers import uniform_between
from widenet_jax.nn.loop_settings import Exit
from widenet_jax.param_names import ENCODER
from widenet_jax.typing import Array, Aux, Shapes

MEMORY = ("memory", "memory_length")


class LanguageModel(BlockSettings):
    """Embedding, blocks of causal attention, an output layer of its own weights.

    With relative attention it is a Transformer-XL, which has a memory of the tokens before a
    window. With another attention tokens see those before them in their window alone.

    Dai et al. 2019, arXiv:1901.02860, as Csordas et al. 2023 (arXiv:2310.10837) have it.
    Parameters: embedding [V, D], encoder (the blocks), output/{kernel [D, V], bias}.

    Differs from the paper: pre-norm, and a plain softmax over the vocabulary, whose weights are not
    the rows of the embedding. `nn.attention.relative` has the differences in attention.
    """

    stack: LanguageSettings

    exits = True

    @nn.compact
    def __call__(self, inputs: Mapping[str, Array], *, train: bool) -> tuple[dict[str, Array], Aux]:
        """Predicts the token after each token.

        Args:
          inputs: tokens [B, T] int32; for attention with a memory, memory [B, L, M, D] and
            memory_length [B] int32, as the outputs for the tokens before these have them: the
            latest rows of the memory, so many as the length says, are seen; optionally mask [B]
            bool, True for real rows.
          train: with dropout and routing noise.

        Returns:
          logits [B, T, V] float32; with `loop.exit` also loop_logits [R, B, T, V] after each of R
          loops, leaves [R, B, T], the probability that a token leaves at each, and loops [B, T]
          int32, the loop at which it leaves by the rule, whose logits are its own; with a memory
          also memory and memory_length for the tokens after these. And the blocks' aux.
        """
        dtype, D = self.float_type, self.embed_dim
        tokens = inputs["tokens"]
        carry = {name: inputs[name] for name in MEMORY if self.has_memory}
        table = self.param("embedding", nn.initializers.glorot_uniform(), (self.vocab_size, D))
        x = jnp.take(table, tokens, axis=0).astype(dtype)
        x = Dropout(self.dropout)(x, train=train)
        mask = inputs.get("mask")
        token_mask = None if mask is None else jnp.broadcast_to(mask[:, None], tokens.shape)
        blocks = Blocks(self.stack, name=ENCODER)
        x, aux, memory = blocks(x, mask=token_mask, **carry, loops=inputs.get("loops"), train=train)
        x = Dropout(self.dropout)(x, train=train)

        outputs = self.predictions(x, table, tokens.shape)
        if self.has_memory:
            length = jnp.minimum(carry["memory_length"] + tokens.shape[1], memory.shape[2])
            outputs |= {"memory": memory, "memory_length": length}
        return outputs, aux

    def predictions(self, x: Array, table: Array, shape: tuple[int, int]) -> dict[str, Array]:
        """Returns the outputs of x [B, T, D], or [R B, T, D] after each of R loops."""
        logits, leave = self.logits(x, table), self.loop.exit
        if not self.loop.exits:
            return {"logits": logits}
        logits = logits.reshape(-1, *shape, self.vocab_size)
        leaves = jnp.zeros(logits.shape[:3]).at[-1].set(1.0)
        if leave.loss == "expected":
            gates = nn.Dense(1, name="exit_gate")(x.astype(jnp.float32))
            leaves = leaving(gates.reshape(logits.shape[:3]))
        loops = exit_loops(logits, leaves, leave)
        chosen = jnp.take_along_axis(logits, loops[None, ..., None], axis=0)[0]
        return {"logits": chosen, "loop_logits": logits, "leaves": leaves, "loops": loops}

    def logits(self, x: Array, table: Array) -> Array:
        """Returns the scores [B, T, V], float32, of x [B, T, D]; table [V, D] is the embedding."""
        if self.tied_output:
            return jnp.einsum("btd,vd->btv", x.astype(jnp.float32), table)
        near_zero = uniform_between(self.embed_dim**-0.5)
        return Dense(self.vocab_size, jnp.float32, near_zero, near_zero, name="output")(x)

    def outside_flops(self, input_spec: Shapes) -> int:
        """Returns the FLOPs of an example's output layer; looking up an embedding counts none."""
        flops = 2 * self.num_tokens(input_spec) * self.embed_dim * self.vocab_size
        return flops * max(r for _, r in self.loop.core) if self.loop.exits else flops

    def num_tokens(self, input_spec: Shapes) -> int:
        """Returns T of an example."""
        return input_spec["tokens"].shape[1]


def leaving(gates: Array) -> Array:
    """Returns p [R, ...]: l_k prod_{j<k} (1 - l_j), l = sigmoid(gates [R, ...]), and the rest."""
    stay = jnp.cumprod(1 - nn.sigmoid(gates), axis=0)  # beyond loop k
    before = jnp.concatenate([jnp.ones_like(stay[:1]), stay[:-1]])
    return jnp.concatenate([before[:-1] - stay[:-1], before[-1:]])


def exit_loops(logits: Array, leaves: Array, leave: Exit) -> Array:
    """Returns the loop [B, T] whose prediction each token takes, see `loop_settings.Exit`.

    Args:
      logits: [R, B, T, V].
      leaves: [R, B, T], the probability that a token leaves at each loop.
      leave: has the rule.
    """
    last = logits.shape[0] - 1
    if leave.rule == "none":
        return jnp.full(leaves.shape[1:], last, jnp.int32)
    if leave.rule == "gate":
        done = jnp.cumsum(leaves, axis=0) >= leave.threshold
    else:
        scores = nn.log_softmax(logits)
        even = jnp.full_like(scores[:1], -math.log(scores.shape[-1]))
        before = jnp.concatenate([even, scores[:-1]])
        done = (jnp.exp(before) * (before - scores)).sum(-1) < leave.threshold
    return jnp.where(done.any(axis=0), done.argmax(axis=0), last).astype(jnp.int32)
