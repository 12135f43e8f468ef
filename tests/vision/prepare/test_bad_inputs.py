"""Malformed inputs: exit code 2, one line that names file and place, and no output files.

Every case runs with --slow, the cases of DEFAULT always.
"""

import lzma
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import (
    cifar_record,
    make_cifar,
    make_npz,
    make_parquet,
    make_tar,
    photo,
    refused,
    run,
    write,
)

# Writes a bad file into a new folder and returns its path, or its content.
Make = Callable[[Path], Path | bytes]


# --- npz ------------------------------------------------------------------------------------------


class Owned:
    """Object that would run code when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def arrays(**changes: np.ndarray) -> Make:
    return lambda folder: make_npz(folder / "a.npz", **changes)


def pixels(images: np.ndarray, labels: np.ndarray) -> Make:
    def make(folder: Path) -> Path:
        np.savez(folder / "a.npz", images=images, labels=labels)
        return folder / "a.npz"

    return make


def nothing_known(folder: Path) -> Path:
    np.savez(folder / "a.npz", x_train=np.zeros((2, 4, 4), np.uint8), y_train=np.arange(2))
    return folder / "a.npz"


def with_member(key: str, data: bytes) -> Make:
    """Makes a pack, not deflated, in which one array is replaced by bytes."""

    def make(folder: Path) -> Path:
        with zipfile.ZipFile(make_npz(folder / "whole.npz", labels=np.array([1, 1]))) as pack:
            members = {name: pack.read(name) for name in pack.namelist()}
        with zipfile.ZipFile(folder / "a.npz", "w") as pack:
            for name, content in (members | {f"{key}.npy": data}).items():
                pack.writestr(name, content)
        return folder / "a.npz"

    return make


def array_bytes(shape: str, dtype: str = "<i8", content: bytes = b"") -> bytes:
    """Returns an .npy file with a hand-written header."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


def flipped(key: str) -> Make:
    """In a pack that is not deflated a flipped byte of an array changes nothing but the CRC."""

    def make(folder: Path) -> bytes:
        names = array_bytes("(2,)", "<i8", bytes(16))
        data = bytearray(with_member("class_names", names)(folder).read_bytes())
        data[data.index(f"{key}.npy".encode()) + len(f"{key}.npy") + 128] ^= 1
        return data

    return make


TERABYTES = "(1099511627776,)"
NPZ: dict[str, tuple[Make, str]] = {
    "labels of floats": (arrays(labels=np.array([0.0, 1.0])), "labels must be integers"),
    "labels of text beside names": (arrays(labels=np.array(["a", "b"])), ": labels must be int"),
    "a negative label": (arrays(labels=np.array([0, -1])), "record 1: label -1 has no class name"),
    "a label too high": (arrays(labels=np.array([7, 0])), "record 0: label 7 has no class name"),
    "offsets past the end": (arrays(offsets=np.array([0, 5, 1 << 40])), "offsets do not fit"),
    "an empty name": (arrays(class_names=np.array(["even", ""])), "class 1 .''. needs a name"),
    "half a character": (arrays(class_names=np.array(["a", "\ud83d"])), "1 .* needs a name"),
    "a repeated name": (arrays(class_names=np.array(["a", "a"])), "1 .* has the name of class 0"),
    "names of objects": (arrays(class_names=np.array([Owned()], object)), "allow_pickle=False"),
    "images of two dimensions": (arrays(jpeg=np.zeros((2, 9), np.uint8)), "jpeg must be uint8"),
    "labels of terabytes": (with_member("labels", array_bytes(TERABYTES)), "Unable to alloc|EOF"),
    "images of terabytes": (
        with_member("jpeg", array_bytes(TERABYTES, "|u1")), "must be uint8 .0., not"
    ),
    "a flipped label": (flipped("labels"), "Bad CRC-32.*labels"),
    "a flipped image": (flipped("jpeg"), "Bad CRC-32.*jpeg"),
    "other names": (nothing_known, "holds x_train, y_train, no class_names; give images and lab"),
    "pixels of floats": (pixels(np.zeros((2, 4, 4)), np.arange(2)), "images is float64 .2, 4, 4."),
    "pixels of 4 channels": (pixels(np.zeros((2, 4, 4, 4), np.uint8), np.arange(2)), "4.; give"),
    "pixels without labels": (pixels(np.zeros((2, 4, 4), np.uint8), np.arange(1)), "2 images and"),
    "pixels of a negative class": (
        pixels(np.zeros((2, 4, 4), np.uint8), np.array([0, -1])), "record 1: label -1 has no class"
    ),
    "a cut pack": (lambda folder: arrays()(folder).read_bytes()[:-100], "damaged, or not"),
}  # fmt: skip


# --- Parquet --------------------------------------------------------------------------------------

IMAGES = [{"bytes": photo(1), "path": None}, {"bytes": photo(2), "path": None}]
NO_ROWS = pa.array([], pa.int64()), None, pa.array([], pa.binary())


def table(labels: object, names: object = None, images: object = IMAGES) -> Make:
    return lambda folder: make_parquet(folder / "a.parquet", labels, names, images)


def damaged(change: Callable[[bytearray], bytes]) -> Make:
    def make(folder: Path) -> bytes:
        rows = pa.table({"image": IMAGES, "label": [0, 1]})
        pq.write_table(rows, folder / "a", write_page_checksum=True, compression="none")
        return change(bytearray((folder / "a").read_bytes()))

    return make


