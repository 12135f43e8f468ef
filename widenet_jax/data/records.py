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
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from array_record.python import array_record_module
from etils import epath

from widenet_jax.data.blocks import tried
from widenet_jax.data.input_files import read_input
from widenet_jax.errors import BadInputError, check_format, first_line, refuse, refusing
from widenet_jax.files import is_remote, parse_json, read_object, readable, write_json

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
AGAIN = "; prepare the set again"
UNFINISHED = ".writing"  # folder of a set that is being written; in it, the prefix of such a file
PLAN = ".preparation.json"  # in that folder: settings of the preparation in units
PART = ".part-"  # in that folder: prefix of a unit's counts
# The files of sets, finished or not, the manifest first.
OURS = (f"{MANIFEST}*", "*.array_record", "*.tokens", "tokenizer.json*", f"{UNFINISHED}*")
OURS += (f"{PLAN}*", f"{PART}*")  # as earlier versions left them
_LABEL = struct.Struct("<I")
# A reader keeps every shard open, so a set must have fewer shards than the files that a process may
# open (often 1,024). ImageNet takes about 280 shards of this size.
SHARD_BYTES = 512 << 20


def decode_record(record: bytes) -> tuple[int, bytes]:
    """Returns the label and the encoded image of one record."""
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
    advice = "write one with scripts/prepare_data.py, or choose another config.data.path or source"
    absent = f"no {MANIFEST}, so not a (finished) packed set; {advice}"
    refuse(directory, (not path.exists(), absent))
    content = read_input(path)
    with refusing(f"{path}: not valid JSON", ValueError, TypeError, advice=AGAIN):
        manifest = dict(parse_json(content))
    check_format(manifest, FORMAT_VERSION, place=path)
    found = manifest.get("kind", "images")
    try:
        problem = _problem(manifest, *NEEDED.get(found, ((), ())))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {first_line(error)}"
    refuse(path, (problem, f"damaged ({problem}){AGAIN}"))
    advice = f"read it with --config.data.source={SOURCE_OF.get(found, found)}"
    refuse(directory, (kind not in (None, found), f"a set of {found}, not of {kind}; {advice}"))
    return manifest


def _problem(manifest: Mapping[str, Any], of_set: Sequence[str], of_split: Sequence[str]) -> str:
    """Returns what is wrong with a manifest, "" for nothing.

    Args:
      manifest: content of dataset.json.
      of_set: fields that it must have.
      of_split: fields that each of its splits must have.

    Raises:
      KeyError, TypeError, ValueError, AttributeError: a field is missing, or of a wrong type.
    """
    _ = [manifest[name] for name in of_set]
    if not (splits := manifest["splits"].values()):
        return "ValueError: it names no split"
    for split in splits:
        _, shards = [split[name] for name in of_split], split.get("shards", ())
        whole = [part[name] for part in (manifest, split) for name in COUNTS & part.keys()]
        whole += [shard["bytes"] for shard in shards]
        counts = [shard["records"] for shard in shards]
        _ = [*map(operator.index, whole + counts)]
        if min(counts, default=0) < 0 or sum(counts) != split.get("count", sum(counts)):
            return f"ValueError: shards of {counts} records, count={split.get('count')!r}"
    names = manifest.get("class_names", [""])  # sets of text have none
    named = isinstance(names, list) and names
    return "" if named else "TypeError: class_names is no list of names"


def shard_paths(directory: str, split: str, shards: Sequence[Mapping[str, int]]) -> list[str]:
    """Returns the paths of a split's shards, each with the size that was written.

    Raises:
      BadInputError: there is no shard, or one is missing, empty or cut.
    """
    names = [shard_name(split, k, len(shards)) for k in range(len(shards))]
    paths = [epath.Path(directory) / name for name in names]
    refuse(directory, (not paths, f"split {split} has no shards{AGAIN}"))
    for path, shard in zip(paths, shards, strict=True):
        size, written = path.stat().length if path.exists() else None, shard["bytes"]
        found = "missing" if size is None else f"{size} bytes"
        advice = "copy it again or prepare the set again"
        refuse(path, (size != written, f"shard is {found}, {written} bytes were written; {advice}"))
    return [*map(str, paths)]


