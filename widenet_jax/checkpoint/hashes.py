"""Identities of a tree of parameters: a fingerprint of its structure and a hash of its bytes."""

import hashlib
import json

import jax
import numpy as np
from jax.experimental import multihost_utils

from widenet_jax.param_names import named_leaves
from widenet_jax.typing import PyTree


def fingerprint(params: PyTree) -> str:
    """Hashes a tree's names, shapes and types, but not its values."""
    rows = [(name, list(x.shape), str(x.dtype)) for name, x in named_leaves(params)]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()[:16]


def params_sha256(params: PyTree) -> str:
    """Hashes the bytes of every parameter, in the order of their names, gathered from all hosts."""
    digest = hashlib.sha256()
    for name, leaf in sorted(named_leaves(params), key=lambda pair: pair[0]):
        whole = leaf
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            whole = multihost_utils.process_allgather(leaf, tiled=True)
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(whole).tobytes())
    return digest.hexdigest()
