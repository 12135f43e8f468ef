"""Folders of image files: their classes, their splits, and what in them is not read."""

import dataclasses
import errno
import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.data import labelled
from widenet_jax.data.blocks import in_threads
from widenet_jax.data.input_files import read_input, read_regular
from widenet_jax.data.records import MANIFEST
from widenet_jax.data.sources import FRACTION_FIELD, path_of
from widenet_jax.data.splits import check_split, names_in, slice_of
from widenet_jax.errors import BadExampleError, BadInputError, check_range, refuse, refusing
from widenet_jax.files import STARTS, is_remote, require_store

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
MAX_SIZES = 10_000  # files whose sizes are asked for: a remote disk takes up to 1 ms for each
# Permanent errors of one file. Other errors (too many open files, a time-out) may be temporary, so
# skipping the file would not be reproducible.
FILE_ERRORS = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.EIO, errno.EINVAL, errno.EFBIG,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Holdout:
    """The part of the training images that is held out for evaluation, where no split is there.

    Attributes:
      fraction: of the images of each class, 0 to 1; 0 holds none out.
      train_split: name of the other part.
      eval_split: name of the part held out.
      field: what sets the fraction, for messages.
    """

    fraction: float
    train_split: str = "train"
    eval_split: str = "val"
    field: str = FRACTION_FIELD

    def __post_init__(self) -> None:
        check_range(self.field, self.fraction, 0.0, 1.0)

    def holds(self, name: str) -> bool:
        """Returns whether the file `name`, "CLASS/FILE", is held out.

        It depends on the name alone: the split is the same on every machine, and other files keep
        their part when one is added. Each class therefore has about its share, not exactly.
        """
        # Systems store accented and Japanese letters as one character (NFC) or as two (NFD).
        whole = unicodedata.normalize("NFC", name).encode(errors="surrogateescape")
        number = int.from_bytes(hashlib.sha256(whole).digest()[:8], "big")
        return number < self.fraction * 2**64

    def split_advice(self, root: str) -> str:
        """Says how both parts get images of each class.

        No class is given an image that its hash does not hold out: that image would change its part
        when a file with a smaller hash is added.
        """
        parts = " and ".join(f"{root}/{part}/CLASS" for part in (self.train_split, self.eval_split))
        return f"set another --{self.field}, or divide the images yourself, into {parts}"


