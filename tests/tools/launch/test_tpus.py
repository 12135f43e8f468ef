"""TPU names, and the names of jobs."""

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.tools.launch.job import check_name, default_name
from widenet_jax.tools.launch.tpus import parse_tpu


@pytest.mark.parametrize(
    ("text", "name", "accelerator", "version"),
    [
        ("v2-8", "v2-8", "v2-8", "tpu-ubuntu2204-base"),
        ("v3-256", "v3-256", "v3-256", "tpu-ubuntu2204-base"),
        ("v4-128", "v4-128", "v4-128", "tpu-ubuntu2204-base"),
        ("v5e-16", "v5e-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5litepod-16", "v5e-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-128", "v5p-128", "v5p-128", "v2-alpha-tpuv5"),
        ("v6e-8", "v6e-8", "v6e-8", "v2-alpha-tpuv6e"),
    ],
)
def test_names(text: str, name: str, accelerator: str, version: str):
    tpu = parse_tpu(text)
    assert (tpu.name, tpu.accelerator_type) == (name, accelerator)
    assert tpu.family.runtime_version == version


@pytest.mark.parametrize("text", ["v3", "v3-", "v3-0", "tpu-8", "v7x-8", "v3-8x"])
def test_no_names(text: str):
    with pytest.raises(BadInputError, match="tpu="):
        parse_tpu(text)


@pytest.mark.parametrize("text", ["v2-4", "v3-255", "v3-48", "v4-12", "v5p-4", "v5e-12", "v6e-6"])
def test_sizes_that_are_not_made(text: str):
    with pytest.raises(BadInputError, match=f"tpu={text}: sizes of"):
        parse_tpu(text)


@pytest.mark.parametrize("text", ["v4-1536", "v5p-24", "v5e-1", "v6e-4"])
def test_sizes_that_are(text: str):
    assert parse_tpu(text).name == text


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("configs/digits.py", "digits"),
        ("configs/imagenet.py:widenet_b,share_norms=true", "imagenet-widenet-b-share-norms-tru"),
        ("configs/1.py", "widenet"),
    ],
)
def test_a_name_that_is_not_given(config: str, name: str):
    assert check_name(default_name(config)) == name


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "1st", "ends-", "a" * 41])
def test_names_that_no_tool_takes(name: str):
    with pytest.raises(BadInputError, match="--name="):
        check_name(name)
