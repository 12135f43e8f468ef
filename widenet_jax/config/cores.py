"""The processors that this process may use."""

import os


def usable_cores() -> int:
    """Returns how many there are; a container may own fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
