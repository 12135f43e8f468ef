"""TPU types, and the names of jobs."""

import subprocess
from pathlib import Path

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.ops.launch.requests import (
    RUNTIME_VERSIONS,
    check_config,
    check_name,
    default_name,
)
from widenet_jax.ops.plan.topology import CHIPS


def test_every_generation_that_can_be_planned_has_an_image():
    assert RUNTIME_VERSIONS.keys() == CHIPS.keys()
    assert RUNTIME_VERSIONS["v5e"] == "v2-alpha-tpuv5-lite"


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
