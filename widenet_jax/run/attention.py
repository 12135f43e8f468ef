"""The implementation of attention in a run, where `implementation: auto` is decided once.

A run keeps the implementation that it began with. One that begins, or whose device or versions have
changed, asks its device (`kernel_trial`) about the platform's kernel, if there is one; what one
host finds holds for all. Where nothing is measured, `nn.attention.implementations` decides.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from widenet_jax.data.contract import DataInfo
from widenet_jax.files import may_replace
from widenet_jax.nn.attention.implementations import AUTO, candidate_for
from widenet_jax.run import workdir as workdirs
from widenet_jax.run.hosts import on_every_host


def attention_of(
    config: ConfigDict, data_info: DataInfo, devices: Sequence[jax.Device], workdir: epath.Path
) -> tuple[str | None, str]:
    """Returns the implementation of attention, the same on all hosts, and a line for the user.

    None, for attention that has no choice. A run that is resumed keeps its implementation, so that
    its numbers stay the same to the byte, unless the config names another, the devices lack it, or
    it is wrong on other devices or with other versions than before.
    """
    asked = config.model.attention.get("implementation")
    if asked is None:
        return None, ""
    # A start that saved nothing may have had another model.
    last: dict[str, Any] = {} if may_replace(workdir) else workdirs.last_start(workdir)
    before, candidate = (
        last.get("attention"),
        candidate_for(config.model.attention, devices[0].platform),
    )

    def decide() -> tuple[str, str]:
        if before == "xla":
            return before, ""
        here = workdirs.environment()
        if before == candidate and all(last.get(k) == here[k] for k in ("packages", "devices")):
            return before, ""
        from widenet_jax.run.kernel_trial import chosen_by_measuring

        by_time = before != candidate
        name, line = chosen_by_measuring(config, data_info, devices, candidate, by_time=by_time)
        return name, "" if name == before else line

    chosen, line = "xla" if asked == AUTO else asked, ""
    if asked == AUTO and candidate:
        chosen, line = on_every_host(decide)  # one host's failure ends all
        if jax.process_count() > 1:
            takes_it = multihost_utils.process_allgather(np.bool_(chosen == candidate))
            chosen, line = agreed(np.asarray(takes_it), candidate, line)
    if before and chosen != before:
        line = (
            f"{line or f'attention: {chosen}'}; {before} until now: from here on "
            "numbers differ from an unbroken run's by rounding"
        )
    return chosen, line


def agreed(takes_it: np.ndarray, candidate: str, line: str) -> tuple[str, str]:
    """Returns the implementation for all hosts, and this host's line.

    Args:
      takes_it: [hosts] bool; a host on which the candidate is wrong or slow decides for all.
      candidate: the kernel.
      line: what this host says of its own choice.
    """
    if takes_it.all() or not takes_it.any():
        return candidate if takes_it.all() else "xla", line
    against = ", ".join(map(str, np.flatnonzero(~takes_it)))
    here = line or f"{candidate} is right"
    return "xla", f"attention: xla, the choice of process {against}; here {here}"
