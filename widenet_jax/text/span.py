"""Question answering by a span of the context (SQuAD), with BERT's head or ALBERT's."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from widenet_jax.corpus import texts
from widenet_jax.data.contract import ArraySpec, DataInfo, Source
from widenet_jax.errors import BadInputError, choose
from widenet_jax.losses import label_cross_entropy
from widenet_jax.task import Apply, Evaluation, Metrics, PrimaryMetric, Rngs, Task, add_layer_losses
from widenet_jax.text.squad_metrics import Prediction, squad_metrics
from widenet_jax.typing import Array, Shapes

# config.task.head -> the head of the text encoder.
HEADS = {"span": "span", "beam": "span_beam"}
NUM_SPANS = 20  # of each window that leave the device
NO_SPAN = -1e9  # the score of a span that cannot be


@dataclass(frozen=True)
class Span(Task):
    """Mean loss of the answer's first and last token, plus the feed-forwards' own losses.

    With ALBERT's head and questions that may have no answer, half the sigmoid loss of the null
    logit is added. A window that lacks the answer has it at token 0, [CLS].

    A batch has tokens, token_types, may_start [B, T], and length, start, end [B].

    Attributes:
      vocab_size: of the tokenizer.
      example: the arrays of one example.
      head: a key of HEADS.
      unanswerable: whether questions may have no answer.
      max_answer_length: tokens.
      null_threshold: no answer is predicted where the null score is above.
    """

    vocab_size: int
    example: Mapping[str, ArraySpec]
    head: str
    unanswerable: bool
    max_answer_length: int
    null_threshold: float

    unit = "windows"

    @classmethod
    def build(cls, config: ConfigDict, data_info: DataInfo) -> "Span":
        """Builds the task of `config.task`.

        Raises:
          BadInputError: an unknown head, or questions without an answer that are not expected.
        """
        fields = {name: config.task[name] for name in config.task if name != "name"}
        choose(HEADS, fields["head"], field="config.task.head")
        if data_info.info.get("unanswerable") and not config.task.unanswerable:
            raise BadInputError(
                f"config.data.path={config.data.path} has questions without an answer, as SQuAD2.0 "
                "has; add --config.task.unanswerable=true, or use configs/squad.py:v2"
            )
        return cls(data_info.info["vocab_size"], data_info.example, **fields)

    @classmethod
    def primary_metric_of(cls, config: ConfigDict) -> PrimaryMetric:
        return PrimaryMetric("best_f1" if config.task.unanswerable else "f1")

    @property
    def primary_metric(self) -> PrimaryMetric:
        return PrimaryMetric("best_f1" if self.unanswerable else "f1")

    @property
    def model_fields(self) -> dict[str, int | str]:
        return {"vocab_size": self.vocab_size, "head": HEADS[self.head]}

    def batch_spec(self, batch_size: int) -> Shapes:
        return texts.batch_spec(self.example, batch_size)

    def inputs(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the encoder's inputs and `allowed` [B, T]: the context and [CLS]."""
        is_cls = jnp.arange(batch["tokens"].shape[1]) == 0
        return {**texts.encoder_inputs(batch), "allowed": in_context(batch) | is_cls}

    def loss(self, apply: Apply, batch: Mapping[str, Array], rngs: Rngs) -> tuple[Array, Metrics]:
        outputs, aux = apply({**self.inputs(batch), "start": batch["start"]}, rngs)
        means = {}
        for name in ("start", "end"):
            logits, place = outputs[f"{name}_logits"], batch[name]
            means[f"{name}_loss"] = label_cross_entropy(logits, place).mean()
            means[f"{name}_accuracy"] = (logits.argmax(-1) == place).mean()
        loss = (means["start_loss"] + means["end_loss"]) / 2
        if self.head == "beam" and self.unanswerable:
            is_null = (batch["start"] == 0).astype(jnp.float32)
            each = optax.sigmoid_binary_cross_entropy(outputs["null_logit"], is_null)
            means["null_loss"] = each.mean()
            loss += 0.5 * means["null_loss"]
        return add_layer_losses(loss, means, aux)

    def evaluate(self, apply: Apply, batch: Mapping[str, Array]) -> Evaluation:
        """Returns as rows the best spans of each window, and its null score.

        "spans" [B, NUM_SPANS, 3]: first token, last token and score, the best first; "null" [B].
        """
        outputs, aux = apply(self.inputs(batch), None)
        spans = beam_spans if self.head == "beam" else banded_spans
        null = (
            outputs["null_logit"]
            if self.head == "beam"
            else outputs["start_logits"][:, 0] + outputs["end_logits"][:, 0]
        )
        rows = {"spans": spans(outputs, batch, self.max_answer_length), "null": null}
        sums = {"windows": batch["mask"].sum(dtype=jnp.int32)}
        return Evaluation(sums=sums, layer_sums=aux.get("sums", {}), rows=rows)

    def summarize(
        self, sums: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray], source: Source
    ) -> dict[str, float]:
        metrics = squad_metrics(
            self.predictions(rows, source),
            [[answer.text for answer in question.answers] for question in source.questions],
            unanswerable=self.unanswerable,
            null_threshold=self.null_threshold,
        )
        counts = {"questions": len(source.questions), "windows": int(sums["windows"])}
        return metrics | counts

    def predictions(self, rows: Mapping[str, np.ndarray], source: Any) -> list[Prediction]:
        """Returns the answer to each question: the best span over its windows.

        Args:
          rows: of `evaluate`, for every window.
          source: a `text.data.squad.Squad`.
        """
        numbers = np.arange(len(source.questions) + 1)
        firsts = np.searchsorted(source.windows[:, 0], numbers).tolist()
        return [self._best(range(*ends), rows, source) for ends in itertools.pairwise(firsts)]

    def answer(self, prediction: Prediction) -> str:
        """Returns the predicted text; "" where the null score is above the threshold."""
        silent = self.unanswerable and prediction.null_score > self.null_threshold
        return "" if silent else prediction.text

    def _best(self, windows: range, rows: Mapping[str, np.ndarray], source: Any) -> Prediction:
        """Returns the answer to the question of some windows."""
        null = float(min(rows["null"][window] for window in windows))
        for text, score in ranked_spans(windows, rows, source):
            # BERT compares no answer with the best span. ALBERT's null logit decides alone.
            return Prediction(text, null if self.head == "beam" else null - score)
        return Prediction("", null)


