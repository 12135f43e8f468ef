"""Reading of text files to their ends, to name all that a preparation or a run would refuse."""

import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tqdm
from etils import epath

from widenet_jax.config.parser import Options
from widenet_jax.corpus.files import first_bytes
from widenet_jax.corpus.inputs import files_below
from widenet_jax.corpus.readers import Input, detect, texts
from widenet_jax.data.checks import Check, Checked, run_checks
from widenet_jax.errors import BadInputError, BadRowsError, refuse
from widenet_jax.text.data.files import READERS, suffix_of
from widenet_jax.text.data.scores import describe, scores_of
from widenet_jax.text.data.squad import read_questions
from widenet_jax.text.data.tables import SCORES, Row, doubts, label_problems, read_file
from widenet_jax.text.data.text_records import TextRecords

TABLES = (".tsv", ".csv")  # a parquet or JSON file is one where its label column is given


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
    read = Reading(vars(options) | {"source": SCORES if options.scores else "table"})
    for file in tqdm.tqdm(files, desc="check", unit="file"):
        read.file(file)
    for line, file in label_problems(read.labels, options.label_names).items():
        read.problems[file].append(line)
    of_tables = [line for f in files if suffix_of(f) in TABLES for line in read.problems[f]]
    if any(" row " in line for line in of_tables):
        read.notes.append("row 1 of a table is the first below its header")
    if any(" columns, and the header" in line for line in of_tables):
        line = "the texts and labels of a table are read once all its lines fit its header"
        read.notes.append(line)
    if options.label_column and len(read.unlabelled) == sum(map(read.is_table, files)):
        read.problems |= read.unlabelled
    else:
        read.notes += [f"{f}: no label column: not for training" for f in read.unlabelled]
    for lines in read.problems.values():
        lines[:] = [line.replace("--config.data.", "--") for line in lines]
    what = f"{len(files):,} files, {read.count:,} documents, rows and questions"
    return Checked(what, read.problems, read.notes)


@dataclass
class Reading:
    """Files of text, read one after the other, and what was found in them.

    Attributes:
      flags: "text_column", "pair_column", "label_column" and "label_names" as in `config.data`, ""
        if not given; "source", SCORES where labels are numbers; and the "format" of files that are
        no tables, as in `inputs.plan`.
      count: documents, rows and questions.
      problems: of each file a line for each mistake.
      unlabelled: files without a label column, and the line that says so.
      notes: lines on what may be mistakes.
      firsts: the hash of each text (and its pair) in a table, and the first file that has it.
      labels: the first row of each label in a table.
    """

    flags: Mapping[str, Any]
    count: int = 0
    problems: dict[str, list[str]] = field(default_factory=dict)
    unlabelled: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    firsts: dict[int, str] = field(default_factory=dict)
    labels: dict[str, list[Row]] = field(default_factory=dict)

    def is_table(self, path: str) -> bool:
        suffix = suffix_of(path)
        return suffix in TABLES or bool(self.flags["label_column"] and suffix in READERS)

    def file(self, path: str) -> None:
        """Reads a file as far as it can be read."""
        bad = self.problems[path] = []
        try:
            self.count += self._read(path, bad)
        except BadInputError as error:
            lines = getattr(error, "problems", [str(error)])
            if getattr(error, "field", "") == "label_column":
                self.unlabelled[path] = lines
            else:
                bad += lines

    def _read(self, path: str, bad: list[str]) -> int:
        """Returns how many documents, rows or questions a file has; `bad` receives mistakes.

        Raises:
          BadInputError: a mistake after which the file cannot be read on.
        """
        beginning = first_bytes(path)
        if not beginning:
            raise BadInputError(f"{path}: an empty file")
        if self.is_table(path):
            return self._read_table(path)
        if suffix_of(path) == ".json" and b'"paragraphs"' in beginning:
            return len(read_questions(epath.Path(path)))
        format, column = self.flags["format"], self.flags["text_column"] or "text"
        source = Input(path, path, detect(path) if format == "auto" else format)
        found = sum(bool(text) for text, _ in texts(source, column, bad))
        if not found and not bad:
            bad.append(f"{path}: no text in it")
        return found

    def _read_table(self, path: str) -> int:
        """Reads a table, and notes what may be mistakes in it; returns the number of its rows."""
        scored = self.flags["source"] == SCORES
        rows = read_file(epath.Path(path), self.flags, refuse_empty=True)
        refuse(path, (not rows, "a table without rows"))
        scores, bad = scores_of(rows) if scored else ((), ())
        if bad:
            raise BadRowsError(bad)
        self.labels[path] = [] if scored else [*{r.label: r for r in reversed(rows)}.values()][::-1]
        notes = []
        quoted = sum(len(row.text) > 1 and row.text[0] == row.text[-1] == '"' for row in rows)
        if suffix_of(path) == ".tsv" and 2 * quoted > len(rows):
            what = f"{quoted:,} of {len(rows):,} texts begin and end with a quote"
            notes.append(f"{what}, which is a part of the text in .tsv, as in GLUE")
        counts = [] if scored else Counter(row.label for row in rows).most_common()
        if len(counts) > 1:
            (high, most), (low, least) = counts[0], counts[-1]
            of = f"{least:,} ({reprlib.repr(low)}) to {most:,} ({reprlib.repr(high)}) rows"
            notes.append(f"labels: {len(counts):,}, with {of}")
        names = sorted({row.label for row in rows})
        lines = [describe(scores)] if scored else doubts(rows, names)
        notes += [line.replace("config.data.", "--") for line in lines]
        firsts = Counter(self.firsts.setdefault(hash(row[:2]), path) for row in rows)
        del firsts[path]
        notes += [f"{n:,} of {len(rows):,} texts are in {file} too" for file, n in firsts.items()]
        self.notes += [f"{path}: {note}" for note in notes]
        return len(rows)
