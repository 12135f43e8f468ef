"""Checkpoints are restored bit for bit on any mesh; wrong or damaged ones are reported."""

import shutil
from contextlib import closing
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from jax.sharding import Mesh, SingleDeviceSharding

from widenet_jax.checkpoint.checkpoints import Checkpoints, load_checkpoint
from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.sharding import build_mesh, tree_shardings
from widenet_jax.step import TrainState
from widenet_jax.task import PrimaryMetric

ACCURACY = PrimaryMetric("accuracy")
META = {"config": {"seed": 0}, "class_names": ["cat", "dog"]}


def state_of(seed: int, *, mlp_dim: int = 128) -> TrainState:
    """Returns parameters with stacked experts, and moments of the same shapes."""
    rng = np.random.default_rng(seed)

    def tree() -> dict:
        normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
        return {
            "head": {"bias": normal(10)},
            "moe": {"experts": {"wi": {"kernel": normal(4, 32, mlp_dim)}}},
        }

    return TrainState(
        step=np.int32(seed),
        params=tree(),
        opt_state={"mu": tree(), "count": np.int32(seed)},
        skipped_updates=np.int32(1),
        bad_examples=np.int32(2),
    )


def mesh_of(fsdp: int, expert: int, devices: int) -> Mesh:
    return build_mesh({"fsdp": fsdp, "expert": expert}, jax.devices()[:devices])


def place(state: TrainState, mesh: Mesh) -> TrainState:
    return jax.device_put(state, tree_shardings(state, mesh))


def target_on(mesh: Mesh, *, mlp_dim: int = 128) -> TrainState:
    """Returns shapes with shardings, as `train` passes them."""
    return place(jax.tree.map(jnp.zeros_like, state_of(0, mlp_dim=mlp_dim)), mesh)


def checkpoints_in(directory: Path, *, keep: int = 2) -> Checkpoints:
    return Checkpoints(epath.Path(directory), meta=META, keep=keep, primary_metric=ACCURACY)


ONE, EIGHT, MIXED = (1, 1, 1), (1, 1, 8), (2, 2, 8)


@pytest.mark.parametrize(
    ("saved_on", "restored_on"), [(ONE, EIGHT), (MIXED, ONE), ((4, 2, 8), (1, 4, 4))]
)
def test_a_state_comes_back_on_another_mesh(tmp_path: Path, saved_on: tuple, restored_on: tuple):
    state, target = state_of(7), target_on(mesh_of(*restored_on))
    with closing(checkpoints_in(tmp_path)) as first:
        assert first.restore(target) is None  # a new workdir
        first.save(place(state, mesh_of(*saved_on)), step=7)
        first.wait()
    with closing(checkpoints_in(tmp_path)) as again:
        restored, meta = again.restore(target)
    assert meta["step"] == 7 and int(restored.step) == 7
    assert (int(restored.skipped_updates), int(restored.bad_examples)) == (1, 2)
    assert {name: meta[name] for name in META} == META
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, restored.opt_state, state.opt_state)
    for ours, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(target), strict=True):
        assert ours.sharding == wanted.sharding


@pytest.fixture
def on_one() -> Mesh:
    return mesh_of(*ONE)


def test_the_newest_are_kept_and_asking_twice_is_harmless(tmp_path: Path, on_one: Mesh):
    with closing(checkpoints_in(tmp_path, keep=2)) as checkpoints:
        for step in (1, 2, 3, 3):
            checkpoints.save(place(state_of(step), on_one), step=step)
        checkpoints.wait()
        assert checkpoints.last.steps() == [2, 3]
        restored, _ = checkpoints.restore(target_on(on_one))
    assert params_sha256(restored.params) == params_sha256(state_of(3).params)


def best_of(directory: Path) -> tuple[list[int], float]:
    """Returns the steps kept as best, and the accuracy stored with the last."""
    with closing(checkpoints_in(directory)) as checkpoints:
        newest, _ = checkpoints.best.newest({})
        return checkpoints.best.steps(), newest.meta["accuracy"]


def test_the_best_is_kept_across_a_restart(tmp_path: Path, on_one: Mesh):
    starts = (
        [(1, 0.0)],
        [(1, 0.5), (2, 0.8), (3, 0.7)],
        [(4, 0.6), (5, 0.8)],  # worse, and no better
        [(1, 0.9)],  # better, at an earlier step: another mesh rounds differently
        [(1, 0.95)],  # the same step again: the first one stays
    )
    kept = []
    for start in starts:
        with closing(checkpoints_in(tmp_path)) as checkpoints:
            checkpoints.restore(target_on(on_one))
            for step, accuracy in start:
                state = place(state_of(step), on_one)
                checkpoints.save_best(state, step=step, value=accuracy)
            checkpoints.wait()
        kept.append(best_of(tmp_path))
    assert kept == [([1], 0.0), ([2], 0.8), ([2], 0.8), ([1], 0.9), ([1], 0.9)]


