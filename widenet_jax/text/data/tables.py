"""Tables of labelled texts and pairs of texts: GLUE's, Hugging Face's and your own.

Labels go by name: an example's label is the place of its name among the class names, whatever
number a file gives it.
"""

import contextlib
import itertools
import math
import mimetypes
import os
import reprlib
import unicodedata
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.tables import Columns, read_lines, shown, trimmed
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data.contract import ArraySpec, Example, Transform
from widenet_jax.data.foreign import example_at
from widenet_jax.data.labelled import alike_text, label_of, missing_classes
from widenet_jax.errors import BadExampleError, BadInputError, BadRowsError, refuse
from widenet_jax.files import is_text
from widenet_jax.text.data import sequences
from widenet_jax.text.data.files import (
    LINES,
    READERS,
    read_columns,
    read_split,
    split_of,
    suffix_of,
)

# (text, pair, label) columns of known sets; the first layout that a file has is taken.
LAYOUTS = (
    ("premise", "hypothesis", "label"),  # MNLI of Hugging Face and TFDS
    ("sentence1", "sentence2", "gold_label"),  # MNLI of GLUE
    ("sentence1", "sentence2", "label"),
    ("question1", "question2", "is_duplicate"),
    ("question1", "question2", "label"),
    ("question", "sentence", "label"),
    ("sentence", "", "label"),  # SST-2
    ("text", "", "label"),
)
SCORES = "scores"  # `config.data.source` of tables whose labels are numbers, see `scores`
MAX_CLASSES = 1000  # more distinct labels mean that the column holds something else
MISSING = {"nan", "na", "n/a", "#n/a", "null", "none", "?"}  # what spreadsheets and pandas write
NO_LABEL = {"-", "-1"}  # in SNLI and in Hugging Face's test sets, unless they are class names


class MissingColumnError(BadInputError):
    """A table has no such column, or one column has two fields.

    Args:
      problem: the file, and the column with those that there are.
      field: of `config.data`, that names the column.
    """

    def __init__(self, problem: str, field: str):
        super().__init__(f"{problem} (choose with --config.data.{field}=NAME)")
        self.field = field


class Row(NamedTuple):
    """One row of a table: its texts (None for no pair), its label as text, and its place."""

    text: str
    pair: str | None
    label: str
    where: str


class Table:
    """One split of a table, tokenised when opened; `source[i]` is a sequence and its label.

    `source[i]` is {"tokens": int32 [n], "second": where token type 1 begins, "label": int}.

    Attributes:
      class_names: label k is class_names[k].
      record_labels: the label of each row, int32 [n].
      contents: a hash of each row's texts, int64 [n], the same in all tables of this process.
      info: the class names, the tokenizer, and "pairs": whether rows have two texts.
      note: lines that name the classes, and what may be a mistake.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        split: str,
        info: Mapping[str, Any],
        rows: Sequence[Row] | None = None,
    ):
        """Reads and tokenises a split.

        Args:
          data: `config.data`.
          split: see `files`.
          info: of the trained model, whose class names and tokenizer are used. {} in training: the
            class names of the training split, and `config.data.tokenizer`.
          rows: instead of the split's, whose files are then not read.

        Raises:
          BadInputError: a file, column or label is missing or damaged, or a text has no tokens and
            `config.data.on_bad_example` is "error"; otherwise reading that example raises.
        """
        rows = read_rows(data, split) if rows is None else rows
        self._where = [row.where for row in rows]
        self.contents = np.array([hash(row[:2]) for row in rows], np.int64)
        of_labels = self._read_labels(rows, data, split, info)
        tokenizer = sequences.tokenizer_for(data, info)
        paired = rows[0].pair is not None
        self.info |= {"pairs": paired, **sequences.tokenizer_info(tokenizer)}
        encode, T = partial(encode_visible, tokenizer), data["max_length"]
        pairs = encode([row.pair or "" for row in rows]) if paired else [None] * len(rows)
        both = list(zip(encode([row.text for row in rows]), pairs, strict=True))
        joined = [sequences.join(tokenizer, text, pair, T) for text, pair in both]
        texts = [text for row in rows for text in row[:2] if text]
        self._notes = [
            *of_labels,
            sequences.cut_text([*itertools.starmap(sequences.whole_length, both)], T),
            lost_text.describe_sample(tokenizer, texts),
        ]
        # One array: thousands of small ones are slow to send to worker processes.
        self._ends = np.cumsum([0, *(len(one["tokens"]) for one in joined)])
        self._tokens = np.concatenate([one["tokens"] for one in joined])
        self._second = np.array([one["second"] for one in joined], np.int32)
        no_pair = self._second + 1 == np.diff(self._ends)
        self._empty = (self._second == 2) | (paired & no_pair)
        self._skips = data["on_bad_example"] != "error"
        if not self._skips and self._empty.any():
            raise self._bad(int(self._empty.argmax()))

    def _read_labels(
        self, rows: Sequence[Row], data: Mapping[str, Any], split: str, info: Mapping[str, Any]
    ) -> list[str]:
        """Sets the labels and what `info` says of them; returns lines on them."""
        names = info.get("class_names") or split_names(data["label_names"])
        if not names:
            train = data["train_split"]
            names = class_names_of(rows if split == train else read_rows(data, train))
        self.class_names, self.info = tuple(names), {"class_names": list(names)}
        labels = label_numbers(rows, self.class_names, data["label_names"])
        self.record_labels = self._labels = labels
        trains = split == data["train_split"] and not info.get("class_names")
        if trains and (missing := missing_classes(self)):
            raise BadInputError(
                f"split {split} has no row of {len(missing)} of the {len(names)} classes "
                f"({shown(missing)}) of config.data.label_names; name the labels that it has"
            )
        return [f"{len(names):,} classes: {shown(names)}", *doubts(rows, names)]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._empty[index]:
            raise self._bad(index)
        tokens = self._tokens[self._ends[index] : self._ends[index + 1]]
        second, label = int(self._second[index]), self._labels[index].item()
        return {"tokens": tokens, "second": second, "label": label}

    def describe(self, index: int) -> str:
        return self._where[index]

    @property
    def note(self) -> str:
        return "\n".join(filter(None, self._notes))

    @property
    def problems(self) -> list[str]:
        return [str(self._bad(index)) for index in np.flatnonzero(self._empty)]

    def _bad(self, index: int) -> BadExampleError:
        which = "text" if self._second[index] == 2 else "second text"
        advice = "remove the row, or leave such rows out: --config.data.on_bad_example=skip"
        advice = "" if self._skips else f" ({self._empty.sum():,} such rows); {advice}"
        return BadExampleError(f"{self.describe(index)}: the {which} is empty{advice}")


def encode_visible(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text; none of a text without a visible character."""
    return sequences.encode_all(tokenizer, [text if trimmed(text) else "" for text in texts])


