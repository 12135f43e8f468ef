"""Exported models: plain files that other programs read without this package.

params.safetensors or params.npz   every parameter by path, float32 or float16
config.json                        the run's configuration
class_names.json  tokenizer.json   what the model needs of the data, as in the workdir
export.json                        format version, step, results, SHA-256 of parameters and model
README.md                          the model card
pytorch_model.py                   with safetensors, of image classifiers: the model in PyTorch

An encoder of texts is also written as Hugging Face's: model.safetensors, config.json and
tokenizer.json, with a README.md.

A classifier may also be exported as StableHLO, one file that a program with JAX calls:

classifier.stablehlo               (arrays of n examples) -> probabilities of the classes, any n
class_names.json  tokenizer.json   as above
README.md                          how to call it
"""

import argparse
import hashlib
import io
import json
import pickle
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import ml_dtypes
import numpy as np
import safetensors.numpy
from etils import epath
from jax import export

from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.errors import BadInputError, check_format, refuse, refusing, require
from widenet_jax.files import EXPORT, read_json, read_object, write_bytes, write_json
from widenet_jax.inference import pytorch_model
from widenet_jax.inference.model_card import READ_LINES, describe_model, model_card
from widenet_jax.nn.moe.slots import capacity_limit
from widenet_jax.nn.stack_settings import parse_model
from widenet_jax.specs import model_spec, resolve, task_spec
from widenet_jax.trained import Stored, Trained, each_example, probabilities

FORMAT_VERSION = 1
PLATFORMS = ("cpu", "cuda", "tpu")

PROGRAM_README = """# {what}

Step {step:,}. `{file}` is made by `jax.export` (jax {version}), parameters included.
It needs jax and flatbuffers alone. Label k is entry k of `class_names.json`.

    from jax import export

    with open("{file}", "rb") as file:
        classify = export.deserialize(bytearray(file.read()))
    # classify.call({{{inputs}}}) gives the probabilities, float32 [n, {classes}]

{meaning}
"""
# safetensors' names of the types that weights have.
TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
TYPES |= {"I64": np.int64}  # PyTorch's buffers, such as position_ids
DAMAGED = (zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, safetensors.SafetensorError)
DAMAGED += (SyntaxError, tokenize.TokenError)  # of headers in .npy files
NOT_READABLE = (OSError, ValueError, TypeError, EOFError, RuntimeError, MemoryError, *DAMAGED)


def write_exported(
    directory: epath.Path, model: Stored, *, file_format: str, place: str = ""
) -> None:
    """Writes an export, the file that opens it last, so that an interrupted one is not opened.

    Args:
      directory: a new one.
      model: as read; a `Trained` for a format that `opens` the model.
      file_format: one of FORMATS.
      place: where it was read from, for messages.

    Raises:
      BadInputError: the format has no such model.
    """
    chosen = FORMATS[file_format]
    contents = chosen.contents(model, place, chosen.file)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write = write_json if name.endswith(".json") else write_bytes
        write(directory / name, content)


def plain_files(model: Stored, place: str, file: str) -> dict[str, Any]:
    """Returns what `read_exported` reads."""
    record = {"format_version": FORMAT_VERSION, "params_file": file, "info": sorted(model.info)}
    record |= record_of(model) | {"config_sha256": config_sha256(model.config)}
    pytorch = {}
    if file.endswith(".safetensors") and not pytorch_model.uncovered(model.config):
        pytorch["pytorch_model.py"] = epath.Path(pytorch_model.__file__).read_bytes()
        record |= blocks_of(model)
    return {
        file: arrays_as(file, flax.traverse_util.flatten_dict(model.params, sep="/")),
        **pytorch,
        "README.md": model_card(model.config, model.info, record).encode(),
        "config.json": model.config,
        **json_files(model.info),
        EXPORT: record,
    }


