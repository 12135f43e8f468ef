"""The packed format: ArrayRecord shards of (label, encoded image), and a `dataset.json`.

A set is one directory. Its shards are `<split>-00000-of-00003.array_record`. `dataset.json` is
written last, so a directory that has one holds a complete set. A record is a little-endian uint32
label, then the bytes of the image file (JPEG or PNG), unchanged. `dataset.json` holds
  format_version: 1
  kind: "images" if absent; "text" sets are described in `text.data.text_records`, "stream" sets in
    `language.data.token_streams`
  class_names: [str], label k is class_names[k]
  splits: {split: {"count": int, "shards": [{"records": int, "bytes": int}, ...]}}
  provenance: free text fields, the converter and its input
so that a reader knows the size of every shard without opening it, and finds a missing or cut shard
at once.
"""

import contextlib
import itertools
import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from array_record.python import array_record_module
from etils import epath

from widenet_jax.data.input_files import read_input
from widenet_jax.errors import BadInputError, check_format, first_line
from widenet_jax.files import parse_json, readable, write_json

FORMAT_VERSION = 1
MANIFEST = "dataset.json"
# The kinds of sets, and the source that reads each. A set without a kind holds images.
SOURCE_OF = {"images": "array_record", "text": "text", "stream": "token_stream"}
# What dataset.json must have, by kind: of the set, and of each split.
NEEDED = {
    "images": (("class_names",), ("shards",)),
    "text": (("tokenizer_sha256", "unigram_entropy", "rule"), ("shards",)),
    "stream": (
        ("vocab_size",),
        ("file_bytes", "tokens", "bytes", "words", "sha256", "sample_sha256"),
    ),
}
COUNTS = {"vocab_size", "file_bytes", "tokens", "bytes"}  # of them, the whole numbers
_UNFINISHED = ".writing-"  # prefix of a shard that is being written
_LABEL = struct.Struct("<I")
# A reader keeps every shard open, so a set must have fewer shards than the files that a process may
# open (often 1,024). ImageNet takes about 280 shards of this size.
SHARD_BYTES = 512 << 20


def encode_record(label: int, image: bytes) -> bytes:
    """Returns one record: the label, then the encoded image."""
    return _LABEL.pack(label) + image


def decode_record(record: bytes) -> tuple[int, bytes]:
    """Returns (label, encoded image); the inverse of `encode_record`."""
    return _LABEL.unpack_from(record)[0], record[_LABEL.size :]


def shard_name(split: str, shard: int, num_shards: int) -> str:
    """Returns the file name of a shard, e.g. train-00000-of-00003.array_record."""
    return f"{split}-{shard:05d}-of-{num_shards:05d}.array_record"


def read_manifest(directory: str, kind: str | None = "images") -> dict[str, Any]:
    """Reads and checks `dataset.json`.

    Args:
      directory: the set's.
      kind: what the set must hold: a key of SOURCE_OF; None: anything.

    Raises:
      BadInputError: it is missing (the set was never finished), damaged, of a newer format, or of
        another kind; or as `files.readable`.
    """
    path = readable(directory) / MANIFEST
    if not path.exists():
        raise BadInputError(
            f"{directory}: no {MANIFEST}, so not a (finished) packed set; write one with "
            "scripts/prepare_data.py, or choose another config.data.source"
        )
    content = read_input(path)
    try:
        manifest = dict(parse_json(content))
    except (ValueError, TypeError) as error:
        raise BadInputError(f"{path}: not valid JSON ({error}); prepare the set again") from None
    check_format(manifest, FORMAT_VERSION, place=path)
    found = manifest.get("kind", "images")
    try:
        of_set, of_split = NEEDED.get(found, ((), ()))
        _ = [manifest[field] for field in of_set]
        if not (splits := manifest["splits"].values()):
            raise ValueError("it names no split")
        for split in splits:
            _ = [split[field] for field in of_split]
            whole = [part[name] for part in (manifest, split) for name in COUNTS & part.keys()]
            _ = [operator.index(number) for number in whole]
            sizes = [(shard["records"], shard["bytes"]) for shard in split.get("shards", ())]
            counts = [operator.index(records) for records, _ in sizes]
            _ = [operator.index(size) for _, size in sizes]
            if min(counts, default=0) < 0 or sum(counts) != split.get("count", sum(counts)):
                raise ValueError(f"shards of {counts} records, count={split.get('count')!r}")
        names = manifest.get("class_names", [""])  # sets of text have none
        if not isinstance(names, list) or not names:
            raise TypeError("class_names is no list of names")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise BadInputError(f"{path}: damaged ({reason}); prepare the set again") from None
    if kind and found != kind:
        raise BadInputError(
            f"{directory}: a set of {found}, not of {kind}; read it with "
            f"--config.data.source={SOURCE_OF.get(found, found)}"
        )
    return manifest


