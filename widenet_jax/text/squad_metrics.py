"""The metrics of SQuAD, by the rules of SQuAD2.0's official script (Rajpurkar et al. 2018).

SQuAD1.1's script has others for answers without a word beside articles and marks.

Scores are shares, from 0 to 1, where the official scripts print percentages.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
PUNCTUATION = str.maketrans("", "", string.punctuation)


class Prediction(NamedTuple):
    """The answer to a question.

    Attributes:
      text: of the best span; "" if there is none.
      null_score: how much better no answer is than the text. A question counts as unanswerable
        where this is above a threshold.
    """

    text: str
    null_score: float


def normalized(text: str) -> str:
    """Returns a text in lower case, without ASCII punctuation, articles and spare white space."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact(text: str, answer: str) -> float:
    """Returns 1 if the normalised texts are equal, else 0."""
    return float(normalized(text) == normalized(answer))


def f1(text: str, answer: str) -> float:
    """Returns the F1 of the normalised texts' words; where a text has none, 1 if both have none."""
    ours, theirs = normalized(text).split(), normalized(answer).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def best_over(score: Callable[[str, str], float], text: str, answers: Sequence[str]) -> float:
    """Returns the highest score over a question's answers; without answers, the score of ""."""
    real = [answer for answer in answers if normalized(answer)]
    return max(score(text, answer) for answer in real or [""])


def squad_metrics(
    predictions: Sequence[Prediction],
    answers: Sequence[Sequence[str]],
    *,
    unanswerable: bool,
    null_threshold: float,
) -> dict[str, float]:
    """Returns the metrics of predictions.

    Args:
      predictions: one for each question.
      answers: the texts of each question's answers; none if it has no answer.
      unanswerable: whether a prediction may be that there is no answer (SQuAD2.0).
      null_threshold: no answer is predicted where the null score is above.

    Returns:
      "exact", "f1" and its standard error "f1_se" over all questions. With `unanswerable` also
      "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1" over the questions with and without
      an answer, where there are such; and at the thresholds that are best for these questions
      "best_exact", "best_exact_threshold", "best_f1" and "best_f1_threshold".
    """
    pairs = list(zip(predictions, answers, strict=True))
    raw = {
        score.__name__: np.array([best_over(score, p.text, own) for p, own in pairs])
        for score in (exact, f1)
    }
    if not unanswerable:
        means = {name: float(values.mean()) for name, values in raw.items()}
        return means | f1_error(raw["f1"])
    has_answer = np.array([bool(own) for own in answers])
    null_scores = np.array([p.null_score for p in predictions])
    metrics = {}
    for name, values in raw.items():
        scores = np.where(null_scores > null_threshold, ~has_answer, values)
        metrics[name] = float(scores.mean())
        metrics |= f1_error(scores) if name == "f1" else {}
        for kind, chosen in (("HasAns", has_answer), ("NoAns", ~has_answer)):
            if chosen.any():
                metrics[f"{kind}_{name}"] = float(scores[chosen].mean())
        silent = np.array([not p.text for p in predictions])
        best, threshold = best_threshold(values, null_scores, has_answer, silent)
        metrics |= {f"best_{name}": best, f"best_{name}_threshold": threshold}
    return metrics


def f1_error(scores: np.ndarray) -> dict[str, float]:
    """Returns the standard error of the mean F1 of `scores` [N]; one question has none."""
    n = len(scores)
    return {"f1_se": float(scores.std(ddof=1) / n**0.5)} if n > 1 else {}


def best_threshold(
    scores: np.ndarray, null_scores: np.ndarray, has_answer: np.ndarray, silent: np.ndarray
) -> tuple[float, float]:
    """Returns the best mean score over all thresholds, and the threshold (the official sweep).

    At first no question is answered, which is right for those without an answer. Then questions
    are answered one by one, from the lowest null score on.

    Args:
      scores: [N], if the question is answered.
      null_scores: [N].
      has_answer: bool [N].
      silent: bool [N], True where the predicted text is empty.
    """
    order = np.argsort(null_scores, kind="stable")
    silence = int((~has_answer).sum())
    gains = np.where(has_answer, scores, np.where(silent, 0.0, -1.0))[order]
    totals = np.cumsum([silence, *gains])  # after 0, 1, ... answered questions
    best = int(totals.argmax())
    threshold = null_scores[order[best - 1]] if best else 0.0
    return float(totals[best] / len(scores)), float(threshold)
