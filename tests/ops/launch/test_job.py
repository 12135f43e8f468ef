"""TPU types, and the names of jobs."""

import subprocess
from pathlib import Path

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.ops.launch.job import (
    RUNTIME_VERSIONS,
    check_config,
    check_name,
    default_name,
    parse_tpu,
)
from widenet_jax.ops.plan.topology import CHIPS


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
def test_names_and_images(text: str, name: str, accelerator: str, version: str):
    tpu = parse_tpu(text)
    assert (tpu.name, tpu.accelerator_type) == (name, accelerator)
    assert RUNTIME_VERSIONS[tpu.generation] == version


@pytest.mark.parametrize("text", ["v3", "v3-", "v3-0", "tpu-8", "v7x-8", "v3-8x", "v3:2x2"])
def test_other_text_is_refused(text: str):
    with pytest.raises(BadInputError, match=f"--tpu={text}"):
        parse_tpu(text)


@pytest.mark.parametrize("generation", CHIPS)
def test_every_generation_that_can_be_planned_can_be_launched(generation: str):
    assert RUNTIME_VERSIONS[parse_tpu(f"{generation}-8").generation]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("configs/digits.py", "digits"),
        ("configs/imagenet.py:widenet_b,share_norms=true", "imagenet-widenet-b-share-norms-tru"),
        ("configs/1.py", "widenet"),
    ],
)
def test_the_default_name_comes_from_the_config(config: str, name: str):
    assert check_name(default_name(config)) == name


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "1st", "ends-", "a" * 41])
def test_names_that_google_refuses(name: str):
    with pytest.raises(BadInputError, match="--name="):
        check_name(name)


def test_an_installation_without_a_checkout_cannot_launch(tmp_path: Path):
    """Whether or not it lies inside another project's checkout."""
    for _ in range(2):
        with pytest.raises(BadInputError, match=r"is not a git checkout .*clone the project"):
            check_config("configs/digits.py", root=tmp_path)
        subprocess.run(["git", "init", "-q", tmp_path], check=True)


def test_a_config_is_found_from_another_directory(tmp_path, monkeypatch):
    """As every command finds it; the workers read it in their copy of the checkout."""
    monkeypatch.chdir(tmp_path)
    assert check_config("configs/digits.py:vit_tiny") == "configs/digits.py:vit_tiny"
