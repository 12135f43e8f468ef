"""Benchmark of a place for workdirs: what a small run asks of it, and how long the run waits.

Requests are those that this process sends to gs:// by gcsfs and by TensorStore, each try counted,
so that they can also be counted on a real bucket. A local directory has none.
"""

import contextlib
import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import jax
import numpy as np
import tensorstore as ts
from etils import epath

from widenet_jax.config.files import load_config
from widenet_jax.data.contract import Data
from widenet_jax.data.sources import open_data
from widenet_jax.experiment import Experiment, build_experiment
from widenet_jax.files import is_remote, require_store
from widenet_jax.ops.benchmark.checkpoint import with_moments
from widenet_jax.run import workdir as workdirs
from widenet_jax.run.runtime import Runtime
from widenet_jax.run.stopping import Stop

PARTS = 90  # evaluations of 300 epochs of ImageNet
COLUMNS = ("requests", "kb", "blocking_ms", "whole_ms")
HTTP = "/tensorstore/http/"  # TensorStore's counts of requests


def storage_rows(place: epath.Path, rounds: int) -> list[dict[str, Any]]:
    """Does what a run does in a workdir, in folders of `place` that are removed again.

    Returns:
      [{phase, requests, kb, blocking_ms, whole_ms}], medians over the rounds; kb: sent and
      received; blocking_ms: what training waits; whole_ms: with what follows in the background.
    """
    config, found = load_config("configs/digits.py:widenet_tiny"), []
    data = open_data(config)
    experiment = build_experiment(config, data.data_info, jax.devices()[:1])
    for _ in range(rounds):
        workdir = place / f"benchmark-{uuid4().hex[:8]}"
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                found.append(one_round(workdir, experiment, data))
        finally:
            workdir.rmtree(missing_ok=True)
    medians = {phase: np.median([of[phase] for of in found], axis=0) for phase in found[0]}
    return [{"phase": k, **dict(zip(COLUMNS, v.tolist(), strict=True))} for k, v in medians.items()]


def one_round(workdir: epath.Path, experiment: Experiment, data: Data) -> dict[str, list[float]]:
    """Measures each phase once, in a new workdir; returns COLUMNS of each."""
    metric, found = experiment.task.primary_metric.name, {}

    def measured(phase: str, work: Callable[[], Any], rest: Callable[[], Any] = int) -> None:
        before, times = traffic(workdir), [time.perf_counter()]
        for part in (work, rest):
            part()
            times.append(time.perf_counter())
        found[phase] = [*(traffic(workdir) - before), *(1e3 * (t - times[0]) for t in times[1:])]

    def start(run: Runtime) -> None:
        if is_remote(workdir):
            require_store(workdir).probe(workdir)
        workdirs.check_workdir(workdir, experiment.config, mode="train")
        workdirs.check_length(workdir, experiment, extend=False)
        run.restore(lambda: state, [], extend=False)

    def log(step: int) -> None:
        run.step = step
        run.writer.write(step, "train", {"loss": 1.0})
        run.writer.write_timing(step, {"seconds_per_step": 1.0})

    with Runtime(experiment, data, workdir, Stop()) as run:
        state = jax.block_until_ready(jax.jit(with_moments)(experiment.init()))
        measured("start", partial(start, run))
        for step in range(1, PARTS):
            log(step)
            run.writer.flush()
        log(PARTS)
        measured("log", run.writer.flush)
        run.record_evaluation(state, {metric: 0.5})  # the best so far, which is saved
        run.checkpoints.wait()
        measured("evaluation", partial(run.record_evaluation, state, {metric: 0.5}))
        measured("save", partial(run.save, state), run.checkpoints.wait)
        restore = partial(run.checkpoints.restore, experiment.state)
        measured("restore", lambda: jax.block_until_ready(restore()))
    with Runtime(experiment, data, workdir, Stop()) as run:
        measured(f"resume after {PARTS} evaluations", partial(start, run))
    return found


def traffic(workdir: epath.Path) -> np.ndarray:
    """Returns how many requests and kB this process has exchanged with object stores so far."""
    if not is_remote(workdir):
        return np.zeros(2)
    of, found = require_store(workdir).Traffic, ts.experimental_collect_matching_metrics(HTTP)
    values = {metric["name"].removeprefix(HTTP): metric["values"][0] for metric in found}
    requests = of.requests + values.get("request_started", {"value": 0})["value"]
    sizes = [values[name] for name in ("request_bytes", "response_bytes") if name in values]
    return np.array([requests, (of.bytes + sum(x["count"] * x["mean"] for x in sizes)) / 1e3])
