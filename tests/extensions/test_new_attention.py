"""Another token mixer in attention's place, from one file: a class and an entry in ATTENTIONS."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from small_runs import metrics_of, small_config

from widenet_jax import train
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.dense import Dense
from widenet_jax.ops.plan.planner import forward_flops
from widenet_jax.typing import Array


def recurrence(keep: Array, value: Array, *, reverse: bool = False) -> Array:  # [B, T, D]
    """Computes h_t = a_t h_(t-1) + (1 - a_t) v_t by an associative scan over T."""
    join = lambda old, new: (old[0] * new[0], new[0] * old[1] + new[1])  # noqa: E731
    return jax.lax.associative_scan(join, (keep, (1 - keep) * value), reverse=reverse, axis=1)[1]


class GatedRecurrence(nn.Module):
    """A linear recurrence for each channel, in both directions; it has no heads."""

    width: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Array, *, train: bool, mask=None, **others: Array | None):
        keep = jax.nn.sigmoid(Dense(self.width, self.dtype, name="keep")(x))
        keep = keep if mask is None else jnp.where(mask[..., None], keep, 1.0)
        value = Dense(self.width, self.dtype, name="value")(x)
        h = recurrence(keep, value) + recurrence(keep, value, reverse=True)
        aux = {"losses": {"keep": keep.mean()}, "loss": 0.1 * keep.mean(), "sums": {}}
        return Dense(x.shape[-1], self.dtype, name="out")(h), aux

    def forward_flops(self, B: int, T: int, D: int, **others: int) -> int:
        return B * T * 3 * 2 * D * self.width


@pytest.mark.slow
def test_trains_and_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    half = jnp.full((1, 3, 1), 0.5)
    assert recurrence(half, jnp.array([[[8.0], [4.0], [2.0]]])).ravel().tolist() == [4, 4, 3]
    config = small_config(**{"model.patch_size": 4})
    image = {"image": jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")}
    full = forward_flops(config.model, image, num_classes=10)
    monkeypatch.setitem(ATTENTIONS, "gated", GatedRecurrence)
    with config.unlocked():
        config.model.attention = {"name": "gated", "width": 48}
    train.run(config, str(tmp_path / "run"), devices=jax.devices()[:1])
    first, *_, last = metrics_of(tmp_path / "run")
    assert last["cross_entropy"] < first["cross_entropy"]
    assert len(last["keep_loss"]) == len(last["load_balance_loss"]) == 2
    T, D = 4, 32
    less = 8 * T * D * D + 4 * T * T * D - 6 * T * D * 48
    assert full - forward_flops(config.model, image, num_classes=10) == 2 * less
