"""The device mesh and where every array lives on it.

Mesh axes: `data` replicates the parameters, `fsdp` splits them, `expert` splits the experts. A
batch is split over all three, so that every device works on its own images. Auto axis types: the
compiler places the collectives, and the few constraints here tell it where.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.errors import BadInputError
from widenet_jax.typing import Array, PyTree

AXES = ("data", "fsdp", "expert")
BATCH = P(AXES)


def build_mesh(sharding: Mapping, devices: Sequence[jax.Device]) -> Mesh:
    """The mesh of `config.sharding`: sizes of the axes `fsdp` and `expert`; `data` takes the rest.

    `fsdp` may be -1, all the devices that `expert` leaves: nothing of the parameters and the
    optimizer's moments is then stored, or updated, twice.

    Raises:
      BadInputError: the sizes do not multiply to the number of devices.
    """
    asked, expert = int(sharding["fsdp"]), int(sharding["expert"])
    fsdp = max(len(devices) // max(expert, 1), 1) if asked == -1 else asked
    if fsdp < 1 or expert < 1 or len(devices) % (fsdp * expert):
        product = "" if asked == -1 else f"config.sharding.fsdp={asked} times "
        raise BadInputError(
            f"{product}config.sharding.expert={expert} must divide the number of devices, "
            f"{len(devices)}"
        )
    shape = (len(devices) // (fsdp * expert), fsdp, expert)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def constrain(x: Array, spec: P) -> Array:
    """A sharding constraint on the current mesh; none where no mesh is set (`jax.set_mesh`)."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec)


def gather_shared(params: PyTree) -> PyTree:
    """Parameters of which blocks share what they share: whole on every device, but for experts.

    So that what `fsdp` splits is gathered once a step, and not by each block that uses it. The rest
    is gathered where it is used, in the computation's dtype.
    """

    def leaf(path: tuple, x: Array) -> Array:
        name = f"/{jax.tree_util.keystr(path, simple=True, separator='/')}/"
        if not name.startswith("/encoder/") or "/block_" in name:
            return x
        return gather(P("expert") if "/experts/" in name else P(), x)

    return jax.tree.map_with_path(leaf, params)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def gather(spec: P, x: Array) -> Array:
    """`constrain(x, spec)`, whose gradient may stay split, as the optimizer wants it."""
    return constrain(x, spec)


gather.defvjp(lambda spec, x: (constrain(x, spec), None), lambda spec, _, dx: (dx,))


def platform() -> str:
    """What the current mesh, or without one the default device, is: "tpu", "gpu" or "cpu"."""
    mesh = jax.sharding.get_abstract_mesh()
    return jax.default_backend() if mesh.empty else mesh.abstract_device.platform


def on_each_device(function: Callable, replicated: PyTree, *batched: Array) -> Array:
    """`function(replicated, *batched)` on every device's own part of what is split as `BATCH`.

    For what the compiler cannot split by itself. A plain call without a mesh (`jax.set_mesh`), and
    for what does not divide, such as the single image that parameters are initialised with.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or batched[0].shape[0] % mesh.size:
        return function(replicated, *batched)
    specs = (P(), *(BATCH for _ in batched))
    return jax.shard_map(function, in_specs=specs, out_specs=BATCH, check_vma=False)(
        replicated, *batched
    )


def device_index() -> Array | int:
    """Which device this is, inside `on_each_device`; 0 in its plain call."""
    return jax.lax.axis_index(AXES) if jax.sharding.get_abstract_mesh().manual_axes else 0


def param_spec(path: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """Where a parameter (or its optimizer moments) lives.

    Stacked experts [E, ...] split over `expert`; then the largest remaining axis that divides
    splits over `fsdp`. Small leaves (norms, biases) stay whole: moving them costs more than
    keeping them.
    """
    spec: list[str | None] = [None] * len(shape)
    if "/experts/" in f"/{path}/" and mesh.shape["expert"] > 1:
        spec[0] = "expert"
    fsdp = mesh.shape["fsdp"]
    if fsdp > 1 and len(shape) >= 2 and int(np.prod(shape)) >= 2**12:
        free = [a for a in range(len(shape)) if spec[a] is None and shape[a] % fsdp == 0]
        if free:
            spec[max(free, key=lambda a: shape[a])] = "fsdp"
    return P(*spec)


def tree_shardings(tree: PyTree, mesh: Mesh) -> PyTree:
    """`param_spec` for every leaf of parameters or of an optimizer state that mirrors them.

    Raises:
      BadInputError: the experts do not divide over the mesh.
    """

    def leaf(path: tuple, x: jax.ShapeDtypeStruct) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spec = param_spec(name, x.shape, mesh)
        if "expert" in spec and x.shape[0] % mesh.shape["expert"]:
            raise BadInputError(
                f"config.sharding.expert={mesh.shape['expert']} must divide the number of experts, "
                f"{x.shape[0]} (config.model.moe.num_experts)"
            )
        return NamedSharding(mesh, spec)

    return jax.tree.map_with_path(leaf, tree)


def host_positions(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Positions of the global batch that this host's devices hold, sorted.

    Raises:
      BadInputError: the batch does not divide over the devices.
    """
    if batch_size % mesh.size:
        raise BadInputError(
            f"a batch of {batch_size} does not divide over {mesh.size} devices; a multiple of "
            f"{mesh.size} would do (config.batch_size, config.evaluation.batch_size)"
        )
    places = NamedSharding(mesh, BATCH).addressable_devices_indices_map((batch_size,))
    held = [np.arange(batch_size)[index] for index in places.values()]
    return np.unique(np.concatenate(held))


def global_batch(
    local: Mapping[str, np.ndarray], *, mesh: Mesh, batch_size: int, positions: np.ndarray
) -> dict[str, Array]:
    """One array a key over all hosts, from the rows at `positions` that this host has loaded.

    `record`, which image it is, stays on the host.
    """

    def place(rows: np.ndarray) -> Array:
        def shard(index: tuple[slice, ...]) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            first = int(np.searchsorted(positions, start))
            return rows[first : first + stop - start]

        shape = (batch_size, *rows.shape[1:])
        return jax.make_array_from_callback(shape, NamedSharding(mesh, BATCH), shard)

    return {key: place(rows) for key, rows in local.items() if key != "record"}


def to_host(replicated: PyTree) -> PyTree:
    """NumPy copies of arrays that every device holds whole, on one host of any number."""
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), replicated)
