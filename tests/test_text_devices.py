"""A training step on text, on one device and on eight."""

import jax
import numpy as np
import pytest

from widenet_jax.config.files import load_config
from widenet_jax.data.contract import DataInfo
from widenet_jax.experiment import Experiment, build_experiment
from widenet_jax.step import TrainState
from widenet_jax.text.data.instances import instance_spec

B, T, P, V = 16, 16, 3, 64


def batch() -> dict[str, np.ndarray]:
    """16 texts of 16 tokens or fewer."""
    rng = np.random.default_rng(0)
    length = rng.integers(8, T + 1, B)
    real = np.arange(T) < length[:, None]
    arrays = {
        "tokens": np.where(real, rng.integers(5, V, (B, T)), 0),
        "token_types": np.where(real, np.arange(T) > 5, 0),
        "length": length,
        "mlm_positions": np.tile([1, 4, 6], (B, 1)),
        "mlm_labels": rng.integers(5, V, (B, P)),
        "mlm_count": rng.integers(1, P + 1, B),
        "order": rng.integers(0, 2, B),
    }
    return {name: x.astype(np.int32) for name, x in arrays.items()} | {"bad": np.zeros(B, bool)}


def experiment_on(devices: int, fsdp: int, **fields: object) -> Experiment:
    config = load_config("configs/text_pretrain.py:widenet_4_s,depth=1,examples_per_group=2")
    config.update(batch_size=B, duration="4 steps", sharding={"fsdp": fsdp})
    config.optimizer.update(warmup="0 steps")
    config.evaluation.update(batch_size=B, every="4 steps")
    config.checkpoint.every = "4 steps"
    config.model.num_positions = T
    config.data.max_length = T
    config.task.max_predictions = P
    config.update_from_flattened_dict(fields)
    data_info = DataInfo(100, instance_spec(config), {"vocab_size": V})
    return build_experiment(config, data_info, jax.devices()[:devices])


def step(experiment: Experiment, state: TrainState) -> tuple[dict, dict]:
    """Returns the metrics of a step from a state on the host, and the parameters after it."""
    places = jax.tree.map(lambda x: x.sharding, experiment.state)
    with jax.set_mesh(experiment.mesh):
        state, metrics = experiment.train_step(jax.device_put(state, places), batch())
        return jax.device_get(metrics), jax.device_get(state.params)


@pytest.mark.slow
def test_devices_and_sharding_change_nothing():
    """The table of tokens is sharded over eight devices, and looked up and multiplied with."""
    one, eight = experiment_on(1, 1), experiment_on(8, -1)
    with jax.set_mesh(one.mesh):
        start = jax.device_get(one.init())
    (metrics, params), (of_eight, its_params) = step(one, start), step(eight, start)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), of_eight, metrics)
    # AdamW's first update is the gradient's sign times the rate, 1e-3.
    close = jax.tree.map(lambda a, b: np.mean(np.abs(a - b) < 1e-5), its_params, params)
    assert all(share > 0.99 for share in jax.tree.leaves(close)), close


@pytest.mark.slow
def test_the_attention_kernel_trains_as_xla_does():
    """On two times two devices, with recomputation and two accumulation steps, padding masked."""
    of = {}
    for name in ("xla", "pallas"):
        fields = {"model.attention.implementation": name, "model.attention.num_heads": 2}
        fields |= {"model.attention.head_dim": 64, "model.remat": "block"}
        experiment = experiment_on(4, 2, **fields, **{"optimizer.accumulation_steps": 2})
        with jax.set_mesh(experiment.mesh):
            start = jax.device_get(experiment.init())
        of[name], _ = step(experiment, start)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    jax.tree.map(close, of["pallas"], of["xla"])
