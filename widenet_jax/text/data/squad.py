"""Question answering by a span of the context: questions cut into windows of tokens.

A window is [CLS] question [SEP] part of the context [SEP]; long contexts give several windows,
which overlap. One record is one window.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.tables import read_text, trimmed
from widenet_jax.corpus.tokenizer import Encoded
from widenet_jax.data.blocks import in_threads
from widenet_jax.data.contract import ArraySpec
from widenet_jax.errors import BadInputError, BadRowsError, first_line
from widenet_jax.files import is_text
from widenet_jax.text.data import sequences
from widenet_jax.text.data.files import read_columns, read_split, suffix_of

SPECIAL_TOKENS = 3  # [CLS] and two [SEP]
# A token's context counts this share of its window's length, besides its shorter side (BERT).
LENGTH_SHARE = 0.01
# Raised where a file has another layout.
LAYOUT_ERRORS = (KeyError, TypeError, AttributeError, ValueError, RecursionError)


class Answer(NamedTuple):
    """A text of the context, and the character at which it starts."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a context; without answers it cannot be answered from the context."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


class Squad:
    """The windows of one split, made when opened.

    `source[i]` is {"tokens": int32 [n], "second": where the context begins, "start", "end": tokens
    of the first answer, or 0, 0 if the window does not hold all of it, "may_start": bool [n], True
    at tokens of the context that no other window shows with more context}.

    Attributes:
      questions: of the split.
      windows: int32 [W, 3]: question, first token of its context, number of these tokens.
      contents: a hash of each window's question and context, int64 [W]; see `sources.common`.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        split: str,
        info: Mapping[str, Any],
        questions: Sequence[Question] | None = None,
    ):
        """Reads, tokenises and cuts a split.

        Args:
          data: `config.data`.
          split: see `files`.
          info: of the trained model, whose tokenizer is used; {} in training.
          questions: to ask instead of the split's, whose files are then not read.

        Raises:
          BadInputError: a file is missing or damaged, or windows would have no room.
        """
        self._length, longest = data["max_length"], data["max_question_length"]
        room, stride = self._length - longest - SPECIAL_TOKENS, data["stride"]
        if room < 1:
            raise BadInputError(
                f"config.data.max_length={self._length} has no room for a context after "
                f"questions of config.data.max_question_length={longest} tokens and "
                f"{SPECIAL_TOKENS} special ones"
            )
        self.note = "" if stride < room else (
            f"config.data.stride={stride}: windows after the longest questions do not overlap, and "
            f"may cut answers apart: config.data.max_length={self._length} has room for {room} "
            f"tokens; a new run may have --config.data.stride={max(1, room // 2)}"
        )  # fmt: skip
        self._tokenizer = sequences.tokenizer_for(data, info)
        if questions is None:
            questions = read_split(data["path"], split, read_questions)
        self.questions = list(questions)
        unanswerable = not all(question.answers for question in questions)
        self.info = {**sequences.tokenizer_info(self._tokenizer), "unanswerable": unanswerable}
        asked = sequences.encode_all(self._tokenizer, [question.text for question in questions])
        self._asked = [ids[:longest] for ids in asked]
        contexts = list(dict.fromkeys(question.context for question in questions))
        losses = lost_text.describe_sample(self._tokenizer, contexts)
        self.note = "\n".join(filter(None, [losses, self.note]))
        encoded = in_threads(self._tokenizer.encode_with_offsets, contexts)
        self._contexts: dict[str, Encoded] = dict(zip(contexts, encoded, strict=True))
        windows = []
        for number, question in enumerate(questions):
            room = self._length - len(self._asked[number]) - SPECIAL_TOKENS
            for first, count in cut(len(self.context(question).ids), room, stride):
                windows.append((number, first, count))
        self.windows = np.array(windows, np.int32)
        hashes = [hash((question.text, question.context)) for question in questions]
        self.contents = np.array(hashes, np.int64)[self.windows[:, 0]]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, first, count = self.windows[index].tolist()
        question, context = self.questions[number], self.context(self.questions[number])
        part = context.ids[first : first + count]
        sequence = sequences.join(self._tokenizer, self._asked[number], part, self._length)
        second = sequence["second"]
        start = end = 0
        if question.answers:
            low, high = tokens_of(question.answers[0], context.offsets)
            if first <= low and high < first + count:
                start, end = low - first + second, high - first + second
        may_start = np.zeros(len(sequence["tokens"]), bool)
        may_start[second : second + count] = self._best_here(index)
        return {**sequence, "start": start, "end": end, "may_start": may_start}

    def _best_here(self, index: int) -> np.ndarray:
        """Returns [count] bool: the tokens for which this window has the maximum context (BERT)."""
        number, first, count = self.windows[index].tolist()
        low, high = np.searchsorted(self.windows[:, 0], [number, number + 1])
        firsts, counts = self.windows[low:high, 1:, None].swapaxes(0, 1)
        scores = seen(np.arange(first, first + count), firsts, counts)
        return scores.argmax(axis=0) == index - low  # of equal windows the first

    def context(self, question: Question) -> Encoded:
        """Returns the tokens of a question's context."""
        return self._contexts[question.context]

    def text_of(self, index: int, start: int, end: int) -> str:
        """Returns the characters of the context from token `start` to token `end` of a window."""
        number, first, _ = self.windows[index].tolist()
        question, shift = self.questions[number], first - len(self._asked[number]) - 2
        offsets = self.context(question).offsets
        return question.context[offsets[start + shift, 0] : offsets[end + shift, 1]]

    def describe(self, index: int) -> str:
        return f"question {self.questions[self.windows[index, 0]].id} (window {index})"


