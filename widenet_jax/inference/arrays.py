"""Flat files of named arrays: `.npz`, `.safetensors` and, read only, PyTorch's `.bin`.

Pickled objects are refused, because they can run code.
"""

import io
import pickle
import zipfile
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from widenet_jax.errors import BadInputError, first_line, require
from widenet_jax.files import write_bytes

# safetensors' names of the types that weights have.
FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
TYPES = {**FLOATS, "I64": np.int64}  # PyTorch's buffers, such as position_ids, are I64
NOT_READABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError)


def read_arrays(path: epath.Path) -> dict[str, np.ndarray]:
    """Reads every array of a file, by name; floating-point numbers of any width become float32.

    Raises:
      BadInputError: the file is missing, damaged, or contains Python objects; or a `.bin` cannot be
        read because PyTorch is not installed.
    """
    read = READERS[path.suffix]
    try:
        return {name: as_float32(array) for name, array in read(path.read_bytes()).items()}
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from None
    except NOT_READABLE as error:
        reason = " ".join(str(error).split())
        raise BadInputError(
            f"{path}: cannot be read as {path.suffix[1:]} ({reason}); download or export it again"
        ) from None


def read_npz(data: bytes) -> dict[str, np.ndarray]:
    """Reads the bytes of a `.npz` file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Reads the bytes of a `.safetensors` file, bfloat16 too, which `safetensors.numpy` refuses."""
    arrays = {}
    for name, tensor in safetensors.deserialize(data):
        if tensor["dtype"] not in TYPES:
            known = ", ".join(FLOATS)
            raise BadInputError(f"{name} has type {tensor['dtype']}; weights have {known}")
        data_type = TYPES[tensor["dtype"]]
        arrays[name] = np.frombuffer(tensor["data"], data_type).reshape(tensor["shape"])
    return arrays


def read_torch(data: bytes) -> dict[str, np.ndarray]:
    """Reads the bytes of a `pytorch_model.bin`; floating-point numbers become float32.

    PyTorch's reader refuses everything but tensors (`weights_only`).
    """
    torch = require("torch", extra="huggingface", what="a .bin file (a .safetensors does not)")
    try:
        tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise ValueError(first_line(error)) from None
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        for name, tensor in tensors.items()
    }


READERS = {".npz": read_npz, ".safetensors": read_safetensors, ".bin": read_torch}


def as_float32(array: np.ndarray) -> np.ndarray:
    """Converts floating-point arrays; big_vision's `.npz` files have bfloat16 as untyped `V2`."""
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    is_float = array.dtype == ml_dtypes.bfloat16 or array.dtype.kind == "f"
    return array.astype(np.float32) if is_float else array


def write_arrays(path: epath.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a `.npz` or `.safetensors` file, whole or not at all."""
    # safetensors writes the buffer in memory order and ignores strides.
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if path.suffix == ".npz":
        data = io.BytesIO()
        np.savez(data, **whole)
        write_bytes(path, data.getvalue())
    else:
        write_bytes(path, safetensors.numpy.save(whole))
