"""Readers of SQuAD: questions with their context and answers, from the official JSON or parquet."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from etils import epath

from widenet_jax.errors import BadInputError, BadRowsError, first_line
from widenet_jax.text.data.split_files import is_text, read_text, suffix_of
from widenet_jax.text.data.table_files import read_columns

SUFFIXES = (".json", ".parquet")
# Raised where a file has another layout.
LAYOUT_ERRORS = (KeyError, TypeError, AttributeError, ValueError)


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


def read_questions(file: epath.Path) -> list[Question]:
    """Reads the questions of a file.

    Raises:
      BadInputError: the file is damaged, or has another layout.
      BadRowsError: questions have another layout, or answers that do not stand where they should.
    """
    read = _from_parquet if suffix_of(file) == ".parquet" else _from_json
    questions: list[Question] = []
    bad: list[str] = []
    try:
        for number, question_of in enumerate(read(file), 1):
            try:
                questions.append(question_of())
                bad += _misplaced(questions[-1], file)
            except LAYOUT_ERRORS as error:
                bad.append(_other_layout(file, error, f"question {number}, "))
    except BadInputError:
        raise
    except LAYOUT_ERRORS as error:  # nothing after it can be found
        told = _other_layout(file, error)
        if not questions and not bad:
            raise BadInputError(told) from None
        bad.append(f"{told}; nothing after it was read")
    if bad:
        raise BadRowsError(bad)
    return questions


def _other_layout(file: epath.Path, error: Exception, where: str = "") -> str:
    what = f"{where}{type(error).__name__}: {first_line(error)}"
    return f"{file}: not SQuAD's layout, data > paragraphs > context, qas ({what})"


def _misplaced(question: Question, file: epath.Path) -> Iterator[str]:
    """Yields a line for each answer that does not stand where it should."""
    for answer in question.answers:
        there = question.context[answer.start : answer.start + len(answer.text)]
        if answer.start < 0 or there != answer.text or not answer.text:
            yield (
                f"{file}: question {question.id}: its context has {there!r} at {answer.start}, "
                f"and not the answer {answer.text!r}"
            )


def _from_json(file: epath.Path) -> Iterator[Callable[[], Question]]:
    """Yields for each question a function that reads it."""
    try:
        content = json.loads(read_text(file))
    except RecursionError:
        raise BadInputError(f"{file}: not SQuAD's layout, nested too deeply") from None
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                yield partial(_json_question, asked, paragraph)


def _json_question(asked: Mapping[str, Any], paragraph: Mapping[str, Any]) -> Question:
    answers = () if asked.get("is_impossible") else asked["answers"]
    found = tuple(Answer(answer["text"], answer["answer_start"]) for answer in answers)
    return _question(asked["id"], asked["question"], paragraph["context"], found)


def _from_parquet(file: epath.Path) -> Iterator[Callable[[], Question]]:
    """Yields for each question a function that reads it."""
    columns = read_columns(file)
    names = ("id", "question", "context", "answers")
    for row in zip(*(columns[name] for name in names), strict=True):
        yield partial(_parquet_question, *row)


def _parquet_question(ident: Any, text: Any, context: Any, answers: Mapping[str, list]) -> Question:
    found = tuple(map(Answer, answers["text"], answers["answer_start"]))
    return _question(ident, text, context, found)


def _question(ident: Any, text: Any, context: Any, answers: tuple[Answer, ...]) -> Question:
    """Returns a question; raises TypeError where a field is of the wrong type."""
    texts = (ident, text, context, *(answer.text for answer in answers))
    if not all(map(is_text, texts)):
        raise TypeError(f"question {ident!r}: a text is missing or is no text")
    if not all(type(answer.start) is int for answer in answers):
        raise TypeError(f"question {ident!r}: answer_start is no whole number")
    return Question(ident, text, context, answers)
