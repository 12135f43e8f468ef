"""Question answering by a span of the context: questions cut into windows of tokens.

A window is [CLS] question [SEP] part of the context [SEP]; long contexts give several windows,
which overlap. One record is one window.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from widenet_jax.corpus.tokenizer import Encoded, Tokenizer
from widenet_jax.data.contract import ArraySpec, Example, Transform
from widenet_jax.errors import BadInputError
from widenet_jax.text.data.finetuning import (
    Joined,
    encode_all,
    in_threads,
    padded,
    sequence_spec,
    tokenizer_in,
    tokenizer_info,
    tokenizer_of,
)
from widenet_jax.text.data.split_files import read_split
from widenet_jax.text.data.squad_files import SUFFIXES, Answer, Question, read_questions

SPECIAL_TOKENS = 3  # [CLS] and two [SEP]
# A token's context counts this share of its window's length, besides its shorter side (BERT).
LENGTH_SHARE = 0.01


class Squad:
    """The windows of one split, made when opened.

    `source[i]` is {"tokens": int32 [n], "second": where the context begins, "start", "end": tokens
    of the first answer, or 0, 0 if the window does not hold all of it, "may_start": bool [n], True
    at tokens of the context that no other window shows with more context}.

    Attributes:
      questions: of the split.
      windows: int32 [W, 3]: question, first token of its context, number of these tokens.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        split: str,
        *,
        tokenizer: Tokenizer | None = None,
        questions: Sequence[Question] | None = None,
    ):
        """Reads, tokenises and cuts a split.

        Args:
          data: `config.data`.
          split: see `split_files`.
          tokenizer: by default `config.data.tokenizer`.
          questions: to ask instead of the split's, whose files are then not read.

        Raises:
          BadInputError: a file is missing or damaged, or windows would have no room.
        """
        room = data["max_length"] - data["max_question_length"] - SPECIAL_TOKENS
        if room < 1:
            raise BadInputError(
                f"config.data.max_length={data['max_length']} has no room for a context after "
                f"questions of config.data.max_question_length={data['max_question_length']} "
                f"tokens and {SPECIAL_TOKENS} special ones"
            )
        self._stride = data["stride"]
        self._tokenizer = tokenizer or tokenizer_of(data)
        if questions is None:
            questions = read_split(data["path"], split, read_questions, suffixes=SUFFIXES)
        self.questions: list[Question] = list(questions)
        asked = encode_all(self._tokenizer, [question.text for question in self.questions])
        self._asked = [ids[: data["max_question_length"]] for ids in asked]
        contexts = list(dict.fromkeys(question.context for question in self.questions))
        encoded = in_threads(self._tokenizer.encode_with_offsets, contexts)
        self._contexts: dict[str, Encoded] = dict(zip(contexts, encoded, strict=True))
        windows = []
        for number, question in enumerate(self.questions):
            room = data["max_length"] - len(self._asked[number]) - SPECIAL_TOKENS
            for first, count in cut(len(self.context(question).ids), room, self._stride):
                windows.append((number, first, count))
        self.windows = np.array(windows, np.int32)

    @property
    def info(self) -> dict[str, Any]:
        unanswerable = not all(question.answers for question in self.questions)
        return {**tokenizer_info(self._tokenizer), "unanswerable": unanswerable}

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, first, count = self.windows[index].tolist()
        question, asked = self.questions[number], self._asked[number]
        context = self.context(question)
        cls, sep = [self._tokenizer.cls_id], [self._tokenizer.sep_id]
        part = context.ids[first : first + count]
        tokens = np.concatenate([cls, asked, sep, part, sep]).astype(np.int32)
        second = len(asked) + 2
        start = end = 0
        if question.answers:
            low, high = tokens_of(question.answers[0], context.offsets)
            if first <= low and high < first + count:
                start, end = low - first + second, high - first + second
        may_start = np.zeros(len(tokens), bool)
        may_start[second : second + count] = self._best_here(index)
        places = {"start": start, "end": end, "may_start": may_start}
        return {"tokens": tokens, "second": second, **places}

    def _best_here(self, index: int) -> np.ndarray:
        """Returns [count] bool: the tokens for which this window has the maximum context (BERT)."""
        number, first, count = self.windows[index].tolist()
        own = np.arange(first, first + count)
        ours = seen(own, first, count)
        best = np.full(count, True)
        # Windows of a question are neighbours, in the order of their contexts.
        for step in (-1, 1):
            other = index + step
            while 0 <= other < len(self.windows) and self.windows[other, 0] == number:
                theirs = seen(own, *self.windows[other, 1:].tolist())
                if (theirs < 0).all():
                    break  # those beyond are further away
                best &= theirs < ours if step < 0 else theirs <= ours
                other += step
        return best

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


@dataclasses.dataclass(frozen=True)
class Window:
    """The transform of `Squad`: a window of the model's length, and where its answer is.

    Attributes:
      max_length: T.
    """

    max_length: int

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, np.ndarray]:
        del rng
        row = padded(Joined(example["tokens"], example["second"]), self.max_length)
        may_start = np.zeros(self.max_length, bool)
        may_start[: len(example["may_start"])] = example["may_start"]
        places = {name: np.int32(example[name]) for name in ("start", "end")}
        return {**row, **places, "may_start": may_start}


def open_squad(data: Mapping[str, Any], split: str, info: Mapping[str, Any]) -> Squad:
    """Opens a split of questions; see `specs.SourceSpec`."""
    return Squad(data, split, tokenizer=tokenizer_in(info))


def window_transforms(config: Any, info: Mapping[str, Any]) -> tuple[Transform, Transform]:
    """Returns the transform of training and of evaluation, which draw nothing."""
    del info
    return (Window(config.data.max_length),) * 2


def example_of(config: Any, params: Any) -> dict[str, ArraySpec]:
    """Returns the arrays of one example, as `Window` makes them."""
    del params
    T = config.data.max_length
    places = dict.fromkeys(("start", "end"), ArraySpec((), "int32"))
    return {**sequence_spec(T), **places, "may_start": ArraySpec((T,), "bool")}
