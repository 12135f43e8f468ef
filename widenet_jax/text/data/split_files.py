"""Splits of a text set that lies in files: found by name, joined and cut.

A split is the name of a file without its suffix ("train" for train.tsv), a part of it
("train[:90%]", "train[-5000:]"), or several joined by "+" ("dev+train[-5000:]"), as in TFDS. Each
must have rows.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from widenet_jax.data.input_files import read_regular
from widenet_jax.data.splits import check_part, parse_slice, parts_of, slice_of
from widenet_jax.errors import BadInputError
from widenet_jax.files import absolute, is_remote

MAX_FILE_BYTES = 8 << 30
# The evaluation split of Hugging Face's and TFDS's sets has another name than that of GLUE's files.
_OTHER_NAMES = (("dev", "validation"), ("validation", "dev"))
_VERSION = re.compile(r"-v\d\.\d$")  # of SQuAD's files, which Hugging Face's lack


def read_split(
    path: str, split: str, read: Callable[[epath.Path], list], *, suffixes: Sequence[str]
) -> list[Any]:
    """Returns the rows of a split, in the order of its files.

    Args:
      path: `config.data.path`: a directory of splits, or a file of which splits are parts.
      split: see the module's docstring.
      read: returns the rows of one file.
      suffixes: of the files that `read` can read; ".gz" may follow.

    Raises:
      BadInputError: no such split, or one of which a part has no rows.
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
    place = absolute(path)
    if not path or not place.exists():
        there = "no such file or directory" if path else "name a file or a directory of splits"
        raise BadInputError(f"config.data.path={path}: {there}")
    if not place.is_dir():
        if name:
            raise BadInputError(
                f"config.data.path={path} is one file, so that splits are parts of it; add "
                "--config.data.train_split=[500:] --config.data.eval_split=[:500]"
            )
        return [place]
    files = sorted(file for file in place.iterdir() if _stem(file.name, suffixes))
    if (place / "data").is_dir() and not files:  # Hugging Face's layout
        files = sorted(file for file in (place / "data").iterdir() if _stem(file.name, suffixes))
    names = [name, *(new + name[len(old) :] for old, new in _OTHER_NAMES if name.startswith(old))]
    names += [_VERSION.sub("", one) for one in names]
    for one in names:
        if found := [file for file in files if one in (file.name, _stem(file.name, suffixes))]:
            if len({_stem(file.name, suffixes) + file.suffix for file in found}) > 1:
                shown = ", ".join(file.name for file in found)
                raise BadInputError(f"config.data.path={path}: split {name!r} may be {shown}; "
                                    "give the file's whole name")  # fmt: skip
            return found
    known = ", ".join(dict.fromkeys(_stem(file.name, suffixes) for file in files)) or "none"
    raise BadInputError(
        f"config.data.path={path}: no split {name!r} ({', '.join(suffixes)}); there are {known} "
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
    """Returns a file's content, decompressed where its name ends in .gz.

    Raises:
      BadInputError: it cannot be read.
    """
    try:
        content = (
            file.read_bytes() if is_remote(file) else read_regular(file, max_bytes=MAX_FILE_BYTES)
        )
        return gzip.decompress(content) if file.name.endswith(".gz") else content
    except OSError as error:
        raise BadInputError(f"{file}: {error.strerror or 'not a gzip file'}") from None
    except (EOFError, zlib.error):
        raise BadInputError(f"{file}: damaged, it ends too soon; copy it again") from None


def is_text(value: object) -> bool:
    """Returns whether a value is a str of whole characters; JSON can escape half of one."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_text(file: epath.Path) -> str:
    """Returns a file's text, without a byte order mark.

    Raises:
      BadInputError: it cannot be read, is not UTF-8 or has a NUL character.
    """
    content = read_bytes(file)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise BadInputError(f"{file} line {line}: not UTF-8; convert the file") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise BadInputError(f"{file} line {line}: a NUL character; the file is no text, or damaged")
    return text