def config_sha256(config: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the sections on which predictions depend, as sorted JSON."""
    read = [config.get("model"), config.get("augment")]
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def blocks_of(model: Stored) -> dict[str, Any]:
    """Returns what `pytorch_model.py` reads of `export.json`.

    blocks: of each block as it runs, the scopes of its parameters, the factor of its branches, and
    the block whose routing it follows. slots: of each expert for the tokens of an image.
    """
    stack = parse_model(model.config["model"])
    blocks = [
        {**dict(step.scopes), "scale": step.scale, "follows": step.follows}
        for step in stack.steps(train=False)
    ]
    T, moe = model.params["position"]["position_embedding"].shape[1], stack.feed_forwards[stack.ffn]
    return {"blocks": blocks, "slots": capacity_limit(T, moe, train=False) if stack.routes else T}


def record_of(model: Stored) -> dict[str, Any]:
    """Returns what both a model card and `export.json` have."""
    record = {"dtype": jax.tree.leaves(model.params)[0].dtype.name, "step": model.step}
    record |= {"result": dict(model.result), "card": dict(model.card)}
    return record | {"params_sha256": params_sha256(jax.tree.map(as_float32, model.params))}


def json_files(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the model needs of the data, by the names of files."""
    return {f"{name}.json": value for name, value in info.items()}


def huggingface_files(model: Stored, place: str, file: str) -> dict[str, Any]:
    """Returns the files that Hugging Face's transformers opens by their `config.json`."""
    name = model.config["model"]["name"]
    layout = resolve(model_spec(name).layout)
    if layout is None:
        raise BadInputError(
            f"--format=huggingface: {place} holds a {name}; only text models go there; export it "
            "with --format=safetensors"
        )
    arrays, files = layout(model, place)
    architecture = files["config.json"]["architectures"][0]
    card = model_card(model.config, model.info, record_of(model), huggingface=architecture)
    # transformers 4.46 refuses a file that does not say of which library its layout is.
    return {file: arrays_as(file, arrays, {"format": "pt"}), "README.md": card.encode(), **files}


def stablehlo_files(trained: Trained, place: str, file: str) -> dict[str, Any]:
    """Returns the program of a classifier of images or texts.

    Each example is routed alone. The program runs on CPUs, NVIDIA's GPUs and TPUs.
    """
    spec = task_spec(trained.config.task.name)
    if not spec.last_layer:
        raise BadInputError(
            f"{trained.place} holds a model of the task {spec.name}; --format=stablehlo writes "
            "classifiers of images and texts"
        )
    (n,) = export.symbolic_shape("n")
    batch = {
        name: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype)
        for name, x in trained.task.batch_spec(1).items()
        if name != "label"
    }
    classify = jax.jit(partial(each_example(trained, probabilities), trained.params))
    program = export.export(classify, platforms=PLATFORMS)(batch)
    arrays = (f'"{name}": {x.dtype} {["n", *x.shape[1:]]}' for name, x in batch.items())
    text = PROGRAM_README.format(
        what=describe_model(trained.config.model),
        step=trained.step,
        file=file,
        version=jax.__version__,
        inputs=", ".join(arrays).replace("'", ""),
        classes=len(trained.class_names),
        meaning=spec.card.arrays.format_map(trained.config.to_dict()),
    )
    kept = {k: v for k, v in trained.info.items() if k in ("class_names", "tokenizer")}
    return {file: bytes(program.serialize()), **json_files(kept), "README.md": text.encode()}


class Format(NamedTuple):
    """A kind of export.

    Attributes:
      file: its parameters, or its program.
      contents: (model, where it was read from, `file`) -> the content of each file by name, in the
        order of writing: bytes, or of .json files what they hold.
      opens: whether it takes a `Trained`, ready to compute, rather than what is stored.
    """

    file: str
    contents: Callable[[Any, str, str], Mapping[str, Any]]
    opens: bool = False


FORMATS = {
    "safetensors": Format("params.safetensors", plain_files),
    "npz": Format("params.npz", plain_files),
    "huggingface": Format("model.safetensors", huggingface_files),
    "stablehlo": Format("classifier.stablehlo", stablehlo_files, opens=True),
}


def read_exported(directory: epath.Path) -> Stored:
    """Reads an export.

    Raises:
      BadInputError: a file is missing, damaged or changed, or has an unknown format version.
    """
    record, advice = read_object(directory / EXPORT), "; copy or export it again"
    check_format(record, FORMAT_VERSION, place=directory / EXPORT)
    with refusing(f"{directory / EXPORT}: damaged", KeyError, TypeError, advice=advice):
        file, info, card = record["params_file"], record["info"], record.get("card", {})
        # A record must not name a file outside its directory.
        odd = file not in READ_LINES or not all(map(str.isidentifier, info))
        names = f"params_file {file!r} or one of {info} is not a name that an export has"
        no_card = not isinstance(card, dict), f"card {card!r} is not an object{advice}"
        refuse(directory / EXPORT, (odd, names + advice), no_card)
        about = {"step": record["step"], "result": record["result"], "card": card}
    params = flax.traverse_util.unflatten_dict(read_arrays(directory / file), sep="/")
    changed = params_sha256(params) != record.get("params_sha256")
    told = "the parameters differ from the exported ones; copy or export it again"
    refuse(directory / file, (changed, told))
    known = {name: read_json(directory / f"{name}.json") for name in info}
    config = read_object(directory / "config.json")
    changed = record.get("config_sha256", same := config_sha256(config)) != same
    told = "model or augment differ from the exported ones; copy or export it again"
    refuse(directory / "config.json", (changed, told))
    return Stored(params, config, known, **about)


