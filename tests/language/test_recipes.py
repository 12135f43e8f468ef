"""Losses and updates of the looped models' recipes, as the code of their papers has them."""

import compiled
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import language_model
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.nn.loop import places_of
from widenet_jax.optim.build import update_factors
from widenet_jax.param_names import is_matrix, is_norm_or_bias, matches, named_leaves

TOKENS = {"tokens": jnp.array([[1, 4, 2, 2, 0], [3, 1, 1, 4, 2]])}


def tiny(variant: str) -> tuple[nn.Module, ConfigDict]:
    """A model of a recipe with few parameters, and the recipe's optimizer."""
    config = language_model.get_config(variant)
    fields = {"embed_dim": 8, "dtype": "float32", "attention": {"num_heads": 2, "head_dim": 4}}
    experts = {"mlp_dim": 4, "num_experts": 4, "num_selected_experts": 2}
    config.model.update(**fields, moe=experts)
    return build_model(config.model, vocab_size=5), config.optimizer


def test_losses_of_tying_are_means_over_layers():
    """0.01 and 0.0001 times the mean of the losses of a layer's two steps."""
    model, _ = tiny("tying,loop=1x2,tie=alltie")
    _, aux = compiled.apply(model, compiled.init(model, TOKENS), TOKENS, train=True)
    first, z = aux["losses"]["first_choice"], aux["losses"]["z"]
    assert first.shape == z.shape == (2,)
    expected = 0.01 * first.mean() + 1e-4 * z.mean()
    np.testing.assert_allclose(aux["loss"].sum(), expected, rtol=1e-6)


@pytest.mark.parametrize("tie", ["alltie", "experttie"])
def test_what_decays_and_slows_down_in_tying(tie: str):
    """Decay 0.1 on Muon's matrices alone; what runs twice is divided by the root of 2."""
    model, optimizer = tiny(f"tying,loop=1+1x2+1,tie={tie}")
    assert (optimizer.name, optimizer.weight_decay, optimizer.b2) == ("muon", 0.1, 0.95)
    shapes = parameter_shapes(model, TOKENS)
    excluded = matches(optimizer.decay_exclude)
    for path, leaf in named_leaves(shapes):
        decays = not (excluded(path) or is_norm_or_bias(path))
        assert decays == is_matrix(path, leaf.ndim), path
    places = places_of(model.steps())
    factors = update_factors(shapes, optimizer, depth=model.depth, places=places)
    slow = {path for path, factor in named_leaves(factors) if factor == pytest.approx(2**-0.5)}
    experts = {f"encoder/moe/experts/{name}/kernel" for name in ("wg", "wi", "wo")}
    assert slow == experts if tie == "experttie" else slow > experts


def test_all_of_moeut_decays():
    _, optimizer = tiny("moeut_44m,loop=2x2")
    assert (optimizer.name, optimizer.weight_decay, optimizer.b2) == ("adamw", 0.01, 0.999)
    assert not optimizer.exclude_norm_and_bias and not optimizer.decay_exclude
