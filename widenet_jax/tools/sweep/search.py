"""Searching a space of settings with Optuna, hopeless trials ended early (Hyperband).

Everything known is in DIR/optuna.db: a search that was killed goes on with the trials that were
running, and a longer one (`--trials`) with those that it has.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from widenet_jax.errors import BadInputError
from widenet_jax.tools.sweep import axes
from widenet_jax.tools.sweep.directory import Directory
from widenet_jax.tools.sweep.results import METRIC
from widenet_jax.tools.sweep.runner import DONE, FAILED, PRUNED, WAITING, Outcome
from widenet_jax.tools.sweep.trials import Trial, make

KINDS = ("log", "float", "int")
TPE_STARTUP = 5  # random trials before TPE has something to go by


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `kind` is one of KINDS."""

    kind: str
    low: float
    high: float


Space = dict[str, Range | tuple[str, ...]]


def parse_space(texts: Sequence[str]) -> Space:
    """ "optimizer.learning_rate=log:1e-4:1e-2", "model.depth=int:2:6", "model.pool=cls,mean".

    Returns:
      For each field a Range, or the values to choose from, as text.

    Raises:
      BadInputError: anything else.
    """
    space: Space = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = axes.field_name(name)
        if not (name and equals and values):
            raise BadInputError(f"--space {text!r}: write FIELD=log:LOW:HIGH or FIELD=VALUE,VALUE")
        if name in space:
            raise BadInputError(f"--space {text!r}: {name} has a space already")
        kind = values.partition(":")[0]
        space[name] = (
            parse_range(text, *values.split(":"))
            if kind in KINDS
            else tuple(axes.parse_values(values))
        )
    return space