NO_PARQUET = "damaged, or not a parquet file"
PARQUET: dict[str, tuple[Make, str]] = {
    "null labels": (table([0, None]), "record 1: column 'label' is null"),
    "a label below 0": (table([0, -1]), "record 1: label -1 has no class name"),
    "a label beyond the names": (table([0, 2], ["cat", "dog"]), "record 1: label 2 has no class"),
    "no rows": (table(*NO_ROWS), "split train: no images found"),
    "paths for images": (table([0], None, [{"path": "a.jpg"}]), "column 'image' holds struct"),
    "a null image": (table([0, 1], None, [IMAGES[0], None]), "record 1: the image is not stored"),
    "a flipped byte": (
        damaged(lambda data: data.replace(photo(1)[50:], photo(1)[50:-1] + b"x", 1)), NO_PARQUET
    ),
    "a cut table": (damaged(lambda data: data[:-50]), NO_PARQUET),
}  # fmt: skip


# --- CIFAR-10 and tar archives; `test_archives` has more ------------------------------------------


def cifar(name: str, content: bytes) -> Make:
    return lambda folder: make_cifar(folder / "c.tar.gz", {name: content})


def xz(at: int) -> Make:
    def make(folder: Path) -> bytes:
        whole = make_tar(folder / "x", {"cat/1.jpg": photo(1)}).read_bytes()
        data = bytearray(lzma.compress(whole))
        data[at] ^= 1
        return data

    return make


PYTHON = {"cifar-10-batches-py/data_batch_1": b"\x80\x02"}
CIFAR: dict[str, tuple[Make, str]] = {
    "a cut batch": (cifar("data_batch_1.bin", cifar_record(1)[:-7]), "batch_1.bin: .*cut short"),
    "a label above 9": (
        cifar("test_batch.bin", cifar_record(10)), "record 0: label 10 has no class"
    ),
    "too few names": (cifar("batches.meta.txt", b"cat\ndog\n"), "record 0: label 3 has no class"),
    "a batch twice": (cifar("copy/test_batch.bin", cifar_record(4)), ": a second test_batch.bin;"),
    "the Python version": (
        lambda folder: make_tar(folder / "c.tar.gz", PYTHON, "w:gz"), "CIFAR's version for Python"
    ),
}  # fmt: skip
TARS: dict[str, tuple[Make, str]] = {
    "text": (lambda _: b"not an archive\n" * 100, "damaged at byte 0 .*, or no tar archive"),
    "a zip": (lambda folder: arrays()(folder).read_bytes(), "a zip archive; unpack it first"),
    "xz with a flipped byte": (xz(60), "damaged at byte .*(C|c)orrupt"),
    "xz with a damaged index": (xz(-14), "damaged at byte .*(C|c)orrupt"),
    "no class": (
        lambda folder: make_tar(folder / "v.tar", {"V_1.JPEG": photo(1)}),
        "V_1.JPEG: lies in no class folder and --labels does not list it",
    ),
}

CASES = {
    (command, name): case
    for command, cases in (
        ("npz", NPZ), ("parquet", PARQUET), ("cifar10_binary", CIFAR), ("tar", TARS),
    )
    for name, case in cases.items()
}  # fmt: skip
DEFAULT = {
    "a label too high", "a repeated name", "names of objects", "a flipped image", "null labels",
    "a flipped byte", "a null image", "a cut batch", "the Python version", "a batch twice",
    "xz with a damaged index", "no class",
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "name"),
    [pytest.param(*key, marks=() if key[1] in DEFAULT else pytest.mark.slow) for key in CASES],
)
def test_a_bad_input_is_refused(tmp_path, capsys, command, name):
    make, problem = CASES[command, name]
    (tmp_path / "input").mkdir()
    path = make(tmp_path / "input")
    if not isinstance(path, Path):
        path = write(tmp_path / "bad file", path)
    place = f"--input={path}" if command == "cifar10_binary" else f"--split=train={path}"
    out = tmp_path / "new" / "out"
    message = refused(capsys, command, place, "--out", out)
    assert re.search(problem, message), message
    assert path.name in message or name == "no rows"
    assert not out.parent.exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a.jpg cat\nb.jpg dog\xff\n", "line 2: not UTF-8"),
        (b"a.jpg cat\nb.jpg\n", "line 2: expected 'image-file-name class'"),
    ],
)
def test_bad_labels_files(tmp_path, capsys, content, problem):
    path = make_tar(tmp_path / "a.tar", {"a.jpg": photo(1)})
    labels = write(tmp_path / "labels.txt", content)
    packing = ["tar", "--split", f"train={path}", "--labels", labels]
    assert f"labels.txt {problem}" in refused(capsys, *packing, "--out", tmp_path / "out")


def test_files_of_other_classes(tmp_path, capsys):
    make_npz(tmp_path / "a.npz")
    make_npz(tmp_path / "b.npz", class_names=np.array(["odd", "even"]))
    packing = ["npz", "--split", f"train={tmp_path}/a.npz,{tmp_path}/b.npz"]
    message = refused(capsys, *packing, "--out", tmp_path / "out")
    assert "b.npz have different classes (in another order)" in message


def test_an_image_folder_with_a_link_to_nothing(tmp_path, capsys):
    (tmp_path / "in/train/cat").mkdir(parents=True)
    (tmp_path / "in/train/cat/x.jpg").symlink_to("gone.jpg")
    packing = ["image_folder", "--input", tmp_path / "in", "--out", tmp_path / "out"]
    message = refused(capsys, *packing)
    assert "train/cat/x.jpg: link to a file that is not there" in message
    write(tmp_path / "in/train/cat/y.jpg", photo(1))
    assert run(*packing, "--skip_bad") == 0
