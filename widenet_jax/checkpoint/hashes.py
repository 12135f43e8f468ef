"""What tells two trees of parameters apart: a fingerprint of their shape, a hash of their bytes."""

import hashlib
import json

import jax
import numpy as np
from jax.experimental import multihost_utils

from widenet_jax.param_names import path_names
from widenet_jax.typing import PyTree


def fingerprint(params: PyTree) -> str:
    """Of a tree's names, shapes and types: two trees with the same one are interchangeable."""
    leaves = jax.tree.leaves(params)
    rows = [
        (name, list(leaf.shape), str(leaf.dtype))
        for name, leaf in zip(path_names(params), leaves, strict=True)
    ]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()[:16]


def params_sha256(params: PyTree) -> str:
    """Of every parameter's bytes, in the order of their names, over all hosts."""
    digest = hashlib.sha256()
    named = zip(path_names(params), jax.tree.leaves(params), strict=True)
    for name, leaf in sorted(named, key=lambda pair: pair[0]):
        whole = leaf
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            whole = multihost_utils.process_allgather(leaf, tiled=True)
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(whole).tobytes())
    return digest.hexdigest()
