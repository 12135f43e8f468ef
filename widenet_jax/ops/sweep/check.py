"""Checks before a sweep: a mistake that all trials share is reported once, before the first."""

from collections.abc import Iterable, Sequence

from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError
from widenet_jax.files import absolute
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.trials import Trial


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


def check_finished(trials: Iterable[Trial], directory: Directory) -> None:
    """Raises BadInputError where a finished trial ran with another config than it would now.

    As after a change in the config file: its result would stand beside results of the new config.
    A trial that is not finished refuses to resume.
    """
    for trial in trials:
        workdir = directory.workdir(trial)
        stored = absolute(workdir) / "config.json"
        if directory.result(trial) is None or not stored.exists():
            continue
        from widenet_jax.run.workdir import changed_fields, list_changes  # imports JAX

        try:
            config = set_fields(load_config(trial.config), trial.fields())
        except BadInputError:  # the model that it started from may be gone: by the trial's own copy
            config = set_fields(load_config(trial.config), trial.fields(), workdir=workdir)
        changed = changed_fields(stored, config)
        # Swept fields are part of the trial's name, except the directory of a backbone.
        changed = {key: text for key, text in changed.items() if key not in trial.settings}
        if changed:
            raise BadInputError(
                f"--workdir={directory.path}: {trial.name} is finished, and ran with another "
                f"config ({list_changes(changed)}); name a new --workdir, or undo that change to "
                "see its result"
            )


def mistake_of(trial: Trial) -> str:
    """Returns the message with which the trial's run would end before it starts; "" for none.

    Opens the data. What only a run can know, such as the number of its devices, is left to the run.
    """
    from widenet_jax.data.sources import open_data  # these import JAX
    from widenet_jax.experiment import check_config

    try:
        config = set_fields(load_config(trial.config), trial.fields())
        check_config(config, open_data(config).data_info)
    except BadInputError as error:
        return str(error)
    return ""
