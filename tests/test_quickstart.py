"""The accuracy that the README promises for the quickstart, over three seeds."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

from widenet_jax import train


@pytest.mark.slow
def test_digits_reach_97_percent(tmp_path: Path):
    """Compares the mean test accuracy of the last checkpoints of seeds 0, 1, 2."""
    accuracies = []
    for seed in range(3):
        config = importlib.import_module("configs.digits").get_config()
        config.seed = seed
        result = train.run(config, str(tmp_path / str(seed)), devices=jax.devices()[:1])
        accuracies.append(result["test_accuracy"])
    assert np.mean(accuracies) >= 0.97
