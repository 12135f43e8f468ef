"""Exports: the run's parameters and logits; flat files of arrays; damaged or foreign files."""

import argparse
import io
import json
import sys
import zipfile
from collections.abc import Callable
from types import SimpleNamespace

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from refusals import refuses

from configs.variants import model_section
from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.inference.exported import arrays_as, read_arrays, read_exported, write_exported
from widenet_jax.inference.model_card import describe_model
from widenet_jax.inference.trained import open_trained, read_model
from widenet_jax.trained import Trained

SUFFIXES = (".npz", ".safetensors")


@pytest.fixture(params=["safetensors", "npz"])
def exported(request, digits_run, tmp_path) -> epath.Path:
    directory = epath.Path(tmp_path / "exported")
    write_exported(directory, read_model(str(digits_run)), file_format=request.param)
    return directory


def logits(trained: Trained) -> np.ndarray:
    images = jax.random.uniform(jax.random.key(0), (4, *trained.task.image_shape), minval=-1)
    apply = jax.jit(lambda p, x: trained.model.apply({"params": p}, {"image": x}, train=False)[0])
    return np.asarray(apply(trained.params, images))


def test_an_export_is_the_run(exported, digits_run):
    """Logits, classes, config, hash and result; safetensors or NumPy alone read the parameters."""
    ours, theirs = open_trained(str(digits_run)), open_trained(str(exported))
    np.testing.assert_array_equal(logits(ours), logits(theirs))
    assert ours.class_names == theirs.class_names == tuple("0123456789")
    assert ours.config.to_dict() == theirs.config.to_dict()
    assert ours.step == theirs.step == 20
    result = json.loads((digits_run / "result.json").read_text())
    found = read_exported(exported)
    assert params_sha256(found.params) == result["params_sha256"] and found.result == result
    is_npz = (exported / "params.npz").exists()
    read = np.load if is_npz else safetensors.numpy.load_file
    arrays = read(exported / ("params.npz" if is_npz else "params.safetensors"))
    kernel = arrays["encoder/moe/experts/wi/kernel"]
    assert kernel.shape == (4, 32, 64) and kernel.dtype == np.float32
    card = (exported / "README.md").read_text()
    assert "WideNet: 2 blocks of width 32, 4 heads, patches of 2 pixels, 2 of 4 experts" in card
    assert f"| test accuracy | {result['test_accuracy']:.2%} of 360 images (95%: " in card
    assert "| length | 20 steps, batches of 64 |" in card
    assert result["params_sha256"] in card


def test_damaged_exports_are_refused(exported, tmp_path):
    """Another version, a file elsewhere, changed parameters, a missing file."""
    record = json.loads((exported / "export.json").read_text())
    for change, message in (
        ({"format_version": 2}, "has format_version 2, and this version of widenet_jax reads 1"),
        ({"params_file": "../elsewhere.npz"}, "params_file '../elsewhere.npz' or one of"),
        ({"info": ["../class_names"]}, "is not a name that an export has; copy or export it again"),
    ):
        (exported / "export.json").write_text(json.dumps(record | change))
        refuses(message, read_exported, exported)
    damaged = ([], {"format_version": 1}, record | {"info": [3]}, record | {"params_file": ["x"]})
    for content in damaged:
        (exported / "export.json").write_text(json.dumps(content))
        refuses(r"export.json: .*; copy or export it again", read_exported, exported)
    (exported / "export.json").write_text(json.dumps(record))
    path = exported / record["params_file"]
    whole = path.read_bytes()
    if path.suffix == ".safetensors":  # npz stores its own checksum
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        refuses("the parameters differ from the exported ones", read_exported, exported)
        path.write_bytes(whole)
    config = (exported / "config.json").read_text()
    (exported / "config.json").write_text(config.replace('"num_heads": 4', '"num_heads": 2'))
    told = "config.json: model or augment differ from the exported ones; copy or export it again"
    refuses(told, read_exported, exported)
    (exported / "config.json").write_text(config)
    (exported / "class_names.json").write_text('["\\ud83d"]')
    refuses(r"the class name '\\ud83d' is no text of whole char", open_trained, str(exported))
    (exported / "class_names.json").unlink()
    refuses(r"class_names.json: .*copy or export it again", read_exported, exported)


def test_an_export_is_exported_again(digits_export, tmp_path):
    """Without a result, as of an unfinished run."""
    model = read_model(str(digits_export))
    unfinished = type(model)(model.params, model.config, model.info, model.step)
    again = epath.Path(tmp_path / "again")
    write_exported(again, unfinished, file_format="npz")
    assert params_sha256(read_exported(again).params) == params_sha256(model.params)
    assert "not evaluated: the run has not finished" in (again / "README.md").read_text()


@pytest.mark.parametrize(
    ("variant", "description"),
    [
        ("vit_b", "ViT: 12 blocks of width 768, 12 heads, patches of 16 pixels, "
         "feed-forward of width 3072"),
        ("vit_moe_b", "ViT-MoE: 12 blocks of width 768, 12 heads, patches of 16 pixels, 2 of 4 "
         "experts of width 4096 for each token (blocks: every_6)"),
        ("vit_l,share=true", "Shared ViT: 24 blocks of width 1024, 16 heads, patches of 16 pixels, "
         "feed-forward of width 4096, all blocks share attention, feed-forward"),
    ],
)  # fmt: skip
def test_the_description_of_a_model(variant: str, description: str):
    assert describe_model(model_section(variant)) == description


