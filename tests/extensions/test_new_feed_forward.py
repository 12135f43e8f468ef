"""A new feed-forward in WideNet's blocks, from one file: a class and an entry in FEED_FORWARDS."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import metrics_of, small_config

from widenet_jax import train
from widenet_jax.nn.dense import Dense, Dropout
from widenet_jax.nn.feed_forwards import FEED_FORWARDS
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.typing import Array, FfnOutput


class GatedLinearUnit(nn.Module):
    """Feed-forward y = ((x V) * sigmoid(x W)) O (Dauphin et al. 2017) that reports open gates.

    Its own fields are `width` and `weight`, of a loss on the mean gate; the others are common.
    """

    width: int
    weight: float
    dropout: float
    hidden_dropout: bool
    activation: str
    output_activation: bool
    kernel_init: KernelInit
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, *, mask: Array | None = None, train: bool, routing=None):
        gate = jax.nn.sigmoid(Dense(self.width, dtype=self.dtype, name="gate")(x))
        hidden = gate * Dense(self.width, dtype=self.dtype, name="value")(x)
        y = Dense(x.shape[-1], dtype=self.dtype, name="out")(hidden)
        mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
        open_gates = jnp.where(mask[..., None], gate > 0.5, False)
        losses = {"gate": jnp.where(mask[..., None], gate, 0).mean()}
        sums = {"open": open_gates.sum(dtype=jnp.int32), "seen": mask.sum() * self.width}
        aux = {"losses": losses, "loss": self.weight * losses["gate"], "sums": sums}
        return FfnOutput(y=Dropout(self.dropout)(y, train=train), aux=aux)

    @staticmethod
    def summarize(sums: dict) -> dict:
        return {"open_gates": np.asarray(sums["open"]) / np.asarray(sums["seen"])}


@pytest.mark.slow
def test_trains_in_shared_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(FEED_FORWARDS, "gated", GatedLinearUnit)
    config = small_config()
    with config.unlocked():
        config.model.ffn, config.model.moe = "gated", None
        config.model.gated = {"width": 48, "weight": 0.1}
    result = train.run(config, str(tmp_path / "run"), devices=jax.devices()[:1])
    first, *_, last = metrics_of(tmp_path / "run")
    assert last["cross_entropy"] < first["cross_entropy"]
    assert len(last["gate_loss"]) == len(last["open_gates"]) == 2
    assert min(last["open_gates"]) > 0 and max(last["open_gates"]) < 1
    assert first["loss"] == pytest.approx(first["cross_entropy"] + 0.1 * sum(first["gate_loss"]))
    # Both blocks share one copy: two kernels [32, 48], one [48, 32], and their biases.
    once = 3 * 32 * 48 + 2 * 48 + 32
    encoder = {"attention": 4 * (32 * 32 + 32), "ffn": once}
    assert result["params_unrolled"] - result["params"] == sum(encoder.values())