def splits_of(train: Any, evaluation: Any, _: Any, data: Mapping[str, Any]) -> tuple[Table, Table]:
    """Returns both splits of Python objects; see `specs.TaskSpec` and `rows_of`."""
    first = Table(data, data["train_split"], {}, rows_of(train, "data"))
    names = {"class_names": first.class_names}
    return first, Table(data, data["eval_split"], names, rows_of(evaluation, "eval_data"))


def rows_of(examples: Any, name: str) -> list[Row]:
    """Returns the rows of an object with examples (text, label) or (text, second text, label).

    Raises:
      BadInputError: an example is none, or there are none.
    """
    rows = []
    for index in range(len(examples)):
        where = f"{name}[{index}]"
        match example_at(examples, index, name):
            case [text, *pair, label] if (
                len(pair) <= 1 and all(map(is_text, (text, *pair))) and _is_label(label)
            ):
                rows.append(Row(text, (*pair, None)[0], label_text(label), where))
            case _:
                forms = "neither (text, label) nor (text, second text, label)"
                raise BadInputError(f"{where} is {forms}")
    if len({row.pair is None for row in rows}) != 1:
        raise BadInputError(f"{name}: give examples, each with one text or each with two")
    return rows


def read_rows(data: Mapping[str, Any], split: str) -> list[Row]:
    """Reads the texts and labels of a split.

    Raises:
      BadInputError: no such split or column, or a text or label is missing.
    """
    return read_split(data["path"], split, partial(read_file, data=data))


def read_file(
    file: epath.Path, data: Mapping[str, Any], *, refuse_empty: bool = False
) -> list[Row]:
    """Reads the texts and labels of a file.

    Raises:
      BadInputError: as `read_rows`; with `refuse_empty` also where a text is empty.
    """
    columns = read_columns(file)
    text, pair, label = layout_of(columns, data, file)
    scores = data.get("source") == SCORES
    no_label = {""} if scores else {"", *NO_LABEL} - {*split_names(data["label_names"])}
    seconds = columns[pair] if pair else [None] * len(columns[text])
    rows, bad = [], []
    cells = zip(columns[text], seconds, columns[label], strict=True)
    for number, (first, second, value) in enumerate(cells, 1):
        name = "" if value is None else label_text(value)
        rows.append(Row(first, second, name, f"{file} row {number}"))
        problems = []
        for which, column, cell in (("text", text, first), ("second text", pair, second)):
            if column and not is_text(cell):
                problems.append(f"column {column!r} holds {reprlib.repr(cell)}, and not a text")
            elif column and refuse_empty and not trimmed(cell):
                problems.append(f"the {which} is empty")
        if name in no_label or not _is_label(value):
            advice = "; if it is a class, list it in --config.data.label_names"
            advice = advice if name in NO_LABEL else ""
            problems.append(f"column {label!r} holds no label ({reprlib.repr(value)}){advice}")
        bad += [f"{rows[-1].where}: {problem}" for problem in sorted(problems)]
    if bad:
        raise BadRowsError(bad)
    return rows


