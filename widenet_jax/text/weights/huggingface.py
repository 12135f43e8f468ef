"""Hugging Face's BERT and ALBERT files as parameters of our text encoder, and back.

Reads the base models and those with heads (`ForPreTraining`, `ForMaskedLM`,
`ForSequenceClassification`, `ForQuestionAnswering`), with or without a pooler. PyTorch stores a
linear layer as [out, in]; ours are [in, out].

The decoder of the masked language model is the token embedding, in their models as in ours. Files
may have it a second time, as `decoder.weight` and `decoder.bias`.
Sources: modeling_bert.py and modeling_albert.py of transformers.
"""

from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np
from etils import epath

from widenet_jax.errors import BadInputError
from widenet_jax.files import read_json
from widenet_jax.param_names import ENCODER, block_part, split_block_part
from widenet_jax.text.weights.huggingface_config import kind_out, section_of

# Their module and ours, outside the blocks. Those of BACKBONE have the model's prefix in files.
TOKENS = "embeddings.word_embeddings"
EMBEDDINGS = {
    TOKENS: "embeddings/token",
    "embeddings.token_type_embeddings": "embeddings/token_type",
    "embeddings.position_embeddings": "embeddings/position",
    "embeddings.LayerNorm": "embeddings/norm",
}
BACKBONE = {
    "bert": EMBEDDINGS | {"pooler.dense": "pooler"},
    "albert": EMBEDDINGS
    | {"encoder.embedding_hidden_mapping_in": "projection", "pooler": "pooler"},
}
SHARED_HEADS = {"classifier": "classifier", "qa_outputs": "span"}
HEADS = {
    "bert": SHARED_HEADS
    | {
        "cls.predictions.transform.dense": "mlm/dense",
        "cls.predictions.transform.LayerNorm": "mlm/norm",
        "cls.predictions": "mlm",
        "cls.seq_relationship": "order",
    },
    "albert": SHARED_HEADS
    | {
        "predictions.dense": "mlm/dense",
        "predictions.LayerNorm": "mlm/norm",
        "predictions": "mlm",
        "sop_classifier.classifier": "order",
    },
}
TABLES = ("embeddings/token", "embeddings/token_type", "embeddings/position")
NEEDED = ("embeddings/", "projection/", f"{ENCODER}/")
DECODERS = {"bert": "cls.predictions.decoder", "albert": "predictions.decoder"}
# Their block number i, and their module and ours within a block.
BLOCKS = {"bert": "encoder.layer.{}", "albert": "encoder.albert_layer_groups.{}.albert_layers.0"}
IN_BLOCK = {
    "bert": {
        "attention.self.query": "attention/query",
        "attention.self.key": "attention/key",
        "attention.self.value": "attention/value",
        "attention.output.dense": "attention/out",
        "attention.output.LayerNorm": "norm_attention",
        "intermediate.dense": "mlp/wi",
        "output.dense": "mlp/wo",
        "output.LayerNorm": "norm_ffn",
    },
    "albert": {
        "attention.query": "attention/query",
        "attention.key": "attention/key",
        "attention.value": "attention/value",
        "attention.dense": "attention/out",
        "attention.LayerNorm": "norm_attention",
        "ffn": "mlp/wi",
        "ffn_output": "mlp/wo",
        "full_layer_layer_norm": "norm_ffn",
    },
}
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # of PyTorch, no parameters
OLD_LEAVES = {"gamma": "weight", "beta": "bias"}  # in files converted from TensorFlow's


def from_huggingface_text(
    arrays: Mapping[str, np.ndarray], *, kind: str, depth: int, shared: bool, source: str
) -> dict:
    """Converts the arrays of Hugging Face's files to our parameter tree.

    A decoder that differs from the token embedding stays as mlm/decoder, which no model of ours
    has, without the rest of its head: so finetuning reports mlm as not used.

    Args:
      arrays: by their name in the file.
      kind: "bert" or "albert".
      depth: number of blocks.
      shared: whether all blocks share their weights.
      source: the files, named in errors.

    Raises:
      BadInputError: a part that our text encoder does not have, or one that is missing.
    """
    theirs = {modern_name(name, kind): array for name, array in arrays.items()}
    untied = take_decoder(theirs, kind)
    names = parameter_names(kind, depth=depth, shared=shared)
    ours = {} if untied is None else {"mlm/decoder": untied}
    for name, array in theirs.items():
        if name in BUFFERS:
            continue
        if name not in names:
            raise BadInputError(
                f"{source}: {name} has no place in a {kind} of {depth} layers; is this another "
                "model?"
            )
        path = names[name]
        if untied is None or not path.startswith("mlm/"):
            ours[path] = array.T if path.endswith("/kernel") else array
    for name, path in names.items():
        if path not in ours and path.startswith(NEEDED):
            raise BadInputError(f"{source}: {name} is missing; download it again")
    return flax.traverse_util.unflatten_dict(ours, sep="/")


