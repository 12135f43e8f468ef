"""Checkpoints of every format version stay readable: golden/ holds one of each version.

After a change of the format version, run `python tests/checkpoint/test_golden.py` once to write its
checkpoint. Existing ones are never overwritten.
"""

import shutil
from contextlib import closing
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from widenet_jax.checkpoint.checkpoints import Checkpoints, load_checkpoint
from widenet_jax.checkpoint.series import FORMAT_VERSION
from widenet_jax.step import TrainState
from widenet_jax.task import PrimaryMetric

OPTIONS = {"keep": 1, "primary_metric": PrimaryMetric("accuracy")}
GOLDEN = Path(__file__).parent / "golden"
META = {"config": {"seed": 3, "model": {"depth": 2}}, "class_names": ["cat", "dog"]}


def state() -> TrainState:
    """Returns a state of numbers that a reader can check: 0, 1, 2, ... and their halves."""
    params = {
        "encoder": {"moe": {"experts": {"wi": {"kernel": jnp.arange(24.0).reshape(2, 3, 4)}}}},
        "head": {"bias": jnp.array([0.5, -0.5]), "kernel": jnp.arange(6.0).reshape(3, 2)},
    }
    moments = jax.tree.map(lambda x: x / 2, params)
    return TrainState(
        step=jnp.int32(7),
        params=params,
        opt_state=({"count": jnp.int32(6), "mu": moments}, ()),
        skipped_updates=jnp.int32(1),
        bad_examples=jnp.int32(2),
    )


def test_the_present_version_is_there():
    assert (GOLDEN / f"version_{FORMAT_VERSION}").is_dir()


@pytest.mark.parametrize("version", sorted(p.name for p in GOLDEN.glob("version_*")))
def test_stays_readable(tmp_path: Path, version: str):
    shutil.copytree(GOLDEN / version, tmp_path / "run")
    with closing(Checkpoints(epath.Path(tmp_path / "run"), meta={}, **OPTIONS)) as checkpoints:
        restored, meta = checkpoints.restore(jax.tree.map(jnp.zeros_like, state()))
    jax.tree.map(np.testing.assert_array_equal, restored, state())
    assert {name: meta[name] for name in META} == META
    newest = load_checkpoint(epath.Path(tmp_path / "run"), SINGLE)
    jax.tree.map(np.testing.assert_array_equal, newest.items["params"], state().params)


SINGLE = jax.sharding.SingleDeviceSharding(jax.devices()[0])

if __name__ == "__main__":
    place = GOLDEN / f"version_{FORMAT_VERSION}"
    if place.exists():
        raise SystemExit(f"{place} is there and stays as it is")
    with closing(Checkpoints(epath.Path(place), meta=META, **OPTIONS)) as writer:
        writer.save(state(), step=7, evaluation_due=False)
        writer.wait()
    for path in place.rglob("commit_success.txt"):  # holds the path it was written to
        path.write_text("committed\n")
