"""TPU names as people say them, and what each tool calls them."""

import re
from dataclasses import dataclass

from widenet_jax.errors import BadInputError, choose
from widenet_jax.tools.plan.topology import CHIPS


@dataclass(frozen=True)
class Family:
    """Attributes:
    accelerator: what Google's tools write before the number.
    runtime_version: the TPU VM image.
    on_gke: whether xpk knows it.
    """

    accelerator: str
    runtime_version: str
    on_gke: bool = True


# docs.cloud.google.com/tpu/docs/runtimes, November 2026.
FAMILIES = {
    "v2": Family("v2", "tpu-ubuntu2204-base", on_gke=False),
    "v3": Family("v3", "tpu-ubuntu2204-base", on_gke=False),
    "v4": Family("v4", "tpu-ubuntu2204-base"),
    "v5e": Family("v5litepod", "v2-alpha-tpuv5-lite"),
    "v5p": Family("v5p", "v2-alpha-tpuv5"),
    "v6e": Family("v6e", "v2-alpha-tpuv6e"),
}


@dataclass(frozen=True)
class Tpu:
    """Attributes:
    name: "v5e-16"; of v2, v3, v4 and v5p the number counts cores, of v5e and v6e chips.
    accelerator_type: "v5litepod-16".
    family: of the generation.
    """

    name: str
    accelerator_type: str
    family: Family


def parse_tpu(text: str) -> Tpu:
    """ "v3-256" or "v5e-16"; "v5litepod-16" is the same as the latter.

    Raises:
      BadInputError: no such TPU, or a size that is not made.
    """
    found = re.fullmatch(r"(v\w+?)-([1-9]\d*)", text.replace("v5litepod-", "v5e-"))
    if not found:
        raise BadInputError(f"--tpu={text}: write generation and size, as in v3-256 or v5e-16")
    generation, size = found.groups()
    family = choose(FAMILIES, generation, field="tpu")
    chip = CHIPS[generation]
    number = int(size)
    if chip.dimensions == 3:
        made, sizes = number % 8 == 0, "multiples of 8 cores, whole hosts of four chips"
    else:
        smallest = 8 if chip.name_counts == "cores" else 1
        made = number >= smallest and number & (number - 1) == 0
        sizes = f"powers of two of at least {smallest} {chip.name_counts}"
    if not made:
        raise BadInputError(f"--tpu={text}: sizes of {generation} are {sizes}")
    return Tpu(f"{generation}-{size}", f"{family.accelerator}-{size}", family)
