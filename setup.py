"""Installs configs/ as part of the package; pyproject.toml has everything else."""

from pathlib import Path

from setuptools import find_packages, setup

# In an installation configs/ lies in the package's folder, where `config.files` finds it.
INSTALLED_CONFIGS = "widenet_jax.configs"
# Folders without code: setuptools would warn.
WEIGHTS = (Path(__file__).parent / "widenet_jax" / "inference" / "weights").iterdir()
DATA = [
    "widenet_jax.corpus.tiny",
    *(f"widenet_jax.inference.weights.{path.name}" for path in WEIGHTS),
]

setup(
    packages=[*find_packages(include=["widenet_jax*"]), INSTALLED_CONFIGS, *DATA],
    package_dir={INSTALLED_CONFIGS: "configs"},
)
