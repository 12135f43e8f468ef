"""Readers of CIFAR's official archives: CIFAR-10's binary one, and CIFAR-10 and -100 for Python.

Raw pixels become PNG, which is lossless. The archives for Python are pickles, which could run code.
`unpickled` makes numbers, texts, bytes, lists and dicts of them. The functions that make NumPy's
arrays are all that a pickle may name, and they are not called: `_Call` keeps their arguments, of
which `_pixels` makes an array of bytes. So no array of objects is made either.
"""

import io
import operator
import os
import pickle
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widenet_jax.config.parser import Options
from widenet_jax.data.input_files import read_input
from widenet_jax.errors import refuse, refusing
from widenet_jax.vision.prepare.archives import read_archive
from widenet_jax.vision.prepare.arrays import png
from widenet_jax.vision.prepare.packing import Converted, Images, check_labels, joined

PIXEL_BYTES = 3 * 32 * 32
RECORD_BYTES = 1 + PIXEL_BYTES
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
BINARY_TRAIN, BINARY_TEST = tuple(f"{name}.bin" for name in TRAIN), "test_batch.bin"
BINARY_NAMES, BINARY_CLASSES = "batches.meta.txt", 10
# The file of class names -> the files of training and of test, and their key of the labels.
PYTHON = {"batches.meta": (TRAIN, "test_batch", "labels")}
PYTHON |= {"meta": (("train",), "test", "fine_labels")}
NUMPY = ("numpy.ndarray", "numpy.dtype")
NUMPY += ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
AGAIN = "; download it again"


def read_binary(options: Options) -> Converted:
    """Reads cifar-10-binary.tar.gz, or its folder: 50,000 training and 10,000 test images of 32x32.

    A record is a label byte, then the red, green and blue planes.

    Raises:
      BadInputError: the archive is damaged, or is another one.
    """
    place = options.input
    files = _files_of(place, {*BINARY_TRAIN, BINARY_TEST, BINARY_NAMES})
    with refusing(f"{place}:{BINARY_NAMES}: not UTF-8 text", UnicodeDecodeError):
        names = tuple(files.get(BINARY_NAMES, ("", b""))[1].decode().split())
    names = names or tuple(map(str, range(BINARY_CLASSES)))

    def read(name: str) -> Images:
        where, data = files[name]
        record = f"{len(data):,} bytes, not a multiple of {RECORD_BYTES:,}: it is cut short"
        refuse(where, (len(data) % RECORD_BYTES or not data, record + AGAIN))
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD_BYTES)
        return _images(records[:, 0], records[:, 1:], names, where)

    return _joined(place, files, BINARY_TRAIN, BINARY_TEST, read)


def read_python(options: Options) -> Converted:
    """Reads cifar-10-python.tar.gz or cifar-100-python.tar.gz (its fine labels), or their folder.

    Raises:
      BadInputError: the archive is damaged, or is another one, or a pickle would call a function.
    """
    place = options.input
    wanted = {*PYTHON}.union(*((*train, test) for train, test, _ in PYTHON.values()))
    files = _files_of(place, wanted)
    found = {name: (where, unpickled(data, where)) for name, (where, data) in files.items()}
    known = [name for name in PYTHON if name in found]
    lacking = "download cifar-10-python.tar.gz or cifar-100-python.tar.gz"
    refuse(place, (len(known) != 1, f"holds no batches.meta (CIFAR-10) or meta; {lacking}"))
    train, test, key = PYTHON[known[0]]
    where, meta = found[known[0]]
    with refusing(f"{where}: no names of classes", KeyError, TypeError, ValueError, advice=AGAIN):
        names = tuple(map(_text, meta[f"{key[:-1]}_names"]))

    def read(name: str) -> Images:
        where, batch = found[name]
        with refusing(f"{where}: no images and labels", Exception, advice=AGAIN):
            labels = np.array([*map(operator.index, batch[key])])
            pixels = _pixels(batch["data"])
            if labels.dtype.kind not in "iu" or labels.shape != (len(pixels),):
                raise ValueError(f"{len(pixels):,} images, {labels.dtype} {[*labels.shape]} labels")
        return _images(labels, pixels, names, where)

    return _joined(place, found, train, test, read)


