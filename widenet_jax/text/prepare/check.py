"""Reading of text files to their ends, to name all that a preparation or a run would refuse."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath

import tqdm
from etils import epath

from widenet_jax.config.parser import Options
from widenet_jax.corpus.inputs import files_below
from widenet_jax.corpus.readers import (
    decoded,
    detect,
    first_bytes,
    parquet_values,
    raw_lines,
    text_of_json,
    text_of_value,
)
from widenet_jax.data.checks import Check, Checked, problem_of
from widenet_jax.errors import BadInputError, BadRowsError
from widenet_jax.text.data import table_files
from widenet_jax.text.data.squad_files import read_questions
from widenet_jax.text.data.tables import MissingColumnError, read_file
from widenet_jax.text.data.text_records import TextRecords

TABLES = (".tsv", ".csv")  # a parquet or JSON file is one where its label column is given
COMPRESSED = (".gz", ".bz2", ".xz")

COLUMNS = ("text_column", "pair_column", "label_column")
Found = tuple[int, list[str]]  # lines or records read, and a line for each mistake


def suffix_of(path: str) -> str:
    """Returns the suffix that tells the format: ".jsonl" for a.jsonl.gz."""
    place = PurePath(path)
    return (place.with_suffix("") if place.suffix in COMPRESSED else place).suffix.lower()


def check(path: str, options: Options) -> Checked:
    """Reads a file, or all files in a folder but hidden ones."""
    place = epath.Path(path)
    files = sorted(files_below(place)) if place.is_dir() else [path]
    columns = {name: getattr(options, name) for name in COLUMNS}
    return check_files(files, columns, options.format)


def checks_of_set(directory: str, split: str) -> Iterator[Check]:
    """Returns a check of each sequence of a prepared set."""
    source = TextRecords(directory, split)
    return (partial(source.__getitem__, index) for index in range(len(source)))


def check_files(paths: Sequence[str], columns: Mapping[str, str], format: str) -> Checked:
    """Reads text, tables and questions to their ends.

    A table without a label column is no mistake, as GLUE's test sets have none, unless
    "label_column" is given and no table has it.

    Args:
      paths: the files.
      columns: "text_column", "pair_column" and "label_column" as in `config.data`, "" if not given.
      format: of files that are no tables, as in `text_inputs.Reading`.
    """
    count, problems, unlabelled = 0, {}, {}
    for path in tqdm.tqdm(paths, desc="check", unit="file"):
        try:
            read, bad = check_file(path, columns, format)
        except BadRowsError as error:
            read, bad = len(error.problems), error.problems
        except MissingColumnError as error:
            message, read, bad = str(error.of_flag(error.field)), 0, []
            if error.field == "label_column":
                unlabelled[path] = message
            else:
                bad = [message]
        except BadInputError as error:
            read, bad = 0, [str(error)]
        count += read
        problems[path] = bad
    what = f"{len(paths):,} files, {count:,} lines, rows and records"
    tables = [path for path in paths if is_table(path, columns)]
    if columns["label_column"] and len(unlabelled) == len(tables):
        return Checked(what, problems | {path: [line] for path, line in unlabelled.items()})
    return Checked(what, problems, [f"{p}: no label column: not for training" for p in unlabelled])


def is_table(path: str, columns: Mapping[str, str]) -> bool:
    """Returns whether a file is read as a table of labelled texts."""
    suffix = suffix_of(path)
    return suffix in TABLES or bool(columns["label_column"] and suffix in table_files.READERS)


def check_file(path: str, columns: Mapping[str, str], format: str) -> Found:
    """Reads one file; raises BadInputError for a mistake after which it cannot be read on."""
    beginning = first_bytes(path)
    if not beginning:
        return 0, [f"{path}: an empty file"]
    if is_table(path, columns):
        rows = read_file(epath.Path(path), columns)
        empty = [row.where for row in rows if not all(map(str.strip, (row.text, row.pair or "-")))]
        return len(rows), [f"{where}: the text is empty" for where in empty]
    if suffix_of(path) == ".json" and b'"paragraphs"' in beginning:
        return len(read_questions(epath.Path(path))), []
    format = detect(path) if format == "auto" else format
    found = tried(checks_of(path, format, columns["text_column"] or "text"))
    return found if any(found) else (0, [f"{path}: no text in it"])


def checks_of(path: str, format: str, column: str) -> Iterator[Check]:
    """Yields a check of each line that is not blank, or of each record."""
    if format == "parquet":
        for value, where in parquet_values(path, column):
            yield partial(check_value, value, where, column)
        return
    for line, where in raw_lines(path):
        if line.strip():
            check = partial(check_json, column=column) if format == "jsonl" else decoded
            yield partial(check, line, where)


def check_value(value: object, where: str, column: str) -> None:
    """Raises BadInputError unless a parquet record is text."""
    decoded(text_of_value(value, where, column), where)


def check_json(line: bytes, where: str, column: str) -> None:
    """Raises BadInputError unless a line is a JSON object with a text."""
    decoded(text_of_json(decoded(line, where), where, column), where)


def tried(checks: Iterable[Check]) -> Found:
    """Makes checks; ends with the mistake after which nothing can be read."""
    count, problems = 0, []
    try:
        for check in checks:
            count += 1
            if problem := problem_of(check):
                problems.append(problem)
    except BadInputError as error:
        problems.append(str(error))
    return count, problems
