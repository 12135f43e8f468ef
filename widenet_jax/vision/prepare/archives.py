"""Converters of tar archives of images, and of CIFAR-10's binary archive.

Nothing is extracted to disk. JPEG and PNG files are kept byte for byte; CIFAR-10's raw pixels
become PNG, which is lossless.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from widenet_jax.data.input_files import read_text
from widenet_jax.errors import BadInputError
from widenet_jax.vision.data.folders import IMAGE_SUFFIXES
from widenet_jax.vision.prepare.convert import Converted, check_labels
from widenet_jax.vision.prepare.tar_files import Member, members, read_archive

CIFAR_CLASSES = 10
CIFAR_RECORD_BYTES = 1 + 3 * 32 * 32
CIFAR_FILE_BYTES = 10_000 * CIFAR_RECORD_BYTES
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST, CIFAR_NAMES = "test_batch.bin", "batches.meta.txt"


def read_tar(files: Mapping[str, Sequence[str]], labels: str | None = None) -> Converted:
    """Reads tar archives of images.

    The class of an image is the name of its folder (`[.../]CLASS/image.jpg`), or the name of the
    inner archive that holds it (`CLASS.tar` in the outer one: ImageNet's training archive), or for
    a flat archive (ImageNet's validation images) the class that the labels file gives. Labels
    number the class names in sorted order. Archives are read twice: for the classes, then for the
    images.

    Args:
      files: for each split its archives, in order.
      labels: a text file of lines "image-file-name class".

    Raises:
      BadInputError: an archive is damaged, or an image has no class.
    """
    labels_by_name = _read_labels(labels) if labels else {}
    names: set[str] = set()
    counts: dict[str, int | None] = {}
    for split, paths in files.items():
        count = 0
        nested = False
        for path in paths:
            for member in _images_and_archives(read_archive(path)):
                names.add(_class_of(member, labels_by_name))
                nested |= member.is_archive
                count += 1
        counts[split] = None if nested else count
    class_names = tuple(sorted(names))
    label_of = {name: label for label, name in enumerate(class_names)}
    splits = {split: _from_tars(paths, labels_by_name, label_of) for split, paths in files.items()}
    return Converted(class_names, splits, counts)


def _read_labels(path: str) -> dict[str, str]:
    labels = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        pair = line.split(maxsplit=1)
        if len(pair) == 1:
            raise BadInputError(f"{path} line {number}: expected 'image-file-name class'")
        if pair:
            labels[pair[0]] = pair[1].strip()
    return labels


def _images_and_archives(found: Iterator[Member]) -> Iterator[Member]:
    for member in found:
        if member.is_archive or member.name.lower().endswith(IMAGE_SUFFIXES):
            yield member


def _class_of(member: Member, labels_by_name: Mapping[str, str]) -> str:
    path = Path(member.name)
    label = path.stem if member.is_archive else labels_by_name.get(path.name) or path.parent.name
    if not label:
        raise BadInputError(
            f"{member.where}: lies in no class folder and --labels does not list it"
        )
    return label


def _from_tars(
    paths: Sequence[str], labels_by_name: Mapping[str, str], label_of: Mapping[str, int]
) -> Iterator[tuple[int, bytes]]:
    for path in paths:
        for member in _images_and_archives(read_archive(path)):
            label = label_of[_class_of(member, labels_by_name)]
            for image in _images_of(member):
                yield label, image.read()


def _images_of(member: Member) -> Iterator[Member]:
    """Yields an image itself, or the images of an inner archive."""
    if not member.is_archive:
        yield member
        return
    for image in _images_and_archives(members(member.content, member.where)):
        if image.is_archive:
            raise BadInputError(f"{image.where}: an archive in an inner archive; unpack it")
        yield image


def read_cifar10_binary(archive: str) -> Converted:
    """Reads the official cifar-10-binary.tar.gz: 50,000 training and 10,000 test images of 32x32.

    A record is a label byte, then the red, green and blue planes. (The archive for Python is a
    pickle, which could run code; it is not read.)

    Raises:
      BadInputError: the archive is damaged, or is another one.
    """
    files: dict[str, bytes] = {}
    for member in read_archive(archive):
        name = Path(member.name).name
        if name in (*CIFAR_TRAIN, CIFAR_TEST, CIFAR_NAMES):
            if member.size > CIFAR_FILE_BYTES:
                raise BadInputError(f"{member.where}: {member.size:,} bytes: too big")
            files[name] = member.read()
    train = [name for name in CIFAR_TRAIN if name in files]
    if not train or CIFAR_TEST not in files:
        raise BadInputError(
            f"{archive}: holds no data_batch_*.bin and test_batch.bin; "
            "download cifar-10-binary.tar.gz (not the Python version)"
        )
    try:
        names = tuple(files.get(CIFAR_NAMES, b"").decode().split())
    except UnicodeDecodeError as error:
        raise BadInputError(f"{archive}:{CIFAR_NAMES}: not UTF-8 text ({error})") from None
    names = names or tuple(str(label) for label in range(CIFAR_CLASSES))
    records = {
        split: [_cifar_records(f"{archive}:{name}", files[name], len(names)) for name in chosen]
        for split, chosen in {"train": train, "test": [CIFAR_TEST]}.items()
    }
    splits = {split: _cifar_examples(parts) for split, parts in records.items()}
    return Converted(names, splits, {k: sum(map(len, parts)) for k, parts in records.items()})


def _cifar_records(where: str, data: bytes, num_classes: int) -> np.ndarray:
    """Returns one row of bytes per record: uint8 [N, CIFAR_RECORD_BYTES]."""
    if len(data) % CIFAR_RECORD_BYTES or not data:
        raise BadInputError(
            f"{where}: {len(data):,} bytes, not a multiple of {CIFAR_RECORD_BYTES:,}: it is cut "
            "short; download it again"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD_BYTES)
    check_labels(rows[:, 0], where, num_classes)
    return rows


def _cifar_examples(parts: Sequence[np.ndarray]) -> Iterator[tuple[int, bytes]]:
    for part in parts:
        for record in part:
            # Three planes of 32 x 32, red first; OpenCV takes [32, 32, 3], blue first.
            pixels = record[1:].reshape(3, 32, 32)[::-1].transpose(1, 2, 0)
            yield int(record[0]), cv2.imencode(".png", np.ascontiguousarray(pixels))[1].tobytes()
