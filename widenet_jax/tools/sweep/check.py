"""Checks before a sweep: what is wrong for all its trials is said once, before the first starts."""

from collections.abc import Sequence

from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError
from widenet_jax.tools.sweep.trials import Trial
from widenet_jax.weights.stored import set_fields


def check_shared(trials: Sequence[Trial]) -> None:
    """Raises BadInputError with the mistake that every one of these trials has.

    A mistake that only some trials have ends those trials, and the others run. So the first trial
    without a mistake, or with a different one, ends the check.
    """
    mistakes: set[str] = set()
    for trial in trials:
        mistakes.add(mistake_of(trial))
        if "" in mistakes or len(mistakes) > 1:
            return
    if mistakes:
        raise BadInputError(mistakes.pop())


def mistake_of(trial: Trial) -> str:
    """Returns the message with which the trial's run would end before it starts; "" for none.

    Opens the data. What only a run can know, such as the number of its devices, is left to the run.
    """
    from widenet_jax.data.sources import open_data  # these import JAX
    from widenet_jax.experiment import check_config

    try:
        config = set_fields(load_config(trial.config), trial.arguments("")[2:])
        check_config(config, open_data(config).facts)
    except BadInputError as error:
        return str(error)
    return ""
