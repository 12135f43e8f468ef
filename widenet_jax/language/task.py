"""Language modelling: each token of a stream from those before it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from widenet_jax.corpus import lost_text, texts
from widenet_jax.data.contract import DataInfo, Source, StreamInfo
from widenet_jax.errors import BadInputError
from widenet_jax.language.model import MEMORY
from widenet_jax.losses import label_cross_entropy
from widenet_jax.nn.loop_settings import Exit, parse_loop
from widenet_jax.nn.stack_settings import needs_memory
from widenet_jax.task import (
    Apply,
    Baseline,
    Evaluation,
    Metrics,
    PrimaryMetric,
    Rngs,
    Task,
    add_layer_losses,
)
from widenet_jax.typing import Array, Shapes

# Of `memory_length` and `eval_memory_length` that are 0: so many times T.
EVAL_MEMORY_FACTOR = 4


@dataclass(frozen=True)
class LanguageModeling(Task):
    """Mean cross-entropy of the next token + the feed-forwards' own losses.

    A batch has tokens [B, T + 1] int32: a window and the token after it; fresh [B] bool: whether
    the row begins its text, so that its memory counts as empty; and the carry: memory [B, L, M, D],
    memory_length [B] int32. Evaluation has a memory of its own length, which starts empty. Models
    without a memory have no carry: a token sees those before it in its window.

    Attributes:
      vocab_size: V.
      window_length: T.
      memory_length: M in training; 0: no memory.
      eval_memory_length: M in evaluation.
      depth, embed_dim, dtype: L, D and dtype of the model, for the memory's shape.
      stream: statistics of the text.
      exit: `config.model.loop.exit`.
    """

    vocab_size: int
    window_length: int
    memory_length: int
    eval_memory_length: int
    depth: int
    embed_dim: int
    dtype: str
    stream: StreamInfo = field(default_factory=StreamInfo)
    exit: Exit = field(default_factory=Exit)

    primary_metric: ClassVar[PrimaryMetric] = PrimaryMetric("bits_per_byte", higher_is_better=False)
    unit: ClassVar[str] = "sequences"

    @classmethod
    def build(cls, config: ConfigDict, data_info: DataInfo) -> "LanguageModeling":
        task, model, T = config.task, config.model, config.data.max_length
        lengths = {"memory_length": T, "eval_memory_length": EVAL_MEMORY_FACTOR * T}
        given = {name: task[name] for name in lengths if task[name]}
        if not needs_memory(model.attention):
            lengths = dict.fromkeys(lengths, 0)
            if given:
                name, length = next(iter(given.items()))
                raise BadInputError(
                    f"config.task.{name}={length} has no effect on config.model.attention.name="
                    f"{model.attention.name}, which has no memory; give 0"
                )
        loop = parse_loop(model.loop)
        return cls(
            vocab_size=data_info.info["vocab_size"],
            window_length=T,
            depth=loop.depth,
            exit=loop.exit,
            embed_dim=model.embed_dim,
            dtype=model.dtype,
            stream=data_info.stream or StreamInfo(),
            **lengths | given,
        )

    @property
    def model_fields(self) -> dict[str, int]:
        return {"vocab_size": self.vocab_size}

    @property
    def baseline(self) -> Baseline | None:
        return texts.unigram_baseline("bits_per_byte", self.stream.unigram_bits)

    @property
    def remarks(self) -> dict[str, str]:
        text = lost_text.remark(self.stream.losses)
        return dict.fromkeys(("bits_per_byte", "word_perplexity"), text) if text else {}

    def batch_spec(self, batch_size: int) -> Shapes:
        return {
            "tokens": jax.ShapeDtypeStruct((batch_size, self.window_length + 1), jnp.int32),
            "fresh": jax.ShapeDtypeStruct((batch_size,), jnp.bool_),
        }

    def carry_spec(self, batch_size: int) -> Shapes:
        return self._memory_spec(batch_size, self.memory_length)

    def eval_carry_spec(self, batch_size: int) -> Shapes:
        return self._memory_spec(batch_size, self.eval_memory_length)

    def _memory_spec(self, batch_size: int, rows: int) -> Shapes:
        if not rows:
            return {}
        shape = (batch_size, self.depth, rows, self.embed_dim)
        return {
            "memory": jax.ShapeDtypeStruct(shape, self.dtype),
            "memory_length": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
        }

    def inputs(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        inputs = {"tokens": batch["tokens"][:, :-1]}
        inputs |= {name: batch[name] for name in ("mask", *MEMORY) if name in batch}
        if "memory" in batch:
            inputs["memory_length"] = jnp.where(batch["fresh"], 0, batch["memory_length"])
        return inputs

    def loss(self, apply: Apply, batch: Mapping[str, Array], rngs: Rngs) -> tuple[Array, Metrics]:
        outputs, aux = apply(self.inputs(batch), rngs)
        labels = batch["tokens"][:, 1:]
        cross_entropy = label_cross_entropy(outputs["logits"], labels).mean()
        bits = cross_entropy / (self.stream.bytes_per_token * math.log(2))
        means = {"cross_entropy": cross_entropy, "bits_per_byte": bits}
        loss = cross_entropy
        if "loop_logits" in outputs:
            loss = exit_loss(outputs, labels, self.exit)
        return add_layer_losses(loss, means, aux, carried(outputs))

    def evaluate(self, apply: Apply, batch: Mapping[str, Array]) -> Evaluation:
        outputs, aux = apply(self.inputs(batch), None)
        each_token = label_cross_entropy(outputs["logits"], batch["tokens"][:, 1:])
        mask = batch["mask"]
        sums = {
            "cross_entropy": jnp.where(mask, each_token.sum(1), 0.0).sum(),
            "sequences": mask.sum(dtype=jnp.int32),
        }
        if "loops" in outputs:
            loops = (outputs["loops"] + 1).astype(jnp.float32)
            sums["loops"] = jnp.where(mask, loops.sum(1), 0.0).sum()
        layer_sums = aux.get("sums", {})
        return Evaluation(sums=sums, layer_sums=layer_sums, carry=carried(outputs))

    def summarize(
        self, sums: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], source: Source
    ) -> dict[str, float]:
        """Returns the split's metrics.

        cross_entropy is in nats per token, perplexity its exponential; bits_per_byte and
        word_perplexity describe the text that the tokens stand for, by the split's average
        number of bytes and words per token, so that they do not depend on the tokenizer.
        word_perplexity is left out where words were not counted. unknown_token_share and
        lost_character_share say what the tokenizer loses of the text.
        """
        del rows
        sequences = int(sums["sequences"])
        nats = float(sums["cross_entropy"]) / (sequences * self.window_length)
        metrics = {
            "bits_per_byte": nats / source.bytes_per_token / math.log(2),
            "cross_entropy": nats,
            "perplexity": exponential(nats),
        }
        if "loops" in sums:  # at which tokens leave, on average
            metrics["exit_loop"] = float(sums["loops"]) / (sequences * self.window_length)
        if source.words_per_token:
            metrics["word_perplexity"] = exponential(nats / source.words_per_token)
        return metrics | {**getattr(source, "losses", {}), "sequences": sequences}


def carried(outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the next carry: the memory, if there is one."""
    return {name: outputs[name] for name in MEMORY if name in outputs}


def exit_loss(outputs: Mapping[str, Array], labels: Array, leave: Exit) -> Array:
    """Returns the loss of predictions after each loop, see `nn.loop_settings.Exit`.

    Args:
      outputs: of the model, loop_logits [R, B, T, V] and leaves [R, B, T] among them.
      labels: [B, T].
      leave: names the loss.
    """
    of_loops = jax.vmap(lambda logits: label_cross_entropy(logits, labels))(outputs["loop_logits"])
    if leave.loss == "mean":
        return of_loops.mean()
    if leave.loss == "last":
        return of_loops[-1].mean()
    p = outputs["leaves"]
    entropy = -(p * jnp.log(jnp.maximum(p, 1e-30))).sum(0)
    return ((p * of_loops).sum(0) - leave.entropy * entropy).mean()


def exponential(x: float) -> float:
    """Returns e^x, at most the largest number: metrics must be finite."""
    return math.exp(min(x, 700.0))
