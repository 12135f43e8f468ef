"""Readers of SQuAD: questions with their context and answers, from the official JSON or parquet."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from etils import epath

from widenet_jax.data.text.split_files import read_text, suffix_of
from widenet_jax.data.text.table_files import read_columns
from widenet_jax.errors import BadInputError, first_line

SUFFIXES = (".json", ".parquet")


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
      BadInputError: the file is damaged, or an answer does not stand where it should.
    """
    read = _from_parquet if suffix_of(file) == ".parquet" else _from_json
    try:
        questions = list(read(file))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, BadInputError):
            raise
        what = f"{type(error).__name__}: {first_line(error)}"
        raise BadInputError(
            f"{file}: not SQuAD's layout, data > paragraphs > context, qas ({what})"
        ) from None
    for question in questions:
        for answer in question.answers:
            there = question.context[answer.start : answer.start + len(answer.text)]
            if answer.start < 0 or there != answer.text or not answer.text:
                raise BadInputError(
                    f"{file}: question {question.id}: its context has {there!r} at "
                    f"{answer.start}, and not the answer {answer.text!r}"
                )
    return questions


def _from_json(file: epath.Path) -> Iterator[Question]:
    try:
        content = json.loads(read_text(file))
    except RecursionError:
        raise BadInputError(f"{file}: not SQuAD's layout, nested too deeply") from None
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                answers = () if asked.get("is_impossible") else asked["answers"]
                yield _question(
                    asked["id"],
                    asked["question"],
                    paragraph["context"],
                    tuple(Answer(a["text"], a["answer_start"]) for a in answers),
                )


def _from_parquet(file: epath.Path) -> Iterator[Question]:
    columns = read_columns(file)
    names = ("id", "question", "context", "answers")
    for ident, text, context, answers in zip(*(columns[name] for name in names), strict=True):
        yield _question(ident, text, context, _parquet_answers(answers))


def _parquet_answers(answers: Mapping[str, list]) -> tuple[Answer, ...]:
    return tuple(map(Answer, answers["text"], answers["answer_start"]))


def _question(ident: Any, text: Any, context: Any, answers: tuple[Answer, ...]) -> Question:
    """Returns a question; raises TypeError where a field is of the wrong type."""
    texts = (ident, text, context, *(answer.text for answer in answers))
    if not all(isinstance(one, str) for one in texts):
        raise TypeError(f"question {ident!r}: a text is missing or is no text")
    if not all(type(answer.start) is int for answer in answers):
        raise TypeError(f"question {ident!r}: answer_start is no whole number")
    return Question(ident, text, context, answers)
