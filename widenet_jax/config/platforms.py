"""Keeps JAX from loading the TPU runtime on a machine that has no TPU."""

import importlib.metadata
import importlib.util
import sys
from collections.abc import MutableMapping
from pathlib import Path

# Classes of PCI devices that Google's virtual machines have without a TPU: storage and network.
OTHER_GOOGLE_DEVICES = ("0x01", "0x02")
GOOGLE = "0x1ae0"
# Variables that importing JAX sets on machines without a TPU, and that show no TPU.
SET_BY_JAX = ("TPU_SKIP_MDS_QUERY", "TPU_LIBRARY_PATH")


def skip_absent_tpu(environment: MutableMapping[str, str], root: Path = Path("/")) -> None:
    """Chooses JAX's platform where `libtpu` is installed and the machine has no TPU.

    `scripts/plan.py` needs libtpu on machines without a TPU. JAX loads it wherever it is installed:
    on such a machine libtpu prints six lines of errors and costs a second or more at each start.
    Compiling for a TPU topology, as plan.py does, works under any choice of platform.

    Changes nothing where the user chose a platform or anything about TPUs, or where the machine
    shows any sign of a TPU. Has no effect on a process whose JAX has used a device.

    Args:
      environment: of this process; JAX_PLATFORMS, or two variables of libtpu, are set in it.
      root: the directory that holds `dev` and `sys`; another one in tests.
    """
    chosen = "JAX_PLATFORMS" in environment or "JAX_PLATFORM_NAME" in environment
    if chosen or not importlib.util.find_spec("libtpu") or has_tpu(environment, root):
        return
    # JAX looks for plugins, as for CUDA, in the same two places.
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    if plugins or importlib.util.find_spec("jax_plugins"):
        # JAX chooses between GPU and CPU. With these two, libtpu fails without a message.
        environment.update(TPU_ACCELERATOR_TYPE="v4-8", TPU_WORKER_HOSTNAMES="localhost")
        return
    environment["JAX_PLATFORMS"] = "cpu"
    # JAX reads the variable when it is imported, in a notebook often before this package.
    if (jax := sys.modules.get("jax")) and jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")


def has_tpu(environment: MutableMapping[str, str], root: Path) -> bool:
    """Returns whether anything suggests a TPU: a device file, a PCI device, or a variable.

    A TPU VM has /dev/accel0, ... (v2 to v4) or /dev/vfio/0, ... (v5e and later; the file
    /dev/vfio/vfio alone shows only that a driver is loaded). Containers on GKE have TPU_*
    variables.
    """
    names = environment.keys() - set(SET_BY_JAX)
    if any(name.startswith(("TPU_", "JAX_FORCE_TPU")) for name in names):
        return True
    if any(root.glob("dev/accel[0-9]*")) or any(root.glob("dev/vfio/[0-9]*")):
        return True
    for vendor in root.glob("sys/bus/pci/devices/*/vendor"):
        kind = vendor.with_name("class").read_text()
        if vendor.read_text().strip() == GOOGLE and not kind.startswith(OTHER_GOOGLE_DEVICES):
            return True
    return False
