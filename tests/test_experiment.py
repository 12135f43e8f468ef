"""The experiment that a config describes."""

import re

import jax
import jax.numpy as jnp
import pytest
from small_runs import small_config

from widenet_jax.data import ArraySpec, DataFacts
from widenet_jax.experiment import build_experiment, make_forward, train_batch_shapes

IMAGE = {"image": ArraySpec((8, 8, 1), "uint8"), "label": ArraySpec((), "int32")}
FACTS = DataFacts(1000, IMAGE, {"class_names": list("0123456789")})


def precisions(lowered: jax.stages.Lowered) -> set[tuple[str, bool]]:
    """Returns (operands' dtype, whether in full precision) of every product, ragged or not."""
    lines = [line for line in lowered.as_text().splitlines() if "= stablehlo.dot_general" in line]
    dtypes = [re.search(r": \(tensor<(?:\d+x)*(\w+)>", line)[1] for line in lines]
    found = {(dtype, "HIGHEST" in line) for dtype, line in zip(dtypes, lines, strict=True)}
    return {(dtype, full) for dtype, full in found if not dtype.startswith("i")}


@pytest.mark.parametrize(
    ("dtype", "dispatch"),
    [
        ("float32", "einsum"),
        ("float32", "gather"),
        ("float32", "ragged"),
        ("bfloat16", "gather"),
        pytest.param("bfloat16", "einsum", marks=pytest.mark.slow),
        pytest.param("bfloat16", "ragged", marks=pytest.mark.slow),
    ],
)
def test_float32_is_multiplied_in_full(dtype: str, dispatch: str):
    """In forward, backward and evaluation; with bfloat16, only the router multiplies in float32."""
    config = small_config(**{"model.dtype": dtype, "model.moe.dispatch": dispatch})
    experiment = build_experiment(config, FACTS, jax.devices()[:1])
    batch = train_batch_shapes(experiment)
    with jax.set_mesh(experiment.mesh):
        train = experiment.train_step.lower(experiment.state, batch)
    inputs = {"image": jnp.zeros((config.batch_size, 8, 8, 1))}
    forward = jax.jit(make_forward(experiment.model), static_argnums=2)
    evaluate = forward.lower(experiment.state.params, inputs, None)
    for lowered in (train, evaluate):
        found = precisions(lowered)
        if dtype == "float32":
            assert found == {("f32", True)}
        else:
            assert ("bf16", False) in found and ("bf16", True) not in found
