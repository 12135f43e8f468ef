"""Models that lack what analysis looks for are analysed for the rest."""

import jax
import numpy as np
import pytest
from etils import epath

from configs import digits
from widenet_jax.models.vit import build_model, parameter_shapes
from widenet_jax.run.workdir import plain
from widenet_jax.tools.analysis.report import analyze_model
from widenet_jax.weights.exported import Exported, write_exported
from widenet_jax.weights.trained import Trained, open_trained


def untrained(variant: str, directory) -> Trained:
    config = digits.get_config(variant)
    shapes = parameter_shapes(build_model(config.model, 10), (8, 8, 1))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)
    model = Exported(params, plain(config), [str(d) for d in range(10)], step=0)
    write_exported(epath.Path(directory), model, file_format="npz")
    return open_trained(str(directory))


@pytest.mark.parametrize(
    ("variant", "pictures"),
    [("vit_tiny", ["norm_divergence.png"]), ("vit_tiny,share_norms=true", [])],
)
def test_without_experts_and_without_norms_of_its_own(variant: str, pictures: list, tmp_path):
    trained = untrained(variant, tmp_path / "model")
    out = epath.Path(tmp_path / "out")
    out.mkdir()
    facts = analyze_model(trained, [], out, num_images=1)
    assert [path.name for path in out.iterdir()] == pictures
    assert len(facts["norm_divergence"]) == len(pictures)
    assert "expert_usage" not in facts
