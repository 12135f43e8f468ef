"""Keeps compiled programs on this machine's disk, so that a resumed run does not compile again.

JAX's persistent compilation cache does the work. A program that it loads computes the same bits as
one that it compiles, on the machine that compiled it: machine code for a CPU depends on the CPU's
instructions and on the number of threads, which JAX's keys do not contain. Therefore each kind of
machine has its own directory.
"""

import hashlib
import os
import platform
import re
from collections.abc import MutableMapping
from pathlib import Path

from widenet_jax.files import user_cache

# Where one of these is set, the user has decided.
CHOSEN = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")
CPU_INFO = Path("/proc/cpuinfo")
MOST_BYTES = 1 << 30  # of all programs of a machine; JAX deletes those used least recently


def keep_compiled(environment: MutableMapping[str, str], *, cpu_info: Path = CPU_INFO) -> None:
    """Chooses JAX's directory of compiled programs; has to run before JAX is imported.

    Changes nothing where the user has chosen, where the directory cannot be written, or on systems
    other than Linux.

    Args:
      environment: of this process; the variables of JAX's cache are set in it.
      cpu_info: the file that describes the processors; another one in tests.
    """
    if any(name in environment for name in CHOSEN) or not cpu_info.exists():
        return
    from widenet_jax.config.cores import usable_cores  # imports NumPy

    directory = user_cache("programs") / machine(cpu_info.read_text(), usable_cores())
    try:
        # The programs are run as code, so no other user may write there.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(directory, os.W_OK):
        environment["JAX_COMPILATION_CACHE_DIR"] = str(directory)
        environment.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MOST_BYTES))


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