def _files_of(place: str, wanted: Collection[str]) -> dict[str, tuple[str, bytes]]:
    """Returns place and content of the wanted files of an archive or a folder, by name.

    Raises:
      BadInputError: as `read_archive`; or a file is there twice.
    """
    paths = [os.path.join(place, name) for name in sorted(wanted)]
    found = {os.path.basename(p): (p, read_input(p)) for p in paths if os.path.exists(p)}
    for member in [] if os.path.isdir(place) else read_archive(place):
        if (name := Path(member.name).name) in wanted:
            refuse(member.where, (name in found, f"a second {name}; remove one from the archive"))
            found[name] = member.where, member.read()
    return found


def _joined(place: str, files: Any, train: Sequence[str], test: str, read: Any) -> Converted:
    """Returns the set of which `read` opens each of the files; raises BadInputError without any."""
    there = [name for name in train if name in files]
    lacking = f"holds no {train[0]} or no {test}; download it again (for Python's: cifar_python)"
    refuse(place, (not there or test not in files, lacking))
    return joined({"train": there, "test": [test]}, read)


def _images(labels: np.ndarray, pixels: np.ndarray, names: tuple[str, ...], where: str) -> Images:
    """Returns the images of integer labels [n] and uint8 [n, 3 * 32 * 32], red first."""
    check_labels(labels, where, len(names))
    found, images = labels.tolist(), pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Images(names, {*found}, len(found), lambda: zip(found, map(png, images), strict=True))


# --- Pickles --------------------------------------------------------------------------------------


class _Call:
    """A call of NumPy that a pickle asks for, and that is not made.

    Attributes:
      arguments: of the call.
      state: what the pickle would give to its result.
    """

    def __init__(self, *arguments: Any):
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _with_keys(code: bytes, keys: slice) -> Callable[[Any], None]:
    """Returns the work of an operation of a pickle, which refuses keys other than texts.

    `keys` are the places on the stack of the objects that it hashes.
    """
    load = pickle._Unpickler.dispatch[code[0]]

    def checked(unpickler: Any) -> None:
        for key in unpickler.stack[keys]:
            if not isinstance(key, bytes | str):
                raise pickle.UnpicklingError(f"{type(key).__name__} as a key")
        load(unpickler)

    return checked


class _Unpickler(pickle._Unpickler):
    """Python's unpickler, whose keys are checked: hashing nested tuples may crash, or never end."""

    def _load_bytearray(self) -> None:
        raise pickle.UnpicklingError("a bytearray, which takes memory before it is read")

    dispatch = pickle._Unpickler.dispatch | {pickle.BYTEARRAY8[0]: _load_bytearray}
    dispatch |= {
        code[0]: _with_keys(code, keys)
        for code, keys in (
            (pickle.SETITEM, slice(-2, -1)),
            (pickle.SETITEMS, slice(None, None, 2)),
            (pickle.DICT, slice(None, None, 2)),
            (pickle.ADDITEMS, slice(None)),
            (pickle.FROZENSET, slice(None)),
        )
    }

    def find_class(self, module: str, name: str) -> type[_Call]:
        if (found := f"{module}.{name}") not in NUMPY:
            raise pickle.UnpicklingError(f"it names {found!r}, which could run code; nothing ran")
        return _Call


def unpickled(data: bytes, where: str) -> dict[str, Any]:
    """Returns the dict in a pickle; arrays in it are `_Call`s.

    Raises:
      BadInputError: it is no such pickle, or names another function or class than those of NUMPY.
    """
    with refusing(f"{where}: no pickle of arrays and labels", Exception, advice=AGAIN):
        found = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        return {_text(key): value for key, value in found.items()}


def _text(name: Any) -> str:
    """Returns a text, which Python 2 pickled as bytes; raises TypeError for another object.

    A list that holds another list twice, and so on, would take for ever to print.
    """
    if not isinstance(name, bytes | str):
        raise TypeError(f"{type(name).__name__} in place of a text")
    return name if isinstance(name, str) else name.decode()


def _pixels(call: _Call) -> np.ndarray:
    """Returns the array uint8 [n, 3 * 32 * 32] that a pickle describes."""
    _, shape, dtype, by_column, content = call.state
    shape = tuple(map(operator.index, shape))
    if (kind := _text(dtype.arguments[0])) != "u1" or by_column or shape[1:] != (PIXEL_BYTES,):
        raise ValueError(f"data is an array of {kind} {[*shape]}, not of u1 [n, {PIXEL_BYTES:,}]")
    return np.frombuffer(content, np.uint8).reshape(shape)
