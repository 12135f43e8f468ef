"""Installs configs/ as part of the package; pyproject.toml has everything else."""

from setuptools import find_packages, setup

# In an installation configs/ lies in the package's folder, where `config.files` finds it.
INSTALLED_CONFIGS = "widenet_jax.configs"
DATA = "widenet_jax.corpus.tiny"  # a folder without code: setuptools would warn

setup(
    packages=[*find_packages(include=["widenet_jax*"]), INSTALLED_CONFIGS, DATA],
    package_dir={INSTALLED_CONFIGS: "configs"},
)
