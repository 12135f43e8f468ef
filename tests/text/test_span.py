"""The span task: its loss and best spans against loops in float64, and answers over windows."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from text_sets import nll

from configs import squad as config_file
from widenet_jax.data.contract import ArraySpec, DataInfo
from widenet_jax.errors import BadInputError
from widenet_jax.text.span import NO_SPAN, NUM_SPANS, Span

B, T = 3, 14
EXAMPLE = {
    "tokens": ArraySpec((T,), "int32"), "token_types": ArraySpec((T,), "int32"),
    "length": ArraySpec((), "int32"), "start": ArraySpec((), "int32"),
    "end": ArraySpec((), "int32"), "may_start": ArraySpec((T,), "bool"),
}  # fmt: skip


def task(head: str = "span", unanswerable: bool = True, longest: int = 4) -> Span:
    return Span(30, EXAMPLE, head, unanswerable, longest, null_threshold=0.0)


def batch(rng: np.random.Generator) -> dict[str, jnp.ndarray]:
    """Three windows: contexts of 8, 3 and 6 tokens after questions of 2."""
    length = np.array([4 + 8 + 1, 4 + 3 + 1, 4 + 6 + 1])
    place = np.arange(T)
    real = place < length[:, None]
    return {
        "tokens": jnp.asarray(np.where(real, rng.integers(5, 30, (B, T)), 0), jnp.int32),
        "token_types": jnp.asarray(real & (place >= 4), jnp.int32),
        "length": jnp.asarray(length, jnp.int32),
        "start": jnp.asarray([5, 0, 7], jnp.int32),
        "end": jnp.asarray([8, 0, 7], jnp.int32),
        "may_start": jnp.asarray((rng.random((B, T)) < 0.7) & real & (place >= 4)),
        "mask": jnp.ones(B, bool),
    }


@pytest.mark.parametrize("head", ["span", "beam"])
def test_loss_is_a_loop_in_float64(head: str):
    rng = np.random.default_rng(0)
    one = batch(rng)
    outputs = {
        "start_logits": rng.normal(size=(B, T)).astype(np.float32),
        "end_logits": rng.normal(size=(B, T)).astype(np.float32),
        "null_logit": rng.normal(size=B).astype(np.float32),
    }
    total = 0.0
    for i in range(B):
        for name in ("start", "end"):
            total += nll(outputs[f"{name}_logits"][i], int(one[name][i])) / 2
        if head == "beam":
            logit = float(outputs["null_logit"][i])
            total += 0.5 * np.log1p(np.exp(-logit if int(one["start"][i]) == 0 else logit))
    loss, metrics = task(head).loss(lambda inputs, rngs: (outputs, {}), one, {})
    assert float(loss) == pytest.approx(total / B, rel=1e-6)
    assert ("null_loss" in metrics.means) == (head == "beam")
    answered, _ = task(head, unanswerable=False).loss(lambda i, r: (outputs, {}), one, {})
    assert (float(answered) < float(loss)) == (head == "beam")


def test_the_head_is_told_where_answers_may_be():
    one = batch(np.random.default_rng(0))
    seen = {}

    def apply(inputs, rngs):
        seen.update(inputs)
        zeros = jnp.zeros((B, T))
        return {"start_logits": zeros, "end_logits": zeros, "null_logit": jnp.zeros(B)}, {}

    task("beam").loss(apply, one, {})
    allowed = np.asarray(seen["allowed"])
    assert allowed[0].nonzero()[0].tolist() == [0, *range(4, 12)]
    assert allowed[1].nonzero()[0].tolist() == [0, 4, 5, 6]
    assert np.asarray(seen["mask"]).sum(1).tolist() == [13, 8, 11]
    assert seen["start"].tolist() == [5, 0, 7]


def all_spans(one: dict, longest: int, score) -> list[list[tuple]]:
    """Lists every possible (score, start, end) of each window, the best first."""
    found = []
    for i in range(B):
        last = int(one["length"][i]) - 2
        spans = [
            (score(i, s, e), s, e)
            for s in range(4, last + 1)
            if bool(one["may_start"][i, s])
            for e in range(s, min(s + longest - 1, last) + 1)
        ]
        found.append(sorted(spans, reverse=True))
    return found


def test_the_best_spans_are_those_of_a_loop():
    rng = np.random.default_rng(1)
    one = batch(rng)
    start, end = rng.normal(size=(2, B, T)).astype(np.float32)
    outputs = {"start_logits": jnp.asarray(start), "end_logits": jnp.asarray(end)}
    found = task().evaluate(lambda inputs, rngs: (outputs, {}), one)
    spans = np.asarray(found.rows["spans"])
    assert spans.shape == (B, NUM_SPANS, 3) and int(found.sums["windows"]) == B
    expected = all_spans(one, 4, lambda i, s, e: np.float64(start[i, s]) + end[i, e])
    for i in range(B):
        real = [tuple(row) for row in spans[i].tolist() if row[2] > NO_SPAN / 2]
        assert [row[:2] for row in real] == [(s, e) for _, s, e in expected[i][:NUM_SPANS]]
        np.testing.assert_allclose([row[2] for row in real], [x[0] for x in expected[i][:20]], 1e-5)
    np.testing.assert_allclose(found.rows["null"], start[:, 0] + end[:, 0], rtol=1e-6)


def test_the_best_spans_of_beams():
    rng = np.random.default_rng(2)
    one = batch(rng)
    beam_start = np.stack([rng.permutation(T)[:5] for _ in range(B)])
    beam_end = np.stack([[rng.permutation(T)[:5] for _ in range(5)] for _ in range(B)])
    log_prob = rng.normal(size=(B, 5, 5)).astype(np.float32)
    outputs = {
        "beam_start": jnp.asarray(beam_start), "beam_end": jnp.asarray(beam_end),
        "beam_log_prob": jnp.asarray(log_prob), "null_logit": jnp.asarray([0.5, -1.0, 2.0]),
    }  # fmt: skip
    found = task("beam").evaluate(lambda inputs, rngs: (outputs, {}), one)
    assert found.rows["null"].tolist() == [0.5, -1.0, 2.0]
    possible = [{(s, e) for _, s, e in spans} for spans in all_spans(one, 4, lambda i, s, e: 0.0)]
    for i in range(B):
        expected = sorted(
            (-float(log_prob[i, a, b]), int(beam_start[i, a]), int(beam_end[i, a, b]))
            for a in range(5)
            for b in range(5)
            if (int(beam_start[i, a]), int(beam_end[i, a, b])) in possible[i]
        )
        real = [row for row in found.rows["spans"][i].tolist() if row[2] > NO_SPAN / 2]
        assert [(s, e) for s, e, _ in real] == [(s, e) for _, s, e in expected]


class Source:
    """Two questions, of two windows and of one; the text of a span is its place."""

    windows = np.array([[0, 0, 9], [0, 5, 9], [1, 0, 9]])
    questions = (
        SimpleNamespace(answers=(SimpleNamespace(text="w1 3 4"),)),
        SimpleNamespace(answers=()),
    )

    def text_of(self, window: int, start: int, end: int) -> str:
        return "" if start == 8 else f"w{window} {start} {end}"


def rows() -> dict[str, np.ndarray]:
    spans = np.full((3, NUM_SPANS, 3), NO_SPAN)
    spans[0, 0], spans[0, 1] = (8, 8, 9.0), (2, 2, 1.0)  # the best one has no text
    spans[1, 0] = (3, 4, 2.0)
    return {"spans": spans, "null": np.array([1.5, 3.0, -2.0])}


def test_answers_are_the_best_over_windows():
    """BERT: null = the least over windows, less the best span's score; ALBERT: the least alone."""
    bert, albert = (task(head).predictions(rows(), Source()) for head in ("span", "beam"))
    assert [p.text for p in bert] == [p.text for p in albert] == ["w1 3 4", ""]
    assert [p.null_score for p in bert] == [1.5 - 2.0, -2.0]
    assert [p.null_score for p in albert] == [1.5, -2.0]


def test_summary():
    """Its numbers are finite and plain, as result.json needs them."""
    metrics = task().summarize({"windows": np.float64(3)}, rows(), Source())
    assert np.isfinite(json.loads(json.dumps([*metrics.values()]))).all()
    assert metrics["exact"] == metrics["best_exact"] == 1.0
    assert (metrics["questions"], metrics["windows"]) == (2, 3)
    # ALBERT's null logit of 1.5 is above the threshold: question 0 is not answered.
    assert task("beam").summarize({"windows": 3}, rows(), Source())["exact"] == 0.5


def test_questions_without_an_answer_need_v2():
    config = config_file.get_config("v1,model=albert_s")
    data_info = DataInfo(8, EXAMPLE, {"vocab_size": 30, "unanswerable": True})
    with pytest.raises(BadInputError, match=r"add --config.task.unanswerable=true"):
        Span.build(config, data_info)
    config.task.head = "beams"
    with pytest.raises(BadInputError, match=r"config.task.head='beams' is unknown"):
        Span.build(config, data_info)
