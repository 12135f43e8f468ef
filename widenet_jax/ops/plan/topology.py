"""TPU slices and NVIDIA GPUs by name, and the hardware figures of each generation.

A *core* is the unit that the name counts: a TensorCore in v2 to v5p, a chip in v5e and v6e. A
*device* is one entry of `jax.devices()`, which runs one copy of the program: the two cores of a
chip together in v4 and v5p, one core elsewhere.
"""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

from widenet_jax.errors import BadInputError


@dataclass(frozen=True)
class Chip:
    """Figures of one TPU generation, per chip unless stated otherwise.

    Sources: the "System architecture" tables of docs.cloud.google.com/tpu/docs/{v2 .. v6e} (read
    November 2026). The clock is the peak divided by the operations of the matrix units per cycle.

    Attributes:
      name: of the generation.
      cores: TensorCores.
      devices: JAX devices; the two cores of a v4 or v5p chip form one device.
      dimensions: number of dimensions of the torus.
      pod: chips of the largest slice.
      flops: peak bfloat16 FLOP/s.
      hbm: memory bandwidth, bytes/s.
      clock: Hz; converts the compiler's cycle estimates into time.
      ici: bytes/s that a chip sends over all its links together (the table's all-reduce bandwidth
        of a pod divided by its chips, which is half the bidirectional figure). A collective has all
        of it, not the share of a device: a ring passes through both cores of a chip in turn, so
        that each link carries the traffic of one core.
      hbm_limit: GiB per device that a program may use, from the compiler's out-of-memory message.
      kinds: names by which JAX knows its devices, `device.device_kind`.
      image: of the Cloud TPU virtual machine.
      dcn: bytes/s that a chip sends to other slices, its share of the links of its host: v5e, 2 x
        100 Gb/s for 8 chips; v5p, 50 Gb/s a chip; v6e, 4 x 200 Gb/s for 8 chips. The page of v4 has
        none; 50 Gb/s for 4 chips are assumed. 0: Cloud TPU joins slices of v4 and later only
        (docs.cloud.google.com/tpu/docs/multislice-introduction).
      config: the `chip_config_name` that libtpu needs; "" for its default.
    """

    name: str
    cores: int
    devices: int
    dimensions: int
    pod: int
    flops: float
    hbm: float
    clock: float
    ici: float
    hbm_limit: float
    kinds: Sequence[str]
    image: str
    dcn: float = 0.0
    config: str = ""

    @property
    def peak_flops(self) -> float:
        """Peak bfloat16 FLOP/s of one device."""
        return self.flops / self.devices

    @property
    def hbm_bandwidth(self) -> float:
        """Memory bandwidth of one device, bytes/s."""
        return self.hbm / self.devices


