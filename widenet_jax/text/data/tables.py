"""Tables of labelled texts and pairs of texts: GLUE's, Hugging Face's and one's own.

Labels go by name: an example's label is the place of its name among the class names, whatever
number a file gives it.
"""

import dataclasses
import reprlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data.contract import ArraySpec, Example, Transform
from widenet_jax.errors import BadExampleError, BadInputError, BadRowsError
from widenet_jax.text.data.finetuning import (
    Joined,
    encode_all,
    join,
    padded,
    sequence_spec,
    tokenizer_in,
    tokenizer_info,
    tokenizer_of,
)
from widenet_jax.text.data.split_files import is_text, read_split
from widenet_jax.text.data.table_files import READERS, Columns, read_columns, shown

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
MAX_CLASSES = 1000  # more distinct labels mean that the column holds something else
LEAST_LENGTH = 5  # tokens of a sequence


class MissingColumnError(BadInputError):
    """A table has no such column; a command names its flag instead (`of_flag`).

    Args:
      problem: the file, the column, and those that there are.
      field: of `config.data`, that names the column.
    """

    def __init__(self, problem: str, field: str):
        super().__init__(f"{problem} (choose with --config.data.{field}=NAME)")
        self.problem, self.field = problem, field

    def of_flag(self, name: str) -> BadInputError:
        """Returns the same mistake, with the flag of that name to mend it."""
        return BadInputError(f"{self.problem} (choose with --{name}=NAME)")


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
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        split: str,
        *,
        class_names: Sequence[str] | None = None,
        tokenizer: Tokenizer | None = None,
    ):
        """Reads and tokenises a split.

        Args:
          data: `config.data`.
          split: see `split_files`.
          class_names: the model's; by default the training split's.
          tokenizer: by default `config.data.tokenizer`.

        Raises:
          BadInputError: a file, column or label is missing or damaged, or a text has no tokens and
            `config.data.on_bad_example` is "error"; otherwise reading that example raises.
        """
        if data["max_length"] < LEAST_LENGTH:
            raise BadInputError(
                f"config.data.max_length={data['max_length']} must be at least {LEAST_LENGTH}: "
                "[CLS], two [SEP] and a token of each text"
            )
        rows = read_rows(data, split)
        if class_names is None and data["label_names"]:
            class_names = split_names(data["label_names"])
        elif class_names is None:
            known = rows if split == data["train_split"] else read_rows(data, data["train_split"])
            class_names = class_names_of(known)
        self.class_names = tuple(class_names)
        self._where = [row.where for row in rows]
        self._labels = label_numbers(rows, self.class_names, data["label_names"])
        self._tokenizer = tokenizer or tokenizer_of(data)
        texts = encode_all(self._tokenizer, [row.text for row in rows])
        pairs: list = [None] * len(rows)
        self._has_pairs = rows[0].pair is not None
        if self._has_pairs:
            pairs = encode_all(self._tokenizer, [row.pair or "" for row in rows])
        put = partial(join, self._tokenizer, length=data["max_length"])
        joined = [put(text, pair) for text, pair in zip(texts, pairs, strict=True)]
        # One array: thousands of small ones are slow to send to worker processes.
        self._ends = np.cumsum([0, *(len(one.tokens) for one in joined)])
        self._tokens = np.concatenate([one.tokens for one in joined])
        self._second = np.array([one.second for one in joined], np.int32)
        no_pair = self._second + 1 == np.diff(self._ends)
        self._empty = (self._second == 2) | (self._has_pairs & no_pair)
        if data["on_bad_example"] == "error" and self._empty.any():
            raise self._bad(int(self._empty.argmax()))

    @property
    def info(self) -> dict[str, Any]:
        own = {"class_names": list(self.class_names), "pairs": self._has_pairs}
        return {**tokenizer_info(self._tokenizer), **own}

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._empty[index]:
            raise self._bad(index)
        low, high = self._ends[index], self._ends[index + 1]
        label, second = int(self._labels[index]), int(self._second[index])
        return {"tokens": self._tokens[low:high], "second": second, "label": label}

    def describe(self, index: int) -> str:
        return self._where[index]

    def _bad(self, index: int) -> BadExampleError:
        which = "text" if self._second[index] == 2 else "second text"
        return BadExampleError(
            f"{self.describe(index)}: the {which} is empty ({self._empty.sum():,} such rows); "
            "remove the row, or leave such rows out: --config.data.on_bad_example=skip"
        )