def cut(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns (first token, number of tokens) of each window over `length` tokens.

    A window begins `stride` tokens after the one before, or where that one ends; the last one ends
    with the context.
    """
    windows, first = [], 0
    while True:
        count = min(room, length - first)
        windows.append((first, count))
        if first + count == length:
            return windows
        first += min(count, stride)


def seen(tokens: np.ndarray, first: int, count: int) -> np.ndarray:
    """Returns how much context a window shows of each token; -1 for tokens outside of it.

    It is the number of tokens on the shorter side, plus a hundredth of the window's length.
    """
    left, right = tokens - first, first + count - 1 - tokens
    shown = np.minimum(left, right) + LENGTH_SHARE * count
    return np.where((left >= 0) & (right >= 0), shown, -1.0)


def tokens_of(answer: Answer, offsets: np.ndarray) -> tuple[int, int]:
    """Returns the first and the last token that hold a character of an answer."""
    low = np.searchsorted(offsets[:, 1], answer.start, side="right")
    high = np.searchsorted(offsets[:, 0], answer.start + len(answer.text), side="left") - 1
    return int(low), int(max(low, high))


def example_of(config: Any, _: Any) -> dict[str, ArraySpec]:
    """Returns the arrays of one example in a batch."""
    T = config.data.max_length
    places = dict.fromkeys(("start", "end"), ArraySpec((), "int32"))
    return {**sequences.sequence_spec(T), **places, "may_start": ArraySpec((T,), "bool")}


# --- Files ----------------------------------------------------------------------------------------


def read_questions(file: epath.Path) -> list[Question]:
    """Reads the questions of a file: the official JSON, or parquet.

    Raises:
      BadInputError: the file is damaged.
      BadRowsError: questions have another layout, or answers that do not stand where they should.
    """
    questions, bad, ids = [], [], set()
    found = _from_parquet(file) if suffix_of(file) == ".parquet" else _from_json(file)
    try:
        for number, (asked, context) in enumerate(found, 1):
            try:
                questions.append(_question(asked, context))
                bad += _mistakes(questions[-1], file)
                if (name := questions[-1].id) in ids:
                    bad.append(f"{file}: question {name}: an earlier one has this id; change one")
                ids.add(name)
            except LAYOUT_ERRORS as error:
                bad.append(_layout_line(file, f"question {number}, ", error))
    except BadInputError:
        raise
    except LAYOUT_ERRORS as error:
        bad.append(_layout_line(file, "", error) + "; nothing after it was read")
    if bad:
        raise BadRowsError(bad)
    return questions


def _layout_line(file: epath.Path, where: str, error: Exception) -> str:
    reason = f"{where}{type(error).__name__}: {first_line(error)}"
    return f"{file}: not SQuAD's layout, data > paragraphs > context, qas ({reason})"


def _mistakes(question: Question, file: epath.Path) -> Iterator[str]:
    """Yields a line for an empty text, and for each answer that does not stand where it should."""
    for name, text in (("question", question.text), ("context", question.context)):
        if not trimmed(text):
            yield f"{file}: question {question.id}: its {name} is empty; remove it"
    for answer in question.answers:
        there = question.context[answer.start : answer.start + len(answer.text)]
        if answer.start < 0 or there != answer.text or not answer.text:
            yield (
                f"{file}: question {question.id}: its context has {there!r} at {answer.start}, "
                f"and not the answer {answer.text!r}"
            )


def _from_json(file: epath.Path) -> Iterator[tuple[Any, Any]]:
    """Yields each question as the file has it, and its context."""
    for article in json.loads(read_text(file))["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                yield asked, paragraph.get("context")


def _from_parquet(file: epath.Path) -> Iterator[tuple[Any, Any]]:
    columns, names = read_columns(file), ("id", "question", "answers", "context")
    for row in zip(*(columns[name] for name in names), strict=True):
        yield dict(zip(names, row, strict=True)), row[-1]


def _question(asked: Mapping[str, Any], context: Any) -> Question:
    """Returns a question; raises one of LAYOUT_ERRORS where it has another layout."""
    impossible = asked.get("is_impossible")
    if impossible is not None and type(impossible) is not bool:
        raise TypeError(f"is_impossible is {impossible!r}; give true or false")
    answers = asked.get("answers", ()) if impossible else asked["answers"]
    if isinstance(answers, dict):  # of parquet: a list for each field
        found = tuple(map(Answer, answers["text"], answers["answer_start"]))
    else:
        found = tuple(Answer(answer["text"], answer["answer_start"]) for answer in answers)
    if impossible and found:
        raise ValueError("is_impossible is true, and there are answers; remove one")
    name = str(asked["id"]) if type(asked["id"]) is int else asked["id"]
    question = Question(name, asked["question"], context, found)
    if not all(map(is_text, (*question[:3], *(answer.text for answer in found)))):
        raise TypeError(f"question {question.id!r}: a text is missing or is no text")
    if not all(type(answer.start) is int for answer in found):
        raise TypeError(f"question {question.id!r}: answer_start is no whole number")
    return question
