"""Analysis of models without experts or without separate norms."""

import jax
import numpy as np
import pytest
from etils import epath

from configs import digits
from widenet_jax.inference.exported import Exported, write_exported
from widenet_jax.inference.trained import open_trained
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.ops.analysis.report import analyze_model
from widenet_jax.run.workdir import plain
from widenet_jax.trained import Trained

INPUTS = {"image": jax.ShapeDtypeStruct((1, 8, 8, 1), np.float32)}


def untrained(variant: str, directory) -> Trained:
    """Exports and opens a model with random parameters."""
    config = digits.get_config(variant)
    shapes = parameter_shapes(build_model(config.model, num_classes=10), INPUTS)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)
    model = Exported(params, plain(config), {"class_names": [str(d) for d in range(10)]}, step=0)
    write_exported(epath.Path(directory), model, file_format="npz")
    return open_trained(str(directory))


@pytest.mark.parametrize(
    ("variant", "figures"),
    [("vit_tiny", ["norm_divergence.png"]), ("vit_tiny,share_norms=true", [])],
)
def test_a_model_without_experts(variant: str, figures: list, tmp_path):
    trained = untrained(variant, tmp_path / "model")
    out = epath.Path(tmp_path / "out")
    out.mkdir()
    facts = analyze_model(trained, [], out, num_images=1)
    assert [path.name for path in out.iterdir()] == figures
    assert len(facts["norm_divergence"]) == len(figures)
    assert "expert_usage" not in facts