@dataclasses.dataclass(frozen=True)
class LabelledSequence:
    """The transform of a `Table`: a sequence of the model's length, and its label.

    Attributes:
      max_length: T.
    """

    max_length: int

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, np.ndarray]:
        del rng
        sequence = Joined(example["tokens"], example["second"])
        return {**padded(sequence, self.max_length), "label": np.int32(example["label"])}


def read_rows(data: Mapping[str, Any], split: str) -> list[Row]:
    """Reads the texts and labels of a split.

    Raises:
      BadInputError: no such split or column, or a text or label is missing.
    """
    read = partial(read_file, data=data)
    return read_split(data["path"], split, read, suffixes=tuple(READERS))


def read_file(file: epath.Path, data: Mapping[str, Any]) -> list[Row]:
    """Reads the texts and labels of a file; raises as `read_rows`."""
    columns, name = read_columns(file), str(file)
    text, pair, label = layout_of(columns, data, name)
    count = len(columns[text])
    texts, labels = columns[text], columns[label]
    pairs = columns[pair] if pair else [None] * count
    where = [f"{name} row {number + 1}" for number in range(count)]
    bad = [
        f"{place}: column {column!r} holds {reprlib.repr(value)}, and not a text"
        for column in filter(None, (text, pair))
        for place, value in zip(where, columns[column], strict=True)
        if not is_text(value)
    ]
    bad += [
        f"{place}: column {label!r} holds no label ({value!r})"
        for place, value in zip(where, labels, strict=True)
        if value is None or str(value).strip() in ("", "-", "-1")
    ]
    if bad:
        raise BadRowsError(bad)
    names = [str(value).strip() for value in labels]
    return [Row(*row) for row in zip(texts, pairs, names, where, strict=True)]


def layout_of(columns: Columns, data: Mapping[str, Any], file: str) -> tuple[str, str, str]:
    """Returns the names of the columns of the text, of its pair ("" for none) and of the label.

    Raises:
      MissingColumnError: the file has no such columns, or none that is known.
    """
    text, pair, label = data["text_column"], data["pair_column"], data["label_column"]
    if not (text or pair or label):
        for layout in LAYOUTS:
            if all(name in columns for name in layout if name):
                return layout
        for layout in LAYOUTS:  # of texts without labels, the label column is what is missing
            if all(name in columns for name in layout[:2] if name):
                text, pair = layout[:2]
                break
    text, label = text or "text", label or "label"
    for field, name in (("text_column", text), ("pair_column", pair), ("label_column", label)):
        if name and name not in columns:
            problem = f"{file}: no column {name!r}; there are {shown(list(columns))}"
            raise MissingColumnError(problem, field)
    return text, pair, label


def split_names(label_names: str) -> list[str]:
    """Splits `config.data.label_names`; [] of "".

    Raises:
      BadInputError: a name is empty or there twice.
    """
    names = [name.strip() for name in label_names.split(",")] if label_names else []
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
            f"values, such as {rows[0].label!r}; name their column by --config.data.label_column"
        )
    return sorted(found, key=int if all(map(str.isdecimal, found)) else None)


def label_numbers(rows: Sequence[Row], class_names: Sequence[str], label_names: str) -> np.ndarray:
    """Returns the place of each row's label among the class names: int32.

    A file may number the names of `config.data.label_names` instead of spelling them.

    Raises:
      BadInputError: a label is no class.
    """
    index = {name: number for number, name in enumerate(class_names)}
    for number, name in enumerate(split_names(label_names)):
        if name in index:
            index.setdefault(str(number), index[name])
    if odd := next((row for row in rows if row.label not in index), None):
        raise BadInputError(
            f"{odd.where}: label {odd.label!r} is none of the {len(class_names)} classes "
            f"({shown(class_names)}), as in the training split or the model"
        )
    return np.array([index[row.label] for row in rows], np.int32)


def open_table(data: Mapping[str, Any], split: str, info: Mapping[str, Any]) -> Table:
    """Opens a split of a table; see `specs.SourceSpec`."""
    return Table(data, split, class_names=info.get("class_names"), tokenizer=tokenizer_in(info))


def table_transforms(config: Any, info: Mapping[str, Any]) -> tuple[Transform, Transform]:
    """Returns the transform of training and of evaluation, which draw nothing."""
    del info
    return (LabelledSequence(config.data.max_length),) * 2


def example_of(config: Any, params: Any) -> dict[str, ArraySpec]:
    """Returns the arrays of one example, as `LabelledSequence` makes them."""
    del params
    return {**sequence_spec(config.data.max_length), "label": ArraySpec((), "int32")}
