"""TPUs by the names people know, and what one core of each can do.

A *core* is what the name counts: a TensorCore in v2 to v5p, a chip in v5e and v6e. A *device* is
what JAX shows and one copy of the program runs on: in v4 and v5p the two cores of a chip together.
"""

import re
from dataclasses import dataclass

from widenet_jax.errors import BadInputError

GB = 1e9


@dataclass(frozen=True)
class Chip:
    """One generation; every number is of a chip.

    Sources: the "System architecture" tables of docs.cloud.google.com/tpu/docs/{v2 .. v6e} (read
    November 2026); the clock is the peak divided by what the matrix units multiply in a cycle.

    Attributes:
      cores: TensorCores.
      devices: what JAX shows of them: cores of v4 and v5p work as one.
      name_counts: "cores" or "chips": the number in v3-256 or v5e-16.
      dimensions: of the torus.
      tflops: peak bfloat16, 1e12 FLOP/s.
      hbm: memory bandwidth, 1e9 bytes/s.
      clock: MHz, of the cycles that the compiler estimates.
      ici: 1e9 bytes/s that a chip sends over all its links together (the table's all-reduce
        bandwidth of a pod divided by its chips; half the bidirectional figure).
      hbm_limit: GiB a device has for a program, as the compiler says when it runs out.
      config: of the topology, where the default is another one.
    """

    cores: int
    devices: int
    name_counts: str
    dimensions: int
    tflops: float
    hbm: float
    clock: float
    ici: float
    hbm_limit: float
    config: str = ""


CHIPS = {
    "v2": Chip(2, 2, "cores", 2, 46, 700, 700, 248, 7.48),
    "v3": Chip(2, 2, "cores", 2, 123, 900, 940, 332, 15.48),
    "v4": Chip(2, 1, "cores", 3, 275, 1200, 1050, 268, 30.75, config="megacore"),
    "v5p": Chip(2, 1, "cores", 3, 459, 2765, 1750, 600, 95.73),
    "v5e": Chip(1, 1, "chips", 2, 197, 819, 1500, 200, 15.75),
    "v6e": Chip(1, 1, "chips", 2, 918, 1638, 1750, 400, 31.24),
}
ALIASES = {"v5litepod": "v5e", "v5": "v5p"}
SLICE_EXAMPLES = "v3-256, v4-128, v5e-16, v5p-64, v6e-8, v3:8x16"


@dataclass(frozen=True)
class Topology:
    """A slice of TPUs.

    Attributes:
      name: as the user wrote it.
      generation: key of CHIPS.
      shape: chips along each dimension.
    """

    name: str
    generation: str
    shape: tuple[int, ...]

    @property
    def chip(self) -> Chip:
        return CHIPS[self.generation]

    @property
    def num_chips(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def num_cores(self) -> int:
        return self.num_chips * self.chip.cores

    @property
    def num_devices(self) -> int:
        return self.num_chips * self.chip.devices

    @property
    def cores_a_device(self) -> int:
        return self.chip.cores // self.chip.devices

    @property
    def layout(self) -> str:
        """The name the compiler knows, such as "v3:8x16"."""
        return f"{self.generation}:{'x'.join(map(str, self.shape))}"

    @property
    def accelerator_type(self) -> str:
        """The name that Cloud TPU knows, such as "v3-256"."""
        chip = self.chip
        count = self.num_cores if chip.name_counts == "cores" else self.num_chips
        generation = "v5litepod" if self.generation == "v5e" else self.generation
        return f"{generation}-{count}"

    # Of one device:

    @property
    def peak_flops(self) -> float:
        """bfloat16 FLOP/s."""
        return self.chip.tflops * 1e12 / self.chip.devices

    @property
    def hbm_bandwidth(self) -> float:
        """bytes/s."""
        return self.chip.hbm * GB / self.chip.devices

    @property
    def ici_bandwidth(self) -> float:
        """bytes/s over all links of its chip: rings pass both cores of a chip one after the other,
        so that each link carries one core's part."""
        return self.chip.ici * GB

    @property
    def cycles_per_ms(self) -> float:
        return self.chip.clock * 1e3


def parse_topology(text: str) -> Topology:
    """ "v3-256" or "v3:8x16" as a slice.

    A count becomes the squarest torus of that many chips, as Cloud TPU gives it out.

    Raises:
      BadInputError: an unknown generation, or a size that is not made.
    """
    known = ", ".join(CHIPS)
    match = re.fullmatch(r"([a-z]\w*?)(?:-(\d+)|:(\d+(?:x\d+)*))", text.strip().lower())
    if not match:
        raise BadInputError(
            f"--topology={text} is no TPU; write it as in {SLICE_EXAMPLES} (there are {known})"
        )
    generation = ALIASES.get(match[1], match[1])
    if generation not in CHIPS:
        raise BadInputError(
            f"--topology={text}: there is no TPU {match[1]}; there are {known}, as in v3-256"
        )
    chip = CHIPS[generation]
    if match[3]:
        shape = tuple(int(n) for n in match[3].split("x"))
        if 0 in shape:
            raise BadInputError(f"--topology={text}: give at least one chip along each dimension")
        return Topology(text, generation, shape)
    per_chip = chip.cores if chip.name_counts == "cores" else 1
    chips, rest = divmod(int(match[2]), per_chip)
    smallest = 1 if chip.name_counts == "chips" else 4
    if rest or chips < smallest or chips & (chips - 1):
        sizes = [f"{generation}-{per_chip * 2**k}" for k in (2, 4, 6)]
        raise BadInputError(
            f"--topology={text}: sizes are powers of two of at least {smallest * per_chip} "
            f"{chip.name_counts}, such as {', '.join(sizes)}; another shape is written as "
            f"{generation}:{'x'.join('4' * chip.dimensions)}"
        )
    return Topology(text, generation, squarest(chips, chip.dimensions))


def squarest(chips: int, dimensions: int) -> tuple[int, ...]:
    """128 chips in 2 dimensions are (8, 16), in 3 (4, 4, 8); `chips` is a power of two."""
    exponent = chips.bit_length() - 1
    low, more = divmod(exponent, dimensions)
    shape = [2 ** (low + (i >= dimensions - more)) for i in range(dimensions)]
    # A board of four chips in a 3D torus is written 2x2x1.
    return (2, 2, 1) if chips == 4 and dimensions == 3 else tuple(shape)