def parse_range(text: str, kind: str, *ends: str) -> Range:
    try:
        low, high = (int(end) if kind == "int" else float(end) for end in ends)
    except ValueError:
        example = "int:1:8" if kind == "int" else f"{kind}:0.1:1"
        raise BadInputError(f"--space {text!r}: give two numbers, as in {example}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise BadInputError(f"--space {text!r}: the first number must be below the second")
    if kind == "log" and low <= 0:
        raise BadInputError(f"--space {text!r}: on a logarithmic scale numbers are above 0")
    return Range(kind, low, high)


class Search:
    """A `Source` of trials that Optuna proposes.

    Args:
      config: FILE.py or FILE.py:ARGUMENT.
      space: as `parse_space` takes it.
      flags: `--config.FIELD=VALUE` for all trials.
      directory: of the sweep, which exists.
      sampler: "random" or "tpe".
      count: of trials in all, with those of earlier calls.
      prune: end hopeless trials early.
      seed: of the sampler; the search is the same whether or not it was interrupted, as long as
        trials end in the same order (of random search: in any case).

    Raises:
      BadInputError: Optuna is missing, a space that the config cannot have, or another space than
        the directory's.
    """

    def __init__(
        self,
        config: str,
        space: Sequence[str],
        flags: Sequence[str],
        directory: Directory,
        *,
        sampler: str,
        count: int,
        prune: bool,
        seed: int,
    ):
        optuna = import_optuna()
        self.config, self.flags, self.directory = config, flags, directory
        self.space = parse_space(space)
        self.count, self.prune = count, prune
        for end in ends_of(self.space):
            make(config, end, flags)  # a wrong field or bound is noticed before anything runs
        self.sampler_of = sampler_of(optuna, sampler, seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        directory.make()
        self.study = optuna.create_study(
            storage=f"sqlite:///{directory.path.resolve()}/optuna.db",
            study_name="search",
            direction="maximize",
            pruner=optuna.pruners.HyperbandPruner(),
            load_if_exists=True,
        )
        self.distributions = distributions(optuna, self.space)
        self.check_same()
        self.states = optuna.trial.TrialState
        self.status_of = {
            self.states.COMPLETE: DONE,
            self.states.PRUNED: PRUNED,
            self.states.FAIL: FAILED,
        }
        self.again = self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,))
        self.resumed = lambda frozen: optuna.trial.Trial(self.study, frozen._trial_id)
        self.running: dict[str, Any] = {}  # by name: Optuna's trial
        self.reported: dict[str, int] = {}  # by name: evaluations told to Optuna
        self.stopped: dict[str, Outcome] = {}

    def check_same(self) -> None:
        """Raises BadInputError where the directory holds a search of something else."""
        ours = {"config": self.config, "flags": list(self.flags), "space": repr(self.space)}
        stored = self.study.user_attrs
        for name, value in ours.items():
            if stored.get(name, value) != value:
                raise BadInputError(
                    f"--workdir={self.directory.path} holds a search with another {name} "
                    f"({stored[name]}); name a new --workdir, or repeat it to go on"
                )
            self.study.set_user_attr(name, value)

    def ask(self) -> Trial | None:
        if self.again:
            asked = self.resumed(self.again.pop(0))
        else:
            number = len(self.study.get_trials(deepcopy=False))
            if number >= self.count:
                return None
            self.study.sampler = self.sampler_of(number)
            asked = self.study.ask(self.distributions)
        trial = self.trial_of(asked)
        self.running[trial.name] = asked
        return trial

    def trial_of(self, asked: Any) -> Trial:
        """Named by its number, too: Optuna may propose the same settings twice."""
        trial = make(self.config, asked.params, self.flags)
        return replace(trial, name=f"{asked.number:03d}-{trial.name}")

    def hopeless(self, trial: Trial) -> bool:
        """Tells Optuna of new evaluations; the n-th one is Hyperband's n-th unit of effort."""
        if not self.prune:
            return False
        asked = self.running[trial.name]
        values = [record["accuracy"] for record in self.directory.evaluations(trial)]
        before = self.reported.get(trial.name, 0)
        self.reported[trial.name] = max(before, len(values))
        for step, value in enumerate(values[before:], before + 1):
            with warnings.catch_warnings():  # a resumed trial reports again what is known
                warnings.simplefilter("ignore")
                asked.report(value, step)
            if asked.should_prune():
                return True
        return False

    def tell(self, outcome: Outcome) -> None:
        """A stopped trial stays what it is for Optuna, running: the next call goes on with it."""
        asked = self.running.pop(outcome.trial.name)
        if outcome.status == DONE:
            self.study.tell(asked, outcome.result[METRIC])
        elif outcome.status == PRUNED:
            self.study.tell(asked, state=self.states.PRUNED)
        elif outcome.status == FAILED:
            asked.set_user_attr("exit_code", outcome.exit_code)
            asked.set_user_attr("message", outcome.message)
            self.study.tell(asked, state=self.states.FAIL)
        else:
            self.stopped[outcome.trial.name] = outcome

    def outcomes(self) -> list[Outcome]:
        """Of every trial that was ever asked for, in that order."""
        return [self.outcome_of(frozen) for frozen in self.study.get_trials(deepcopy=False)]

    def outcome_of(self, frozen: Any) -> Outcome:
        trial = self.trial_of(frozen)
        if trial.name in self.stopped:
            return self.stopped[trial.name]
        return Outcome(
            trial,
            self.status_of.get(frozen.state, WAITING),
            frozen.user_attrs.get("exit_code"),
            frozen.user_attrs.get("message", ""),
            self.directory.result(trial) or {},
        )


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise BadInputError(
            "--search needs the optuna package: pip install -e '.[sweep]'"
        ) from None
    return optuna


def sampler_of(optuna: Any, name: str, seed: int) -> Callable[[int], Any]:
    """A new sampler for each trial's number: its random state needs no storing."""
    if name == "random":
        return lambda number: optuna.samplers.RandomSampler(seed=seed * 100_003 + number)

    def tpe(number: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(
                seed=seed * 100_003 + number,
                n_startup_trials=TPE_STARTUP,
                constant_liar=True,  # trials that run at a time look in different places
            )

    return tpe


def distributions(optuna: Any, space: Mapping[str, Range | tuple[str, ...]]) -> dict[str, Any]:
    made = optuna.distributions
    return {
        name: made.CategoricalDistribution(one)
        if isinstance(one, tuple)
        else made.IntDistribution(one.low, one.high)
        if one.kind == "int"
        else made.FloatDistribution(one.low, one.high, log=one.kind == "log")
        for name, one in space.items()
    }


def ends_of(space: Space) -> list[axes.Settings]:
    """Settings that together have every value to choose from, and both ends of every range."""
    lists = {
        name: list(one) if isinstance(one, tuple) else [one.low, one.high]
        for name, one in space.items()
    }
    most = max(map(len, lists.values()))
    return [{name: v[min(i, len(v) - 1)] for name, v in lists.items()} for i in range(most)]
