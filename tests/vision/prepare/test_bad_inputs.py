"""Malformed inputs: exit code 2, one line that names file and place, and no output files.

A case is a file that `make` writes into a new folder, or its content, or whole arguments.
"""

import bz2
import gzip
import lzma
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import preparing
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import cifar_record, make_tar, photo, refused, run, write

Make = Callable[[Path], Path | bytes | list]


# --- npz ------------------------------------------------------------------------------------------


def other_classes(folder: Path) -> list:
    preparing.make_npz(folder / "a.npz")
    preparing.make_npz(folder / "b.npz", class_names=np.array(["odd", "even"]))
    return [f"--split=train={folder}/a.npz,{folder}/b.npz"]


class Owned:
    """Object that would run code when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def arrays(**changes: np.ndarray) -> Make:
    return lambda folder: preparing.make_npz(folder / "a.npz", **changes)


def saved(**arrays: object) -> Make:
    def make(folder: Path) -> Path:
        np.savez(folder / "a.npz", **arrays)
        return folder / "a.npz"

    return make


def with_member(key: str, data: bytes) -> Make:
    """Makes a pack, not deflated, in which one array is replaced by bytes."""

    def make(folder: Path) -> Path:
        with zipfile.ZipFile(
            preparing.make_npz(folder / "whole.npz", labels=np.array([1, 1]))
        ) as pack:
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
        return bytes(data)

    return make


GREY = np.zeros((2, 4, 4), np.uint8)
TERABYTES = "(1099511627776,)"
ONE, FOUR = np.array([1, 1]), np.zeros((2, 4, 4, 4), np.uint8)
NPZ = [
    (arrays(labels=np.array([0.0, 1.0])), "labels must be integers"),
    (arrays(labels=np.array(["a", "b"])), ": labels must be integers .n., not <U1"),
    (arrays(labels=np.array([0, -1])), "record 1: label -1 has no class name"),
    (arrays(labels=np.array([7, 0])), "record 0: label 7 has no class name"),
    (arrays(offsets=np.array([0, 5, 1 << 40])), "offsets do not fit"),
    (arrays(class_names=np.array(["even", ""])), "class 1 .''. needs a name"),
    (arrays(class_names=np.array(["a", "\ud83d"])), "class 1 .* needs a name, in whole characters"),
    (arrays(class_names=np.array(["a", "a"])), "class 1 .* has the name of class 0"),
    (arrays(class_names=np.array([Owned()], object)), "allow_pickle=False"),
    (arrays(jpeg=np.zeros((2, 9), np.uint8)), "jpeg must be uint8"),
    (with_member("labels", array_bytes(TERABYTES)), "Unable to alloc|EOF"),
    (with_member("jpeg", array_bytes(TERABYTES, "|u1")), "must be uint8 .0., not"),
    (flipped("labels"), "Bad CRC-32.*labels"),
    (flipped("jpeg"), "Bad CRC-32.*jpeg"),
    (saved(x_train=GREY, y_train=ONE), "holds x_train, y_train, no class_names; give images and l"),
    (saved(images=GREY / 1, labels=ONE), "images is float64 .2, 4, 4.; give uint8"),
    (saved(images=FOUR, labels=ONE), "images is uint8 .2, 4, 4, 4.; give uint8 .n, H, W.,"),
    (saved(images=GREY, labels=[0]), "2 images and 1 labels"),
    (saved(images=GREY, labels=[0, -1]), "record 1: label -1 has no class name"),
    (lambda folder: arrays()(folder).read_bytes()[:-100], "damaged, or not an .npz pack"),
    (other_classes, "b.npz have different classes .in another order"),
    (lambda _: ["--split=train"], "--split train: expected NAME=FILE"),
    (lambda _: ["--split==a.npz"], "--split =a.npz: expected NAME=FILE"),
    (lambda _: ["--split=train=nowhere.npz"], "nowhere.npz: no file nowhere.npz"),
]


# --- Parquet --------------------------------------------------------------------------------------

IMAGES = [{"bytes": photo(1), "path": None}, {"bytes": photo(2), "path": None}]
NO_ROWS = pa.array([], pa.int64()), None, pa.array([], pa.binary())


def table(labels: object, names: object = None, images: object = IMAGES) -> Make:
    return lambda folder: preparing.make_parquet(folder / "a.parquet", labels, names, images)


def images_in(*columns: str) -> Make:
    return lambda folder: preparing.make_parquet(
        folder / "a.parquet", [0, 1], None, IMAGES, columns
    )


def damaged(change: Callable[[bytes], bytes]) -> Make:
    def make(folder: Path) -> bytes:
        rows = pa.table({"image": IMAGES, "label": [0, 1]})
        pq.write_table(rows, folder / "a", write_page_checksum=True, compression="none")
        return change((folder / "a").read_bytes())

    return make


PARQUET = [
    (table([0, None]), "record 1: column 'label' is null"),
    (table([0, -1]), "record 1: label -1 has no class name"),
    (table([0, 2], ["cat", "dog"]), "record 1: label 2 has no class"),
    (table(pa.array([], pa.int64()), None, pa.array([], pa.binary())), "no images found"),
    (table([0], None, [{"path": "a.jpg"}]), "column 'image' holds struct.*; needs images as bytes"),
    (images_in("img", "image"), "needs one column 'image' or 'img'; there are img, image, label"),
    (images_in("picture"), "needs one column 'image' or 'img'; there are picture, label .choose"),
    (table([0.5, 1]), "column 'label' holds double; needs integers or text"),
    (table([0, 1], None, [IMAGES[0], None]), "record 1: the image is not stored"),
    (damaged(lambda data: data.replace(photo(1)[-9:], bytes(9), 1)), "damaged, or not a parquet f"),
    (damaged(lambda data: data[:-50]), "damaged, or not a parquet file"),
]


# --- CIFAR-10 and tar archives --------------------------------------------------------------------


def cifar(name: str, content: bytes) -> Make:
    return lambda folder: preparing.make_cifar(folder / "c.tar.gz", {name: content})


# Incompressible content, so that an offset in a compressed file is about that in the archive.
MEMBERS = {f"cat/{i:03d}.jpg": np.random.default_rng(0).bytes(2000) for i in range(40)}
MEMBER = 512 + 2048  # bytes of the header and the padded content
END = len(MEMBERS) * MEMBER
COMPRESS = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def tar(change: Callable[[bytes], bytes]) -> Make:
    return lambda folder: change(make_tar(folder / "whole.tar", MEMBERS).read_bytes())


def inner(change: Callable[[bytes], bytes]) -> Make:
    def make(folder: Path) -> bytes:
        good = make_tar(folder / "g.tar", {"n01_1.jpg": photo(1)}).read_bytes()
        bad = tar(change)(folder)
        return make_tar(folder / "o.tar", {"n01.tar": good, "n02.tar": bad}).read_bytes()

    return make


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def compressed(kind: str, cut: int) -> Make:
    return tar(lambda data: COMPRESS[kind](data.rstrip(b"\0"))[:-cut])


def member(kind: bytes) -> Make:
    """Makes an archive of a member without content."""

    def make(folder: Path) -> Path:
        with tarfile.open(folder / "x.tar", "w") as archive:
            info = tarfile.TarInfo("cat/x.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        return folder / "x.tar"

    return make


def labels(content: bytes, name: str = "a.jpg") -> Make:
    def make(folder: Path) -> list:
        path = make_tar(folder / "a.tar", {name: photo(1)})
        return [f"--split=train={path}", f"--labels={write(folder / 'labels.txt', content)}"]

    return make


PYTHON = {"cifar-10-batches-py/data_batch_1": b"\x80\x02"}
HELD = preparing.cifar_python(np.zeros((4, 32, 32, 3), np.uint8), [0, 1, 1, 0], ["ant", "bee"])
BATCH = HELD["data_batch_1"]


def cifar_python(**contents: object) -> Make:
    """Makes an archive in which some files hold other values, or their bytes; None: no file."""

    def make(folder: Path) -> Path:
        values = {name.replace("0", "."): value for name, value in contents.items()}
        held = {name: value for name, value in (HELD | values).items() if value is not None}
        files = {
            f"c/{name}": value if isinstance(value, bytes) else preparing.pickled(value)
            for name, value in held.items()
        }
        return make_tar(folder / "c.tar.gz", files, "w:gz")

    return make


def batch(**fields: object) -> Make:
    return cifar_python(data_batch_1=BATCH | {key.encode(): v for key, v in fields.items()})


OBJECTS = pickle.dumps({b"data": np.array([[1, "a"]], object), b"labels": [0]}, protocol=4)
FLOATS, ROWS, META = BATCH[b"data"] * 1.0, BATCH[b"data"], {b"label_names": [b"ant"]}
LONGER = preparing.pickled(BATCH).replace(b"(J\x02\0\0\0J\0\x0c", b"(J\x03\0\0\0J\0\x0c")
NESTED = preparing.pickled(BATCH).replace(b"(J\x02\0\0\0J\0\x0c\0\0t", b"(J\x02\0\0\0))\x86t")
PICKLES = [
    (cifar_python(data_batch_1=OBJECTS), "data_batch_1: no images.*data is an array of O8 .1, 2.,"),
    (
        batch(data=FLOATS),
        "data is an array of f8 .2, 3072., not of u1 .n, 3,072.*download it again",
    ),
    (batch(data=ROWS[:, :9].copy()), r"data is an array of u1 .2, 9., not of u1"),
    (batch(data=[1, 2]), "data_batch_1: no images and labels"),
    (cifar_python(data_batch_1=LONGER), "data_batch_1: no images and labels .cannot reshape"),
    (batch(labels=[0, 1, 1]), "data_batch_1: no images and labels .2 images, int64 .3. labels"),
    (batch(labels=[0, b"x"]), "data_batch_1: no images and labels .'bytes' object cannot be int"),
    (batch(labels=[0, [1, 1]]), "data_batch_1: no images and labels .'list' object cannot be int"),
    # Objects that hold another twice, and so on, take for ever to print, and as keys to hash.
    (cifar_python(data_batch_1=NESTED), "data_batch_1: no images.*'tuple' object cannot be interp"),
    (cifar_python(batches0meta={b"label_names": [[[]], b"ant"]}), "names .* .list in place of a t"),
    (
        cifar_python(test_batch=b"\x80\x02})2\x86K\x01s."),
        "test_batch: no pickle .* .tuple as a key",
    ),
    (
        cifar_python(test_batch=b"\x80\x05\x96\1\0\0\0\0\0\0\0x."),
        "test_batch: no pickle .* .a bytearray",
    ),
    (cifar_python(test_batch={(b"data",): ROWS}), "test_batch: no pickle .* .tuple as a key"),
    (cifar_python(test_batch=b"\x80\x04()\x91."), "test_batch: no pickle .* .tuple as a key"),
    (batch(labels=[0, -1]), "data_batch_1 record 1: label -1 has no class name"),
    (batch(labels=[0, 7]), "data_batch_1 record 1: label 7 has no class name"),
    (cifar_python(test_batch={b"data": ROWS}), "test_batch: no images and labels .'labels'"),
    (cifar_python(test_batch=[ROWS]), "test_batch: no pickle of arrays and labels"),
    (
        cifar_python(test_batch=b"\x80\x02]r\xff\xff\xff\x7f."),
        "test_batch: no pickle of arrays and labels .'list' object",
    ),
    (cifar_python(test_batch=preparing.pickled(BATCH)[:-900]), "test_batch: no pickle of arrays"),
    (cifar_python(test_batch=b"<html>"), "test_batch: no pickle of arrays and labels"),
    (cifar_python(test_batch=b""), "test_batch: no pickle of arrays and labels"),
    (cifar_python(test_batch=None), "holds no data_batch_1 or no test_batch; download it"),
    (cifar_python(data_batch_1=None), "holds no data_batch_1 or no test_batch"),
    (
        cifar_python(batches0meta=None),
        "holds no batches.meta .CIFAR-10. or meta; download cifar-10",
    ),
    (cifar_python(meta=META), "holds no batches.meta .CIFAR-10. or meta; download cifar-10-python"),
    (cifar_python(batches0meta={b"names": []}), "batches.meta: no names of classes"),
    (cifar_python(batches0meta={b"label_names": 3}), "batches.meta: no names of classes"),
    (cifar_python(batches0meta=META), "data_batch_1 record 1: label 1 has no class name"),
    (cifar_python(**{"copy/test_batch": BATCH}), ": a second test_batch; remove one"),
    (cifar("x", b""), "holds no batches.meta"),
]


class Creates:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("file", ["data_batch_1", "batches.meta"])
def test_a_pickle_that_calls_is_refused_and_calls_nothing(tmp_path, capsys, file, protocol):
    """Also in an array of objects, in a key, and from a list of what NumPy might call."""
    evil, trace = Creates(tmp_path / "trace"), tmp_path / "trace"
    values = [evil, [evil], {evil: 1}, np.array([evil], object), HELD[file] | {b"labels": [evil]}]
    contents = [pickle.dumps(value, protocol) for value in values]
    names = ("numpy\nload", "numpy.core.multiarray\nscalar", "posix\nsystem", "numpy.core\nnumeric")
    contents += [b"c%s\n(S'x'\ntR." % name.encode() for name in names]
    contents += [b"(S'x'\niposix\nsystem\n.", b"(cposix\nsystem\nS'x'\no."]
    for content in contents:
        held = {name: content if name == file else preparing.pickled(v) for name, v in HELD.items()}
        archive = make_tar(tmp_path / "cifar-10-python.tar", {f"c/{k}": v for k, v in held.items()})
        for command in (["cifar_python", "--input"], ["check"]):
            out = ["--out", tmp_path / "out"] * (command[0] != "check")
            line = refused(capsys, *command, archive, *out)
            assert f"{archive}:c/{file}: no pickle of arrays and labels (it names '" in line
            assert "which could run code; nothing ran" in line and not trace.exists()
    pickle.loads(contents[0])
    assert trace.exists() and not (tmp_path / "out").exists()


CIFAR = [
    (cifar("data_batch_1.bin", cifar_record(1)[:-7]), "batch_1.bin: .*cut short"),
    (cifar("test_batch.bin", cifar_record(10)), "record 0: label 10 has no class"),
    (cifar("batches.meta.txt", b"cat\ndog\n"), "record 0: label 3 has no class"),
    (cifar("batches.meta.txt", b"\xff"), "batches.meta.txt: not UTF-8 text"),
    (cifar("copy/test_batch.bin", cifar_record(4)), ": a second test_batch.bin;"),
    (
        lambda folder: make_tar(folder / "c", PYTHON, "w:gz"),
        "no test_batch.bin; .* .for Python's: cifar_python",
    ),
]
HEADER, IN_A_FILE = "n02.tar: damaged at byte 2,560 ", "n02.tar:cat/001.jpg: damaged"
UNLISTED = "V_1.JPEG: lies in no class folder and --labels does not list it"
LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
TARS = [
    (lambda _: b"not an archive\n" * 100, "damaged at byte 0 .*, or no tar archive"),
    (lambda folder: arrays()(folder).read_bytes(), "a zip archive; unpack it first"),
    (tar(lambda data: flip(60)(lzma.compress(data))), "damaged at byte .*(C|c)orrupt"),
    (tar(lambda data: flip(-14)(lzma.compress(data))), "damaged at byte .*(C|c)orrupt"),
    (lambda folder: make_tar(folder / "v.tar", {"V_1.JPEG": photo(1)}), UNLISTED),
    (
        lambda folder: make_tar(folder / "c", PYTHON, "w:gz"),
        "data_batch_1: the commands webdataset, cifar_python read",
    ),
    (tar(flip(3)), "damaged at byte 0 "),
    (tar(flip(END - MEMBER + 3)), f"damaged at byte {END - MEMBER:,} "),
    (tar(lambda data: data[:512]), "damaged at byte .*unexpected end"),  # after a header
    (tar(lambda data: data[: 15 * MEMBER]), "damaged at byte 38,400 "),  # between members
    (tar(lambda data: data[:END]), f"damaged at byte {END:,} "),
    (tar(lambda data: data[: END + 512]), "only one of the two end-of-archive blocks"),
    (tar(lambda data: data * 2), "data follow the end-of-archive blocks"),
    (lambda _: bytes(10_240), "no images found"),  # an end alone
    *((compressed(kind, cut), "damaged at byte ") for kind in COMPRESS for cut in (1, 9, 40_000)),
    (inner(lambda data: data[: MEMBER + 1000]), IN_A_FILE),
    (inner(lambda data: data[:MEMBER]), HEADER),
    (inner(flip(MEMBER)), HEADER),
    (member(tarfile.GNUTYPE_SPARSE), "cat/x.jpg: a sparse file; remove it from the archive"),
    *((member(kind), "cat/x.jpg: a link or device; remove it from") for kind in LINKS),
    (labels(b"a.jpg cat\nb.jpg dog\xff\n"), "labels.txt line 2: not UTF-8"),
    (labels(b"a.jpg cat\nb.jpg\n"), "labels.txt line 2: expected 'image-file-name class'"),
    (
        labels(b"a.jpg cat\na.jpg dog\n"),
        "labels.txt line 2: a.jpg is of class 'cat' above; give it",
    ),
    (
        labels(b"b.jpg cat\n", "val/a.jpg"),
        "val/a.jpg: --labels has neither a.jpg nor a class 'val'",
    ),
    (labels(b"\n", "val/a.jpg"), "val/a.jpg: --labels has neither a.jpg nor a class 'val'"),
]


def samples(*names: str, text: bytes = b"1", missing: str = "") -> Make:
    """Makes shards a-0.tar to a-2.tar of files; those of a label hold `text`."""

    def make(folder: Path) -> list:
        for shard in range(3):
            files = {
                name: text if name[-3:].lower() in ("cls", "son", "txt") else photo(1)
                for name in names
            }
            make_tar(
                folder / f"a-{shard}.tar",
                files if shard == 1 else {"x.jpg": photo(1), "x.cls": b"0"},
            )
        return [f"--split=train={folder}/a-{{{missing or '0..2'}}}.tar"]

    return make


ANY = "needs a number from 0 to 999,999 or the name of a class"
WEBDATASETS = [
    (
        samples("s/1.jpg", "s/1.png", "s/1.cls"),
        "a-1.tar:s/1.png: a second image of s/1; remove one",
    ),
    (samples("s/1.jpg", "s/1.cls", "s/1.CLS"), "a-1.tar:s/1.CLS: a second .cls of s/1; remove one"),
    (
        samples("1.jpg", "2.jpg", "1.cls", "2.cls"),
        "1.jpg: has no label: no .cls, .json, .txt of its",
    ),
    (samples("1.cls", "2.jpg", "2.cls"), "a-1.tar:1.cls: no image of this name .*.webp"),
    (samples("1.avif", "1.cls"), "a-1.tar:1.cls: no image of this name"),
    (samples("1.jpg", "1.cls", text=b"cat"), "a-1.tar:1.cls: no label .invalid literal for int"),
    (samples("1.jpg", "1.cls", text=b""), "a-1.tar:1.cls: no label .invalid literal for int"),
    (samples("1.jpg", "1.cls", text=b"1.5"), "a-1.tar:1.cls: no label .invalid literal for int"),
    (samples("1.jpg", "1.cls", text=b"-1"), f"a-1.tar:1.cls: label -1; {ANY}"),
    (samples("1.jpg", "1.cls", text=b"4000000000"), f"a-1.tar:1.cls: label 4000000000; {ANY}"),
    (samples("1.jpg", "1.cls", text=b"\xff"), "a-1.tar:1.cls: not UTF-8 text"),
    (samples("1.jpg", "1.json", text=b"{"), "a-1.tar:1.json: no label .Expecting property name"),
    (samples("1.jpg", "1.json", text=b'{"caption": "x"}'), "a-1.tar:1.json: no label .'label'"),
    (samples("1.jpg", "1.json", text=b"[1]"), "a-1.tar:1.json: no label .list indices"),
    (samples("1.jpg", "1.json", text=b'{"label": 1.5}'), f"a-1.tar:1.json: label 1.5; {ANY}"),
    (samples("1.jpg", "1.json", text=b'{"label": true}'), f"a-1.tar:1.json: label True; {ANY}"),
    (samples("1.jpg", "1.json", text=b'{"label": ""}'), f"a-1.tar:1.json: label ''; {ANY}"),
    (samples("1.jpg", "1.txt", text=b""), f"a-1.tar:1.txt: label ''; {ANY}"),
    (samples("1.jpg", "1.txt", text=b"a\nb"), f"a-1.tar:1.txt: label 'a.*b'; {ANY}"),
    (
        samples("1.jpg", "1.txt", text=b"cat"),
        "labels are text in some files and integers in others",
    ),
    (samples("1.jpg", "1.cls", missing="0..3"), "no file .*/a-3.tar"),
    (samples("1.jpg", "1.cls", missing="4..2"), "no file .*/a-4.tar"),
    (tar(lambda data: data[: END - 900]), "bad file: damaged at byte|has no label"),
    (lambda folder: make_tar(folder / "v.tar", {"README": b"x"}), "no images found"),
]
CASES = {"npz": NPZ, "parquet": PARQUET, "cifar10_binary": CIFAR, "tar": TARS}
CASES |= {"cifar_python": PICKLES, "webdataset": WEBDATASETS}
ROWS = [(command, *case) for command, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("command", "make", "problem"), ROWS)
def test_a_bad_input_is_refused(tmp_path, capsys, command, make, problem):
    (tmp_path / "input").mkdir()
    made, out = make(tmp_path / "input"), tmp_path / "new" / "out"
    path = write(tmp_path / "bad file", made) if isinstance(made, bytes) else made
    place = f"--input={path}" if "cifar" in command else f"--split=train={path}"
    given = made if isinstance(made, list) else [place]
    message = refused(capsys, command, *given, "--out", out)
    assert re.search(problem, message), message
    assert given is made or path.name in message or "no images found" in problem
    assert not out.parent.exists()


def test_an_image_folder_with_a_link_to_nothing(tmp_path, capsys):
    (tmp_path / "in/train/cat").mkdir(parents=True)
    (tmp_path / "in/train/cat/x.jpg").symlink_to("gone.jpg")
    packing = ["image_folder", "--input", tmp_path / "in", "--out", tmp_path / "out"]
    message = refused(capsys, *packing)
    assert "train/cat/x.jpg: link to a file that is not there" in message
    write(tmp_path / "in/train/cat/y.jpg", photo(1))
    assert run(*packing, "--skip_bad") == 0