def test_the_best_on_other_evaluation_examples_is_not_the_best(tmp_path: Path, on_one: Mesh):
    """Other training examples change nothing. Older checkpoints do not tell theirs."""
    found = []
    for content, value in (("", 0.7), ("ab", 0.8), ("cb", 0.75), ("cd", 0.6), ("cd", 0.5)):
        with closing(checkpoints_in(tmp_path)) as checkpoints:
            checkpoints.meta |= {"content_sha256": content} if content else {}
            checkpoints.restore(target_on(on_one))
            found.append(checkpoints.best_value)
            state = place(state_of(len(found)), on_one)
            checkpoints.save_best(state, step=len(found), value=value)
            checkpoints.wait()
    assert found == [None, 0.7, 0.8, None, 0.6] and best_of(tmp_path) == ([4], 0.6)


@pytest.fixture
def saved(tmp_path: Path, on_one: Mesh) -> Path:
    """Makes a workdir with a checkpoint of step 5."""
    with closing(checkpoints_in(tmp_path)) as checkpoints:
        checkpoints.save(place(state_of(5), on_one), step=5)
        checkpoints.wait()
    return tmp_path


def refused(directory: Path, mesh: Mesh, line: str, **sizes: int) -> None:
    """Asserts that a run does not restore what is there."""
    with (
        closing(checkpoints_in(directory)) as checkpoints,
        pytest.raises((BadInputError, RunFailedError), match=line),
    ):
        checkpoints.restore(target_on(mesh, **sizes))


def test_another_model_is_refused(saved: Path, on_one: Mesh):
    refused(saved, on_one, r"checkpoint 5 in .* holds a different model", mlp_dim=64)


def test_only_damaged_ones_left_is_no_new_run(saved: Path, on_one: Mesh):
    (saved / "checkpoints" / "5").rename(saved / "checkpoints" / "5.damaged")
    refused(saved, on_one, r"holds only damaged checkpoints \(5\.damaged\)")


def test_a_checkpoint_copied_to_the_best_is_not_the_best(saved: Path, on_one: Mesh, capfd):
    """Nor is it taken for the best by a run that resumes."""
    with closing(checkpoints_in(saved)) as checkpoints:
        checkpoints.save(place(state_of(6), on_one), step=6, metrics_file=[0, ""])
        checkpoints.save_best(place(state_of(5), on_one), step=5, value=0.9)
        checkpoints.wait()
    sharding = SingleDeviceSharding(jax.devices()[0])
    assert load_checkpoint(epath.Path(saved), sharding, "best").meta["accuracy"] == 0.9
    shutil.copytree(saved / "checkpoints" / "6", saved / "best" / "6")
    with pytest.raises(RunFailedError, match=r"best/6 is no best checkpoint, but a copy from"):
        load_checkpoint(epath.Path(saved), sharding, "best")
    with closing(checkpoints_in(saved)) as checkpoints:
        checkpoints.restore(target_on(on_one))
        assert checkpoints.best_value == 0.9 and checkpoints.best.steps() == [5]
    assert "renamed to 6.damaged" in capfd.readouterr().err


def test_the_step_of_the_best_one_is_repeated(saved: Path, on_one: Mesh):
    """With another value, as on other devices: what is stored keeps its own."""
    with closing(checkpoints_in(saved)) as checkpoints:
        checkpoints.save_best(place(state_of(5), on_one), step=5, value=0.9)
        checkpoints.save_best(place(state_of(5), on_one), step=5, value=0.95)
        assert checkpoints.best_value == 0.9


def test_a_best_one_that_the_disk_does_not_give_stays(saved: Path, on_one: Mesh):
    """A link that leads to itself is unreadable even for root, as a disk may be for a while."""
    with closing(checkpoints_in(saved)) as checkpoints:
        checkpoints.save_best(place(state_of(5), on_one), step=5, value=0.9)
        checkpoints.wait()
    manifest = saved / "best" / "5" / "manifest.json"
    content = manifest.read_bytes()
    manifest.unlink()
    manifest.symlink_to(manifest)
    refused(saved, on_one, r"best/5 cannot be read: .* retry")
    manifest.unlink()
    manifest.write_bytes(content)
    with closing(checkpoints_in(saved)) as checkpoints:
        checkpoints.restore(target_on(on_one))
        assert checkpoints.best_value == 0.9