class ImageFolder(labelled.LabelledImages):
    """Image files in `root/split/class/`, ImageNet's layout, or in `root/class/` with a holdout.

    Classes and files come in sorted order.
    """

    part_of_each_class = True

    def __init__(self, root: str, split: str, holdout: Holdout | None = None):
        """Lists the files.

        Args:
          root: the folder.
          split: name of a folder in it, or of a part of `holdout`.
          holdout: makes the splits where `root` has no folder of the evaluation split's name.

        Raises:
          BadInputError: `root` is no local directory, or has no such split, or it has no class.
        """
        holdout = holdout or Holdout(0.0)
        folder, divided = _split_folder(Path(root), split, holdout)

        def inside(name: str) -> bool:
            return not divided or holdout.holds(name) == (split == holdout.eval_split)

        advice = (
            f"images belong in {root}/SPLIT/CLASS/, or in {root}/CLASS/ with --{holdout.field}=0.1"
        )
        found, others = _listed(folder, divided, advice)
        self.class_names = tuple(found)
        labelled.check_class_names(self.class_names, folder)
        self._folder, self.note = str(folder), labelled.alike_text(self.class_names)
        chosen = [[file for file in images if inside(file)] for images, _ in found.values()]
        self._files = [file for images in chosen for file in images]
        counts = [len(images) for images in chosen]
        if divided and not all(counts):
            self.split_advice = holdout.split_advice(root)
        if divided and holdout.fraction < 1:
            self.note = "\n".join(filter(None, [_unused(folder, root, holdout), self.note]))
            total = sum(len(images) for images, _ in found.values())
            how = f"--{holdout.field}={holdout.fraction:g} divides them, 1 takes all"
            if split == holdout.eval_split:
                self.part_of = f"of {total:,}: {how}"
        self.record_labels = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.left_out = Counter(kind for name, kind in others.items() if inside(name))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self.describe(index)
        try:
            return {"image": read_photo(path), "label": int(self.record_labels[index])}
        except BadExampleError:
            gone = not os.path.isdir(folder := os.path.dirname(path))
            refuse(folder, (gone, "class folder is gone; is its disk still there?"))
            raise

    def describe(self, index: int) -> str:
        return f"{self._folder}/{self._files[index]}"

    def files(self) -> list[str]:
        """Returns the name of each file, and sizes of at most MAX_SIZES; see `contract.Source`."""
        some = range(0, len(self), -(-len(self) // MAX_SIZES) or 1)
        return [*self._files, *in_threads(self._size, some)]

    def _size(self, index: int) -> str:
        try:
            return str(os.stat(self.describe(index)).st_size)
        except OSError:
            return "missing"

    def part(self, bounds: tuple[str, str]) -> np.ndarray:
        """Returns the records between bounds, which are applied to every class: int64 [n]."""
        places = [np.flatnonzero(self.record_labels == k) for k in range(len(self.class_names))]
        return np.concatenate([records[slice_of(bounds, len(records))] for records in places])


def read_photo(path: str | os.PathLike) -> bytes:
    """Returns the bytes of an image file.

    Raises:
      BadExampleError: the file cannot be read.
      BadInputError: nor may others; see FILE_ERRORS.
    """
    if is_remote(path):
        return read_input(path)
    try:
        return read_regular(path)
    except OSError as error:
        gone, dangling = error.errno == errno.ENOENT, os.path.islink(path)
        reason = "link to a file that is not there" if gone and dangling else error.strerror
        advice = "check its name" if gone and not dangling else "replace or remove it"
        kind = BadExampleError if error.errno in FILE_ERRORS else BadInputError
        raise kind(f"{path}: {reason}; {advice}") from None


def check_folder(root: str, field: str = "") -> None:
    """Raises BadInputError unless `root`, which `field` names, is a local folder and not packed."""
    place, packed = Path(root), "--config.data.source=array_record --config.data.eval_fraction=0"
    refuse(
        f"{field}{root}",
        (
            is_remote(root),
            "image folders are read from local disks only; pack it on a machine that has it "
            "(scripts/prepare_data.py image_folder) and give the packed set, also on gs://, with "
            + packed,
        ),
        (place.exists() and not place.is_dir(), "a file; give a folder of class folders"),
        (not place.is_dir(), "no such directory"),
        (
            (place / MANIFEST).exists() and not _subfolders(place),
            f"a packed set, not a folder of class folders; read it with {packed}",
        ),
    )


def _listed(
    folder: Path, divided: bool, advice: str
) -> tuple[dict[str, tuple[list[str], dict[str, str]]], dict[str, str]]:
    """Lists a folder of class folders.

    Args:
      folder: of one split, or `divided` into two.
      divided: whether an empty folder is no class; in a split's own it may be a broken copy.
      advice: where images belong.

    Returns:
      The `_contents` of each class, and the kinds of all files that are left out.
    """
    names, (_, beside) = _class_folders(folder), _contents(folder)
    found = {name: _contents(folder / names[name], names[name]) for name in sorted(names)}
    found = {name: contents for name, contents in found.items() if any(contents) or not divided}
    loose = sum(kind_left_out(name) is None for name in beside)
    too_deep = (
        f"{loose:,} images lie in it itself, which is right for the folder of a class; it must "
        "hold a folder for each class (or is config.data.path one too deep?)"
    )
    refuse(
        folder,
        (loose > sum(len(images) for images, _ in found.values()), too_deep),
        (not found, f"has no class folders; {advice}"),
    )
    others = {name: f"{kind} in no class" for name, kind in beside.items() if kind != "folder"}
    for name, (images, rest) in found.items():
        others |= rest
        there = "" if images else _images_below(folder, rest)
        kinds = labelled.counts_text(Counter(rest.values()))
        problem = (
            f"no image in it ({', '.join(IMAGE_SUFFIXES)}), but other files ({kinds}){there}; "
            "move, convert or remove them, or name the folder that holds the class folders"
        )
        refuse(folder / names[name], (not images and (divided or there), problem))
    return found, others


def _contents(folder: Path, name: str = "") -> tuple[list[str], dict[str, str]]:
    """Lists the folder of the class `name`; without a name, all in it counts as no image.

    Returns:
      "CLASS/FILE" of each image, sorted, and of all other entries, with their kind: a suffix,
      "hidden", "folder" or "folder in a class".
    """
    images, others = [], {}
    for entry in _entries(folder):
        path, kind = os.path.join(name, entry.name), kind_left_out(entry.name)
        if kind is None and name:
            images.append(path)
        else:
            folder_kind = "folder in a class" if name else "folder"
            others[path] = folder_kind if entry.is_dir() else kind or _suffix_of(entry.name)
    return sorted(images), others


def files_below(root: str) -> tuple[list[str], dict[str, str], list[str]]:
    """Returns the images under a folder, the kinds of other files, and the folders that are empty.

    All are in sorted order. Of a file, which may be one or the other, it returns the file. The
    folder or file may be on gs://.
    """
    images, left_out, empty, seen = [], {}, [], set()
    alone = [(os.path.dirname(root), [], [os.path.basename(root)])]
    walk = os.walk(root, followlinks=True) if os.path.isdir(root) else alone
    if is_remote(root):
        walk = [("", [], require_store(root).below(root))]
    for folder, folders, names in walk:
        folders.sort()
        real = os.path.realpath(folder)
        if real in seen:  # a link back to a folder above
            folders.clear()
            continue
        seen.add(real)
        empty += [] if folders or names else [folder]
        kinds = {name: kind_left_out(os.path.basename(name)) for name in sorted(names)}
        paths = {os.path.join(folder, name): kind for name, kind in kinds.items()}
        images += [path for path, kind in paths.items() if kind is None]
        left_out |= {path: kind for path, kind in paths.items() if kind}
    return images, left_out, empty


def kind_left_out(name: str) -> str | None:
    """Returns the kind of a file that is not read, by which they are counted; None for images."""
    if name.startswith("."):
        return name if name == ".DS_Store" else "hidden"
    return None if name.lower().endswith(IMAGE_SUFFIXES) else _suffix_of(name)


def _suffix_of(name: str) -> str:
    return Path(name).suffix.lower() or "no suffix"


def splits_of(root: str, holdout: Holdout) -> list[str]:
    """Returns the splits of a folder: two parts of one, and the folders of classes beside it."""
    if not holdout.fraction or _is_split(Path(root), holdout):
        return _subfolders(Path(root))
    divided = _has_classes(Path(root) / holdout.train_split)
    beside = [name for name in _subfolders(Path(root)) * divided if _has_classes(Path(root) / name)]
    return [*dict.fromkeys([holdout.train_split, holdout.eval_split, *beside])]


def _split_folder(root: Path, split: str, holdout: Holdout) -> tuple[Path, bool]:
    """Returns the folder that holds the classes of a split, and whether it holds both splits."""
    parts, place = (holdout.train_split, holdout.eval_split), f"config.data.path={root}"
    if not holdout.fraction or split not in parts or _is_split(root, holdout):
        splits = _subfolders(root)
        problem = (
            f"no split {split!r}; its folders hold no class folders, so if they are the classes, "
            f"add --{holdout.field}=0.1 to hold a tenth of the images out for evaluation"
        )
        inner = any(_has_classes(root / name) for name in splits)
        refuse(place, (split not in splits and not inner, problem))
        check_split(split, splits, place)
        return root / split, False
    problem = (
        f"--{holdout.field}={holdout.fraction:g} divides the images in two, and the splits for "
        f"training and evaluation are both {split!r}; name two (a slice takes a part of one), or "
        f"take slices of images in {root}/{split}/CLASS; all images are evaluated with "
        f"--{holdout.field}=1 alone"
    )
    refuse(place, (parts[0] == parts[1], problem))
    train = root / holdout.train_split
    return (train if _has_classes(train) else root), True


def _is_split(root: Path, holdout: Holdout) -> bool:
    """Returns whether the evaluation split has its own folder, perhaps of images in no class."""
    folder = root / holdout.eval_split
    loose = _has_classes(root / holdout.train_split) and folder.is_dir() and _contents(folder, "-")
    return _has_classes(folder) or bool(loose and loose[0])


def _unused(folder: Path, root: str, holdout: Holdout) -> str:
    """Returns a line on splits beside the folder from which evaluation is held out; "" for none."""
    parts = [] if folder == Path(root) else _subfolders(folder.parent)
    beside = [name for name in parts if _has_classes(folder.parent / name)]
    if not (unused := [name for name in beside if name != folder.name]):
        return ""
    best = next((name for name in unused if name.startswith("val")), unused[0])
    advice = f"--config.data.eval_split={best} evaluates {best}"
    names, part = labelled.names_text(unused), f"{holdout.eval_split} is a part of {folder.name}"
    return f"{folder.parent}: {part}; not used: {names} ({advice})"


def _images_below(folder: Path, rest: Mapping[str, str]) -> str:
    """Says where images lie too deep, in a folder among other files of a class."""
    inner = [name for name, kind in rest.items() if kind == "folder in a class"]
    deep = [name for name in inner if _contents(folder / name, name)[0]]
    return f", and images in {folder / deep[0]}" if deep else ""


def _class_folders(folder: Path) -> dict[str, str]:
    """Returns the folder of each class, by its name in composed letters (NFC)."""
    folders = _subfolders(folder)
    names = {unicodedata.normalize("NFC", name): name for name in folders}
    odd = {*folders} - {*names.values()}
    problem = (
        f"two folders have the name {''.join([*odd][:1])}, one with composed letters and one with "
        "decomposed ones; move the images of both into one"
    )
    refuse(folder, (odd, problem))
    return names


def _has_classes(folder: Path) -> bool:
    return folder.is_dir() and bool(_subfolders(folder))


def _entries(folder: Path) -> list[os.DirEntry]:
    """Lists the entries of a folder; raises BadInputError where it cannot."""
    with refusing(f"{folder}: cannot be listed", OSError):
        return list(os.scandir(folder))


def _subfolders(folder: Path) -> list[str]:
    folders = (e for e in _entries(folder) if e.is_dir() and not e.name.startswith("."))
    # A workdir beside the classes is none: its pictures are curves.
    return sorted(f.name for f in folders if not os.path.exists(os.path.join(f, STARTS)))


def open_folder(data: Mapping[str, Any], split: str, info: Mapping[str, Any]) -> ImageFolder:
    """Opens a split of an image folder; see `specs.SourceSpec`."""
    root, fraction = path_of(data), data.get("eval_fraction", 0.0)
    check_folder(root, "config.data.path=")
    train, evaluation = (names_in(data.get(f"{name}_split", name)) for name in ("train", "eval"))
    of_train = [name for name in train if name not in evaluation] or train
    of_eval = [name for name in evaluation if name not in train] or evaluation
    holdout = Holdout(fraction, of_train[0], of_eval[0])
    if info and {*train} == {*evaluation} and not _is_split(Path(root), holdout):
        # Of a folder that was divided, a trained model is measured on its training images.
        holdout = Holdout(fraction, of_train[0], f"not {of_train[0]}")
    several = 0 < fraction < 1 and len({*of_train}) > 1 and not _is_split(Path(root), holdout)
    problem = f"cannot be held out of several splits; add --{FRACTION_FIELD}=0, and take slices"
    refuse(f"config.data.eval_split={of_eval[0]}", (several, problem))
    return ImageFolder(root, split, holdout)
