"""Benchmark of a place for workdirs: what a small run asks of it, and how long the run waits.

Requests are those that this process sends to gs:// by gcsfs and by TensorStore, each try counted,
so that they can also be counted on a real bucket. A local directory has none.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import jax
import numpy as np
import tensorstore as ts
from etils import epath

from widenet_jax.checkpoint.checkpoints import Checkpoints
from widenet_jax.config.files import load_config
from widenet_jax.data.sources import open_data
from widenet_jax.experiment import build_experiment
from widenet_jax.files import is_remote, require_store
from widenet_jax.ops.benchmark.checkpoint import with_moments
from widenet_jax.run import workdir as workdirs
from widenet_jax.run.metrics import MetricsWriter
from widenet_jax.run.runtime import Runtime
from widenet_jax.run.stopping import Stop

CONFIG = str(Path(__file__).parents[3] / "configs" / "digits.py") + ":widenet_tiny"
PARTS = 90  # evaluations of 300 epochs of ImageNet
TRAFFIC = ("requests", "sent_kb", "received_kb")
Found = dict[str, tuple[float, ...]]  # of each phase: TRAFFIC, blocking and whole seconds


def storage_rows(place: epath.Path, rounds: int) -> list[dict[str, Any]]:
    """Does what a run does in a workdir, in folders of `place` that are removed again.

    Returns:
      [{phase, requests, sent_kb, received_kb, blocking_ms, whole_ms}], medians over the rounds;
      `blocking_ms` is what training waits, `whole_ms` also what goes on in the background.
    """
    found: list[Found] = []
    for _ in range(rounds):
        workdir = place / f"benchmark-{uuid4().hex[:8]}"
        with counted(workdir) as traffic, contextlib.redirect_stderr(open(os.devnull, "w")):
            try:
                found.append(one_round(workdir, traffic))
            finally:
                workdir.rmtree(missing_ok=True)
    rows = []
    for phase in found[0]:
        *counts, blocking, whole = np.median([of[phase] for of in found], axis=0).tolist()
        times = {"blocking_ms": 1e3 * blocking, "whole_ms": 1e3 * whole}
        rows.append({"phase": phase, **dict(zip(TRAFFIC, counts, strict=True)), **times})
    return rows


def one_round(workdir: epath.Path, traffic: Callable[[], np.ndarray]) -> Found:
    """Measures each phase once, in a new workdir."""
    config, found = load_config(CONFIG), {}
    data = open_data(config)
    experiment = build_experiment(config, data.data_info, jax.devices()[:1])

    def measured(phase: str, work: Callable[[], Any], rest: Callable[[], Any] = int) -> None:
        before, start = traffic(), time.perf_counter()
        work()
        blocking = time.perf_counter() - start
        rest()
        whole = time.perf_counter() - start
        found[phase] = (*(traffic() - before), blocking, whole)

    with Runtime(experiment, data, workdir, Stop()) as run:
        state = jax.block_until_ready(jax.jit(with_moments)(experiment.init()))

        def begin() -> None:
            if is_remote(workdir):
                require_store(workdir).probe(workdir)
            workdirs.check_workdir(workdir, config, mode="train")
            workdirs.check_length(workdir, experiment, extend=False)
            run.restore(lambda: state, [], extend=False)

        measured("start", begin)
        run.writer.write(1, "train", {"loss": 1.0})
        run.writer.write_timing(1, {"seconds_per_step": 1.0})
        measured("log", run.writer.flush)
        metric = experiment.task.primary_metric.name
        run.record_evaluation(state, {metric: 0.5})  # the best so far, which is saved
        run.checkpoints.wait()
        measured("evaluation", partial(run.record_evaluation, state, {metric: 0.5}))
        measured("save", partial(run.save, state), run.checkpoints.wait)
        for step in range(2, PARTS):
            run.writer.write(step, "eval", {"loss": 1.0})
            run.writer.write_timing(step, {"seconds_per_step": 1.0})
            run.writer.flush()
        written = run.writer.written()

    options = {"meta": {}, "keep": 1, "primary_metric": experiment.task.primary_metric}
    with jax.set_mesh(experiment.mesh), closing(Checkpoints(workdir, **options)) as checkpoints:
        measured("restore", lambda: jax.block_until_ready(checkpoints.restore(experiment.state)))
    with closing(MetricsWriter(workdir, config=config)) as writer:
        measured(f"metrics of {PARTS} evaluations", partial(writer.resume, PARTS, written=written))
    return found


@contextlib.contextmanager
def counted(place: epath.Path) -> Iterator[Callable[[], np.ndarray]]:
    """Counts the requests to an object store; yields a function that returns TRAFFIC so far."""
    counts = np.zeros(len(TRAFFIC))
    if not is_remote(place):
        yield counts.copy
        return
    store = require_store(place)
    once = store.request_once

    async def request(*arguments: Any, **options: Any) -> Any:
        counts[:] += 1, len(options.get("data") or b"") / 1e3, 0
        answer = await once(*arguments, **options)
        counts[2] += len(answer[-1]) / 1e3
        return answer

    store.request_once = request
    try:
        yield lambda: counts + [of_tensorstore(name) for name in HTTP]
    finally:
        store.request_once = once


HTTP = {"request_started": 1.0, "request_bytes": 1e3, "response_bytes": 1e3}  # metric -> its unit


def of_tensorstore(name: str) -> float:
    """Returns one of TensorStore's counts of HTTP requests, or the sum of its bytes."""
    found = ts.experimental_collect_matching_metrics(f"/tensorstore/http/{name}")
    values = [value for metric in found for value in metric["values"]]
    return sum(v["value"] if "value" in v else v["count"] * v["mean"] for v in values) / HTTP[name]
