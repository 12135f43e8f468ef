"""Splits of a text set that lies in files: found by name, joined and cut.

A split is the name of a file without its suffix ("train" for train.tsv), a part of it
("train[:90%]", "train[-5000:]"), or several joined by "+" ("dev+train[-5000:]"), as in TFDS. Each
must have rows.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from widenet_jax.corpus.readers import decoded, guarded, opened
from widenet_jax.data.splits import check_part, parse_slice, parts_of, slice_of
from widenet_jax.errors import BadInputError
from widenet_jax.files import absolute

# Hugging Face and TFDS call the evaluation split validation, GLUE's files dev.
_OTHER_NAMES = (("dev", "validation"), ("validation", "dev"))
_VERSION = re.compile(r"-v\d\.\d$")  # of SQuAD's files, which Hugging Face's lack


def read_split(
    path: str, split: str, read: Callable[[epath.Path], list], *, suffixes: Sequence[str]
) -> list[Any]:
    """Returns the rows of a split, in the order of its files.

    Args:
      path: `config.data.path`: a directory of splits, or a file whose parts are splits.
      split: see the module's docstring.
      read: returns the rows of one file.
      suffixes: of the files that `read` can read; ".gz" may follow.

    Raises:
      BadInputError: no such split, or a part of the split has no rows.
    """
    rows: list[Any] = []
    for part in parts_of(split):
        name, bounds = parse_slice(part)
        found = [row for file in find_files(path, name, suffixes) for row in read(file)]
        chosen = found[slice_of(bounds, len(found))] if bounds else found
        check_part(part, split, len(chosen), where=f"config.data.path={path}")
        rows += chosen
    return rows


def find_files(path: str, name: str, suffixes: Sequence[str]) -> list[epath.Path]:
    """Returns the files of the split `name`: NAME.tsv, or NAME-00000-of-00002.parquet, ...

    Raises:
      BadInputError: there are none, or several that the name could mean.
    """
    place, where = absolute(path), f"config.data.path={path}"
    if not path or not place.exists():
        there = "no such file or directory" if path else "name a file or a directory of splits"
        raise BadInputError(f"{where}: {there}")
    if not place.is_dir():
        if name:
            raise BadInputError(
                f"{where} is one file, so that splits are parts of it; add "
                "--config.data.train_split=[500:] --config.data.eval_split=[:500]"
            )
        return [place]
    stems = {file: _stem(file.name, suffixes) for file in sorted(place.iterdir())}
    if (place / "data").is_dir() and not any(stems.values()):  # Hugging Face's layout
        stems = {file: _stem(file.name, suffixes) for file in sorted((place / "data").iterdir())}
    stems = {file: stem for file, stem in stems.items() if stem}
    names = [name, *(new + name[len(old) :] for old, new in _OTHER_NAMES if name.startswith(old))]
    for one in (*names, *(_VERSION.sub("", one) for one in names)):
        found = [file for file, stem in stems.items() if one in (file.name, stem)]
        if len({stems[file] + file.suffix for file in found}) > 1:
            shown = ", ".join(file.name for file in found)
            advice = "give the file's whole name"
            raise BadInputError(f"{where}: split {name!r} may be {shown}; {advice}")
        if found:
            return found
    known = ", ".join(dict.fromkeys(stems.values())) or "none"
    raise BadInputError(
        f"{where}: no split {name!r} ({', '.join(suffixes)}); there are {known} "
        "(config.data.train_split, config.data.eval_split)"
    )


def _stem(name: str, suffixes: Sequence[str]) -> str:
    """Returns a file's split: "train" for train-00000-of-00002.parquet; "" of other files."""
    name = name.removesuffix(".gz")
    for suffix in suffixes:
        if name.endswith(suffix) and not name.startswith("."):
            return re.sub(r"-\d{5}-of-\d{5}$", "", name.removesuffix(suffix))
    return ""


def suffix_of(file: epath.Path) -> str:
    """Returns the suffix that tells a file's format; ".gz" after it does not count."""
    return epath.Path(file.name.removesuffix(".gz")).suffix.lower()


def read_bytes(file: epath.Path) -> bytes:
    """Returns a file's content, decompressed; raises BadInputError if it cannot be read."""
    with opened(str(file)) as content:
        return guarded(str(file), content.read)


def read_text(file: epath.Path) -> str:
    """Returns a file's text, without a byte order mark; raises BadInputError as `decoded`."""
    return decoded(read_bytes(file).removeprefix(codecs.BOM_UTF8), str(file), first_line=1)


def is_text(value: object) -> bool:
    """Returns whether a value is a str of whole characters; JSON can escape half of one."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
