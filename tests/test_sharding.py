"""The placement of parameters and batches on a mesh of eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.errors import BadInputError
from widenet_jax.nn.dense import linear
from widenet_jax.sharding import (
    AXES,
    build_mesh,
    gather_shared,
    global_batch,
    host_positions,
    param_spec,
    tree_shardings,
)


def mesh_of(fsdp: int, expert: int, devices: int = 8) -> Mesh:
    return build_mesh({"fsdp": fsdp, "expert": expert}, jax.devices()[:devices])


@pytest.mark.parametrize(
    ("fsdp", "expert", "devices", "shape"),
    [
        (1, 1, 1, (1, 1, 1)), (1, 1, 8, (8, 1, 1)), (2, 2, 8, (2, 2, 2)), (4, 2, 8, (1, 4, 2)),
        (-1, 1, 8, (1, 8, 1)), (-1, 2, 8, (1, 4, 2)), (-1, 1, 1, (1, 1, 1)),
        (-4, 1, 8, (2, 4, 1)), (-16, 1, 8, (1, 8, 1)), (-4, 1, 6, (2, 3, 1)), (-2, 2, 8, (2, 2, 2)),
    ],
)  # fmt: skip
def test_data_takes_the_rest(fsdp: int, expert: int, devices: int, shape: tuple):
    mesh = mesh_of(fsdp, expert, devices)
    assert dict(mesh.shape) == dict(zip(AXES, shape, strict=True))
    assert set(mesh.devices.flat) == set(jax.devices()[:devices])


@pytest.mark.parametrize(("fsdp", "expert"), [(3, 1), (0, 1), (1, -1), (-1, 3), (-2, 3), (-1, 0)])
def test_a_mesh_that_does_not_fit(fsdp: int, expert: int):
    fsdp_too = "" if fsdp < 0 else f"config.sharding.fsdp={fsdp} times "  # -1 takes the rest
    message = f"^{fsdp_too}config.sharding.expert={expert} must divide the number of devices, 8$"
    with pytest.raises(BadInputError, match=message):
        mesh_of(fsdp, expert)


@pytest.mark.parametrize(
    ("fsdp", "expert", "shape"),
    [
        (1, 1, (8, 1, 1)),
        (-1, 1, (2, 4, 1)),
        (-2, 1, (2, 4, 1)),
        (2, 1, (4, 2, 1)),
        (1, 4, (2, 1, 4)),
        (-1, 2, (2, 2, 2)),
    ],
)
def test_several_slices(fsdp: int, expert: int, shape: tuple):
    """Odd and even devices as two slices: `data` has slice 0 first, other axes stay within one."""
    sharding = {"fsdp": fsdp, "expert": expert}
    mesh = build_mesh(sharding, jax.devices()[::-1], slice_of=lambda device: device.id % 2)
    assert mesh.devices.shape == shape
    slices = np.vectorize(lambda device: device.id % 2)(mesh.devices)
    assert slices.ravel().tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert set(mesh.devices.flat) == set(jax.devices())


@pytest.mark.parametrize(
    ("fsdp", "expert", "parts"),
    [
        (8, 1, "config.sharding.fsdp=8 times config.sharding.expert=1"),
        (2, 4, "config.sharding.fsdp=2 times config.sharding.expert=4"),
        (-1, 8, "config.sharding.expert=8"),
    ],
)
def test_axes_do_not_span_slices(fsdp: int, expert: int, parts: str):
    """Sizes that fit eight devices, but not two slices of four."""
    mesh_of(fsdp, expert)
    message = f"^{parts} must divide the number of devices of each of the 2 slices, 4$"
    with pytest.raises(BadInputError, match=message):
        sharding = {"fsdp": fsdp, "expert": expert}
        build_mesh(sharding, jax.devices(), slice_of=lambda device: device.id % 2)


def test_slices_of_different_sizes():
    """`data` takes what the slices have; `fsdp` what divides each."""
    first_six = build_mesh(
        {"fsdp": -1, "expert": 1}, jax.devices()[:6], slice_of=lambda d: d.id // 4
    )
    assert dict(first_six.shape) == {"data": 3, "fsdp": 2, "expert": 1}


@pytest.mark.parametrize(
    ("path", "shape", "fsdp", "expert", "spec"),
    [
        # No axis to shard over.
        ("encoder/attention/query/kernel", (64, 64), 1, 1, P(None, None)),
        # The largest axis over fsdp; the first of equal ones.
        ("encoder/mlp/wi/kernel", (64, 256), 2, 1, P(None, "fsdp")),
        ("encoder/attention/query/kernel", (64, 64), 2, 1, P("fsdp", None)),
        # The largest that divides.
        ("embed/kernel", (2, 2, 3, 1023), 2, 1, P("fsdp", None, None, None)),
        # Small leaves are replicated: fewer than 4,096 numbers, or one axis.
        ("head/kernel", (64, 63), 2, 1, P(None, None)),
        ("norm/scale", (8192,), 2, 1, P(None)),
        ("step", (), 2, 2, P()),
        # Experts over expert, and their largest remaining axis over fsdp.
        ("encoder/moe/experts/wi/kernel", (4, 64, 128), 1, 2, P("expert", None, None)),
        ("encoder/moe/experts/wi/bias", (4, 128), 1, 2, P("expert", None)),
        ("encoder/moe/experts/wi/kernel", (4, 64, 128), 2, 2, P("expert", None, "fsdp")),
        ("0/mu/encoder/moe/experts/wi/kernel", (4, 64, 128), 2, 2, P("expert", None, "fsdp")),
        # An optimizer's numbers that are not stacked, such as Adafactor's placeholders.
        ("0/count/encoder/moe/experts/wi/kernel", (), 1, 2, P()),
        ("0/v_row/encoder/moe/experts/wi/kernel", (1,), 1, 2, P(None)),
        # Only the name decides.
        ("encoder/my_experts/kernel", (4, 64), 1, 2, P(None, None)),
    ],
)
def test_param_spec(path: str, shape: tuple, fsdp: int, expert: int, spec: P):
    assert param_spec(path, shape, mesh_of(fsdp, expert)) == spec


def test_shared_parameters_are_gathered_and_their_gradients_need_not_be():
    """They are gathered once per step; parameters of a single block stay sharded as stored."""
    kernel = jnp.ones((4, 64, 64))
    params = {
        "encoder": {
            "moe": {"experts": {"wi": {"kernel": kernel}}},
            "block_01_mlp": {"wi": {"kernel": kernel[0]}},
        },
        "head": {"kernel": kernel[1]},
    }
    mesh = mesh_of(2, 2)
    shardings = tree_shardings(params, mesh)
    with jax.set_mesh(mesh):
        split = jax.device_put(params, shardings)
        whole = jax.jit(gather_shared, in_shardings=(shardings,))(split)
        loss = lambda params: sum((x**2).sum() for x in jax.tree.leaves(gather_shared(params)))  # noqa: E731
        gradient = jax.jit(jax.grad(loss), out_shardings=shardings)(split)
    assert whole["encoder"]["moe"]["experts"]["wi"]["kernel"].sharding.spec == P("expert")
    for path in (("encoder", "block_01_mlp", "wi", "kernel"), ("head", "kernel")):
        leaf = whole
        for key in path:
            leaf = leaf[key]
        assert "fsdp" in leaf.sharding.spec
    jax.tree.map(lambda g, p: np.testing.assert_array_equal(g, 2 * p), gradient, params)


def test_experts_that_do_not_divide():
    tree = {"moe": {"experts": {"wi": {"kernel": jnp.zeros((6, 32, 64))}}}}
    with pytest.raises(BadInputError, match="expert=4 must divide the number of experts, 6 "):
        tree_shardings(tree, mesh_of(1, 4))


@pytest.mark.parametrize(("fsdp", "expert"), [(1, 1), (2, 2)])
def test_each_device_gets_its_consecutive_rows(fsdp: int, expert: int):
    """Each device gets two rows, in the order of the mesh: data, then fsdp, then expert."""
    mesh = mesh_of(fsdp, expert)
    np.testing.assert_array_equal(host_positions(mesh, 24), np.arange(24))  # one host has all
    rows = {
        "image": np.random.default_rng(0).integers(0, 256, (16, 3, 3, 1)),
        "label": np.arange(16),
    }
    placed = global_batch(rows, mesh, 16)
    for key, values in rows.items():
        np.testing.assert_array_equal(placed[key], values)
    held = {s.device: np.asarray(s.data).tolist() for s in placed["label"].addressable_shards}
    for index, device in enumerate(mesh.devices.flat):
        assert held[device] == [2 * index, 2 * index + 1]


def test_a_loop_gathers_kernels_and_not_examples():
    """Sharded kernels, stacked over blocks: 16 of the 128 examples stay on each of 8 devices."""
    mesh = mesh_of(fsdp=8, expert=1)

    def loss(kernels: tuple, x: jax.Array) -> jax.Array:
        def block(x: jax.Array, pair: tuple) -> tuple:
            h = jax.nn.relu(linear("btd,df->btf", x, pair[0], None))
            return x + linear("btf,fd->btd", h, pair[1], None), None

        return jax.lax.scan(block, x, kernels)[0].sum()

    def placed(shape: tuple, *axes: str | tuple | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))

    kernels = placed((3, 16, 64), None, None, "fsdp"), placed((3, 64, 16), None, "fsdp", None)
    with jax.set_mesh(mesh):
        step = jax.jit(jax.grad(loss)).lower(kernels, placed((128, 4, 16), AXES)).compile()
    assert "f32[16,4,16]" in step.as_text() and "f32[128,4," not in step.as_text()
