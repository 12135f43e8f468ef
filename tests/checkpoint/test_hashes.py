"""Fingerprints differ with names, shapes and types; hashes differ with every bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.checkpoint.manifest import fingerprint, params_sha256
from widenet_jax.sharding import build_mesh, tree_shardings


@pytest.fixture
def params() -> dict:
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(4, 32, 128)).astype(np.float32)
    return {"head": {"bias": np.arange(10.0)}, "moe": {"experts": {"wi": {"kernel": kernel}}}}


@pytest.mark.parametrize(("fsdp", "expert", "devices"), [(1, 1, 8), (2, 2, 8)])
def test_the_hash_is_the_same_on_every_mesh(params: dict, fsdp: int, expert: int, devices: int):
    mesh = build_mesh({"fsdp": fsdp, "expert": expert}, jax.devices()[:devices])
    params = jax.tree.map(np.float32, params)
    placed = jax.device_put(params, tree_shardings(params, mesh))
    assert params_sha256(placed) == params_sha256(params)


def test_one_bit_changes_the_hash(params: dict):
    before = params_sha256(params)
    params["moe"]["experts"]["wi"]["kernel"].view(np.uint32)[3, 31, 127] ^= 1
    assert params_sha256(params) != before
    params["moe"]["experts"]["wi"]["kernel"].view(np.uint32)[3, 31, 127] ^= 1
    assert params_sha256(params) == before


def test_a_name_changes_the_hash():
    a, b = np.float32(1), np.float32(2)
    assert params_sha256({"a": a, "b": b}) == params_sha256({"b": b, "a": a})
    assert params_sha256({"a": a, "b": b}) != params_sha256({"a": b, "b": a})
    assert params_sha256({"a": a}) != params_sha256({"b": a})


def test_the_fingerprint_is_of_names_shapes_and_types():
    x = jnp.zeros((2, 3))
    same = fingerprint({"a": x})
    assert fingerprint({"a": x + 1}) == same
    assert fingerprint({"a": jax.ShapeDtypeStruct((2, 3), jnp.float32)}) == same
    others = ({"b": x}, {"a": x.T}, {"a": x.astype(jnp.bfloat16)}, {"a": x, "b": x})
    assert len({same, *map(fingerprint, others)}) == 5
