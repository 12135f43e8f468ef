"""Flat files of arrays: exact round trips, no code execution, one line for a damaged file."""

import sys

import ml_dtypes
import numpy as np
import pytest
from etils import epath

from widenet_jax.errors import BadInputError
from widenet_jax.inference.arrays import read_arrays, write_arrays

SUFFIXES = (".npz", ".safetensors")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_round_trip(suffix: str, tmp_path):
    """A transposed view too, whose memory order differs from its index order."""
    view = np.arange(6, dtype=np.float32).reshape(2, 3).T
    path = epath.Path(tmp_path / f"weights{suffix}")
    write_arrays(path, {"encoder/kernel": view, "bias": np.float32([1.5])})
    found = read_arrays(path)
    assert sorted(found) == ["bias", "encoder/kernel"]
    np.testing.assert_array_equal(found["encoder/kernel"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(found["bias"], [1.5])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_other_floats_become_float32(suffix: str, dtype: type, tmp_path):
    path = epath.Path(tmp_path / f"weights{suffix}")
    write_arrays(path, {"w": np.array([1.5, -2.25], dtype)})
    found = read_arrays(path)["w"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [1.5, -2.25])


def test_integers_keep_their_type(tmp_path):
    path = epath.Path(tmp_path / "a.npz")
    write_arrays(path, {"step": np.int64(7)})
    assert read_arrays(path)["step"].dtype == np.int64


class Intruder:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_file_of_objects_is_refused_and_runs_no_code(tmp_path):
    trace = tmp_path / "trace"
    objects = np.empty(1, object)
    objects[0] = Intruder(str(trace))
    np.savez(tmp_path / "evil.npz", w=objects)
    np.load(tmp_path / "evil.npz", allow_pickle=True)["w"]
    trace.unlink()  # the file does run code for a reader that unpickles
    with pytest.raises(BadInputError, match="cannot be read as npz"):
        read_arrays(epath.Path(tmp_path / "evil.npz"))
    assert not trace.exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_file_is_one_line(suffix: str, tmp_path):
    path = epath.Path(tmp_path / f"weights{suffix}")
    write_arrays(path, {"w": np.ones(1000, np.float32)})
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(BadInputError, match=f"weights{suffix}: cannot be read as") as caught:
        read_arrays(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_such_file(suffix: str, tmp_path):
    with pytest.raises(BadInputError, match="No such file"):
        read_arrays(epath.Path(tmp_path / f"weights{suffix}"))


def test_integers_in_safetensors_are_refused(tmp_path):
    path = epath.Path(tmp_path / "a.safetensors")
    write_arrays(path, {"w": np.int32([1])})
    with pytest.raises(BadInputError, match="w has type I32; weights have F64, F32, F16, BF16"):
        read_arrays(path)


def test_weights_of_pytorch(tmp_path):
    """Tensors of any type; objects are refused by its own reader."""
    torch = pytest.importorskip("torch", reason="pip install -e '.[huggingface]'")
    path = epath.Path(tmp_path / "pytorch_model.bin")
    half = torch.tensor([1.5, -2.25], dtype=torch.bfloat16)
    torch.save({"w": half, "position_ids": torch.arange(3)}, path)
    found = read_arrays(path)
    np.testing.assert_array_equal(found["w"], np.float32([1.5, -2.25]), strict=True)
    np.testing.assert_array_equal(found["position_ids"], [0, 1, 2])
    torch.save({"w": Intruder(str(tmp_path / "trace"))}, path)
    with pytest.raises(BadInputError, match="cannot be read as bin"):
        read_arrays(path)
    assert not (tmp_path / "trace").exists()


def test_weights_of_pytorch_without_it(tmp_path, monkeypatch):
    (tmp_path / "pytorch_model.bin").touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BadInputError, match=r"bin: a \.bin file .* needs the torch package: pip"):
        read_arrays(epath.Path(tmp_path / "pytorch_model.bin"))
