"""Searches a space of settings with Optuna, and ends hopeless trials early (Hyperband).

DIR/optuna.db holds everything that is known. A search that was killed resumes with the trials that
were running or had failed, and a longer search (`--trials`) builds on the trials that it has. One
process searches at a time.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from widenet_jax.errors import BadInputError, require
from widenet_jax.ops.sweep.axes import Range, Space, ends_of
from widenet_jax.ops.sweep.directory import Directory, diverged
from widenet_jax.ops.sweep.runner import TrialSource
from widenet_jax.ops.sweep.trials import DONE, FAILED, PRUNED, WAITING, Outcome, Trial, make

STATUSES = {"COMPLETE": DONE, "PRUNED": PRUNED, "FAIL": FAILED}  # of Optuna's states
TPE_STARTUP = 5  # random trials before TPE models the space


@dataclass
class Search(TrialSource):
    """Trials that Optuna proposes, by the primary metric of the task.

    Attributes:
      config: FILE.py or FILE.py:ARGUMENT.
      space: to draw settings from.
      flags: `--config.FIELD=VALUE` that all trials share.
      directory: of the sweep.
      total: number of trials in all, those of earlier calls included.
      sampler: "random" or "tpe".
      prune: end hopeless trials early.
      seed: of the sampler. An interrupted search proposes the same trials as an uninterrupted one,
        for TPE as long as trials end in the same order.

    Raises:
      BadInputError: Optuna is missing, the config has no such field or value, or the directory
        holds a search with another config, other flags or another space of which a trial has run,
        or another process searches there.
    """

    config: str
    space: Space
    flags: Sequence[str]
    directory: Directory
    total: int
    sampler: str
    prune: bool
    seed: int

    def __post_init__(self):
        self.optuna = optuna = require("optuna", extra="sweep", what="--search")
        # A wrong field or bound is noticed before any trial runs.
        ends = [make(self.config, end, self.flags) for end in ends_of(self.space)]
        self.primary_metric = ends[0].primary_metric()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.directory.make()
        self.lock = self.directory.lock_search()
        place = {"storage": f"sqlite:///{self.directory.path.resolve()}/optuna.db"}
        place["study_name"] = "search"
        if not self.directory.any_begun() and optuna.get_all_study_names(place["storage"]):
            optuna.delete_study(**place)  # its flags may have been wrong
        self.study = optuna.create_study(
            **place,
            direction="maximize" if self.primary_metric.higher_is_better else "minimize",
            pruner=optuna.pruners.HyperbandPruner(),
            load_if_exists=True,
        )
        self.check_same()
        self.states = optuna.trial.TrialState
        self.interrupted = self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,))
        self.running: dict[str, Any] = {}  # Optuna's trial, by name
        self.reported: dict[str, int] = {}  # number of evaluations reported to Optuna, by name
        self.unfinished: dict[str, Outcome] = {}  # of this call; the next one resumes them

    def check_same(self) -> None:
        """Raises BadInputError where the directory holds another search."""
        ours = {"config": self.config, "flags": list(self.flags), "space": repr(self.space)}
        stored = self.study.user_attrs
        for name, value in ours.items():
            if stored.get(name, value) != value:
                raise BadInputError(
                    f"--workdir={self.directory.path} holds a search with another {name} "
                    f"({stored[name]}); name a new --workdir, or repeat it to resume"
                )
            self.study.set_user_attr(name, value)

    def ask(self) -> Trial | None:
        """Returns a trial that an earlier call left, or else a new one until there are `total`."""
        if self.interrupted:
            asked = self.optuna.trial.Trial(self.study, self.interrupted.pop(0)._trial_id)
        else:
            number = len(self.study.get_trials(deepcopy=False))
            if number >= self.total:
                return None
            self.study.sampler = self.sampler_of(number)
            space = {name: distribution(self.optuna, one) for name, one in self.space.items()}
            asked = self.study.ask(space)
        trial = self.trial_of(asked)
        self.running[trial.name] = asked
        return trial

    def sampler_of(self, number: int) -> Any:
        """Makes the sampler of a trial from its number, so that no random state is stored."""
        samplers, seed = self.optuna.samplers, self.seed * 100_003 + number
        if self.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            # The liar makes trials that run at the same time search different places.
            return samplers.TPESampler(seed=seed, n_startup_trials=TPE_STARTUP, constant_liar=True)

    def trial_of(self, asked: Any) -> Trial:
        """Makes the trial of a proposal; its number keeps the names of equal proposals apart."""
        trial = make(self.config, asked.params, self.flags)
        return replace(trial, name=f"{asked.number:03d}-{trial.name}")

    def hopeless(self, trial: Trial) -> bool:
        """Reports new evaluations to Optuna; the n-th is Hyperband's n-th unit of effort."""
        if not self.prune:
            return False
        asked = self.running[trial.name]
        values = [record[self.primary_metric.name] for record in self.directory.evaluations(trial)]
        before = self.reported.get(trial.name, 0)
        self.reported[trial.name] = max(before, len(values))
        for step, value in enumerate(values[before:], before + 1):
            with warnings.catch_warnings():  # a resumed trial repeats what Optuna knows
                warnings.simplefilter("ignore")
                asked.report(value, step)
            if asked.should_prune():
                return True
        return False

    def tell(self, outcome: Outcome) -> None:
        """Reports an outcome to Optuna.

        For Optuna a trial that was stopped, or failed for another reason than its numbers (as by a
        full disk), is still running: the next call resumes it, as in a grid.
        """
        trial = outcome.trial
        asked = self.running.pop(trial.name)
        if outcome.status == DONE:
            self.study.tell(asked, outcome.result[f"test_{self.primary_metric.name}"])
        elif outcome.status == PRUNED:
            self.study.tell(asked, state=self.states.PRUNED)
        elif outcome.status == FAILED and diverged(self.directory.workdir(trial)):
            asked.set_user_attr("exit_code", outcome.exit_code)
            asked.set_user_attr("message", outcome.message)
            self.study.tell(asked, state=self.states.FAIL)
        else:
            self.unfinished[trial.name] = outcome

    def outcomes(self) -> list[Outcome]:
        """Returns the outcomes of all proposals, in their order."""
        return list(map(self.outcome_of, self.study.get_trials(deepcopy=False)))

    def outcome_of(self, frozen: Any) -> Outcome:
        """The outcome of a proposal."""
        trial = self.trial_of(frozen)
        if trial.name in self.unfinished:
            return self.unfinished[trial.name]
        status = STATUSES.get(frozen.state.name, WAITING)
        code, message = frozen.user_attrs.get("exit_code"), frozen.user_attrs.get("message", "")
        return Outcome(trial, status, code, message, self.directory.result(trial) or {})

    def close(self) -> None:
        self.lock.close()


def distribution(optuna: Any, values: Range | tuple[str, ...]) -> Any:
    """Translates the space of a field for Optuna."""
    if isinstance(values, tuple):
        return optuna.distributions.CategoricalDistribution(values)
    if values.kind == "int":
        return optuna.distributions.IntDistribution(values.low, values.high)
    log = values.kind == "log"
    return optuna.distributions.FloatDistribution(values.low, values.high, log=log)
