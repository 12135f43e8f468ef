"""Malformed inputs: exit code 2, one line that names file and place, and no output files."""

import io
import json
import lzma
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import cifar_record, make_cifar, make_npz, make_parquet, make_tar, photo, refused


def refuse(capsys, tmp_path: Path, command: str, path: Path, *options: object) -> str:
    """Runs a converter on one bad file; returns the message, which must name the file."""
    place = ["--input", path] if command in ("image_folder", "cifar10_binary") else []
    place = place or ["--split", f"train={path}"]
    out = tmp_path / "new" / "out"
    message = refused(capsys, command, *place, *options, "--out", out)
    assert not out.parent.exists()
    return message


def check(message: str, file: str, problem: str) -> None:
    assert file in message and re.search(problem, message), message


# --- npz ------------------------------------------------------------------------------------------


class Owned:
    """Object that would run code when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def array_bytes(shape: str, dtype: str = "<i8", content: bytes = b"") -> bytes:
    """Returns an .npy file with a hand-written header."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


def replace_member(path: Path, key: str, data: bytes | None) -> None:
    """Replaces one array of a pack by bytes, or removes it."""
    with zipfile.ZipFile(path) as pack:
        members = {name: pack.read(name) for name in pack.namelist()}
    del members[f"{key}.npy"]
    with zipfile.ZipFile(path, "w") as pack:
        for name, content in members.items():
            pack.writestr(name, content)
        if data is not None:
            pack.writestr(f"{key}.npy", data)


NPZ_ARRAYS = {
    "labels of floats": ({"labels": np.array([0.0, 1.0])}, "labels must be integers"),
    "labels of two dimensions": ({"labels": np.zeros((2, 1), int)}, r"not int64 of shape \(2, 1\)"),
    "a negative label": ({"labels": np.array([0, -1])}, "record 1: label -1 has no class name"),
    "a label too high": ({"labels": np.array([7, 0])}, "record 0: label 7 has no class name"),
    "offsets of floats": ({"offsets": np.array([0.0, 1.0, 2.0])}, "offsets must be integers"),
    "offsets that fall": ({"offsets": np.array([0, 9999, 3])}, "offsets do not fit"),
    "offsets past the end": ({"offsets": np.array([0, 5, 1 << 40])}, "offsets do not fit"),
    "names of floats": ({"class_names": np.array([0.5, 1.5])}, "class_names must be text"),
    "names of objects": (
        {"class_names": np.array([Owned()], object)},
        "cannot be loaded when allow_pickle=False",
    ),
    "images of two dimensions": ({"jpeg": np.zeros((2, 9), np.uint8)}, "jpeg must be uint8"),
}
NPZ_BYTES = {
    "no labels": ("labels", None, "no item named .labels.npy"),
    "a header that is no text": ("labels", array_bytes("((("), "damaged, or not"),
    "labels of terabytes": ("labels", array_bytes("(1099511627776,)"), "Unable to allocate|EOF"),
    "images of terabytes": (
        "jpeg",
        array_bytes("(1099511627776,)", "|u1"),
        "must be uint8 .0., not",
    ),
}


@pytest.mark.parametrize("name", NPZ_ARRAYS)
def test_npz_of_other_arrays(tmp_path, capsys, name):
    changes, problem = NPZ_ARRAYS[name]
    message = refuse(capsys, tmp_path, "npz", make_npz(tmp_path / "a.npz", **changes))
    check(message, "a.npz", problem)


@pytest.mark.parametrize("name", NPZ_BYTES)
def test_npz_of_damaged_arrays(tmp_path, capsys, name):
    key, data, problem = NPZ_BYTES[name]
    path = make_npz(tmp_path / "a.npz")
    replace_member(path, key, data)
    check(refuse(capsys, tmp_path, "npz", path), "a.npz", problem)


@pytest.mark.parametrize("key", ["labels", "jpeg"])
def test_npz_with_a_wrong_checksum(tmp_path, capsys, key):
    """In a stored (not deflated) pack a flipped byte of an array changes nothing but the CRC."""
    make_npz(tmp_path / "a.npz", labels=np.array([1, 1]))
    replace_member(tmp_path / "a.npz", "class_names", array_bytes("(2,)", "<i8", bytes(16)))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    start = data.index(f"{key}.npy".encode()) + len(f"{key}.npy") + 128
    data[start] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    check(refuse(capsys, tmp_path, "npz", tmp_path / "a.npz"), "a.npz", f"Bad CRC-32.*{key}")


@pytest.mark.parametrize("length", [0, 100, -100])
def test_npz_cut_short(tmp_path, capsys, length):
    path = make_npz(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:length])
    check(refuse(capsys, tmp_path, "npz", path), "a.npz", "damaged, or not an .npz pack")


# --- Parquet --------------------------------------------------------------------------------------

IMAGES = [{"bytes": photo(1), "path": None}, {"bytes": photo(2), "path": None}]
NAMED = ["cat", "dog"]
PARQUET = {
    "null labels": ([0, None], None, IMAGES, "record 1: column 'label' is null"),
    "text labels": (["a", "b"], None, IMAGES, "column 'label' holds string; needs integers"),
    "a negative label": ([0, -1], None, IMAGES, "record 1: label -1 has no class name"),
    "a label beyond the names": ([0, 2], NAMED, IMAGES, "record 1: label 2 has no class name"),
    "no rows": (pa.array([], pa.int64()), None, pa.array([], pa.binary()), "no images found"),
    "text for images": ([0, 1], None, ["a", "b"], "column 'image' holds string"),
    "paths for images": ([0], None, [{"path": "a.jpg"}], "column 'image' holds struct"),
    "a null image": ([0, 1], None, [IMAGES[0], None], "record 1: the image is not stored"),
}


