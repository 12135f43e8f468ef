"""Our text encoder at the size of `reference_bert`: applied to its texts, and as a stored model."""

import json
from pathlib import Path

import jax
import numpy as np
from inference import reference_bert as reference

from configs import defaults
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.nn.build import build_model
from widenet_jax.trained import Stored

FIELDS = {
    "pretraining": {"head": "pretraining"},
    "classification": {"head": "classification", "num_classes": reference.C},
    "span": {"head": "span"},
}


def our_outputs(params: dict, section: dict, head: str) -> dict[str, np.ndarray]:
    """Returns the outputs of a head, and the hidden states, of the reference's padded texts.

    Args:
      params: the whole parameter tree; the head takes its own part.
      section: `config.model`.
      head: key of FIELDS.
    """
    vocab_size = len(params["embeddings"]["token"])
    model = build_model({**section, "dtype": "float32"}, vocab_size=vocab_size, **FIELDS[head])
    tokens = reference.TOKENS
    T = tokens.shape[1]
    inputs = {
        "tokens": tokens,
        "token_types": reference.SEGMENTS,
        "mask": np.arange(T) < np.array(reference.LENGTHS)[:, None],
        "mlm_positions": np.broadcast_to(np.arange(T, dtype=np.int32), tokens.shape),
    }

    def apply(params: dict, inputs: dict) -> tuple:
        is_encoder = lambda module, method: module.name == "encoder"  # noqa: E731
        (found, _), state = model.apply(
            {"params": params}, inputs, train=False, capture_intermediates=is_encoder
        )
        return found, state["intermediates"]["encoder"]["__call__"][0][0]

    found, hidden = jax.device_get(jax.jit(apply)(params, inputs))
    found = found if isinstance(found, dict) else {"logits": found}
    return {**found, "hidden": hidden}


def exported(params: dict, section: dict, task: str, directory: Path) -> Stored:
    """Returns a stored model of a task, with a WordPiece vocabulary of V tokens and C classes."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [chr(ord("a") + i) for i in range(reference.V - len(special))]
    (directory / "vocab.txt").write_text("\n".join(special + words) + "\n")
    info = {"tokenizer": load_tokenizer(str(directory / "vocab.txt")).json}
    if task == "text_classification":
        info["class_names"] = [f"class {i}" for i in range(reference.C)]
    config = json.loads(json.dumps(defaults.get_config(section, task).to_dict()))
    config["data"]["max_length"] = reference.P
    return Stored(params, config, info | {"vocab_size": reference.V}, step=7)