# --- Flat files of arrays


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_of_each_type_round_trip(suffix: str, tmp_path):
    """Floats become float32; of a transposed view the memory order differs."""
    view = np.arange(6, dtype=np.float32).reshape(2, 3).T
    path = epath.Path(tmp_path / f"weights{suffix}")
    floats = {t.__name__: np.array([1.5, -2.25], t) for t in (np.float16, ml_dtypes.bfloat16)}
    path.write_bytes(arrays_as(path.name, {"encoder/kernel": view, "step": np.int64([7])} | floats))
    found = read_arrays(path)
    np.testing.assert_array_equal(found["encoder/kernel"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(found["step"], np.int64([7]), strict=True)
    for name in floats:
        np.testing.assert_array_equal(found[name], np.float32([1.5, -2.25]), strict=True)


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
    refuses("cannot be read as npz", read_arrays, epath.Path(tmp_path / "evil.npz"))
    assert not trace.exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_that_cannot_be_read_are_one_line(suffix: str, tmp_path):
    path = epath.Path(tmp_path / f"weights{suffix}")
    refuses("No such file", read_arrays, path)
    path.write_bytes(arrays_as(path.name, {"w": np.ones(1000, np.float32)}))
    path.write_bytes(path.read_bytes()[:-500])
    refuses(f"weights{suffix}: cannot be read as", read_arrays, path)
    if suffix == ".safetensors":
        path.write_bytes(arrays_as(path.name, {"w": np.int32([1])}))
        refuses("w has type I32; weights have F64, F32, F16, BF16", read_arrays, path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    refuses("a Git LFS pointer in place of the weights; run `git lfs pull`", read_arrays, path)
    path.write_text("\n<!DOCTYPE html><html>")
    refuses("a web page in place of the weights; download the file itself", read_arrays, path)


SHAPE = "{'descr': '<f4', 'fortran_order': False, 'shape': (8%s,)}"


def zipped(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def with_header(header: str) -> bytes:
    """Returns a `.npz` file of one array without its numbers."""
    text = f"{header:63}\n" if header else ""
    return zipped(("w.npy", b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()))


def written(save: Callable, *arrays: np.ndarray, **named: np.ndarray) -> bytearray:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return bytearray(file.getvalue())


ONE, BROKEN = written(np.save, np.ones(3)), written(np.savez_compressed, w=np.zeros(1000))
BROKEN[BROKEN.index(b"w.npy") + 5 + 20] = 0xFF  # no kind of a deflated block


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (with_header(""), "Cannot parse header"),
        (with_header("((((("), r"\('(unexpected )?EOF in multi-line"),
        (with_header(SHAPE % ("0" * 15)), "Unable to allocate"),
        (zipped(("step.npy", b"\0\0")), "step is no array"),
        (BROKEN, "Error -3 while decompressing"),
        (ONE, "one array without a name: a .npy file"),
        (zipped(("w", ONE), ("w.npy", ONE)), "two arrays have the same name"),
    ],
)
def test_what_is_no_npz(content: bytes, told: str, tmp_path):
    path = epath.Path(tmp_path / "a.npz")
    path.write_bytes(bytes(content))
    refuses(rf"a.npz: cannot be read as npz \({told}", read_arrays, path)


def test_weights_of_pytorch(tmp_path):
    """Tensors of any type; objects are refused by its own reader."""
    torch = pytest.importorskip("torch", reason="pip install -e '.[huggingface]'")
    path = epath.Path(tmp_path / "pytorch_model.bin")
    half = torch.tensor([1.5, -2.25], dtype=torch.bfloat16)
    torch.save({"w": half, "position_ids": torch.arange(3)}, path)
    found = read_arrays(path)
    np.testing.assert_array_equal(found["w"], np.float32([1.5, -2.25]), strict=True)
    np.testing.assert_array_equal(found["position_ids"], [0, 1, 2])
    for name, whole in (
        ("deit.pth", {"model": {"w": half}, "epoch": 3, "optimizer": {}}),
        ("mae.pt", {"state_dict": {"w": half}}),
        ("dino.pth", {"student": {"module.w": half}, "teacher": {"w": half}}),
        ("with args.pth", {"model": {"w": half}, "args": argparse.Namespace(lr=1.0)}),
        ("trained.pth", {"model": {"w": half.clone().requires_grad_()}}),
        ("average.pth", {"state_dict": {"other": half}, "state_dict_ema": {"w": half}}),
    ):
        torch.save(whole, tmp_path / name)
        assert list(read_arrays(epath.Path(tmp_path / name))) == ["w"]
    for odd, told in ((half, "its content"), ({"w": half, "epoch": 3}, "epoch"), ({3: half}, "3")):
        torch.save(odd, path)
        refuses(rf"cannot be read as bin \({told} is no tensor by a name\)", read_arrays, path)
    torch.save({"w": torch.eye(2).to_sparse()}, path)
    refuses("cannot be read as bin", read_arrays, path)
    torch.save({"w": Intruder(str(tmp_path / "trace"))}, path)
    refuses("cannot be read as bin", read_arrays, path)
    assert not (tmp_path / "trace").exists()


def test_weights_of_pytorch_without_it_or_with_an_old_one(tmp_path, monkeypatch):
    """Before 2.10 its reader could be got round."""
    (tmp_path / "pytorch_model.bin").touch()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.9.1+cpu"))
    told = r"bin: torch 2\.9\.1\+cpu may run code that a file holds; install torch>=2\.10"
    refuses(told, read_arrays, epath.Path(tmp_path / "pytorch_model.bin"))
    monkeypatch.setitem(sys.modules, "torch", None)
    told = r"bin \(a \.safet.* needs the torch package: pip"
    refuses(told, read_arrays, epath.Path(tmp_path / "pytorch_model.bin"))
