"""What is saved comes back to the bit, on any mesh; what does not fit or is broken says so."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from jax.sharding import Mesh

from widenet_jax.checkpoint import (
    Checkpoints,
    fingerprint,
    load_params,
    params_sha256,
    read_meta,
)
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.sharding import build_mesh, tree_shardings
from widenet_jax.step import TrainState

META = {"config": {"seed": 0}, "class_names": ["cat", "dog"]}


def state_of(seed: int, *, mlp_dim: int = 128) -> TrainState:
    """Parameters with stacked experts, and moments like theirs."""
    rng = np.random.default_rng(seed)

    def tree() -> dict:
        normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
        return {
            "head": {"bias": normal(10)},
            "moe": {"experts": {"wi": {"kernel": normal(4, 32, mlp_dim)}}},
        }

    return TrainState(
        step=np.int32(seed), params=tree(), opt_state={"mu": tree(), "count": np.int32(seed)}
    )


def mesh_of(fsdp: int, expert: int, devices: int) -> Mesh:
    return build_mesh({"fsdp": fsdp, "expert": expert}, jax.devices()[:devices])


def place(state: TrainState, mesh: Mesh) -> TrainState:
    return jax.device_put(state, tree_shardings(state, mesh))


def target_on(mesh: Mesh, *, mlp_dim: int = 128) -> TrainState:
    """Shapes with shardings, as train asks for them."""
    return place(jax.tree.map(jnp.zeros_like, state_of(0, mlp_dim=mlp_dim)), mesh)


def checkpoints_in(directory: Path, *, keep: int = 2) -> Checkpoints:
    return Checkpoints(epath.Path(directory), meta=META, keep=keep)


ONE, EIGHT, MIXED = (1, 1, 1), (1, 1, 8), (2, 2, 8)


@pytest.mark.parametrize(
    ("saved_on", "restored_on"),
    [(ONE, EIGHT), (EIGHT, MIXED), (MIXED, ONE), ((4, 2, 8), (1, 4, 4))],
)
def test_a_state_comes_back_on_another_mesh(tmp_path: Path, saved_on: tuple, restored_on: tuple):
    state, target = state_of(7), target_on(mesh_of(*restored_on))
    first = checkpoints_in(tmp_path)
    first.save(place(state, mesh_of(*saved_on)), step=7)
    first.wait()
    first.close()

    again = checkpoints_in(tmp_path)
    restored, step = again.restore_latest(target)
    again.close()
    assert step == 7 and int(restored.step) == 7
    jax.tree.map(np.testing.assert_array_equal, restored.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, restored.opt_state, state.opt_state)
    for ours, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(target), strict=True):
        assert ours.sharding == wanted.sharding


def test_a_new_workdir_has_nothing_to_restore(tmp_path: Path):
    checkpoints = checkpoints_in(tmp_path)
    target = target_on(mesh_of(*ONE))
    assert checkpoints.restore_latest(target) == (target, 0)
    checkpoints.close()


@pytest.fixture
def on_one() -> Mesh:
    return mesh_of(*ONE)


def test_the_newest_are_kept_and_asking_twice_is_harmless(tmp_path: Path, on_one: Mesh):
    checkpoints = checkpoints_in(tmp_path, keep=2)
    for step in (1, 2, 3, 3):
        checkpoints.save(place(state_of(step), on_one), step=step)
    checkpoints.wait()
    assert sorted(checkpoints.last.all_steps()) == [2, 3]
    restored, _ = checkpoints.restore_latest(target_on(on_one))
    checkpoints.close()
    assert params_sha256(restored.params) == params_sha256(state_of(3).params)


def best_of(directory: Path) -> tuple[list[int], float]:
    """Steps kept as best, and the accuracy stored with the last."""
    checkpoints = checkpoints_in(directory)
    steps = list(checkpoints.best.all_steps())
    accuracy = read_meta(checkpoints.best, steps[-1])["accuracy"]
    checkpoints.close()
    return steps, accuracy


def test_the_best_is_kept_across_a_restart(tmp_path: Path, on_one: Mesh):
    starts = (
        [(1, 0.5), (2, 0.8), (3, 0.7)],
        [(4, 0.6), (5, 0.8)],  # worse, and no better
        [(1, 0.9)],  # better, at an earlier step: the run began anew
        [(1, 0.95)],  # the same step again, better by rounding on another mesh
    )
    kept = []
    for start in starts:
        checkpoints = checkpoints_in(tmp_path)
        for step, accuracy in start:
            state = place(state_of(step), on_one)
            checkpoints.save_best(state, step=step, accuracy=accuracy)
        checkpoints.wait()
        checkpoints.close()
        kept.append(best_of(tmp_path))
    assert kept == [([2], 0.8), ([2], 0.8), ([1], 0.9), ([1], 0.95)]


def test_an_accuracy_of_zero_is_a_best(tmp_path: Path, on_one: Mesh):
    checkpoints = checkpoints_in(tmp_path)
    checkpoints.save_best(place(state_of(1), on_one), step=1, accuracy=0.0)
    checkpoints.wait()
    checkpoints.close()
    assert best_of(tmp_path) == ([1], 0.0)


@pytest.fixture
def saved(tmp_path: Path, on_one: Mesh) -> Path:
    """A workdir with step 5."""
    checkpoints = checkpoints_in(tmp_path)
    checkpoints.save(place(state_of(5), on_one), step=5)
    checkpoints.wait()
    checkpoints.close()
    return tmp_path


def test_another_model_is_refused(saved: Path, on_one: Mesh):
    checkpoints = checkpoints_in(saved)
    with pytest.raises(BadInputError, match=r"checkpoint 5 in .* holds another model"):
        checkpoints.restore_latest(target_on(on_one, mlp_dim=64))
    checkpoints.close()


@pytest.mark.parametrize("item", ["params", "opt_state", "meta"])
def test_a_broken_checkpoint_is_one_line(saved: Path, on_one: Mesh, item: str):
    """Never a silent start from nothing."""
    for path in (saved / "checkpoints" / "5" / item).rglob("*"):
        if path.is_file() and "commit" not in path.name:
            path.write_bytes(path.read_bytes()[:7])
    checkpoints = checkpoints_in(saved)
    with pytest.raises(RunFailedError, match=r"checkpoint 5 in .* cannot be read: \S") as caught:
        checkpoints.restore_latest(target_on(on_one))
    checkpoints.close()
    assert "\n" not in str(caught.value)


ONE_DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


def test_parameters_of_another_run(saved: Path):
    params = load_params(str(saved), ONE_DEVICE)
    jax.tree.map(np.testing.assert_array_equal, params, state_of(5).params)
    assert {leaf.sharding for leaf in jax.tree.leaves(params)} == {ONE_DEVICE}


def test_no_run_to_start_from(tmp_path: Path):
    with pytest.raises(BadInputError, match=f"config.init_from={tmp_path}: no checkpoints/ there"):
        load_params(str(tmp_path), ONE_DEVICE)


def test_a_run_without_a_finished_checkpoint(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(BadInputError, match="no finished checkpoint"):
        load_params(str(tmp_path), ONE_DEVICE)


def test_the_hash_is_the_same_on_every_mesh():
    params = state_of(0).params
    hashes = {params_sha256(params)}
    for sizes in (ONE, EIGHT, MIXED, (4, 2, 8)):
        hashes.add(params_sha256(place(state_of(0), mesh_of(*sizes)).params))
    assert len(hashes) == 1


def test_one_bit_changes_the_hash():
    params = state_of(0).params
    before = params_sha256(params)
    params["moe"]["experts"]["wi"]["kernel"].view(np.uint32)[3, 31, 127] ^= 1
    assert params_sha256(params) != before
    params["moe"]["experts"]["wi"]["kernel"].view(np.uint32)[3, 31, 127] ^= 1
    assert params_sha256(params) == before


def test_a_name_changes_the_hash():
    a, b = np.float32(1), np.float32(2)
    assert params_sha256({"a": a, "b": b}) == params_sha256({"b": b, "a": a})
    assert params_sha256({"a": a, "b": b}) != params_sha256({"a": b, "b": a})
    assert params_sha256({"a": a}) != params_sha256({"b": a})


def test_the_fingerprint_is_of_names_shapes_and_types():
    x = jnp.zeros((2, 3))
    same = fingerprint({"a": x})
    assert fingerprint({"a": x + 1}) == same
    assert fingerprint({"a": jax.ShapeDtypeStruct((2, 3), jnp.float32)}) == same
    others = ({"b": x}, {"a": x.T}, {"a": x.astype(jnp.bfloat16)}, {"a": x, "b": x})
    assert len({same, *map(fingerprint, others)}) == 5