def ranked_spans(
    windows: Iterable[int], rows: Mapping[str, np.ndarray], source: Any
) -> list[tuple[str, float]]:
    """Returns text and score of the spans of some windows that hold a text, the best first."""
    spans = [(window, *span) for window in windows for span in rows["spans"][window].tolist()]
    spans = sorted((span for span in spans if span[-1] > NO_SPAN / 2), key=lambda span: -span[-1])
    found = [(source.text_of(w, int(start), int(end)), score) for w, start, end, score in spans]
    return [(text, score) for text, score in found if text]


def answer_files(
    task: Span, rows: Mapping[str, np.ndarray], source: Any
) -> dict[str, dict[str, Any]]:
    """Returns the files that the official scripts of SQuAD read; see `specs.TaskSpec`."""
    answers = task.predictions(rows, source)
    found = {q.id: answer for q, answer in zip(source.questions, answers, strict=True)}
    return {
        "predictions.json": {name: task.answer(answer) for name, answer in found.items()},
        "best_answers.json": {name: answer.text for name, answer in found.items()},
        "null_scores.json": {name: answer.null_score for name, answer in found.items()},
    }


def in_context(batch: Mapping[str, Array]) -> Array:
    """Returns bool [B, T], True at the tokens of the context: token type 1 without its [SEP]."""
    place = jnp.arange(batch["tokens"].shape[1])
    return (batch["token_types"] == 1) & (place < batch["length"][:, None] - 1)


def banded_spans(
    outputs: Mapping[str, Array], batch: Mapping[str, Array], max_answer_length: int
) -> Array:
    """Returns the best spans by start logit + end logit: [B, NUM_SPANS, 3].

    All spans of up to `max_answer_length` tokens are scored, [B, T, length]: a superset of the
    customary 20 best starts x 20 best ends.
    """
    start, context = outputs["start_logits"], in_context(batch)
    B, T = start.shape
    end = jnp.where(context, outputs["end_logits"], NO_SPAN)
    end = jnp.pad(end, ((0, 0), (0, max_answer_length)), constant_values=NO_SPAN)
    ends = jnp.stack([end[:, k : k + T] for k in range(max_answer_length)], axis=-1)
    scores = start[..., None] + ends
    possible = (batch["may_start"] & context)[..., None] & (ends > NO_SPAN / 2)
    scores = jnp.where(possible, scores, NO_SPAN).reshape(B, -1)
    score, index = jax.lax.top_k(scores, min(NUM_SPANS, scores.shape[1]))
    first, length = index // max_answer_length, index % max_answer_length
    return jnp.stack([first, first + length, score], axis=-1).astype(jnp.float32)


def beam_spans(
    outputs: Mapping[str, Array], batch: Mapping[str, Array], max_answer_length: int
) -> Array:
    """Returns the best spans of the head's beams: [B, NUM_SPANS, 3]."""
    ends = outputs["beam_end"]  # [B, starts, ends of each]
    starts = jnp.broadcast_to(outputs["beam_start"][..., None], ends.shape)
    starts, ends, scores = (x.reshape(len(x), -1) for x in (starts, ends, outputs["beam_log_prob"]))
    at = lambda table, index: jnp.take_along_axis(table, index, axis=1)  # noqa: E731
    possible = at(batch["may_start"], starts) & at(in_context(batch), ends)
    possible &= (starts <= ends) & (ends < starts + max_answer_length)
    score, best = jax.lax.top_k(jnp.where(possible, scores, NO_SPAN), NUM_SPANS)
    found = at(starts, best), at(ends, best), score
    return jnp.stack(found, axis=-1).astype(jnp.float32)