@dataclass(frozen=True)
class Gpu:
    """Figures of one kind of NVIDIA GPU.

    Sources: XLA's own descriptions, xla/backends/gpu/target_config/specs of openxla/xla (November
    2026); `peak_flops` and `ici` from NVIDIA's data sheets.

    Attributes:
      kind: `device.device_kind`.
      capability: major number of the CUDA compute capability.
      multiprocessors: their number.
      lanes: float32 units of a multiprocessor.
      shared_memory: bytes of a multiprocessor.
      l2_cache: bytes.
      clock: GHz.
      hbm_bandwidth: bytes/s.
      memory: bytes.
      ici: bytes/s that it sends over NVLink.
      peak_flops: peak bfloat16 FLOP/s.
    """

    kind: str
    capability: int
    multiprocessors: int
    lanes: int
    shared_memory: int
    l2_cache: int
    clock: float
    hbm_bandwidth: float
    memory: int
    ici: float
    peak_flops: float

    @property
    def hbm_limit(self) -> float:
        """GiB that JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise."""
        return 0.75 * self.memory / 2**30

    @property
    def config(self) -> str:
        """What XLA compiles for, a GpuTargetConfigProto as text."""
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
              shared_memory_per_block: 49152
              shared_memory_per_block_optin: {self.shared_memory - 1024}
              shared_memory_per_core: {self.shared_memory}
              core_count: {self.multiprocessors} fpus_per_core: {self.lanes}
              block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
              memory_bandwidth: {self.hbm_bandwidth:.0f} l2_cache_size: {self.l2_cache}
              clock_rate_ghz: {self.clock} device_memory_size: {self.memory}
              cuda_compute_capability {{ major: {self.capability} }}
              registers_per_core_limit: 65536 registers_per_block_limit: 65536
            }}
            platform_name: "CUDA"
            dnn_version_info {{ major: 9 minor: 10 }}
            runtime_version {{ major: 12 minor: 8 }}
            device_description_str: "{self.kind}"
        """


_FIGURES = tomllib.loads(Path(__file__).with_name("chips.toml").read_text())
CHIPS = {name: Chip(name, **fields) for name, fields in _FIGURES["tpus"].items()}
GPUS: dict[str, float] = _FIGURES["gpus"]  # parts of `device.device_kind` -> peak FLOP/s
GPU_CHIPS = {
    name: Gpu(**fields, peak_flops=GPUS[name.upper()])
    for name, fields in _FIGURES["gpu_plans"].items()
}
MOST_GPUS = 8  # of a host; NVLink connects them
ALIASES = {"v5litepod": "v5e"}
NAME = re.compile(
    r"((?P<slices>[1-9]\d{0,3})x)?(?P<generation>[a-z]\w*?)"
    r"(-(?P<count>\d{1,9})|:(?P<shape>\d{1,9}(x\d{1,9})*))"
)
SLICE_EXAMPLES = "v3-256, v4-128, v5e-16, v5p-64, v6e-8, v3:8x16, 2xv5e-256"


@dataclass(frozen=True)
class Topology:
    """A TPU slice, or several that are alike.

    Attributes:
      name: as the user wrote it.
      generation: key of CHIPS.
      shape: chips of a slice along each dimension.
      slices: their number. Chips of different slices communicate through their hosts.
    """

    name: str
    generation: str
    shape: tuple[int, ...]
    slices: int = 1
    platform = "tpu"

    @property
    def chip(self) -> Chip:
        return CHIPS[self.generation]

    @property
    def num_chips(self) -> int:
        return self.slices * math.prod(self.shape)

    @property
    def num_cores(self) -> int:
        return self.num_chips * self.chip.cores

    @property
    def num_devices(self) -> int:
        return self.num_chips * self.chip.devices

    @property
    def several_hosts(self) -> bool:
        """Whether Cloud TPU splits the chips among several virtual machines.

        One machine has four chips of two cores, or up to eight chips of one core: in both cases up
        to eight of the units in the name.
        """
        return self.slices > 1 or self.num_cores > 8

    @property
    def peak_flops(self) -> float:
        """Peak bfloat16 FLOP/s of all chips."""
        return self.num_chips * self.chip.flops

    @property
    def layout(self) -> str:
        """Returns the compiler's name of a slice, such as "v3:8x16"."""
        return f"{self.generation}:{'x'.join(map(str, self.shape))}"

    @property
    def accelerator_type(self) -> str:
        """Returns Cloud TPU's name of a slice, such as "v3-256" or "v5litepod-16"."""
        generation = "v5litepod" if self.generation == "v5e" else self.generation
        return f"{generation}-{self.num_cores // self.slices}"

    @property
    def request(self) -> str:
        """Returns Cloud TPU's name of a slice, and their number: "2xv5litepod-16"."""
        return (
            f"{self.slices}x{self.accelerator_type}" if self.slices > 1 else self.accelerator_type
        )


@dataclass(frozen=True)
class GpuHost:
    """A host with GPUs; the attributes of a `Topology` that plans need. A core is a GPU.

    Attributes:
      name: as the user wrote it.
      chip: the kind of GPU.
      num_devices: GPUs.
    """

    name: str
    chip: Gpu
    num_devices: int
    slices = 1
    platform = "gpu"

    @property
    def num_cores(self) -> int:
        return self.num_devices

    @property
    def peak_flops(self) -> float:
        return self.num_devices * self.chip.peak_flops

    @property
    def layout(self) -> str:
        """Returns JAX's name of it: slices x hosts x devices."""
        return f"1x1x{self.num_devices}"


