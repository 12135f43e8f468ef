"""A run's checkpoints: the newest, the best, and the state that met a non-finite number.

Each holds `params`, `opt_state` and, where the task has one, `carry` (arrays; the tree has one name
per layer, whatever the mesh or the number of hosts), and `meta`: step, counters, config, and
what tasks need of the data. Workdirs may be gs://.
"""

import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import jax
import numpy as np
from etils import epath

from widenet_jax.checkpoint.manifest import fingerprint
from widenet_jax.checkpoint.series import FORMAT_VERSION, CannotReadError, Restored, Series
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.optim.build import swap
from widenet_jax.step import COUNTERS, TrainState
from widenet_jax.task import PrimaryMetric
from widenet_jax.typing import PyTree

LAST, BEST, FAILED = "checkpoints", "best", "failed"
OF_LAST = "metrics_file"  # in the meta of those in LAST alone
COPIED = f"is no best checkpoint, but a copy from {LAST}/"
CHOICES = 3  # of a checkpoint to read, while a run deletes the one that was chosen


class Checkpoints:
    """The newest checkpoints of a run, and beside them the best by the primary metric.

    Args:
      workdir: of the run.
      meta: stored with every checkpoint: the config, and what tasks need of the data.
      keep: number of newest checkpoints to keep.
      primary_metric: the metric that decides which is the best.
    """

    def __init__(
        self, workdir: epath.Path, *, meta: Mapping, keep: int, primary_metric: PrimaryMetric
    ):
        self.meta = dict(meta)
        self.primary_metric = primary_metric
        self.last = Series(workdir / LAST, keep=keep)
        self.best = Series(workdir / BEST, keep=1)
        self.failed = Series(workdir / FAILED, keep=1)
        self.best_value: float | None = None

    def restore(self, target: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """Returns the newest intact checkpoint, placed as `target`, and its meta.

        Returns None in a new run. Renames damaged newer checkpoints and deletes unfinished ones,
        each with a line on stderr.

        Args:
          target: shapes with shardings.

        Raises: as `Series.newest`; RunFailedError also where only damaged checkpoints are left.
        """
        model = fingerprint(target.params)
        restored, damaged = self.last.newest(items_of(target), fingerprint=model)
        if restored is None and (aside := self.last.damaged()):
            raise RunFailedError(
                f"{self.last.directory} holds only damaged checkpoints ({', '.join(aside)}); "
                "nothing was changed. Restore one from a copy, or start again in a new --workdir"
            )
        self.last.quarantine(damaged)
        self.best_value = self._restore_best()
        for series in (self.last, self.best):
            if left := series.remove_unfinished():
                what = f"an unfinished checkpoint ({', '.join(left)})"
                print(f"note: {series.directory} held {what}; it is removed", file=sys.stderr)
        return restored and (state_of(restored, target), restored.meta)

    def _restore_best(self) -> float | None:
        """Returns the best value so far of the primary metric on this evaluation split, or None."""
        try:
            best, damaged = self.best.newest({})
        except RunFailedError as error:
            if isinstance(error, CannotReadError):  # it may be intact
                raise
            # The run can do without: the next best replaces it.
            print(f"warning: {error}", file=sys.stderr)
            best, damaged = None, dict.fromkeys(self.best.steps(), "is not intact")
        self.best.quarantine(damaged)
        if best is None:
            return None
        if OF_LAST in best.meta:
            self.best.quarantine({best.meta["step"]: COPIED})
            return self._restore_best()
        self.best.remove_others(keep=0)  # a killed run may have left more
        here = self.meta.get("content_sha256", "")
        there = best.meta.get("content_sha256", here)  # older ones have none
        if there[len(there) // 2 :] != here[len(here) // 2 :]:  # the evaluation split's half
            return None
        value = best.meta.get(self.primary_metric.name)  # None: the task had another one then
        return None if value is None else float(value)

    def save(self, state: TrainState, *, step: int, **more: Any) -> None:
        """Writes `state` in the background, with `more` in its meta; at most once per step."""
        if step != self.last.step:
            self._save(self.last, state, step, items_of(state), **more)

    def save_best(self, state: TrainState, *, step: int, value: float) -> None:
        """Keeps parameters and optimizer state if the primary metric is the best so far."""
        # A run that resumes from an older checkpoint may repeat the best one's step, which stays.
        if step != self.best.step and self.primary_metric.better(value, self.best_value):
            self.best_value = value
            items = items_of(state.replace(carry={}))
            self._save(self.best, state, step, items, **{self.primary_metric.name: value})

    def save_failed(self, state: TrainState, *, step: int) -> None:
        """Keeps the state before the non-finite update of `step`, for a replay."""
        if jax.process_index() == 0 and self.failed.directory.exists():
            self.failed.directory.rmtree()
        self._save(self.failed, state, step, arrays_of(state))
        self.failed.wait()

    def _save(
        self, series: Series, state: TrainState, step: int, items: Mapping, **more: Any
    ) -> None:
        counters = jax.device_get({name: getattr(state, name) for name in COUNTERS})
        meta = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "fingerprint": fingerprint(state.params),
            "counters": {name: int(value) for name, value in counters.items()},
            **self.meta,
            **more,
        }
        series.save(step, items, meta)

    def check(self) -> None:
        """Raises RunFailedError if a background save has failed."""
        self.last.check()
        self.best.check()

    def wait(self) -> None:
        """Returns when all saves are on disk and have been read back."""
        self.last.wait()
        self.best.wait()

    def close(self) -> None:
        """Waits for background saves and frees their threads."""
        for series in (self.last, self.best, self.failed):
            series.close()


def items_of(state: TrainState) -> dict[str, PyTree]:
    """Returns the array items of a checkpoint by name.

    Where the optimizer averages the parameters, "params" is the average: what is to be used.
    """
    params, opt_state = swap(state.params, state.opt_state)
    return arrays_of(state.replace(params=params, opt_state=opt_state))


def arrays_of(state: TrainState) -> dict[str, PyTree]:
    """Returns a state's arrays as they are, by name; "carry" only where there is one."""
    carry = {"carry": state.carry} if state.carry else {}
    return {"params": state.params, "opt_state": state.opt_state, **carry}


def state_of(restored: Restored, target: TrainState) -> TrainState:
    """Returns the training state in a checkpoint, its counters placed as `target`'s."""
    put = lambda value, like: jax.device_put(np.int32(value), like.sharding)  # noqa: E731
    counters = restored.meta["counters"]
    params, opt_state = swap(restored.items["params"], restored.items["opt_state"])
    return TrainState(
        step=put(restored.meta["step"], target.step),
        **{**restored.items, "params": params, "opt_state": opt_state},
        **{name: put(counters[name], getattr(target, name)) for name in COUNTERS},
    )


def load_checkpoint(workdir: epath.Path, params: PyTree, which: str = "last") -> Restored | None:
    """Reads the parameters of one of a run's checkpoints; returns None where the run has none.

    A run that is still training may delete the checkpoint that is being read, as when it has a new
    best one. Then the choice is made again, but not on several hosts, which would have to agree.

    Args:
      workdir: of the run.
      params: shapes with shardings of a known model; or one sharding, for any model.
      which: "last", the newest intact one; "best", by the primary metric; or a step, "1000".

    Raises: as `Series.newest`; BadInputError also where `which` names no checkpoint, and where the
      run has others, and not this one.
    """
    if which not in ("last", "best") and not which.isdecimal():
        raise BadInputError(f"checkpoint={which!r} must be last, best or a step")
    with (
        closing(Series(workdir / LAST, keep=1)) as last,
        closing(Series(workdir / BEST, keep=1)) as best,
    ):
        for choice in range(1, CHOICES + 1):
            listed = last.steps(), best.steps()
            try:
                return _load_chosen(last, best, params, which)
            except RunFailedError:
                # A run deletes a checkpoint once a newer one is there.
                same = listed == (last.steps(), best.steps())
                if same or choice == CHOICES or jax.process_count() > 1:
                    raise


def _load_chosen(last: Series, best: Series, params: PyTree, which: str) -> Restored | None:
    """Reads the one of these checkpoints that `which` names; as `load_checkpoint`."""
    kept, kept_best = last.steps(), best.steps()
    only = int(which) if which.isdecimal() else None
    series = best if which == "best" or (only in kept_best and only not in kept) else last
    if not (kept or kept_best):
        return None
    if which == "best" and kept_best:
        only = kept_best[-1]  # an older one was not the best
    if not series.steps() or only not in (None, *series.steps()):
        there = [*map(str, kept), *(f"best (step {step})" for step in kept_best)]
        raise BadInputError(
            f"{last.directory.parent} has no checkpoint {which}; it has {', '.join(there)}. A run "
            "keeps the newest config.checkpoint.keep ones, and the best"
        )
    model = None if isinstance(params, jax.sharding.Sharding) else fingerprint(params)
    found, damaged = series.newest({"params": params}, only=only, fingerprint=model)
    for step, problem in damaged.items():
        place = series.directory / str(step)
        print(f"warning: {place} {problem}; using an older checkpoint", file=sys.stderr)
    if found and series is best and OF_LAST in found.meta:
        place = best.directory / str(found.meta["step"])
        raise RunFailedError(f"{place} {COPIED}; restore the run's own best, or name another")
    return found
