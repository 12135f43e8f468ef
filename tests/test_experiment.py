"""The experiment that a config describes."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import draw
from small_runs import small_config

from configs import finetune
from widenet_jax.data.contract import ArraySpec, DataInfo
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_experiment, train_batch_shapes
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.nn.moe.routers.softmax import TopKRouter
from widenet_jax.optim.build import OPTIMIZERS
from widenet_jax.run.runtime import records_of_step
from widenet_jax.step import forward
from widenet_jax.train import first_state

IMAGE = {"image": ArraySpec((8, 8, 1), "uint8"), "label": ArraySpec((), "int32")}
DATA_INFO = DataInfo(1000, IMAGE, {"class_names": list("0123456789")})


Product = tuple[str, bool, frozenset[int]]  # operands' dtype, whether in full precision, lengths


def products_of(lowered: jax.stages.Lowered) -> set[Product]:
    """Returns every product of floats, ragged or not, with the lengths of all axes of it."""
    found = set()
    for line in lowered.as_text().splitlines():
        if "= stablehlo.dot_general" in line:
            lengths = frozenset(map(int, re.findall(r"\d+(?=x)", line.partition(" : ")[2])))
            dtype = re.search(r": \(tensor<(?:\d+x)*(\w+)>", line)[1]
            found.add((dtype, "HIGHEST" in line, lengths))
    return {product for product in found if not product[0].startswith("i")}


METHODS = ["gather", *(pytest.param(m, marks=pytest.mark.slow) for m in ("einsum", "ragged"))]


@pytest.mark.parametrize("dispatch", METHODS)
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_float32_is_multiplied_in_full(dtype: str, dispatch: str):
    """In forward, backward and evaluation.

    With bfloat16, router and head alone are in float32; and of ragged products the experts' biases,
    whose gradient is a sum over rows (`experts.ExpertFfn.on_rows`).
    """
    E, V, F, D = 5, 10, 48, 32  # lengths of these axes and of no others
    changes = {"model.moe.num_experts": E, "model.moe.mlp_dim": F, "model.moe.dispatch": dispatch}
    changes |= {"model.embed_dim": D}
    config = small_config(**changes, **{"model.dtype": dtype, "model.loop.core": ((1, 1),)})
    experiment = build_experiment(config, DATA_INFO, jax.devices()[:1])
    batch = train_batch_shapes(experiment)
    with jax.set_mesh(experiment.mesh):
        train = experiment.train_step.lower(experiment.state, batch)
    inputs = {"image": jnp.zeros((config.batch_size, 8, 8, 1))}
    compiled = jax.jit(partial(forward, experiment.model), static_argnums=2)
    evaluate = compiled.lower(experiment.state.params, inputs, None)
    for lowered in (train, evaluate):
        found = products_of(lowered)
        assert any(F in lengths for *_, lengths in found)
        if dtype == "float32":
            assert {product[:2] for product in found} == {("f32", True)}
            continue
        kinds = {("bf16", False), ("f32", True), ("f32", False)}
        assert {product[:2] for product in found} == kinds
        for name, _, lengths in found:
            of_bias = dispatch == "ragged" and D not in lengths
            assert name == "bf16" or (lengths & {E, V} and (F not in lengths or of_bias)), lengths


def test_accumulation_changes_no_gradient():
    """Two parts of 8 images instead of one of 16, without mixup and noise: the same gradients."""
    changes = {
        "augment.mixup_alpha": 0.0,
        "model.moe.router.noise_std": 0.0,
        "model.loop.core": ((1, 1),),
    }
    changes |= {"model.embed_dim": 16, "batch_size": 16, "optimizer.accumulation_steps": 1}
    rng = np.random.default_rng(0)
    batch = {"image": rng.integers(0, 255, (16, 8, 8, 1), np.uint8), "label": np.arange(16) % 10}
    found, params = [], None
    for parts in (1, 2):
        config = small_config(**changes | {"optimizer.accumulation_steps": parts})
        experiment = build_experiment(config, DATA_INFO, jax.devices()[:1])
        params = draw(experiment.state.params) if params is None else params
        with jax.set_mesh(experiment.mesh):
            found.append(jax.jit(experiment.gradients)(params, batch, 0))
    (one, its_metrics), (two, metrics) = found
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), two, one)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), metrics, its_metrics)
    assert metrics.layer_sums["load"].shape == (1, 4)


def test_each_step_has_noise_of_its_own():
    """One batch at two steps: another dropout; a step that is computed again is the same."""
    changes = {"augment.mixup_alpha": 0.0, "model.moe.router.noise_std": 0.0, "model.dropout": 0.5}
    config = small_config(**changes | {"model.loop.core": ((1, 1),)})
    experiment = build_experiment(config, DATA_INFO, jax.devices()[:1])
    params = draw(experiment.state.params)
    batch = {"image": np.zeros((16, 8, 8, 1), np.uint8), "label": np.arange(16) % 10}
    with jax.set_mesh(experiment.mesh):
        gradients = jax.jit(experiment.gradients)
        losses = [float(gradients(params, batch, step)[1].means["loss"]) for step in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]


def test_the_seed_reaches_parameters_noise_and_order():
    configs = [small_config(**{"seed": seed, "model.loop.core": ((1, 1),)}) for seed in (0, 1)]
    runs = [build_experiment(config, DATA_INFO, jax.devices()[:1]) for config in configs]
    programs, initial = [], []
    for run in runs:
        batch = train_batch_shapes(run)
        with jax.set_mesh(run.mesh):
            # The noise of a step is made in its program, from the seed and the step's number.
            programs.append(run.train_step.lower(run.state, batch).as_text())
            initial.append(run.init.lower().as_text())
    assert programs[0] != programs[1] and initial[0] != initial[1]
    assert records_of_step(runs[0], 0) != records_of_step(runs[1], 0)


class Halved(TopKRouter):
    """A user's router."""

    def __call__(self, x, mask, *, key, train):
        routing = super().__call__(x, mask, key=key, train=train)
        return routing.replace(router_probs=routing.router_probs / 2)


