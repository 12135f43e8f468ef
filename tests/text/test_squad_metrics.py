"""SQuAD's metrics against an independent statement of the official rules."""

import random
import re

import pytest

from widenet_jax.text.squad_metrics import Prediction, f1, normalized, squad_metrics

WORDS = ["the", "a", "An", "Norman", "normans", "10th", "century", "in", "France", "U.S.", "é"]
# (predicted text, texts of the answers)
ADVERSARIAL = [
    ("", []), ("x", []), ("the", []), ("", ["x"]), ("the", ["the"]), ("the", ["a", "x"]),
    ("the", ["the", "!"]), ("The Normans", ["normans"]), ("Normans.", ["normans"]),
    ("norman s", ["norman's"]), ("a b", ["b"]), ("abba", ["a bba"]), ("an", ["can"]),
    ("x  y\tz\n", ["x y z"]), ("x\u00a0y", ["x y"]), ("x y", ["xy"]), ("x-y", ["xy", "x y"]),
    ("«x»", ["x"]), ("x’s", ["xs"]), ("x's", ["xs"]), ("É", ["é"]), ("E\u0301", ["é"]),
    ("İ", ["i"]), ("ß", ["SS"]), ("1,000", ["1000"]), ("$5", ["5"]), ("5%", ["5", "%"]),
    ("x x x", ["x"]), ("x", ["x x x"]), ("x y x", ["y x x"]), ("x y", ["y z", "x z", "x y z"]),
    ("the the x", ["x"]), ("THE", ["the"]), ("A", ["a", "b"]), ("theatre", ["atre"]),
    ("the-x", ["x"]), ("a_b", ["b"]), ("a1", ["1"]), ("x,a,y", ["xay"]), ("x a y", ["x y"]),
    ("!", ["!"]), ("!", ["?"]), ("!!!", []), ("\u200b", ["x"]), ("\u200bx", ["x"]), (" ", []),
    (" x ", ["x"]), ("x" * 500, ["x"]), ("x " * 500, ["x"]), ("不 a 是", ["不是", "不 是"]),
]  # fmt: skip


def state_normalized(text: str) -> list[str]:
    """Words: lower case, without ASCII marks and articles."""
    marks = {chr(code) for code in range(33, 127) if not chr(code).isalnum()}
    kept = "".join(character for character in text.lower() if character not in marks)
    return re.sub(r"(?<!\w)(?:the|an|a)(?!\w)", " ", kept).split()


def state_scores(text: str, answers: list[str]) -> tuple[float, float]:
    """(exact, F1): the most over the answers that hold a word; over "" where none does."""
    golds = [words for words in map(state_normalized, answers) if words] or [[]]
    ours, exacts, f1s = state_normalized(text), [], []
    for gold in golds:
        exacts.append(1.0 if ours == gold else 0.0)
        left, shared = list(gold), 0
        for word in ours:
            if word in left:
                left.remove(word)
                shared += 1
        if not (ours and gold):
            f1s.append(1.0 if ours == gold else 0.0)
        elif not shared:
            f1s.append(0.0)
        else:
            precision, recall = shared / len(ours), shared / len(gold)
            f1s.append(2 * precision * recall / (precision + recall))
    return max(exacts), max(f1s)


def state_metrics(predictions: list[Prediction], answers: list[list[str]], limit: float) -> dict:
    """Every metric, question by question; the best thresholds by trying all prefixes."""
    has = [len(own) > 0 for own in answers]
    raw = [state_scores(p.text, own) for p, own in zip(predictions, answers, strict=True)]
    found = {}
    for k, name in enumerate(("exact", "f1")):
        at_limit = [
            (0.0 if has[i] else 1.0) if p.null_score > limit else raw[i][k]
            for i, p in enumerate(predictions)
        ]
        found[name] = sum(at_limit) / len(at_limit)
        for kind, wanted in (("HasAns", True), ("NoAns", False)):
            chosen = [score for score, h in zip(at_limit, has, strict=True) if h == wanted]
            if chosen:
                found[f"{kind}_{name}"] = sum(chosen) / len(chosen)
        score = top = has.count(False)
        threshold = 0.0
        for i in sorted(range(len(has)), key=lambda i: predictions[i].null_score):
            score += raw[i][k] if has[i] else (-1 if predictions[i].text else 0)
            if score > top:
                top, threshold = score, predictions[i].null_score
        found |= {f"best_{name}": top / len(has), f"best_{name}_threshold": threshold}
    return found


def random_case(rng: random.Random) -> tuple[Prediction, list[str]]:
    def text() -> str:
        words = [rng.choice(WORDS) for _ in range(rng.randint(1, 4))]
        return rng.choice([" ", "  ", ", ", "-"]).join(words) + rng.choice(["", ".", "!"])

    answers = [text() for _ in range(rng.choice([0, 0, 1, 3]))]
    predicted = rng.choice([text(), rng.choice(answers) if answers else "", text().lower()])
    # Few different scores, so that many are equal.
    return Prediction(predicted, rng.choice([-2.5, -1.0, 0.0, 0.5, rng.gauss(0, 1)])), answers


def check(predictions: list[Prediction], answers: list[list[str]], limit: float) -> None:
    ours = squad_metrics(predictions, answers, unanswerable=True, null_threshold=limit)
    theirs = state_metrics(predictions, answers, limit)
    assert ours.keys() - {"f1_se"} == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, abs=1e-12), name


def test_random_predictions():
    rng = random.Random(0)
    cases = [random_case(rng) for _ in range(1000)]
    for limit in (-1.0, 0.0, 0.7):
        check(*map(list, zip(*cases, strict=True)), limit)
    for case in cases[:100]:
        check([case[0]], [case[1]], 0.0)


def test_adversarial_predictions():
    assert len(ADVERSARIAL) == 50
    for text, answers in ADVERSARIAL:
        for null_score in (-1.0, 0.0, 1.0):
            check([Prediction(text, null_score)], [answers], 0.0)
    predictions = [Prediction(text, 0.1 * (i % 7)) for i, (text, _) in enumerate(ADVERSARIAL)]
    check(predictions, [answers for _, answers in ADVERSARIAL], 0.3)


def test_by_hand():
    assert normalized("The  Norman's (a) DUKE.") == "normans duke"
    assert f1("the duke of Normandy", "Duke Rollo") == pytest.approx(2 / 5)  # 1 of 3, 1 of 2
    predictions = [Prediction("Rollo", -1.0), Prediction("Paris", 2.0), Prediction("x", 1.0)]
    answers = [["Rollo"], [], ["y"]]
    metrics = squad_metrics(predictions, answers, unanswerable=True, null_threshold=0.0)
    assert metrics["exact"] == pytest.approx(2 / 3) and metrics["NoAns_exact"] == 1.0
    assert metrics["best_exact"] == pytest.approx(2 / 3)
    assert metrics["best_exact_threshold"] == -1.0
    assert metrics["f1_se"] == pytest.approx(1 / 3)  # of 1, 1 and 0


def test_answered_always():
    """SQuAD1.1: null scores play no part. F1 2/3 and 0 have a mean of 1/3, and an error of 1/3."""
    predictions, answers = [Prediction("x y", 9.0), Prediction("", 0.0)], [["y"], ["z", "w"]]
    metrics = squad_metrics(predictions, answers, unanswerable=False, null_threshold=0.0)
    assert metrics == {"exact": 0.0, "f1": pytest.approx(1 / 3), "f1_se": pytest.approx(1 / 3)}
