"""What a config describes, put together."""

import re

import jax
import jax.numpy as jnp
import pytest
from small_runs import small_config

from widenet_jax.experiment import (
    DataFacts,
    build_experiment,
    make_forward,
    train_batch_shapes,
)

FACTS = DataFacts(1000, tuple("0123456789"), (8, 8, 1))


def precisions(lowered: jax.stages.Lowered) -> set[tuple[str, bool]]:
    """(operands' dtype, whether all its bits are multiplied) of every product, ragged ones too."""
    lines = [line for line in lowered.as_text().splitlines() if "= stablehlo.dot_general" in line]
    dtypes = [re.search(r": \(tensor<(?:\d+x)*(\w+)>", line)[1] for line in lines]
    found = {(dtype, "HIGHEST" in line) for dtype, line in zip(dtypes, lines, strict=True)}
    return {(dtype, full) for dtype, full in found if not dtype.startswith("i")}


@pytest.mark.parametrize("dispatch", ["einsum", "gather", "ragged"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float32_is_multiplied_in_full(dtype: str, dispatch: str):
    """Forwards, backwards and in evaluation; of bfloat16 only the router's products are float32."""
    config = small_config(**{"model.dtype": dtype, "model.moe.dispatch": dispatch})
    experiment = build_experiment(config, FACTS, jax.devices()[:1])
    batch = train_batch_shapes(experiment)
    with jax.set_mesh(experiment.mesh):
        train = experiment.train_step.lower(experiment.state, batch)
    images = jnp.zeros((config.batch_size, 8, 8, 1))
    forward = jax.jit(make_forward(experiment.model), static_argnums=3)
    evaluate = forward.lower(experiment.state.params, images, None, None)
    for lowered in (train, evaluate):
        found = precisions(lowered)
        if dtype == "float32":
            assert found == {("f32", True)}
        else:
            assert ("bf16", False) in found and ("bf16", True) not in found