def read_texts(path: str, data: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Reads the text and the pair (None for no pairs) of each row, or line, of a file to classify.

    Raises:
      BadInputError: the file is damaged, or of no known kind; or it has no such column, which is
        named as a flag of a command.
    """
    file = epath.Path(path)
    if suffix_of(file) == LINES:
        return [(line, None) for line in read_lines(file)]
    known = ", ".join((*READERS, LINES))
    refuse(file, (suffix_of(file) not in READERS, f"no file of texts; there are {known}"))
    columns = read_columns(file)
    refuse(file, (not any(map(len, columns.values())), "a table without rows"))
    try:
        text, pair, _ = layout_of(columns, data, file, labelled=False)
    except MissingColumnError as error:
        raise BadInputError(str(error).replace("--config.data.", "--")) from None
    if not pair:
        return [(cell, None) for cell in columns[text]]
    pairs = ["" if cell is None else cell for cell in columns[pair]]
    return [*zip(columns[text], pairs, strict=True)]


def label_text(label: object) -> str:
    """Returns a label as text that equals all others that look the same.

    Accents and letters are one character, and nothing invisible stands around it.
    """
    return trimmed(unicodedata.normalize("NFC", str(label)))


def _is_label(value: object) -> bool:
    """Returns whether a value is a text or a finite number; where a label is missing it may be NaN.

    NaN and infinity minus themselves are not 0.
    """
    return value - value == 0 if isinstance(value, Number) else is_text(value)


def layout_of(
    columns: Columns, data: Mapping[str, Any], file: epath.Path, *, labelled: bool = True
) -> tuple[str, str, str]:
    """Returns the names of the columns of the text, of its pair ("" for none) and of the label.

    Without `labelled` the label may be missing. Scores may be in a column "score", too.

    Raises:
      MissingColumnError: the file has no such columns, or none that is known; or two are the same.
    """
    fields = ("text_column", "pair_column", "label_column")
    text, pair, label = (data[field] for field in fields)
    usual = "score" if data.get("source") == SCORES else "label"
    if not (text or pair or label):
        # Of texts without labels, the label column is what is missing.
        unlabelled = [(*layout[:2], usual) for layout in LAYOUTS]
        layouts = (*unlabelled, *LAYOUTS) if usual == "score" else LAYOUTS
        known = (one for one in layouts if columns.keys() >= set(one) - {""})
        texts = (one for one in unlabelled if columns.keys() >= set(one[:2]) - {""})
        text, pair, label = next(itertools.chain(known, texts), ("", "", ""))
    layout = (text or "text", pair, label or usual)
    chosen = dict(zip(fields, layout if labelled else layout[:2], strict=False))
    for one, other in itertools.combinations(chosen, 2):
        if chosen[one] == chosen[other]:
            problem = f"{file}: {one} and {other} are both {chosen[one]!r}"
            raise MissingColumnError(problem, one)
    if lacking := [field for field, name in chosen.items() if name and name not in columns]:
        lacking.sort(key=lambda field: not data[field])  # the user's own names first
        problem = f"{file}: no column {chosen[lacking[0]]!r}; there are {shown(list(columns))}"
        firsts = [str(cells[0]) for cells in columns.values() if cells]
        if any("image/" in (mimetypes.guess_type(cell)[0] or "") for cell in firsts):
            advice = "put each image into a folder of its class, or give pairs to wj.train"
            raise BadInputError(f"{problem}; images are not read from a table: {advice}")
        raise MissingColumnError(problem, lacking[0])
    return layout


def split_names(label_names: str) -> list[str]:
    """Splits `config.data.label_names`; [] of "".

    Raises:
      BadInputError: a name is empty or there twice.
    """
    names = [label_text(name) for name in label_names.split(",")] if label_names else []
    if not all(names) or len(set(names)) < len(names):
        raise BadInputError(
            f"config.data.label_names={label_names}: give each class one name, as in no,yes"
        )
    return names


def class_names_of(rows: Sequence[Row]) -> list[str]:
    """Returns the sorted labels of the rows.

    Raises:
      BadInputError: there is one label only, or far too many.
    """
    found = {row.label for row in rows}
    if not 1 < len(found) <= MAX_CLASSES:
        raise BadInputError(
            f"{rows[0].where}: the labels of the training split have {len(found):,} different "
            f"values, such as {rows[0].label!r}; name their column by --config.data.label_column, "
            "shuffle rows that are sorted by label, or learn numbers by configs/glue.py:scores"
        )
    return sorted(sorted(found), key=int if all(map(str.isdecimal, found)) else None)


def _plain(name: str) -> str | float:
    """Returns what names that probably mean the same class share; of a number its value."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(name)):
            return number
    shown = (c for c in unicodedata.normalize("NFKC", name) if trimmed(c) or c.isspace())
    return " ".join("".join(shown).casefold().split())


def doubts(rows: Sequence[Row], class_names: Sequence[str]) -> list[str]:
    """Returns lines on what may be mistakes in the labels of a table."""
    notes, plain = [], {*map(_plain, class_names)}
    numbers = [number for number in plain if isinstance(number, float)]
    if len(numbers) == len(plain) and not all(map(float.is_integer, numbers)):
        scores = "scores are not learned as numbers (configs/glue.py:scores does), each is a class"
        notes.append(f"{len(class_names):,} classes are numbers with fractions: {scores}")
    notes += filter(None, [alike_text(class_names, _plain, " in the table")])
    if missing := [name for name in class_names if name.lower() in MISSING]:
        remove = "remove the rows of those that stand for no label"
        notes.append(f"classes that may be missing labels: {shown(missing)}; {remove}")
    if len(class_names) > max(2, len(rows) / 2):
        question = "are these numbers or texts? config.data.label_column"
        notes.append(f"{len(class_names):,} classes in {len(rows):,} rows: {question}")
    firsts: dict[tuple, str] = {}
    if several := {r[:2] for r in rows if firsts.setdefault(r[:2], r.label) != r.label}:
        notes.append(f"texts whose rows have different labels: {len(several):,}")
    return notes


def label_numbers(rows: Sequence[Row], class_names: Sequence[str], label_names: str) -> np.ndarray:
    """Returns the place of each row's label among the class names: int32.

    A file may number the names of `config.data.label_names` instead of spelling them, unless they
    are numbers themselves.

    Raises:
      BadInputError: a label is no class.
    """
    index = {label_text(name): number for number, name in enumerate(class_names)}
    names = split_names(label_names)
    for number, name in enumerate(names if all(isinstance(_plain(n), str) for n in names) else ()):
        if name in index:
            index.setdefault(str(number), index[name])
    if odd := next((row for row in rows if row.label not in index), None):
        alike = [name for name in class_names if _plain(name) == _plain(odd.label)]
        advice = f"; if it is {alike[0]!r}, write both alike" if alike else ""
        raise BadInputError(
            f"{odd.where}: label {odd.label!r} is none of the {len(class_names)} classes "
            f"({shown(class_names)}), as in the training split or the model{advice}"
        )
    return np.array([index[row.label] for row in rows], np.int32)


def label_problems(tables: Mapping[str, Sequence[Row]], label_names: str) -> dict[str, str]:
    """Returns lines by which runs on a split "train" refuse the labels of tables beside it.

    Args:
      tables: the rows of each file; of each label one is enough.
      label_names: as in `config.data`.

    Returns:
      The file of each line.
    """
    lines: dict[str, str] = {}
    folders: dict[str, list[Row]] = {}
    for file, rows in tables.items():
        folders.setdefault(os.path.dirname(file), []).extend(
            rows if split_of(file) == "train" else ()
        )
    for file, rows in tables.items():
        if train := folders[os.path.dirname(file)]:
            try:
                names = split_names(label_names) or class_names_of(train)
                label_numbers(rows, names, label_names)
            except BadInputError as error:
                lines.setdefault(str(error), file)
    return lines


def labelled_row(
    example: Example, _: np.random.Generator | None = None, *, length: int, num_classes: int
) -> dict[str, np.ndarray]:
    """Pads a sequence as `sequence_row`; its label is checked. One to predict has no "where"."""
    row = sequences.sequence_row(example, length=length)
    label = {"label": np.int32(label_of(example, num_classes))} if "where" in example else {}
    return row | label


def row_transforms(config: Any, info: Mapping[str, Any]) -> tuple[Transform, Transform]:
    """Returns the transforms of a run; see `specs.TaskSpec`."""
    how = {"length": config.data.max_length, "num_classes": len(info["class_names"])}
    return (partial(labelled_row, **how),) * 2


def example_of(config: Any, _: Any) -> dict[str, ArraySpec]:
    """Returns the arrays of one example in a batch."""
    return {**sequences.sequence_spec(config.data.max_length), "label": ArraySpec((), "int32")}
