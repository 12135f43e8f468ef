"""Flat files of named arrays, `.npz` and `.safetensors`: data only, never a pickle."""

import io
import zipfile
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from etils import epath

from widenet_jax.errors import BadInputError, choose

SUFFIXES = (".npz", ".safetensors")
# safetensors' names of what weights are stored in.
FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
NOT_READABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, safetensors.SafetensorError)


def read_arrays(path: epath.Path) -> dict[str, np.ndarray]:
    """Every array of a file, by name; floating point numbers of any width as float32.

    Raises:
      BadInputError: no such file, a damaged one, or one that holds Python objects.
    """
    read = read_npz if path.suffix == ".npz" else read_safetensors
    try:
        return {name: as_float32(array) for name, array in read(path.read_bytes()).items()}
    except NOT_READABLE as error:
        reason = " ".join(str(error).split())
        raise BadInputError(
            f"{path}: cannot be read as {path.suffix[1:]} ({reason}); download or export it again"
        ) from None


def read_npz(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Unlike `safetensors.numpy` it knows bfloat16."""
    arrays = {}
    for name, tensor in safetensors.deserialize(data):
        dtype = choose(FLOATS, tensor["dtype"], field=f"type of {name}")
        arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return arrays


def as_float32(array: np.ndarray) -> np.ndarray:
    """NumPy files know no bfloat16: big_vision's hold its two bytes as an untyped `V2`."""
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    is_float = array.dtype == ml_dtypes.bfloat16 or array.dtype.kind == "f"
    return array.astype(np.float32) if is_float else array


def write_arrays(path: epath.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a `.npz` or `.safetensors` file."""
    # safetensors writes the buffer as it lies in memory, whatever the strides say.
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if path.suffix == ".npz":
        data = io.BytesIO()
        np.savez(data, **whole)
        path.write_bytes(data.getvalue())
    else:
        path.write_bytes(safetensors.numpy.save(whole))
