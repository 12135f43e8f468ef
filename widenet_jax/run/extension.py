"""Longer runs: whether the learning rate allows a longer duration, and how the rate changes.

A constant rate does not depend on the length of a run, so an extended run ends with the same bytes
as a run of that length from the start. Other schedules change: the user must ask for that.
"""

from functools import partial

import numpy as np
from etils import epath

from widenet_jax.checkpoint.checkpoints import LAST
from widenet_jax.checkpoint.series import steps_in
from widenet_jax.config.durations import to_steps
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import Experiment
from widenet_jax.files import may_replace, read_json
from widenet_jax.optim.build import build_learning_rate


def check_length(workdir: epath.Path, experiment: Experiment, *, extend: bool) -> str:
    """Compares the length of an experiment with the length of the run in its workdir, if any.

    Args:
      workdir: of the run.
      experiment: of the run, with the duration that it has now.
      extend: whether the user has asked to change the learning rate with the length (--extend).

    Returns:
      A line on how the learning rate changes; "" if the rates of all past steps stay.

    Raises:
      BadInputError: the run is to become shorter; or longer, with another learning rate for steps
        that are done, and `extend` is False; or there is no run to extend.
    """
    file, config = workdir / "config.json", experiment.config
    if not file.exists() or may_replace(workdir):
        if extend:
            raise BadInputError(f"--extend: --workdir={workdir} holds no run yet; leave it out")
        return ""
    stored = read_json(file)["duration"]
    sizes = {"batch_size": config.batch_size, "num_examples": experiment.data_info.num_examples}
    before, now = to_steps(stored, field="config.duration", **sizes), experiment.total_steps
    if now < before:
        raise BadInputError(
            f"--workdir={workdir} holds a run of another config (duration: {stored!r} there, "
            f"{config.duration!r} here, which is shorter); a run can only become longer: repeat "
            "its config to resume it, or name a new --workdir"
        )
    done = max(steps_in(workdir / LAST), default=0)
    rate = partial(build_learning_rate, config.optimizer, **sizes)
    old, new = rate(total_steps=before), rate(total_steps=now)
    steps = np.arange(done)
    if now == before or np.array_equal(old(steps), new(steps)):
        return ""
    change = (
        f"the learning rate of step {done:,} was {old(done - 1):.3g}, the next one's is "
        f"{new(done):.3g}, and the last one's, of step {now:,}, is {new(now - 1):.3g}. A run of "
        f"{now:,} steps from the start would have had other rates"
    )
    if not extend:
        raise BadInputError(
            f"--workdir={workdir} holds a run of {before:,} steps, and config.duration="
            f"{config.duration!r} makes it {now:,}, with another {config.optimizer.schedule} "
            f"schedule: {change}. To continue like this add --extend"
        )
    return f"extended from {before:,} to {now:,} steps: {change}"