def parse_planned(text: str) -> Topology | GpuHost:
    """Reads "h100-8", or a TPU as `parse_topology` does.

    Raises:
      BadInputError: neither; or more GPUs than a host has.
    """
    kind, _, count = text.strip().lower().partition("-")
    if kind not in GPU_CHIPS:
        return parse_topology(text)
    if not re.fullmatch(r"[1-9]", count) or int(count) > MOST_GPUS:
        raise BadInputError(
            f"--topology={text}: GPUs are planned for one host, {kind}-1 to {kind}-{MOST_GPUS}"
        )
    return GpuHost(text, GPU_CHIPS[kind], int(count))


def parse_topology(text: str, *, field: str = "--topology") -> Topology:
    """Reads "v3-256", a shape in chips such as "v3:8x16", or several slices, "2xv5e-256".

    A count becomes the squarest torus of that many chips, which is what Cloud TPU provides.

    Args:
      text: the user's name of the slices.
      field: the flag that messages name.

    Raises:
      BadInputError: an unknown generation, or a size or a number of slices that Cloud TPU does not
        offer.
    """
    match = NAME.fullmatch(text.strip().lower())
    generation = match and ALIASES.get(match["generation"], match["generation"])
    if generation not in CHIPS:
        raise BadInputError(
            f"{field}={text} is no TPU; write it as in {SLICE_EXAMPLES} (generations: "
            f"{', '.join(CHIPS)}; plans also know {', '.join(GPU_CHIPS)})"
        )
    chip, slices = CHIPS[generation], int(match["slices"] or 1)
    if slices > 1 and not chip.dcn:
        raise BadInputError(
            f"{field}={text}: Cloud TPU joins slices of v4 and later, not of {generation}"
        )
    if match["count"]:
        chips = chips_of(generation, int(match["count"]), flag=f"{field}={text}")
        return Topology(text, generation, squarest(chips, chip.dimensions), slices)
    shape = tuple(map(int, match["shape"].split("x")))
    if not 0 < math.prod(shape) <= chip.pod:
        raise BadInputError(
            f"{field}={text}: a slice of {generation} has 1 to {chip.pod:,} chips, at least one "
            "along each dimension"
        )
    return Topology(text, generation, shape, slices)


def chips_of(generation: str, count: int, *, flag: str) -> int:
    """Returns the number of chips of the slice that Cloud TPU names `generation`-`count`.

    Raises:
      BadInputError: Cloud TPU offers no slice of that size; the message begins with `flag`.
    """
    chip = CHIPS[generation]
    chips, rest = divmod(count, chip.cores)
    unit = "cores" if chip.cores > 1 else "chips"
    if chip.dimensions == 3:
        sizes = f"multiples of {4 * chip.cores} {unit} (whole hosts of four chips)"
        offered = not rest and chips > 0 and chips % 4 == 0
    else:
        smallest = 1 if chip.cores == 1 else 4
        sizes = f"powers of two of at least {smallest * chip.cores} {unit}"
        offered = not rest and chips >= smallest and chips & (chips - 1) == 0
    if not offered or chips > chip.pod:
        raise BadInputError(
            f"{flag}: {generation} comes in {sizes}, up to {chip.pod * chip.cores:,}"
        )
    return chips


def squarest(chips: int, dimensions: int) -> tuple[int, ...]:
    """Returns the torus of `chips` chips with the smallest sum of sides, in ascending order.

    128 chips are (8, 16) in two dimensions and (4, 4, 8) in three, where larger slices consist of
    cubes of 4 x 4 x 4.
    """
    unit = 4 if dimensions == 3 and chips % 64 == 0 else 1
    sides = [side for side in range(unit, chips + 1, unit) if chips % side == 0]
    shapes = combinations_with_replacement(sides, dimensions)
    shape = min((shape for shape in shapes if math.prod(shape) == chips), key=sum)
    # The compiler and Cloud TPU write a three-dimensional host of four chips as 2x2x1.
    return (2, 2, 1) if shape == (1, 2, 2) else shape
