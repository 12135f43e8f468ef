"""Readers of tar archives of images, and of CIFAR-10's binary archive, into `convert.Converted`.

Nothing is extracted to disk: members are read in memory one at a time, links, devices and giants
refused. JPEG and PNG files are kept byte for byte; CIFAR-10's raw pixels become PNG, which loses
nothing.
"""

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from widenet_jax.data.images import sources
from widenet_jax.data.prepare.convert import Converted
from widenet_jax.errors import BadInputError

MAX_IMAGE_BYTES = 256 << 20
MAX_INNER_ARCHIVE_BYTES = 4 << 30
CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32


def read_tar(files: Mapping[str, Sequence[str]], labels: str | None = None) -> Converted:
    """Tar archives of images.

    The class of a member is its folder's name (`[.../]CLASS/image.jpg`), or the name of the inner
    archive it lies in (`CLASS.tar` inside the outer one, as ImageNet's training archive has it), or
    for a flat archive (ImageNet's validation images) what the labels file says. Labels number the
    class names in sorted order. Archives are read twice: for the classes, then for the images.

    Args:
      files: for each split its archives, in order.
      labels: a text file of lines "image-file-name class".
    """
    given = _read_labels(labels) if labels else {}
    names: set[str] = set()
    counts: dict[str, int | None] = {}
    for split, paths in files.items():
        found = [entry for path in paths for entry in _scan(path, given)]
        names.update(name for name, _ in found)
        nested = any(is_archive for _, is_archive in found)
        counts[split] = None if nested else len(found)
    class_names = tuple(sorted(names))
    label_of = {name: label for label, name in enumerate(class_names)}
    return Converted(
        class_names,
        {split: _from_tars(paths, given, label_of) for split, paths in files.items()},
        counts,
    )


def _read_labels(path: str) -> dict[str, str]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from None
    labels = {}
    for number, line in enumerate(lines, 1):
        pair = line.split(maxsplit=1)
        if len(pair) == 1:
            raise BadInputError(f"{path} line {number}: expected 'image-file-name class'")
        if pair:
            labels[pair[0]] = pair[1].strip()
    return labels


def _open_tar(path: str, content: Any = None) -> tarfile.TarFile:
    """Opens the archive at `path`, or the one in the file object `content`."""
    try:
        return tarfile.open(None if content else path, "r:*", fileobj=content)
    except (OSError, tarfile.TarError) as error:
        raise BadInputError(f"{path}: not a readable tar archive ({error})") from None


def _members(archive: tarfile.TarFile, path: str) -> Iterator[tarfile.TarInfo]:
    """The images and inner archives among the members; refuses links, devices and giants."""
    try:
        for member in archive:
            name = Path(member.name).name
            if member.isdir() or name.startswith("."):
                continue
            if not member.isreg():
                raise BadInputError(f"{path}: member {member.name} is a link or device; remove it")
            inner = name.endswith(".tar")
            if member.size > (MAX_INNER_ARCHIVE_BYTES if inner else MAX_IMAGE_BYTES):
                raise BadInputError(f"{path}: member {member.name} is {member.size} bytes: too big")
            if inner or name.lower().endswith(sources.IMAGE_SUFFIXES):
                yield member
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BadInputError(f"{path}: damaged or cut short ({error}); download again") from None


def _is_archive(member: tarfile.TarInfo) -> bool:
    return member.name.endswith(".tar")


def _scan(path: str, given: Mapping[str, str]) -> list[tuple[str, bool]]:
    """For each member of the archive its class, and whether it is an archive itself."""
    with _open_tar(path) as archive:
        return [
            (_class_of(member, given, path), _is_archive(member))
            for member in _members(archive, path)
        ]


def _class_of(member: tarfile.TarInfo, given: Mapping[str, str], path: str) -> str:
    name = Path(member.name)
    label = name.stem if _is_archive(member) else given.get(name.name) or name.parent.name
    if not label:
        raise BadInputError(
            f"{path}: {member.name} lies in no class folder and --labels does not list it"
        )
    return label


def _from_tars(
    paths: Sequence[str], given: Mapping[str, str], label_of: Mapping[str, int]
) -> Iterator[tuple[int, bytes]]:
    for path in paths:
        with _open_tar(path) as archive:
            for member in _members(archive, path):
                label = label_of[_class_of(member, given, path)]
                content = archive.extractfile(member)
                if not _is_archive(member):
                    yield label, content.read()
                    continue
                where = f"{path}:{member.name}"
                with _open_tar(where, content) as inner:
                    for image in _members(inner, where):
                        yield label, inner.extractfile(image).read()


def read_cifar10_binary(archive: str) -> Converted:
    """The official cifar-10-binary.tar.gz: 50,000 training and 10,000 test images of 32x32.

    A record is a label byte, then the red, green and blue planes. (The archive for Python is a
    pickle, which could run code; it is not read.)
    """
    files: dict[str, bytes] = {}
    with _open_tar(archive) as opened:
        for member in opened:
            name = Path(member.name).name
            if member.isreg() and name.endswith((".bin", "batches.meta.txt")):
                if member.size > MAX_IMAGE_BYTES:
                    raise BadInputError(f"{archive}: member {name} is too large")
                files[name] = opened.extractfile(member).read()
    train = sorted(name for name in files if name.startswith("data_batch_"))
    if not train or "test_batch.bin" not in files:
        raise BadInputError(
            f"{archive}: holds no data_batch_*.bin and test_batch.bin; "
            "download cifar-10-binary.tar.gz (not the Python version)"
        )
    names = files.get("batches.meta.txt", b"").decode().split()
    splits = {
        "train": [_cifar_records(archive, name, files[name]) for name in train],
        "test": [_cifar_records(archive, "test_batch.bin", files["test_batch.bin"])],
    }
    return Converted(
        tuple(names) or tuple(str(label) for label in range(10)),
        {split: _cifar_examples(parts) for split, parts in splits.items()},
        {split: sum(map(len, parts)) for split, parts in splits.items()},
    )


def _cifar_records(archive: str, name: str, data: bytes) -> np.ndarray:
    if len(data) % CIFAR_RECORD_BYTES or not data:
        raise BadInputError(f"{archive}: {name} is cut short ({len(data)} bytes); download again")
    return np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD_BYTES)


def _cifar_examples(parts: Sequence[np.ndarray]) -> Iterator[tuple[int, bytes]]:
    for part in parts:
        for record in part:
            pixels = record[1:].reshape(3, 32, 32).transpose(1, 2, 0)
            yield int(record[0]), encode_png(pixels)


def encode_png(image: np.ndarray) -> bytes:
    """A PNG file of uint8 [H, W, 3] RGB."""
    return cv2.imencode(".png", np.ascontiguousarray(image[..., ::-1]))[1].tobytes()