# --- Flat files of named arrays. Pickled objects are refused, because they can run code.


def read_arrays(path: epath.Path) -> dict[str, np.ndarray]:
    """Reads every array of a file with a suffix of `READERS`, by name.

    Floating-point numbers of any width become float32.

    Raises:
      BadInputError: the file is missing, damaged, or contains Python objects; or PyTorch's file
        cannot be read because PyTorch is not installed.
    """
    what, advice = f"{path}: cannot be read as {path.suffix[1:]}", "; download or export it again"
    with refusing(what, *NOT_READABLE, advice=advice):
        data = path.read_bytes()
    start = data[:64].lstrip().lower()
    lfs = "a Git LFS pointer in place of the weights; run `git lfs pull` in its repository"
    page = "a web page in place of the weights; download the file itself"
    pointer = start.startswith(b"version https://git-lfs"), lfs
    refuse(path, pointer, (start.startswith((b"<!doctype", b"<html")), page))
    if READERS[path.suffix] is read_torch:
        torch = require("torch", extra="huggingface", what=f"{path} (a .safetensors file does not)")
        told = f"torch {torch.__version__} may run code that a file holds; install torch>=2.10"
        refuse(path, (tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10), told))
    with refusing(what, *NOT_READABLE, advice=advice):
        arrays = READERS[path.suffix](data)
        return {name: as_float32(array) for name, array in arrays.items()}


def read_npz(data: bytes) -> dict[str, np.ndarray]:
    """Reads the bytes of a `.npz` file."""
    file = np.load(io.BytesIO(data), allow_pickle=False)
    if isinstance(file, np.ndarray):
        raise ValueError("one array without a name: a .npy file")
    with file:
        arrays = dict(file)
        if len(arrays) < len(file.files):
            raise ValueError("two arrays have the same name")
    if odd := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{odd[0]} is no array")
    return arrays


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Reads the bytes of a `.safetensors` file, bfloat16 too, which `safetensors.numpy` refuses."""
    arrays = {}
    for name, tensor in safetensors.deserialize(data):
        if tensor["dtype"] not in TYPES:
            raise ValueError(f"{name} has type {tensor['dtype']}; weights have {', '.join(TYPES)}")
        data_type = TYPES[tensor["dtype"]]
        arrays[name] = np.frombuffer(tensor["data"], data_type).reshape(tensor["shape"])
    return arrays


def read_torch(data: bytes) -> dict[str, np.ndarray]:
    """Reads the bytes of PyTorch's file, such as `pytorch_model.bin`.

    PyTorch's reader refuses everything but tensors, plain values and argparse's namespaces
    (`weights_only`; before 2.10 a file could get round it). A checkpoint of training has the
    tensors under one of `STATES`, the average of parameters first; the rest of it is left out.
    """
    import torch

    with torch.serialization.safe_globals([argparse.Namespace]):
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    tensors = found if isinstance(found, Mapping) else {"its content": None}
    tensors = next((tensors[k] for k in STATES if isinstance(tensors.get(k), Mapping)), tensors)
    if odd := [k for k, x in tensors.items() if type(k) is not str or not torch.is_tensor(x)]:
        raise ValueError(f"{odd[0]} is no tensor by a name")
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).detach().numpy()
        for name, tensor in tensors.items()
    }


# Of timm's averages; of DeiT and MAE, of others, and of DINO.
STATES = ("state_dict_ema", "model_ema", "model", "state_dict", "teacher")
READERS = {".npz": read_npz, ".safetensors": read_safetensors}
READERS |= dict.fromkeys((".bin", ".pth", ".pt"), read_torch)


def as_float32(array: np.ndarray) -> np.ndarray:
    """Converts floating-point arrays; big_vision's `.npz` files have bfloat16 as untyped `V2`."""
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    is_float = array.dtype == ml_dtypes.bfloat16 or array.dtype.kind == "f"
    return array.astype(np.float32) if is_float else array


def arrays_as(
    file: str, arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> bytes:
    """Returns the bytes of a `.npz` file, or of a `.safetensors` file with its metadata."""
    # safetensors writes the buffer in memory order and ignores strides.
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if file.endswith(".safetensors"):
        return safetensors.numpy.save(whole, metadata)
    data = io.BytesIO()
    np.savez(data, **whole)
    return data.getvalue()
