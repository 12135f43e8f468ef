"""The device mesh and the placement of every array on it.

Mesh axes: `data` replicates the parameters, `fsdp` shards them, `expert` shards the experts. A
batch is sharded over all three, so that every device works on its own examples. All axes have type
Auto: the compiler inserts the collectives, guided by the few constraints here.

Devices that fast links connect form a slice: of TPUs a slice, of GPUs a host. `fsdp` and `expert`
lie within one slice, so that between slices only gradients travel.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.errors import BadInputError
from widenet_jax.param_names import is_expert, is_shared_by_blocks, map_with_path
from widenet_jax.typing import Array, PyTree

AXES = ("data", "fsdp", "expert")
BATCH = P(AXES)


def slice_number(device: jax.Device) -> int:
    """Returns the number of a device's slice; devices without one are one slice."""
    return getattr(device, "slice_index", 0)


def build_mesh(
    sharding: Mapping,
    devices: Sequence[jax.Device],
    *,
    slice_of: Callable[[jax.Device], int] = slice_number,
) -> Mesh:
    """Builds the mesh of `config.sharding`, which sizes `fsdp` and `expert`; `data` is the rest.

    fsdp=-1 takes all devices of a slice that `expert` leaves: within a slice no parameter and no
    optimizer moment is then stored or updated more than once, apart from small leaves
    (`param_spec`). fsdp=-16 takes up to 16 of them, as many as divide their number; of several
    slices all, because collectives would otherwise grow with the depth (docs/log/plans_slices.md).
    The devices of a slice are consecutive along `data`.

    Args:
      slice_of: the number of a device's slice.

    Raises:
      BadInputError: the sizes do not multiply to the number of devices of a slice.
    """
    slices: dict[int, list[jax.Device]] = {}
    for device in sorted(devices, key=slice_of):
        slices.setdefault(slice_of(device), []).append(device)
    within = math.gcd(*map(len, slices.values()))
    asked, expert = int(sharding["fsdp"]), int(sharding["expert"])
    left = max(within // max(expert, 1), 1)
    most = left if asked == -1 or (asked < 0 and len(slices) > 1) else -asked
    fsdp = max((n for n in range(1, most + 1) if left % n == 0), default=asked)
    if fsdp < 1 or expert < 1 or within % (fsdp * expert):
        product = "" if asked < 0 else f"config.sharding.fsdp={asked} times "
        parts = f"{product}config.sharding.expert={expert}"
        of = "" if len(slices) == 1 else f" of each of the {len(slices)} slices"
        raise BadInputError(f"{parts} must divide the number of devices{of}, {within}")
    kinds = (AxisType.Auto,) * 3
    # `jax.make_mesh` orders the devices of one slice, and refuses several.
    meshes = [
        jax.make_mesh((len(one) // (fsdp * expert), fsdp, expert), AXES, devices=one)
        for one in slices.values()
    ]
    return Mesh(np.concatenate([mesh.devices for mesh in meshes]), AXES, axis_types=kinds)


def constrain(x: Array, spec: P) -> Array:
    """Constrains the sharding of `x` on the current mesh; returns `x` if no mesh is set."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec)


def gather_shared(params: PyTree) -> PyTree:
    """Gathers the encoder's shared parameters once per step.

    Otherwise each block that uses a parameter would all-gather it over `fsdp` again. Expert
    parameters stay sharded over `expert`. A parameter that only one block uses is gathered there,
    in the computation's dtype.
    """

    def leaf(path: str, x: Array) -> Array:
        if not is_shared_by_blocks(path):
            return x
        return gather(P("expert") if is_expert(path) else P(), x)

    return map_with_path(leaf, params)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def gather(spec: P, x: Array) -> Array:
    """Constrains `x` but not its gradient, which may stay sharded as the optimizer needs it."""
    return constrain(x, spec)


gather.defvjp(lambda spec, x: (constrain(x, spec), None), lambda spec, _, dx: (dx,))


def platform() -> str:
    """Returns "tpu", "gpu" or "cpu": the platform of the current mesh, or without one JAX's."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.default_backend() if mesh.empty else mesh.abstract_device.platform


def device_kind() -> str:
    """Returns the devices' kind, such as "TPU v3": of the current mesh, or without one JAX's."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.devices()[0].device_kind if mesh.empty else mesh.abstract_device.device_kind


def on_each_device(function: Callable, replicated: PyTree, *batched: PyTree) -> Array:
    """Calls `function(replicated, *batched)` on each device with its own shard of `batched`.

    The first of `batched` must be an array.

    For functions that the compiler cannot partition. It is a plain call if no mesh is set
    (`jax.set_mesh`), or if the batch does not divide over the devices, such as the single example
    that initialises the parameters.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or batched[0].shape[0] % mesh.size:
        return function(replicated, *batched)
    specs = (P(), *(BATCH for _ in batched))
    mapped = jax.shard_map(function, in_specs=specs, out_specs=BATCH, check_vma=False)
    return mapped(replicated, *batched)


def param_spec(path: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """Returns the sharding of a parameter and of its optimizer moments.

    Stacked experts [E, ...] are sharded over `expert`. Then the largest remaining axis that divides
    is sharded over `fsdp`. Small leaves (norms, biases) are replicated: gathering them would cost
    more than storing them.
    """
    spec: list[str | None] = [None] * len(shape)
    # An optimizer may keep numbers of experts that are not stacked.
    if is_expert(path) and len(shape) >= 2 and mesh.shape["expert"] > 1:
        spec[0] = "expert"
    fsdp = mesh.shape["fsdp"]
    if fsdp > 1 and len(shape) >= 2 and int(np.prod(shape)) >= 2**12:
        free = [a for a in range(len(shape)) if spec[a] is None and shape[a] % fsdp == 0]
        if free:
            spec[max(free, key=lambda a: shape[a])] = "fsdp"
    return P(*spec)


def tree_shardings(tree: PyTree, mesh: Mesh) -> PyTree:
    """Applies `param_spec` to every leaf of the parameters or of an optimizer state like them.

    Raises:
      BadInputError: the experts do not divide over the mesh.
    """

    def leaf(path: str, x: jax.ShapeDtypeStruct) -> NamedSharding:
        spec = param_spec(path, x.shape, mesh)
        if "expert" in spec and x.shape[0] % mesh.shape["expert"]:
            raise BadInputError(
                f"config.sharding.expert={mesh.shape['expert']} must divide the number of experts, "
                f"{x.shape[0]} (config.model.moe.num_experts)"
            )
        return NamedSharding(mesh, spec)

    return map_with_path(leaf, tree)


@cache
def host_positions(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the positions in the global batch that this host's devices hold, sorted.

    The batch must divide over the devices, which `experiment.check_batch` checks.
    """
    places = NamedSharding(mesh, BATCH).addressable_devices_indices_map((batch_size,))
    held = [np.arange(batch_size)[index] for index in places.values()]
    return np.unique(np.concatenate(held))


def global_batch(local: Mapping[str, np.ndarray], mesh: Mesh, batch_size: int) -> dict[str, Array]:
    """Assembles one global array per key from the rows at `host_positions` that this host loaded.

    `record`, the number of each example in its split, stays on the host.
    """
    positions = host_positions(mesh, batch_size)

    def place(rows: np.ndarray) -> Array:
        def shard(index: tuple[slice, ...]) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            first = int(np.searchsorted(positions, start))
            return rows[first : first + stop - start]

        shape = (batch_size, *rows.shape[1:])
        return jax.make_array_from_callback(shape, NamedSharding(mesh, BATCH), shard)

    return {key: place(rows) for key, rows in local.items() if key != "record"}


def to_host(replicated: PyTree) -> PyTree:
    """Copies replicated arrays to NumPy; needs no other host."""
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), replicated)
