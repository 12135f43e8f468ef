"""Reading of text files to their ends, to name all that a preparation or a run would refuse."""

import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import tqdm
from etils import epath

from widenet_jax.config.parser import Options
from widenet_jax.corpus.files import first_bytes
from widenet_jax.corpus.inputs import files_below
from widenet_jax.corpus.readers import Input, detect, texts
from widenet_jax.data.checks import Check, Checked, run_checks
from widenet_jax.errors import BadInputError
from widenet_jax.text.data.files import READERS, suffix_of
from widenet_jax.text.data.squad import read_questions
from widenet_jax.text.data.tables import MissingColumnError, Row, doubts, read_file, refused_labels
from widenet_jax.text.data.text_records import TextRecords

TABLES = (".tsv", ".csv")  # a parquet or JSON file is one where its label column is given
COLUMNS = ("text_column", "pair_column", "label_column", "label_names")


def check_set(directory: str, splits: Sequence[str]) -> Checked:
    """Reads each sequence of a prepared set."""

    def checks(split: str) -> Iterator[Check]:
        source = TextRecords({"path": directory}, split, {})
        yield from (partial(source.__getitem__, index) for index in range(len(source)))

    return run_checks({f"{directory}, split {s}": checks(s) for s in splits}, "sequences")


def check(path: str, options: Options) -> Checked:
    """Reads a file, or all files in a folder but hidden ones.

    A table without a label column is no mistake, as GLUE's test sets have none, unless
    --label_column is given and no table has it.
    """
    place = epath.Path(path)
    files = sorted(files_below(place)) if place.is_dir() else [path]
    columns = {name: getattr(options, name) for name in COLUMNS}
    count, problems, unlabelled, notes, seen, tables = 0, {}, {}, [], {}, {}
    for file in tqdm.tqdm(files, desc="check", unit="file"):
        bad: list[str] = []
        try:
            count += read(file, columns, options.format, bad, notes, seen, tables)
        except MissingColumnError as error:
            found = unlabelled.setdefault(file, []) if error.field == "label_column" else bad
            found.append(str(error).replace("--config.data.", "--"))
        except BadInputError as error:
            lines = getattr(error, "problems", [str(error)])
            bad += [line.replace("--config.data.", "--") for line in lines]
        problems[file] = bad
    for line, file in refused_labels(tables, columns["label_names"]).items():
        problems[file].append(line.replace("--config.data.", "--"))
    what = f"{len(files):,} files, {count:,} documents, rows and questions"
    of_tables = [line for file in files if suffix_of(file) in TABLES for line in problems[file]]
    if any(" row " in line for line in of_tables):
        notes.append("row 1 of a table is the first below its header")
    if any(" columns, and the header" in line for line in of_tables):
        notes.append("the texts and labels of a table are read once all its lines fit its header")
    if columns["label_column"] and len(unlabelled) == sum(_is_table(f, columns) for f in files):
        return Checked(what, problems | unlabelled, notes)
    notes += [f"{f}: no label column: not for training" for f in unlabelled]
    return Checked(what, problems, notes)


def read(
    path: str,
    columns: Mapping[str, str],
    format: str,
    bad: list[str],
    notes: list[str],
    seen: dict[int, str],
    tables: dict[str, list[Row]],
) -> int:
    """Reads one file; returns how many documents, rows or questions it has.

    Args:
      path: of the file.
      columns: "text_column", "pair_column", "label_column" and "label_names" as in `config.data`,
        "" if not given.
      format: of a file that is no table, as in `inputs.plan`.
      bad: receives a line for each mistake.
      notes: receives a line on what may be one.
      seen: receives the hash of each text (and its pair) in a table, with the first file of it.
      tables: receives the first row of each label in a table.

    Raises:
      BadInputError: a mistake after which the file cannot be read on.
    """
    beginning = first_bytes(path)
    if not beginning:
        raise BadInputError(f"{path}: an empty file")
    if _is_table(path, columns):
        rows = read_file(epath.Path(path), columns, refuse_empty=True)
        tables[path] = [*{row.label: row for row in reversed(rows)}.values()][::-1]
        quoted = sum(len(row.text) > 1 and row.text[0] == row.text[-1] == '"' for row in rows)
        if suffix_of(path) == ".tsv" and 2 * quoted > len(rows):
            what = f"{quoted:,} of {len(rows):,} texts begin and end with a quote"
            notes.append(f"{path}: {what}, which is a part of the text in .tsv, as in GLUE")
        counts = Counter(row.label for row in rows).most_common()
        if len(counts) > 1:
            (high, most), (low, least) = counts[0], counts[-1]
            of = f"{least:,} ({reprlib.repr(low)}) to {most:,} ({reprlib.repr(high)}) rows"
            notes.append(f"{path}: labels: {len(counts):,}, with {of}")
        lines = doubts(rows, sorted({row.label for row in rows}))
        notes += [f"{path}: {line.replace('config.data.', '--')}" for line in lines]
        firsts = [seen.setdefault(hash(row[:2]), path) for row in rows]
        for other, same in Counter(first for first in firsts if first != path).items():
            notes.append(f"{path}: {same:,} of {len(rows):,} texts are in {other} too")
        return len(rows)
    if suffix_of(path) == ".json" and b'"paragraphs"' in beginning:
        return len(read_questions(epath.Path(path)))
    source = Input(path, path, detect(path) if format == "auto" else format)
    found = sum(bool(text) for text, _ in texts(source, columns["text_column"] or "text", bad))
    if not found and not bad:
        raise BadInputError(f"{path}: no text in it")
    return found


def _is_table(path: str, columns: Mapping[str, str]) -> bool:
    suffix = suffix_of(path)
    return suffix in TABLES or bool(columns["label_column"] and suffix in READERS)
