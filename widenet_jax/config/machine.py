"""Adapts JAX to this machine, before it is imported: compiled programs on disk, absent TPUs.

JAX's persistent compilation cache keeps programs, so that a resumed run does not compile again. A
program that it loads computes the same bits as one that it compiles, on the machine that compiled
it: machine code for a CPU depends on the CPU's instructions and on the number of threads, which
JAX's keys do not contain. Therefore each kind of machine has its own directory.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import MutableMapping
from pathlib import Path

from widenet_jax.files import user_cache

# Where one of these is set, the user has decided about compiled programs.
CHOSEN = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
CPU_INFO = Path("/proc/cpuinfo")
MOST_BYTES = 1 << 30  # of all programs of a machine; JAX deletes those used least recently
# Classes of PCI devices that Google's virtual machines have without a TPU: storage and network.
OTHER_GOOGLE_DEVICES = ("0x01", "0x02")
GOOGLE = "0x1ae0"
# Variables that importing JAX sets on machines without a TPU, and that show no TPU.
SET_BY_JAX = ("TPU_SKIP_MDS_QUERY", "TPU_LIBRARY_PATH")


def usable_cores() -> int:
    """Returns how many processors there are; a container may own fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def keep_compiled(environment: MutableMapping[str, str], *, cpu_info: Path = CPU_INFO) -> None:
    """Chooses JAX's directory of compiled programs.

    Changes nothing where the user has chosen, where the directory cannot be written, or on systems
    other than Linux.

    Args:
      environment: of this process; the variables of JAX's cache are set in it.
      cpu_info: the file that describes the processors; another one in tests.
    """
    if any(name in environment for name in CHOSEN) or not cpu_info.exists():
        return
    directory = user_cache("programs") / machine(cpu_info.read_text(), usable_cores())
    try:
        # The programs are run as code, so no other user may write there.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(directory, os.W_OK):
        environment["JAX_COMPILATION_CACHE_DIR"] = str(directory)
        environment.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MOST_BYTES))


# Settings of JAX on which numbers depend. A user's environment may have others, for other programs.
NUMBERS = {
    "JAX_ENABLE_X64": "0",
    "JAX_RANDOM_SEED_OFFSET": "0",
    "JAX_DEFAULT_PRNG_IMPL": "threefry2x32",
    "JAX_THREEFRY_PARTITIONABLE": "1",
}


def machine(cpu_info: str, threads: int) -> str:
    """Returns a name for everything that machine code depends on.

    Args:
      cpu_info: the content of /proc/cpuinfo.
      threads: number of processors that this process may use.
    """
    kinds = r"^(?:model name|flags|Features|CPU part)\s*:.*$"
    lines = sorted(set(re.findall(kinds, cpu_info, re.MULTILINE)))
    text = "\n".join([platform.machine(), str(threads), *lines])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
