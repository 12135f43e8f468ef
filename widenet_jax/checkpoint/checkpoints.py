"""A run's checkpoints: the newest, the best, and the state that met a number that is not finite.

Each holds `params` and `opt_state` (arrays; the tree has one name a layer, whatever the mesh or the
number of hosts) and `meta`: step, counters, config, class names. Workdirs may be gs://.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import jax
import numpy as np
from etils import epath

from widenet_jax.checkpoint.hashes import fingerprint
from widenet_jax.checkpoint.series import FORMAT_VERSION, Restored, Series
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.step import COUNTERS, TrainState
from widenet_jax.typing import PyTree

LAST, BEST, FAILED = "checkpoints", "best", "failed"


class Checkpoints:
    """The newest checkpoints of a run, and the best by evaluation accuracy beside them.

    Args:
      workdir: of the run.
      meta: what is stored with every checkpoint: config, class names.
      keep: newest checkpoints to keep.
    """

    def __init__(self, workdir: epath.Path, *, meta: Mapping, keep: int):
        self.meta = dict(meta)
        self.last = Series(workdir / LAST, keep=keep)
        self.best = Series(workdir / BEST, keep=1)
        self.failed = Series(workdir / FAILED, keep=1)
        self.best_accuracy = -1.0

    def restore(self, target: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest whole checkpoint, placed as `target` (shapes with shardings), and its meta.

        None in a new run. Damaged newer ones are renamed, unfinished ones deleted, each with a
        line on stderr.

        Raises: as `Series.newest`; RunFailedError also where only damaged ones are left.
        """
        restored, damaged = self.last.newest(
            {"params": target.params, "opt_state": target.opt_state},
            fingerprint=fingerprint(target.params),
        )
        if restored is None and (aside := self.last.damaged()):
            raise RunFailedError(
                f"no checkpoint is left in {self.last.directory} but damaged ones "
                f"({', '.join(aside)}); nothing was changed. Restore one from a copy, or start "
                "again in a new --workdir"
            )
        self.last.quarantine(damaged)
        self.best_accuracy = self._restore_best()
        for series in (self.last, self.best):
            if left := series.remove_unfinished():
                print(
                    f"note: {series.directory} held an unfinished checkpoint ({', '.join(left)}); "
                    "it is removed",
                    file=sys.stderr,
                )
        if restored is None:
            return None
        return state_of(restored, target), restored.meta

    def _restore_best(self) -> float:
        """The best accuracy so far; -1 where none is kept."""
        try:
            best, damaged = self.best.newest({})
        except RunFailedError as error:  # the run does not need it: the next best replaces it
            print(f"warning: {error}", file=sys.stderr)
            self.best.quarantine(dict.fromkeys(self.best.steps(), "is not whole"))
            return -1.0
        self.best.quarantine(damaged)
        if best:
            self.best.remove_others()
        return float(best.meta["accuracy"]) if best else -1.0

    def save(self, state: TrainState, *, step: int, **facts: Any) -> None:
        """Writes `state` in the background, with `facts` in its meta; at most once a step."""
        if step != self.last.step:
            self._save(self.last, state, step, facts)

    def save_best(self, state: TrainState, *, step: int, accuracy: float) -> None:
        """Keeps `state` beside the newest ones if its accuracy is the highest so far."""
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            # After going on from an older checkpoint a step comes again, and is the same.
            if step != self.best.step:
                self._save(self.best, state, step, {"accuracy": accuracy})

    def save_failed(self, state: TrainState, *, step: int) -> None:
        """Keeps the state before the update of `step`, which was not finite, for a replay."""
        if jax.process_index() == 0 and self.failed.directory.exists():
            self.failed.directory.rmtree()
        self._save(self.failed, state, step, {})
        self.failed.wait()

    def _save(self, series: Series, state: TrainState, step: int, facts: Mapping) -> None:
        counters = jax.device_get({name: getattr(state, name) for name in COUNTERS})
        meta = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "fingerprint": fingerprint(state.params),
            "counters": {name: int(value) for name, value in counters.items()},
            **self.meta,
            **facts,
        }
        series.save(step, {"params": state.params, "opt_state": state.opt_state}, meta)

    def check(self) -> None:
        """Raises RunFailedError if a background save has failed."""
        self.last.check()
        self.best.check()

    def wait(self) -> None:
        """Returns when everything asked for is on disk and has been read back."""
        self.last.wait()
        self.best.wait()

    def close(self) -> None:
        for series in (self.last, self.best, self.failed):
            series.close()


def state_of(restored: Restored, target: TrainState) -> TrainState:
    """The training state in a checkpoint."""
    put = lambda value, like: jax.device_put(np.int32(value), like.sharding)  # noqa: E731
    counters = restored.meta["counters"]
    return TrainState(
        step=put(restored.meta["step"], target.step),
        params=restored.items["params"],
        opt_state=restored.items["opt_state"],
        **{name: put(counters[name], getattr(target, name)) for name in COUNTERS},
    )


def absolute(path: str) -> epath.Path:
    """A workdir as Orbax wants it: absolute, where it is not a URL such as gs://..."""
    return epath.Path(path if "://" in path else os.path.abspath(os.path.expanduser(path)))


def load_newest(workdir: epath.Path, params: PyTree) -> Restored | None:
    """The parameters in the newest whole checkpoint of a run, which is only read; None if none.

    Args:
      workdir: of the run.
      params: shapes with shardings, of the model the caller has; or one sharding, for any model.

    Raises: as `Series.newest`.
    """
    known = not isinstance(params, jax.sharding.Sharding)
    with closing(Series(workdir / LAST, keep=1)) as series:
        newest, damaged = series.newest(
            {"params": params}, fingerprint=fingerprint(params) if known else None
        )
    for step, problem in damaged.items():
        place = workdir / LAST / str(step)
        print(f"warning: {place} {problem}; an older one is taken", file=sys.stderr)
    return newest


def load_params(workdir: str, sharding: jax.sharding.Sharding) -> dict:
    """`load_newest` for `config.init_from`: parameters of another run, each placed by `sharding`.

    On several hosts all of them call it, with a sharding over all of their devices.

    Raises:
      BadInputError: there is none.
      RunFailedError: none is whole.
    """
    newest = load_newest(absolute(workdir), sharding)
    if newest is None:
        raise BadInputError(
            f"config.init_from={workdir}: no finished checkpoint there; give the --workdir of a "
            "training run"
        )
    return newest.items["params"]
