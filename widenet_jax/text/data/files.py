"""Files of texts to finetune on: splits found by name, and tables read as columns.

A split is the name of a file without its suffix ("train" for train.tsv), a part of it
("train[:90%]", "train[-5000:]"), or several joined by "+" ("dev+train[-5000:]"), as in TFDS. Each
must have rows.
"""

import io
import re
from collections.abc import Callable
from typing import Any

from etils import epath

from widenet_jax.corpus.files import COMPRESSED_SUFFIXES
from widenet_jax.corpus.tables import Columns, from_csv, from_tsv, read_bytes, read_text
from widenet_jax.data.input_files import class_names, open_parquet, shards_text
from widenet_jax.data.labelled import check_class_names
from widenet_jax.data.splits import SplitError, check_part, parse_slice, parts_of, slice_of
from widenet_jax.errors import BadInputError, first_line, raise_first, refusing
from widenet_jax.files import absolute, parse_json

# Hugging Face and TFDS call the evaluation split validation, GLUE's files dev.
_OTHER_NAMES = (("dev", "validation"), ("validation", "dev"))
_VERSION = re.compile(r"-v\d\.\d$")  # of SQuAD's files, which Hugging Face's lack
# Its split, its suffix.
_FILE = re.compile(r"([^.].*?)(?:-\d{5}-of-\d{5})?(\.[a-zA-Z]+)(?:\.gz|\.bz2|\.xz)?")
_SHARD = re.compile(r"-\d{5}-of-\d{5}(?=\.)")
LINES = ".txt"  # suffix of a file with a text a line, to classify

# --- Splits ---------------------------------------------------------------------------------------


def read_split(path: str, split: str, read: Callable[[epath.Path], list]) -> list[Any]:
    """Returns the rows of a split, in the order of its files.

    Args:
      path: `config.data.path`: a directory of splits, or a file whose parts are splits.
      split: see the module's docstring.
      read: returns the rows of one file.

    Raises:
      BadInputError: no such split, or a part of the split has no rows.
    """
    rows: list[Any] = []
    for part in parts_of(split):
        name, bounds = parse_slice(part)
        found = [row for file in find_files(path, name) for row in read(file)]
        chosen = found[slice_of(bounds, len(found))] if bounds else found
        check_part(part, len(chosen), where=f"config.data.path={path}")
        rows += chosen
    return rows


def find_files(path: str, name: str) -> list[epath.Path]:
    """Returns the files of the split `name`: NAME.tsv, or NAME-00000-of-00002.parquet, ...

    Raises:
      BadInputError: there are none, or several that the name could mean.
    """
    place, where = absolute(path), f"config.data.path={path}"
    slices = "--config.data.train_split=[500:] --config.data.eval_split=[:500]"
    parts = f" is one file, so that splits are parts of it; add {slices}"
    rows = (
        (not path, ": name a file or a directory of splits"),
        (not place.exists(), ": no such file or directory"),
        (name and not place.is_dir(), parts),
    )
    raise_first(where + problem for wrong, problem in rows if wrong)
    if not place.is_dir():
        return [place]
    stems = _splits_in(place)
    if not stems and (place / "data").is_dir():  # Hugging Face's layout
        stems = _splits_in(place / "data")
    names = [name, *(new + name[len(old) :] for old, new in _OTHER_NAMES if name.startswith(old))]
    for one in (*names, *(_VERSION.sub("", one) for one in names)):
        found = [file for file, stem in stems.items() if one in (file.name, stem)]
        kinds = {_SHARD.sub("-of", file.name): file.name for file in found}
        if len(kinds) > 1:
            listed = f"split {name!r} may be {', '.join(kinds.values())}"
            raise SplitError(f"{where}: {listed}; give the file's whole name, or remove the other")
        if odd := shards_text(file.name for file in found if file.name != one):
            advice = "copy what is missing, remove what is of another set, or name one file"
            raise BadInputError(f"{where}: there are {odd}; {advice}")
        if found:
            return found
    known = ", ".join(dict.fromkeys(stems.values())) or "none"
    raise SplitError(f"{where}: no split {name!r} ({', '.join(READERS)}); there are {known}")


def _splits_in(place: epath.Path) -> dict[epath.Path, str]:
    """Returns the files of splits, and for each its split."""
    return {file: split for file in sorted(place.iterdir()) if (split := split_of(file))}


def split_of(file: str | epath.Path) -> str:
    """Returns the split that a file is or is a part of: "train" for train.tsv.gz; else ""."""
    match = _FILE.fullmatch(epath.Path(file).name)
    return match[1] if match and match[2].lower() in READERS else ""


# --- Files ----------------------------------------------------------------------------------------


def suffix_of(file: str | epath.Path) -> str:
    """Returns the suffix that tells the format: ".jsonl" for a.jsonl.gz."""
    place = epath.Path(file)
    return (place.with_suffix("") if place.suffix in COMPRESSED_SUFFIXES else place).suffix.lower()


def read_columns(file: epath.Path) -> Columns:
    """Reads a table.

    Raises:
      BadInputError: it is damaged, of another format than its suffix says, or of none of `READERS`.
    """
    if (suffix := suffix_of(file)) not in READERS:
        known = ", ".join(READERS)
        raise BadInputError(f"{file}: no table by its suffix; there are {known}, also with .gz")
    return READERS[suffix](file)


def _from_json(file: epath.Path) -> Columns:
    """Reads a list of objects, or an object a line."""
    text, found = read_text(file), []
    listed = text.lstrip().startswith("[")
    for number, line in enumerate([text] if listed else text.split("\n")):
        try:
            found += [parse_json(line)] if line.strip() else []
        except ValueError as error:  # without a place where an integer has 5,000 digits
            where = f"{file} line {number + getattr(error, 'lineno', 1)}"
            reason = getattr(error, "msg", first_line(error))
            raise BadInputError(
                f"{where}: neither a JSON list of objects nor an object a line ({reason})"
            ) from None
    records = found[0] if listed else found
    if not records or not all(isinstance(record, dict) for record in records):
        raise BadInputError(f"{file}: holds no list of objects, such as [{{'text': 'a'}}, ...]")
    names = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}


def _from_parquet(file: epath.Path) -> Columns:
    """Reads parquet; integers that the `datasets` library has names for become these names."""
    with (
        refusing(f"{file}: holds a text that is not UTF-8", UnicodeDecodeError),
        open_parquet(io.BytesIO(read_bytes(file)), file) as parquet,
    ):
        table = parquet.read()
        columns = table.to_pydict()
    for name, values in columns.items():
        if known := class_names(table.schema.metadata, name):
            check_class_names(known, f"{file} column {name!r}")
            columns[name] = [known[v] if v in range(len(known)) else None for v in values]
    return columns


READERS: dict[str, Callable[[epath.Path], Columns]] = {
    ".tsv": from_tsv,
    ".csv": from_csv,
    ".json": _from_json,
    ".jsonl": _from_json,
    ".parquet": _from_parquet,
}