@contextlib.contextmanager
def new_set(
    directory: str | Path, *, overwrite: bool, settings: Mapping[str, Any] | None = None
) -> Iterator[Path]:
    """Yields a folder for the files of a set; they replace an older set when the block ends.

    The block writes the manifest, too. Until it ends an older set stays readable. If it fails,
    nothing is left of it, except what the same preparation may continue with.

    Args:
      directory: created if absent, and removed again if the set cannot be written.
      overwrite: replace another set that is there, finished or not.
      settings: of a preparation in units: a folder in which one of the same settings was stopped is
        yielded with its files. None starts with an empty folder.

    Raises:
      BadInputError: the directory holds a set and overwrite is off, or holds other things.
    """
    older, directory = _older_files(directory), Path(directory)
    folder = directory / UNFINISHED
    plan = stored_object(folder / PLAN)
    continues = bool(plan) and plan == settings
    other = (directory / MANIFEST) in older or ((older or plan) and not continues)
    what = "a set of other inputs or settings" if settings else "a packed set"
    refuse(directory, (other and not overwrite, f"already holds {what}; pass --overwrite"))
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    if not continues:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{UNFINISHED}-*"):  # of workers that were killed
        path.unlink(missing_ok=True)
    try:
        if settings:
            write_json(folder / PLAN, settings)
        yield folder
    except BaseException:
        if not any(folder.glob(f"{PART}*")):  # nothing to continue from
            shutil.rmtree(folder, ignore_errors=True)
            for path in missing:
                with contextlib.suppress(OSError):  # another process may have put files there
                    path.rmdir()
        raise
    for path in older:
        path.unlink(missing_ok=True)
    written = (path for path in folder.iterdir() if not path.name.startswith("."))
    for path in sorted(written, key=lambda path: path.name == MANIFEST):
        path.replace(directory / path.name)
    shutil.rmtree(folder)


def _older_files(place: str | Path) -> list[Path]:
    """Returns the files of a set in a directory; raises BadInputError where it holds others."""
    directory = place if is_remote(place) else Path(place)
    advice = "copy the set there afterwards (text may also be prepared with --beam)"
    refuse(directory, (is_remote(place), f"sets are written to a local --out; {advice}"))
    folder = directory / UNFINISHED
    older = [path for pattern in OURS for path in directory.glob(pattern) if path != folder]
    others = [path.name for path in sorted({*directory.glob("*")} - {*older, folder})]
    refuse(
        directory,
        (directory.exists() and not directory.is_dir(), "is a file; give --out a directory"),
        (others, f"holds other files ({''.join(others[:1])}, ...); give --out a new directory"),
    )
    return older


def stored_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; {} if there is none."""
    return tried(read_object, epath.Path(path), kind=BadInputError)[0] or {}


def write_set(
    directory: str | Path,
    splits: Mapping[str, Iterable[tuple[int, bytes]]],
    *,
    class_names: Sequence[str],
    provenance: Mapping[str, Any],
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
    check: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Writes a packed set of images, whole or not at all (`new_set`); returns its manifest.

    Args:
      directory: of the set.
      splits: for each split its (label, encoded image) pairs in order, read once.
      class_names: label k is class_names[k].
      provenance: kept in the manifest.
      overwrite: replace a set that is there already.
      shard_bytes: a shard ends once it holds this many bytes of images.
      check: called once all examples are written; the set is dropped if it raises.

    Raises:
      BadInputError: as `new_set`; or a split is empty.
    """
    with new_set(directory, overwrite=overwrite) as folder:
        entries = {}
        for split, examples in splits.items():
            shards = _write_split(folder, split, iter(examples), shard_bytes)
            entries[split] = {"count": sum(s["records"] for s in shards), "shards": shards}
        if check:
            check()
        manifest = {
            "format_version": FORMAT_VERSION,
            "class_names": list(class_names),
            "splits": entries,
            "provenance": dict(provenance),
        }
        write_json(folder / MANIFEST, manifest)
    return manifest


def _write_split(
    folder: Path, split: str, examples: Iterator[tuple[int, bytes]], shard_bytes: int
) -> list[dict[str, int]]:
    """Writes a split's shards and returns their sizes; they are named once all are there."""
    shards: list[dict[str, int]] = []
    paths: list[Path] = []
    for first in examples:
        paths.append(folder / f"{split}-{len(paths):05d}")
        count = size = 0
        # Random access needs groups of one record: a reader decompresses whole groups.
        writer = array_record_module.ArrayRecordWriter(str(paths[-1]), "group_size:1")
        with contextlib.closing(writer):
            for label, image in itertools.chain([first], examples):
                writer.write(_LABEL.pack(label) + image)
                count += 1
                size += len(image)
                if size >= shard_bytes:
                    break
        shards.append({"records": count, "bytes": paths[-1].stat().st_size})
    refuse(f"split {split}", (not shards, "no images found; check its input"))
    for index, path in enumerate(paths):
        path.rename(folder / shard_name(split, index, len(paths)))
    return shards
