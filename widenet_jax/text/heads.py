"""Heads of the text encoder: what a task reads from the tokens.

A head is two functions, NAME and NAME_flops

    NAME(model, x, table, inputs, *, train) -> outputs
      model   the `TextEncoder`, in whose scope the head makes its layers
      x       [B, T, D] the tokens after the last block
      table   [V, E] float32, the token embeddings, for an output layer tied to them
      inputs  of the model
      train   True in training

    NAME_flops(model, input_spec) -> int

The outputs are float32; the second counts the operations of one example. To add one: its functions,
and a `specs.HeadSpec` in the spec of its task.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.nn.dense import Dense, Dropout, linear
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.mlp import ACTIVATIONS
from widenet_jax.text.encoder import rows_at
from widenet_jax.typing import Array, Inputs, Shapes

Outputs = dict[str, Array]

# Dropout before the classifier in finetuning, whatever the model's own rate (BERT, ALBERT).
HEAD_DROPOUT = 0.1
# Instances that a packed row holds at most.
MAX_INSTANCES = 8
# Starts, and ends of each start, that `span_beam` keeps in evaluation (ALBERT).
BEAM = 5
# The logit of a token at which no answer can start or end. Finite, so that nothing becomes NaN.
IMPOSSIBLE = -1e9


def pretraining(model: nn.Module, x: Array, table: Array, inputs: Inputs, *, train: bool) -> dict:
    """Predicts masked tokens and the order of two parts.

    Args:
      inputs: mlm_positions [B, P] int32; and `segment_ids` and `positions` where rows are packed.

    Returns:
      mlm_logits [B, P, V] at the positions; order_logits [B, 2], or for packed rows
      [B, MAX_INSTANCES, 2], in which row i is of instance i + 1.
    """
    del train
    rows = rows_at(x, inputs["mlm_positions"])
    settings = model.activation, model.norm_epsilon, model.outer_init, model.float_type
    mlm = MaskedLmHead(table.shape[1], *settings, name="mlm")
    return {
        "mlm_logits": mlm(rows, table),
        "order_logits": dense(model.outer_init, 2, "order")(pooled(model, x, inputs)),
    }


def classification(model: nn.Module, x: Array, _: Array, inputs: Inputs, *, train: bool):
    """Classifies examples: logits [B, num_classes], an array as in vision models."""
    y = Dropout(HEAD_DROPOUT)(pooled(model, x, inputs), train=train)
    return dense(model.outer_init, model.num_classes, "classifier")(y)


def span(model: nn.Module, x: Array, table: Array, inputs: Inputs, *, train: bool) -> Outputs:
    """Scores each token as start and as end of an answer (BERT): start_logits, end_logits [B, T].

    Padding has the logit IMPOSSIBLE.
    """
    del table, train
    logits = dense(model.outer_init, 2, "span")(x.astype(jnp.float32))
    logits = jnp.where(inputs["mask"][..., None], logits, IMPOSSIBLE)
    return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


def span_beam(model: nn.Module, x: Array, _: Array, inputs: Inputs, *, train: bool) -> Outputs:
    """Scores starts, ends given a start, and that there is no answer; see `SpanBeamHead`."""
    return SpanBeamHead(model.norm_epsilon, model.outer_init, name="span")(x, inputs, train=train)


def pretraining_flops(model: nn.Module, input_spec: Shapes) -> int:
    """Counts the predictions of masked tokens, the pooler and the order."""
    D, E, P = model.embed_dim, model.embedding_dim, input_spec["mlm_positions"].shape[1]
    return P * 2 * E * (D + model.vocab_size) + 2 * D * D + 2 * D * 2


def classification_flops(model: nn.Module, _: Shapes) -> int:
    """Counts the pooler and the classifier."""
    return 2 * model.embed_dim**2 + 2 * model.embed_dim * model.num_classes


def span_flops(model: nn.Module, input_spec: Shapes) -> int:
    """Counts the starts and ends."""
    return 2 * model.num_tokens(input_spec) * model.embed_dim * 2


def span_beam_flops(model: nn.Module, input_spec: Shapes) -> int:
    """Counts starts and ends, ends given the true start, and the null logit."""
    T, D = model.num_tokens(input_spec), model.embed_dim
    return 2 * 2 * T * D + 2 * (T + 1) * D * D + 2 * T * D + 2 * (2 * D + 1) * D


def dense(init: KernelInit, features: int, name: str, **fields: bool) -> nn.Module:
    """Returns a linear layer in float32."""
    return nn.Dense(features, kernel_init=init.kernel(), name=name, **fields)


def pooled(model: nn.Module, x: Array, inputs: Inputs) -> Array:
    """Returns tanh(x[CLS] W + b), float32: [B, D], or [B, MAX_INSTANCES, D] of packed rows.

    [CLS] is the first token of an example or instance.
    """
    first = x[:, 0]
    if "segment_ids" in inputs:
        numbers = jnp.arange(1, MAX_INSTANCES + 1)[:, None]
        own = inputs["segment_ids"][:, None] == numbers  # [B, I, T]
        is_first = own & (inputs["positions"] == 0)[:, None]
        first = jnp.einsum("bit,btd->bid", is_first.astype(x.dtype), x)
    return jnp.tanh(dense(model.outer_init, x.shape[-1], "pooler")(first.astype(jnp.float32)))


class MaskedLmHead(nn.Module):
    """logits = LayerNorm(f(x W + b)) table^T + bias, with W [D, E] and the tied table [V, E].

    Attributes: E, and the model's; kernel_init: its `outer_init`.
    """

    embedding_dim: int
    activation: str
    norm_epsilon: float
    kernel_init: KernelInit
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, table: Array) -> Array:  # [B, P, D] -> [B, P, V] float32
        h = Dense(self.embedding_dim, self.dtype, self.kernel_init.kernel(), name="dense")(x)
        h = ACTIVATIONS[self.activation](h)
        h = nn.LayerNorm(epsilon=self.norm_epsilon, dtype=jnp.float32, name="norm")(h)
        bias = self.param("bias", nn.initializers.zeros, (table.shape[0],))
        return jnp.einsum("bpe,ve->bpv", h, table) + bias


class SpanBeamHead(nn.Module):
    """The head of ALBERT for SQuAD2.0: ends are scored given a start.

      start logits   x w
      end logits     LayerNorm(tanh([x; x_start] W + b)) w
      null logit     dropout(tanh([sum_t softmax(start)_t x_t; x_CLS] W + b)) w

    Attributes: the model's; kernel_init: its `outer_init`.
    """

    norm_epsilon: float
    kernel_init: KernelInit

    @nn.compact
    def __call__(self, x: Array, inputs: Inputs, *, train: bool) -> Outputs:
        """Scores spans.

        Args:
          x: [B, T, D].
          inputs: allowed [B, T] bool, True where an answer may start or end: the context and [CLS];
            in training start [B] int32, the true start.
          train: with dropout, and without beams.

        Returns:
          start_logits [B, T]; null_logit [B], above 0 where the question seems to have no answer;
          with `start` in the inputs end_logits [B, T] given it; and in evaluation beam_start
          [B, BEAM] int32, beam_end [B, BEAM, BEAM] int32, and beam_log_prob [B, BEAM, BEAM], the
          log-probabilities of start and end added. Logits outside `allowed` are IMPOSSIBLE.
        """
        allowed = inputs["allowed"]
        start_logits = dense(self.kernel_init, 1, "start")(x.astype(jnp.float32))[..., 0]
        start_logits = jnp.where(allowed, start_logits, IMPOSSIBLE)
        end_layer = EndLogits(self.norm_epsilon, self.kernel_init, name="end")
        outputs = {"start_logits": start_logits, "null_logit": self.null(x, start_logits, train)}
        if "start" in inputs:
            end_logits = end_layer(x, inputs["start"][:, None])[:, 0]
            outputs["end_logits"] = jnp.where(allowed, end_logits, IMPOSSIBLE)
        if not train:
            start_log_prob, start = jax.lax.top_k(jax.nn.log_softmax(start_logits), BEAM)
            end_logits = jnp.where(allowed[:, None], end_layer(x, start), IMPOSSIBLE)
            end_log_prob, end = jax.lax.top_k(jax.nn.log_softmax(end_logits), BEAM)
            outputs |= {
                "beam_start": start,
                "beam_end": end,
                "beam_log_prob": start_log_prob[..., None] + end_log_prob,
            }
        return outputs

    def null(self, x: Array, start_logits: Array, train: bool) -> Array:
        """Returns the null logit [B]."""
        x = x.astype(jnp.float32)
        of_start = jnp.einsum("bt,btd->bd", jax.nn.softmax(start_logits), x)
        h = jnp.concatenate([of_start, x[:, 0]], axis=-1)
        h = jnp.tanh(dense(self.kernel_init, x.shape[-1], "null_hidden")(h))
        h = Dropout(HEAD_DROPOUT)(h, train=train)
        return dense(self.kernel_init, 1, "null", use_bias=False)(h)[:, 0]


class EndLogits(nn.Module):
    """LayerNorm(tanh([x; x_start] W + b)) w for each of several starts.

    Attributes: the model's; kernel_init: its `outer_init`.
    """

    norm_epsilon: float
    kernel_init: KernelInit

    @nn.compact
    def __call__(self, x: Array, start: Array) -> Array:  # [B, T, D], [B, K] -> [B, K, T] float32
        D = x.shape[-1]
        kernel = self.param("hidden_kernel", self.kernel_init.kernel(), (2 * D, D))
        bias = self.param("hidden_bias", nn.initializers.zeros, (D,))
        of_token = linear("btd,df->btf", x, kernel[:D], bias)
        of_start = linear("bkd,df->bkf", rows_at(x, start), kernel[D:], None)
        h = jnp.tanh(of_token[:, None] + of_start[:, :, None])  # [B, K, T, D]
        h = nn.LayerNorm(epsilon=self.norm_epsilon, dtype=jnp.float32, name="norm")(h)
        return dense(self.kernel_init, 1, "out")(h)[..., 0]
