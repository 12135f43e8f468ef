"""A hash of the examples of a split, by which hosts find that they read different data."""

import hashlib
import re
from functools import partial

import numpy as np

from widenet_jax.data.blocks import in_threads, read_row
from widenet_jax.data.contract import Example, Source

SAMPLE = 64  # examples that are read; of a smaller split all


def contents_sha256(source: Source) -> str:
    """Hashes the names and sizes that a split's `files` lists, its labels, and some examples.

    It tells another copy of a set from this one, and the same set at another path not. One other
    image among millions of equal name and size is seldom in the sample of examples. The labels are
    all there where the split knows them (`record_labels`, or the numbers in `record_scores`).

    Raises:
      BadInputError: the split cannot be read. An unreadable example is hashed as such.
    """
    lines = [str(len(source)), *getattr(source, "files", tuple)()]
    sha = hashlib.sha256("\0".join(lines).encode(errors="surrogateescape"))
    for name in ("record_labels", "record_scores"):
        if (labels := getattr(source, name, None)) is not None:
            sha.update(_bytes(labels))
    for digest in in_threads(partial(_example_sha256, source), _sampled(source)):
        sha.update(digest)
    return sha.hexdigest()


def same_examples(one: Source, other: Source) -> bool:
    """Returns whether two splits are as long, and alike in the sample of `contents_sha256`."""
    return len(one) == len(other) and all(
        _example_sha256(one, record) == _example_sha256(other, record) for record in _sampled(one)
    )


def _sampled(source: Source) -> list[int]:
    return np.random.default_rng(0).permutation(len(source))[:SAMPLE].tolist()


def _example_sha256(source: Source, record: int) -> bytes:
    digest, problem = read_row(source, record, _digest, skip=True)
    return b"unreadable" if problem else digest


def _digest(example: Example) -> bytes:
    sha = hashlib.sha256()
    for name, value in sorted(example.items()):
        if name != "where":
            sha.update(name.encode() + _bytes(value))
    return sha.digest()


ADDRESS = re.compile(" at 0x[0-9a-fA-F]+")  # in the repr of an object


def _bytes(value: object) -> bytes:
    """Returns what tells a value from others; lists of arrays are of any lengths, as sentences.

    It is the same in every process: neither addresses nor the order of a set are part of it.
    """
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()
    elif isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    elif hasattr(value, "__array_interface__") and not isinstance(value, np.generic):
        value = np.asarray(value)  # of Pillow's images
    if isinstance(value, np.ndarray):
        return f" {value.dtype} {value.shape} ".encode() + value.tobytes()
    if isinstance(value, list | tuple):
        return f" {len(value)} of".encode() + b"".join(map(_bytes, value))
    text = f" {value!r}"
    return (text if isinstance(value, str | bytes) else ADDRESS.sub("", text)).encode()
