"""TPU types, as `--tpu` names them and as Google's tools do."""

from dataclasses import dataclass

from widenet_jax.errors import BadInputError
from widenet_jax.tools.plan.topology import parse_topology

# The TPU VM image of each generation: docs.cloud.google.com/tpu/docs/runtimes, November 2026.
RUNTIME_VERSIONS = {
    **dict.fromkeys(("v2", "v3", "v4"), "tpu-ubuntu2204-base"),
    "v5e": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
NOT_ON_GKE = ("v2", "v3")  # generations that xpk refuses


@dataclass(frozen=True)
class Tpu:
    """A TPU type that Cloud TPU offers.

    Attributes:
      name: "v5e-16"; the number counts cores in v2, v3, v4 and v5p, chips in v5e and v6e.
      accelerator_type: Cloud TPU's name, such as "v5litepod-16".
      runtime_version: the TPU VM image.
      on_gke: whether xpk supports the generation.
    """

    name: str
    accelerator_type: str
    runtime_version: str
    on_gke: bool


def parse_tpu(text: str) -> Tpu:
    """Reads "v3-256" or "v5e-16"; "v5litepod-16" is another name of the latter.

    Raises:
      BadInputError: an unknown generation, or a size that Cloud TPU does not offer.
    """
    if ":" in text:  # a shape, which `plan.py --topology` takes
        raise BadInputError(f"--tpu={text}: write generation and size, as in v3-256 or v5e-16")
    topology = parse_topology(text, field="--tpu")
    accelerator_type, generation = topology.accelerator_type, topology.generation
    return Tpu(
        name=f"{generation}-{accelerator_type.rpartition('-')[2]}",
        accelerator_type=accelerator_type,
        runtime_version=RUNTIME_VERSIONS[generation],
        on_gke=generation not in NOT_ON_GKE,
    )