@pytest.mark.parametrize("name", PARQUET)
def test_parquet_of_other_columns(tmp_path, capsys, name):
    labels, names, images, problem = PARQUET[name]
    path = make_parquet(tmp_path / "a.parquet", labels, names, images)
    message = refuse(capsys, tmp_path, "parquet", path)
    check(message, "train" if name == "no rows" else "a.parquet", problem)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "text"])
def test_parquet_that_is_damaged(tmp_path, capsys, damage):
    path = tmp_path / "a.parquet"
    table = pa.table({"image": IMAGES, "label": [0, 1]})
    pq.write_table(table, path, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index(photo(1)) + 50] ^= 0x55
    content = {"flipped": data, "cut": data[:-50], "empty": b"", "text": b"label,image\n" * 20}
    path.write_bytes(content[damage])
    message = refuse(capsys, tmp_path, "parquet", path)
    check(message, "a.parquet", "damaged, or not a parquet file")


@pytest.mark.parametrize("names", ["cat", 7, None])
def test_parquet_with_a_description_that_names_no_classes(tmp_path, capsys, names):
    table = pa.table({"image": IMAGES, "label": [0, 2_000_000]})
    described = {"info": {"features": {"label": {"names": names}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(described)})
    pq.write_table(table, tmp_path / "a.parquet")
    message = refuse(capsys, tmp_path, "parquet", tmp_path / "a.parquet")
    check(message, "a.parquet", "record 1: label 2000000 has no class name")


# --- CIFAR-10, labels files, tar archives, image folders ------------------------------------------

CIFAR = {
    "a cut file": ({"data_batch_1.bin": cifar_record(1)[:-7]}, "data_batch_1.bin: .*cut short"),
    "a label too high": (
        {"test_batch.bin": cifar_record(0) + cifar_record(10)},
        "test_batch.bin record 1: label 10 has no class name",
    ),
    "names that are no UTF-8": (
        {"batches.meta.txt": b"cat\n\xff\xfe"},
        "batches.meta.txt: not UTF",
    ),
    "too few names": ({"batches.meta.txt": b"cat\ndog\n"}, "record 0: label 3 has no class name"),
}


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_archives_of_other_files(tmp_path, capsys, name):
    changes, problem = CIFAR[name]
    path = make_cifar(tmp_path / "c.tar.gz", changes)
    check(refuse(capsys, tmp_path, "cifar10_binary", path), "c.tar.gz", problem)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_cut_cifar_archive(tmp_path, capsys, mode, share):
    path = make_cifar(tmp_path / "c.tar", mode=mode)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    message = refuse(capsys, tmp_path, "cifar10_binary", path)
    check(message, "c.tar", r"damaged at byte [\d,]+ .*")


LABEL_FILES: dict[str, tuple[bytes, str]] = {
    "not UTF-8": (b"a.jpg cat\nb.jpg dog\xff\n", "labels.txt line 2: not UTF-8"),
    "UTF-16": ("a.jpg cat\n".encode("utf-16"), "labels.txt line 1: not UTF-8"),
    "one word": (b"a.jpg cat\nb.jpg\n", "labels.txt line 2: expected 'image-file-name class'"),
}


@pytest.mark.parametrize("name", LABEL_FILES)
def test_bad_labels_files(tmp_path, capsys, name):
    content, problem = LABEL_FILES[name]
    make_tar(tmp_path / "a.tar", {"a.jpg": photo(1)})
    (tmp_path / "labels.txt").write_bytes(content)
    options = ["--labels", tmp_path / "labels.txt"]
    message = refuse(capsys, tmp_path, "tar", tmp_path / "a.tar", *options)
    check(message, "labels.txt", problem)


def xz_with(tmp_path: Path, change: Callable[[bytearray], object]) -> bytes:
    data = bytearray(lzma.compress(make_tar(tmp_path / "x", {"cat/1.jpg": photo(1)}).read_bytes()))
    change(data)
    return bytes(data)


TARS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "empty": (lambda _: b"", "damaged at byte 0 "),
    "text": (lambda _: b"not an archive\n" * 100, "damaged at byte 0 .*, or no tar archive"),
    "xz with a flipped byte": (
        lambda tmp: xz_with(tmp, lambda data: data.__setitem__(60, data[60] ^ 1)),
        "damaged at byte .*(C|c)orrupt",
    ),
    "xz with a damaged index": (
        lambda tmp: xz_with(tmp, lambda data: data.__setitem__(-14, data[-14] ^ 1)),
        "damaged at byte .*(C|c)orrupt",
    ),
    "a zip": (lambda _: zip_bytes(), "damaged at byte 0 .*, or no tar archive"),
}


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("cat/1.jpg", bytes(1000))
    return buffer.getvalue()


@pytest.mark.parametrize("name", TARS)
def test_files_that_are_no_whole_tar(tmp_path, capsys, name):
    make, problem = TARS[name]
    path = tmp_path / "a.tar"
    path.write_bytes(make(tmp_path))
    check(refuse(capsys, tmp_path, "tar", path), "a.tar", problem)


def test_an_image_folder_with_a_link_to_nothing(tmp_path, capsys):
    (tmp_path / "in/train/cat").mkdir(parents=True)
    (tmp_path / "in/train/cat/x.jpg").symlink_to("gone.jpg")
    message = refuse(capsys, tmp_path, "image_folder", tmp_path / "in")
    check(message, "train/cat/x.jpg", "link to a file that is not there")