def test_an_own_router_without_probabilities_starts_no_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ROUTERS, "halved", Halved)
    config = small_config(**{"model.moe.router.name": "halved"})
    with pytest.raises(BadInputError, match=r"line \d+\): router_probs of a token must be a"):
        build_experiment(config, DATA_INFO, jax.devices()[:1])


def test_the_optimizer_of_a_finetuned_model_starts_from_its_parameters(
    monkeypatch: pytest.MonkeyPatch,
):
    """As one that pulls towards the first parameters needs, and the average of the parameters."""
    pull = optax.GradientTransformation(
        lambda params: params, lambda grads, state, _: (grads, state)
    )
    monkeypatch.setitem(OPTIMIZERS, "pull", lambda *_: pull)
    values = {"init_from": "widenet_tiny_digits", "optimizer.name": "pull", "batch_size": 16}
    values |= {"optimizer.ema_decay": 0.9, "optimizer.grad_clip_norm": 0.0}
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    config = set_fields(finetune.get_config("pretrained"), flags)
    run = build_experiment(config, DATA_INFO, jax.devices()[:1])
    with jax.set_mesh(run.mesh):
        state = first_state(run, note=lambda line: None)
        params = jax.tree.leaves(state.params)
        held = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
        assert len(held) == 2 * len(params)
        for x, y in zip(held, 2 * params, strict=True):
            np.testing.assert_array_equal(x, y)
        places = {x.unsafe_buffer_pointer() for x in (*params, *held)}
        assert len(places) == 3 * len(params)  # a step may donate each of them
        fresh = jax.tree.leaves(run.init().params)
    assert any((x != y).any() for x, y in zip(fresh, params, strict=True))
