"""Readers of SQuAD: questions with their context and answers, from the official JSON or parquet."""

import json
from collections.abc import Iterator, Mapping
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
    questions: list[Question] = []
    bad: list[str] = []
    number = 0
    try:
        found = _from_parquet(file) if suffix_of(file) == ".parquet" else _from_json(file)
        for number, (asked, context) in enumerate(found, 1):
            try:
                questions.append(_question(asked, context))
                bad += _misplaced(questions[-1], file)
            except LAYOUT_ERRORS as error:
                bad.append(_other_layout(file, error, f"question {number}, "))
    except BadInputError:
        raise
    except (*LAYOUT_ERRORS, RecursionError) as error:  # nothing after it can be found
        if not number:
            raise BadInputError(_other_layout(file, error)) from None
        bad.append(f"{_other_layout(file, error)}; nothing after it was read")
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


def _from_json(file: epath.Path) -> Iterator[tuple[Any, Any]]:
    """Yields each question as the file has it, and its context."""
    for article in json.loads(read_text(file))["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                yield asked, paragraph.get("context")


def _from_parquet(file: epath.Path) -> Iterator[tuple[Any, Any]]:
    columns = read_columns(file)
    names = ("id", "question", "answers")
    rows = zip(*(columns[name] for name in names), strict=True)
    for row, context in zip(rows, columns["context"], strict=True):
        yield dict(zip(names, row, strict=True)), context


def _question(asked: Mapping[str, Any], context: Any) -> Question:
    """Returns a question; raises one of LAYOUT_ERRORS where it has another layout."""
    answers = () if asked.get("is_impossible") else asked["answers"]
    if isinstance(answers, dict):  # of parquet: a list for each field
        found = tuple(map(Answer, answers["text"], answers["answer_start"]))
    else:
        found = tuple(Answer(answer["text"], answer["answer_start"]) for answer in answers)
    question = Question(asked["id"], asked["question"], context, found)
    if not all(map(is_text, (*question[:3], *(answer.text for answer in found)))):
        raise TypeError(f"question {question.id!r}: a text is missing or is no text")
    if not all(type(answer.start) is int for answer in found):
        raise TypeError(f"question {question.id!r}: answer_start is no whole number")
    return question