def to_huggingface_text(
    params: Mapping, *, kind: str, depth: int, shared: bool
) -> dict[str, np.ndarray]:
    """Returns our parameters as the arrays of Hugging Face's files.

    Where `shared` is False, each layer gets a copy of the shared parts of our blocks.

    Args:
      params: host arrays.
      kind, depth, shared: as in `from_huggingface_text`.

    Raises:
      BadInputError: a parameter that their models do not have.
    """
    ours = flax.traverse_util.flatten_dict(params, sep="/")
    theirs, used = {}, set()
    for name, path in parameter_names(kind, depth=depth, shared=shared).items():
        stored = path if path in ours else without_block(path)
        if stored in ours:
            used.add(stored)
            array = np.asarray(ours[stored])
            prefix = f"{kind}." if name.startswith(("embeddings.", "encoder.", "pooler.")) else ""
            theirs[prefix + name] = array.T if path.endswith("/kernel") else array
    if left := sorted(ours.keys() - used):
        raise BadInputError(
            f"--format=huggingface: {left[0]} has no counterpart in their {kind.upper()}; export "
            "with --format=safetensors"
        )
    return theirs


def parameter_names(kind: str, *, depth: int, shared: bool) -> dict[str, str]:
    """Returns our path for the name of each of their parameters, without the model's prefix."""
    modules = BACKBONE[kind] | HEADS[kind]
    for i in range(1 if shared else depth):
        for theirs, ours in IN_BLOCK[kind].items():
            place = ours if shared else block_part(i, ours)
            modules[f"{BLOCKS[kind].format(i)}.{theirs}"] = f"{ENCODER}/{place}"
    return {
        f"{theirs}.{leaf}": path
        for theirs, ours in modules.items()
        for leaf, path in leaves(ours).items()
    }


def leaves(module: str) -> dict[str, str]:
    """Returns our paths for the `weight` and `bias` of a module of ours."""
    if module in TABLES:
        return {"weight": module}
    if module == "mlm":  # of the decoder, whose weight is the token embedding
        return {"bias": "mlm/bias"}
    kernel = "scale" if "norm" in module.rpartition("/")[2] else "kernel"
    return {"weight": f"{module}/{kernel}", "bias": f"{module}/bias"}


def without_block(path: str) -> str:
    """Returns the path of a shared part: "encoder/mlp/..." for "encoder/block_03_mlp/..."."""
    scope, *rest = path.split("/")
    return "/".join([scope, split_block_part(rest[0])[1], *rest[1:]]) if rest else path


def modern_name(name: str, kind: str) -> str:
    """Returns today's name of a parameter, without the model's prefix."""
    module, _, leaf = name.removeprefix(f"{kind}.").rpartition(".")
    return f"{module}.{OLD_LEAVES.get(leaf, leaf)}"


def take_decoder(theirs: dict[str, np.ndarray], kind: str) -> np.ndarray | None:
    """Removes the decoder, a second name of the token embedding; returns it where they differ.

    A file that has the embedding or the decoder's bias under this name only gets its usual name.
    """
    decoder, table = DECODERS[kind], f"{TOKENS}.weight"
    bias = theirs.pop(f"{decoder}.bias", None)
    if bias is not None:
        theirs.setdefault(f"{decoder.removesuffix('.decoder')}.bias", bias)
    weight = theirs.pop(f"{decoder}.weight", None)
    if weight is None or np.array_equal(weight, theirs.setdefault(table, weight)):
        return None
    return weight


def read_huggingface(
    arrays: Mapping[str, np.ndarray], directory: epath.Path, source: str
) -> tuple[dict, dict[str, Any], str] | None:
    """Reads a BERT or ALBERT; None for other arrays. See `specs.ModelSpec`."""
    file = directory / "config.json"
    fields = section_of(read_json(file), source=str(file)) if file.exists() else None
    if fields is None:
        return None
    kind, shared = kind_out(fields)
    how = {"kind": kind, "depth": fields["depth"], "shared": shared, "source": source}
    return from_huggingface_text(arrays, **how), fields, ""
