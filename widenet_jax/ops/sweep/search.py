"""Searches a space of settings with Optuna, and ends hopeless trials early (Hyperband).

A search is a list of trials that Optuna lengthens. DIR/search.json holds what Optuna proposed; its
study is rebuilt from there and from the trials' workdirs at every start. A search that was killed
resumes with the trials that were running or had failed, and a longer search (`--trials`) builds on
the trials that it has. One process searches at a time.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from widenet_jax.config.parser import Options
from widenet_jax.errors import BadInputError, require
from widenet_jax.files import write_json
from widenet_jax.ops.sweep.axes import Settings, parse_values, split_axis
from widenet_jax.ops.sweep.directory import Directory, locked
from widenet_jax.ops.sweep.runner import Listed
from widenet_jax.ops.sweep.trials import Outcome, Status, Trial, make

NEEDED = {"extra": "sweep", "what": "--search"}  # Optuna is an optional requirement
KINDS = ("log", "float", "int")
# Of Optuna's trials.
STATES = {Status.DONE: "COMPLETE", Status.PRUNED: "PRUNED", Status.DIVERGED: "FAIL"}
TPE_STARTUP = 5  # random trials before TPE models the space

Space = Mapping[str, Any]  # an Optuna distribution for each field


def parse_space(texts: Sequence[str]) -> Space:
    """Parses --space: "learning_rate=log:1e-4:1e-2", "a=int:64:96", "model.pool=cls,mean".

    Raises:
      BadInputError: a text of another form, a field with two spaces, or Optuna is missing.
    """
    distributions = require("optuna", **NEEDED).distributions
    space: dict[str, Any] = {}
    for text in texts:
        name, values = split_axis(text, "--space", "FIELD=log:LOW:HIGH or FIELD=VALUE,VALUE")
        if name in space:
            raise BadInputError(f"--space {text!r}: {name} already has a space; keep one of them")
        kind, *ends = values.split(":")
        if kind not in KINDS:
            space[name] = distributions.CategoricalDistribution(parse_values(values))
            continue
        try:
            low, high = map(int if kind == "int" else float, ends)
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError("the first number must be below the second")
            if kind == "log" and low <= 0:
                raise ValueError("a logarithmic range begins above 0")
        except ValueError as error:
            raise BadInputError(
                f"--space {text!r}: {error}; give two numbers, as in {kind}:1:8"
            ) from None
        if kind == "int":
            space[name] = distributions.IntDistribution(low, high)
        else:
            space[name] = distributions.FloatDistribution(low, high, log=kind == "log")
    return space


def ends_of(space: Space) -> list[Settings]:
    """Lists settings that together cover every named value and both ends of every range."""
    lists = {
        name: getattr(one, "choices", None) or [one.low, one.high] for name, one in space.items()
    }
    most = max(map(len, lists.values()))
    return [{name: v[min(i, len(v) - 1)] for name, v in lists.items()} for i in range(most)]


class Search(Listed):
    """Trials that Optuna proposes, by the primary metric of the task.

    An interrupted search proposes the same trials as an uninterrupted one, for TPE as long as
    trials end in the same order.

    Args:
      options: of the command: config, fields, search (the sampler), trials (their number, with the
        trials of earlier calls) and prune.
      space: to draw settings from.
      directory: of the sweep.

    Raises:
      BadInputError: Optuna is missing, the config has no such field or value, the directory holds
        a search of another space, or another process searches there.
    """

    def __init__(self, options: Options, space: Space, directory: Directory):
        self.optuna, self.options = require("optuna", **NEEDED), options
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
        first = make(options.config, ends_of(space)[0], options.fields)
        self.primary_metric = first.primary_metric()
        self.metric = f"test_{self.primary_metric.name}"
        super().__init__([], directory)
        self.space, self.total = space, options.trials
        self.lock = locked(directory.path / "search.lock")
        if self.lock is None:
            raise BadInputError(
                f"--workdir={directory.path}: another process searches there; wait for it, stop "
                "it, or name a new --workdir"
            )
        self.file = directory.path / "search.json"
        stored = json.loads(self.file.read_text()) if self.file.exists() else {}
        if stored.get("space", repr(space)) != repr(space):
            raise BadInputError(
                f"--workdir={directory.path} holds a search with another space "
                f"({stored['space']}); name a new --workdir, or repeat it to resume"
            )
        self.proposed = stored.get("proposed", [])
        self.trials = [self.trial_of(*one) for one in enumerate(self.proposed)]
        self.running: dict[str, Any] = {}  # Optuna's trial, by name
        self.study = self.optuna.create_study(
            study_name="search",  # Hyperband's brackets follow from the name
            direction="maximize" if self.primary_metric.higher_is_better else "minimize",
            pruner=self.optuna.pruners.HyperbandPruner(),
        )
        for trial, proposal in zip(self.trials, self.proposed, strict=True):
            self.add(directory.outcome(trial), proposal)

    def add(self, outcome: Outcome, proposal: Settings) -> None:
        """Adds a trial of an earlier call to the study; one that did not end is run again."""
        trial = outcome.trial
        if outcome.status not in STATES:
            self.study.enqueue_trial(proposal)
            self.running[trial.name] = self.study.ask(self.space)
            self.left.append(trial)
            return
        frozen = self.optuna.trial.create_trial(
            state=self.optuna.trial.TrialState[STATES[outcome.status]],
            params=proposal,
            distributions=dict(self.space),
            value=outcome.result.get(self.metric),
            intermediate_values=dict(enumerate(self.evaluations(trial), 1)),
        )
        self.study.add_trial(frozen)

    def ask(self) -> Trial | None:
        """Returns a trial that an earlier call left, or else a new one until there are `total`."""
        if self.left:
            return self.left.pop(0)
        number = len(self.trials)
        if number >= self.total:
            return None
        self.study.sampler = self.sampler_of(number)
        asked = self.study.ask(self.space)
        trial = self.trial_of(number, asked.params)
        self.proposed.append(asked.params)
        write_json(self.file, {"space": repr(self.space), "proposed": self.proposed})
        self.trials.append(trial)
        self.running[trial.name] = asked
        return trial

    def sampler_of(self, number: int) -> Any:
        """Makes the sampler of a trial from its number, so that no random state is stored."""
        samplers = self.optuna.samplers
        if self.options.search == "random":
            return samplers.RandomSampler(seed=number)
        # The liar makes trials that run at the same time search different places.
        return samplers.TPESampler(seed=number, n_startup_trials=TPE_STARTUP, constant_liar=True)

    def trial_of(self, number: int, proposal: Settings) -> Trial:
        """Makes the trial of a proposal; its number keeps the names of equal proposals apart."""
        trial = make(self.options.config, proposal, self.options.fields)
        return replace(trial, name=f"{number:03d}-{trial.name}")

    def evaluations(self, trial: Trial) -> list[float]:
        """Returns the metric of every evaluation so far; the n-th is Hyperband's n-th step."""
        name = self.primary_metric.name
        return [of[name] for of in self.directory.evaluations(trial) if of.get(name) is not None]

    def hopeless(self, trial: Trial) -> bool:
        """Reports new evaluations to Optuna, and tells whether to end the trial early."""
        if not self.options.prune:
            return False
        asked = self.running[trial.name]
        reported = self.study.get_trials(deepcopy=False)[asked.number].intermediate_values
        for step, value in [*enumerate(self.evaluations(trial), 1)][len(reported) :]:
            asked.report(value, step)
            if asked.should_prune():
                return True
        return False

    def tell(self, outcome: Outcome) -> None:
        """Reports an outcome to Optuna.

        A trial that was stopped, or failed for another reason than its numbers (as by a full
        disk), stays running in the study: the next call resumes it, as in a grid.
        """
        super().tell(outcome)
        if outcome.status in STATES:
            state = self.optuna.trial.TrialState[STATES[outcome.status]]
            asked = self.running.pop(outcome.trial.name)
            self.study.tell(asked, outcome.result.get(self.metric), state=state)

    def close(self) -> None:
        self.lock.close()
