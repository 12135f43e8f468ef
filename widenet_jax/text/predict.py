"""Predictions of a trained text model: classes and scores of texts, answers, masked words.

Each sequence is its own token group, so that no other text changes its prediction.
"""

import itertools
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from widenet_jax.corpus.tables import trimmed
from widenet_jax.corpus.tokenizer import WORD_MARKS, Tokenizer
from widenet_jax.data.sources import build_transforms
from widenet_jax.errors import BadArgumentError, BadInputError, raise_first
from widenet_jax.files import is_text
from widenet_jax.run.stopping import say
from widenet_jax.text.data.files import LINES, READERS, suffix_of
from widenet_jax.text.data.sequences import cut_text, join, sequence_row, whole_length
from widenet_jax.text.data.squad import Question, Squad
from widenet_jax.text.data.tables import read_texts
from widenet_jax.text.span import ranked_spans
from widenet_jax.trained import Predictions, Trained, best, classifier, of_one, scorer, shares

MASK = "[MASK]"  # in a text, whatever the tokenizer calls its token
AT_ONCE = 32  # texts: few enough for any machine's memory
NO_RNG = np.random.default_rng(0)  # the transforms of finetuning draw nothing

# What a text to classify is called, with its arrays as in a batch.
Example = tuple[dict[str, Any], dict[str, np.ndarray]]


class Found(NamedTuple):
    """What a model finds in a context.

    Attributes:
      answer: "" where the model says that there is none.
      null_score: how much better no answer is than the best span; None for a model that always
        answers.
      top: spans, the best first: [{"text", "score", "probability"}, ...]. Probabilities are shares
        of the exponentials of the scores over the distinct spans of all windows (BERT).
    """

    answer: str
    null_score: float | None
    top: list[dict[str, Any]]


def answer_question(trained: Trained, question: str, context: str, top: int) -> Found:
    """Finds the answer to a question in a context of any length.

    Raises:
      BadArgumentError: the question or the context is empty, or no text.
    """
    for name, value in (("question", question), ("context", context)):
        check_text(name, value)
    if not trimmed(question):
        raise BadArgumentError("question", question, "is empty: give one that the context answers")
    if not trimmed(context):
        raise BadArgumentError("context", context, "is empty: the answer is a part of it")
    asked = Question("question", question, context, ())
    data = trained.config.data
    source = Squad(data, data.eval_split, trained.info, questions=[asked])
    _, transform = build_transforms(trained.config, trained.info)
    task = trained.task
    rows_of = of_one(trained, lambda apply, batch: task.evaluate(apply, batch).rows)
    windows = [rows_of(transform(source[i], NO_RNG)) for i in range(len(source))]
    rows = jax.tree.map(lambda *parts: np.concatenate(parts), *windows)
    (prediction,) = task.predictions(rows, source)
    null_score = prediction.null_score if task.unanswerable else None
    return Found(task.answer(prediction), null_score, spans_of(rows, source, top))


def check_text(name: str, value: object) -> None:
    """Raises BadArgumentError where an argument is no str of whole characters."""
    if not is_text(value):
        raise BadArgumentError(name, value, "is no text: give a text")


def spans_of(rows: Mapping[str, np.ndarray], source: Squad, top: int) -> list[dict[str, Any]]:
    """Lists the best distinct texts of the spans of all windows; see `Found.top`."""
    scores: dict[str, float] = {}
    for text, score in ranked_spans(range(len(source)), rows, source):
        scores.setdefault(text, score)
    shares = softmax(np.array([*scores.values()]))
    return [
        {"text": text, "score": score, "probability": float(share)}
        for (text, score), share in itertools.islice(zip(scores.items(), shares, strict=True), top)
    ]


def fill_masks(trained: Trained, text: str, top: int) -> list[list[dict[str, Any]]]:
    """Returns for each [MASK] of a text the most probable words, best first, at most `top`.

    A word is {"word": ..., "probability": ...}; the continuation of a word begins with "##".

    Raises:
      BadInputError: no text, no [MASK] in it, or one beyond the model's length.
    """
    check_text("text", text)
    tokenizer, T = trained.tokenizer, trained.config.data.max_length
    ids = masked_ids(tokenizer, text)
    sequence = join(tokenizer, ids, None, T)
    places = np.flatnonzero(sequence["tokens"] == tokenizer.mask_id)
    if len(places) < max(1, masks := text.count(MASK)):
        raise BadInputError(
            f"the text has {len(ids)} tokens, {trained.place} reads {T - 2}, and a {MASK} is "
            "beyond them; shorten the text"
            if masks
            else f"{text!r} has no {MASK} for the model to fill"
        )
    task = trained.task
    outputs = of_one(trained, lambda apply, batch: apply(task.inputs(batch), None)[0])
    row = sequence_row(sequence, length=T) | {"mlm_positions": places.astype(np.int32)}
    found = softmax(outputs(row)["mlm_logits"][0])
    return [
        [{"word": word(tokenizer, k), "probability": float(probs[k])} for k in order[:top]]
        for probs, order in zip(found, np.argsort(-found, axis=1, kind="stable"), strict=True)
    ]