def checked_shards(directory: str, split: str, shards: Sequence[Mapping[str, int]]) -> list[str]:
    """Returns the paths of a split's shards, each with the size that was written.

    Raises:
      BadInputError: there is no shard, or one is missing, empty or cut.
    """
    if not shards:
        raise BadInputError(f"{directory}: split {split} has no shards; prepare the set again")
    paths = []
    for index, shard in enumerate(shards):
        path = epath.Path(directory) / shard_name(split, index, len(shards))
        size = path.stat().length if path.exists() else None
        if size != shard["bytes"]:
            found = "missing" if size is None else f"{size} bytes"
            raise BadInputError(
                f"{path}: shard is {found}, {shard['bytes']} bytes were written; copy it again "
                "or prepare the set again"
            )
        paths.append(str(path))
    return paths


def write_set(
    directory: str | Path,
    splits: Mapping[str, Iterable[tuple[int, bytes]]],
    *,
    class_names: Sequence[str],
    provenance: Mapping[str, Any],
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> dict[str, Any]:
    """Writes a packed set whole or not at all; an older set stays readable until then.

    Args:
      directory: created if absent, and removed again if the set cannot be written.
      splits: for each split its (label, encoded image) pairs in order, read once.
      class_names: label k is class_names[k].
      provenance: kept in the manifest.
      overwrite: replace a set that is there already.
      shard_bytes: a shard ends once it holds this many bytes of images.

    Returns:
      The manifest written.

    Raises:
      BadInputError: the directory holds a set and overwrite is off, or holds other things; a split
        is empty.
    """
    directory = Path(directory)
    stale = _shards_to_replace(directory, overwrite)
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(directory)
    written: dict[str, list[dict[str, int]]] = {}
    try:
        for split, examples in splits.items():
            written[split] = _write_split(directory, split, iter(examples), shard_bytes)
    except BaseException:
        _remove_unfinished(directory)
        for path in missing:
            with contextlib.suppress(OSError):  # another process may have put files there
                path.rmdir()
        raise
    manifest = {
        "format_version": FORMAT_VERSION,
        "class_names": list(class_names),
        "splits": {
            split: {"count": sum(s["records"] for s in shards), "shards": shards}
            for split, shards in written.items()
        },
        "provenance": dict(provenance),
    }
    _publish(directory, manifest, stale)
    return manifest


def _remove_unfinished(directory: Path) -> None:
    for path in directory.glob(f"{_UNFINISHED}*"):
        path.unlink()


def _shards_to_replace(directory: Path, overwrite: bool) -> list[Path]:
    """Returns the shards of an older set in `directory`; refuses a directory of other files."""
    shards = sorted(directory.glob("*.array_record"))
    if (directory / MANIFEST).exists() or shards:
        if not overwrite:
            raise BadInputError(f"{directory}: already holds a packed set; pass --overwrite")
    else:
        refuse_other_files(directory, directory.glob(f"{_UNFINISHED}*"))
    return shards


def refuse_other_files(directory: Path, ours: Iterable[Path]) -> None:
    """Raises BadInputError unless a directory for a set is new or holds files of sets alone."""
    if directory.exists() and not directory.is_dir():
        raise BadInputError(f"{directory}: is a file; give --out a directory")
    others = sorted({*directory.glob("*")} - {*ours})
    if others:
        raise BadInputError(
            f"{directory}: holds other files ({others[0].name}, ...); give --out a new directory"
        )


def _write_split(
    directory: Path, split: str, examples: Iterator[tuple[int, bytes]], shard_bytes: int
) -> list[dict[str, int]]:
    """Writes a split's shards under temporary names and returns their sizes."""
    shards: list[dict[str, int]] = []
    for first in examples:
        path = directory / f"{_UNFINISHED}{split}-{len(shards):05d}"
        # Random access needs groups of one record: a reader decompresses whole groups.
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        count = size = 0
        try:
            for label, image in itertools.chain([first], examples):
                writer.write(encode_record(label, image))
                count += 1
                size += len(image)
                if size >= shard_bytes:
                    break
        finally:
            writer.close()
        shards.append({"records": count, "bytes": path.stat().st_size})
    if not shards:
        raise BadInputError(f"split {split}: no images found; check its input")
    return shards


def _publish(directory: Path, manifest: dict[str, Any], stale: Sequence[Path]) -> None:
    """Replaces the old set by the shards under temporary names; writes the manifest last."""
    (directory / MANIFEST).unlink(missing_ok=True)
    for path in stale:
        path.unlink()
    for split, entry in manifest["splits"].items():
        for index in range(len(entry["shards"])):
            temporary = directory / f"{_UNFINISHED}{split}-{index:05d}"
            temporary.rename(directory / shard_name(split, index, len(entry["shards"])))
    write_json(directory / MANIFEST, manifest)


Check = Callable[[], object]  # raises BadInputError for a bad line or record


class Checked(NamedTuple):
    """What a check found.

    Attributes:
      what: what was read: "3 files, 1,200 lines, rows and records".
      problems: lines that each name a mistake and its place, by file or split.
      notes: lines on files that were not read, or are not for training.
      advice: what to do about the mistakes.
    """

    what: str
    problems: Mapping[str, list[str]]
    notes: Sequence[str] = ()
    advice: str = "repair what is named"


def problem_of(check: Check) -> str | None:
    """Returns the line of a mistake; None where there is none."""
    try:
        check()
    except BadInputError as error:
        return str(error)
    return None