def masked_ids(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Returns the ids of a text, each [MASK] in it as the tokenizer's mask: int32 [n].

    A piece of a text's own begins with a word mark. Where a part follows a [MASK] without a space,
    as in "[MASK].", a mark that is a token of its own is left out.
    """
    first, *rest = text.split(MASK)
    parts = [tokenizer.encode(first)]
    for part in rest:
        ids = tokenizer.encode(part)
        glued = len(ids) and not part[0].isspace() and tokenizer.token(ids[0]) in WORD_MARKS
        parts += [[tokenizer.mask_id], ids[1:] if glued else ids]
    return np.concatenate(parts).astype(np.int32)


def word(tokenizer: Tokenizer, index: int) -> str:
    """Returns a token as a reader sees it: without the mark of a word's beginning."""
    piece = tokenizer.token(index)
    if tokenizer.starts_word[index]:
        return piece.lstrip("".join(WORD_MARKS)) or piece
    return piece if piece.startswith("##") else f"##{piece}"


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns probabilities over the last axis; [] for no logits."""
    return np.asarray(jax.nn.softmax(logits)) if logits.size else logits


def rows_of(
    trained: Trained, texts: Sequence[str], pairs: Sequence[str] | None
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the arrays of each text and its pair, as in a batch.

    Raises:
      BadArgumentError: as `reader`; of several texts, with the place in the list.
      BadInputError: there is no pair for each text, or the model was trained on pairs and there are
        none, or the other way round.
    """
    pairs = [None] * len(texts) if pairs is None else pairs
    if isinstance(pairs, str) or len(pairs) != len(texts):
        numbers = f"{len(texts)} texts and {len(pairs)} pairs: give a pair for each text"
        one = f"{pairs!r} is one input: give a list, as in [{pairs!r}]"
        raise BadInputError(one if isinstance(pairs, str) else numbers)
    read = reader(trained)
    for index, (text, pair) in enumerate(zip(texts, pairs, strict=True)):
        try:
            yield read(text, pair)
        except BadArgumentError as error:
            where = f" (index {index})" if len(texts) > 1 else ""
            raise BadArgumentError(error.name, error.value, error.problem + where) from None


def reader(trained: Trained) -> Callable[..., dict[str, np.ndarray]]:
    """Returns a function from a text and its pair, or None, to their arrays as in a batch.

    It raises:
      BadArgumentError: a text or pair is no text, or has no tokens.
      BadInputError: the model was trained on pairs and there is none, or the other way round.
    """
    _, transform = build_transforms(trained.config, trained.info)
    tokenizer, length = trained.tokenizer, trained.config.data.max_length
    paired = trained.info["pairs"]

    def read(text: object, pair: object = None) -> dict[str, np.ndarray]:
        if paired != (pair is not None):
            advice = "pairs of texts: give a pair for each text"
            advice = advice if paired else "single texts: leave the pair out"
            raise BadInputError(f"{trained.place} was trained on {advice}")
        ids = [None, None]
        for place, value in enumerate((text, pair)[: 1 + paired]):
            ids[place] = tokenizer.encode(value) if is_text(value) and trimmed(value) else ()
            if not len(ids[place]):
                problem = "is empty" if is_text(value) else "is no text"
                name = ("text", "pair")[place]
                raise BadArgumentError(name, value, f"{problem}: give a text")
        return transform(join(tokenizer, *ids, length), NO_RNG)

    return read


# --- For scripts/predict.py: (options, trained) -> Predictions


def predict_classes(options: Namespace, trained: Trained) -> Predictions:
    """Classifies each --text, with its --pair, or each row of files."""

    def named(probs: np.ndarray) -> tuple[dict[str, Any], list[str]]:
        top = best(probs, trained, options.top)
        return {"top": top}, shares(top, "class")

    return of_texts(options, trained, classifier(trained), named)


def predict_scores(options: Namespace, trained: Trained) -> Predictions:
    """Scores each --text, with its --pair, or each row of files."""
    named = lambda score: ({"score": float(score)}, [f"  score {score:.4f}"])  # noqa: E731
    return of_texts(options, trained, scorer(trained), named)


def of_texts(options: Namespace, trained: Trained, find: Callable, named: Callable) -> Predictions:
    """Predicts for texts or rows of files; `named` makes columns and lines of what `find` finds."""
    raise_first(misused(options))
    unreadable: list[str] = []
    rows = file_rows(options, trained, unreadable) if options.files else text_rows(options, trained)
    encode, found, wholes = trained.tokenizer.encode, [], []
    while some := list(itertools.islice(rows, AT_ONCE)):
        for (row, _), one in zip(some, find([arrays for _, arrays in some]), strict=True):
            columns, lines = named(one)
            place = ["{file} row {row}".format(**row)] if "file" in row else []
            texts = [row[name] for name in ("text", "pair") if name in row]
            wholes.append(whole_length(*map(encode, texts)))
            found.append((row | columns, [*place, *texts, *lines]))
    say_cut(wholes, trained)
    return Predictions("texts", found, unreadable=unreadable)


def say_cut(wholes: Sequence[int], trained: Trained) -> None:
    """Says how many texts, of these lengths in tokens, were longer than the model reads."""
    if line := cut_text(wholes, trained.config.data.max_length):
        say(line)


def misused(options: Namespace) -> Iterator[str]:
    """Yields a line for each flag that goes with files, and is given with texts, or vice versa."""
    lines = [path for path in options.files or () if suffix_of(path) == LINES]
    if options.files and options.pair:
        yield "--pair goes with --text=TEXT; files have a --pair_column"
    if lines and options.text_column:
        yield f"--text_column={options.text_column}: {lines[0]} has a text a line and no columns"
    if not options.files and (options.text_column or options.pair_column):
        yield "--text_column and --pair_column go with files of texts"
    for text in options.text or ():
        if suffix_of(text) in (*READERS, LINES) and os.path.isfile(text):
            yield f"--text={text} is a file: leave out --text= to classify its rows"


def text_rows(options: Namespace, trained: Trained) -> Iterator[Example]:
    """Yields each --text and its --pair by name, and their arrays; raises as `rows_of`."""
    pairs = options.pair or [None] * len(options.text)
    arrays = rows_of(trained, options.text, options.pair)
    for text, pair, row in zip(options.text, pairs, arrays, strict=True):
        yield {"text": text} | ({} if pair is None else {"pair": pair}), row


def file_rows(options: Namespace, trained: Trained, unreadable: list[str]) -> Iterator[Example]:
    """Yields each row of files: its place and texts by name, and their arrays.

    Args:
      options: files; text_column and pair_column, where not the run's.
      trained: the model.
      unreadable: receives a line for each row without a text.

    Raises:
      BadInputError: a file cannot be read or has no such column, or the model reads pairs and the
        file has none.
    """
    data, read = dict(trained.config.data), reader(trained)
    for name in ("text_column", "pair_column"):
        data[name] = getattr(options, name) or data[name]
    tables = [(path, read_texts(path, data)) for path in options.files]
    for path, texts in tables:
        for number, (text, pair) in enumerate(texts, 1):
            words = {"text": text} | ({"pair": pair} if trained.info["pairs"] else {})
            try:
                yield {"file": path, "row": number, **words}, read(**words)
            except BadArgumentError as error:
                unreadable.append(f"{path} row {number}: {error}")


def predict_answer(options: Namespace, trained: Trained) -> Predictions:
    """Answers --question from --context."""
    if options.context is None:
        raise BadInputError("--question needs --context=TEXT, the text that holds the answer")
    found = answer_question(trained, options.question, options.context, options.top)
    lines = [options.question, *shares(found.top, "text")]
    if found.null_score is not None:
        verdict = "an answer" if found.answer else "no answer"
        least = trained.config.task.null_threshold
        lines.append(f"  {verdict}: null score {found.null_score:.2f}, none above {least:g}")
    return Predictions("answers", [({"question": options.question, **found._asdict()}, lines)])


def predict_words(options: Namespace, trained: Trained) -> Predictions:
    """Fills the masks of each --fill."""
    found, tokenizer = [], trained.tokenizer
    for text in options.fill:
        masks = fill_masks(trained, text, options.top)
        lines = [text]
        for number, top in enumerate(masks):
            lines += [f" [MASK] {number + 1}"] if len(masks) > 1 else []
            lines += shares(top, "word")
        found.append(({"text": text, "masks": masks}, lines))
    say_cut([whole_length(masked_ids(tokenizer, text)) for text in options.fill], trained)
    return Predictions("fills", found)
