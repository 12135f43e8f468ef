"""A trace of some training steps by JAX's profiler, for XProf and Perfetto."""

import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import jax
from etils import epath

from widenet_jax.errors import BadInputError
from widenet_jax.run.workdir import version
from widenet_jax.step import TrainState

SETTLE = 3  # steps of this start before the trace: the first compiles, the next fill the queues
STEP = "train"  # the name of a step's event; its argument `step_num` is the number of the step
TrainStep = Callable[[TrainState, Any], tuple[TrainState, Any]]


@dataclass
class Profile:
    """A training step that traces some of its calls; the numbers stay the same.

    The trace covers everything between its first and last step on this host and its devices. It is
    written to `WORKDIR/profile/plugins/profile/step_NUMBER/`, where XProf and TensorBoard look for
    HOST.xplane.pb. HOST.perfetto.json.gz is the same for Perfetto. Where there are several
    processes, the process's number follows HOST, since one host may have several.

    Args:
      train_step: the step.
      steps: number of steps to trace.
      start_step: the step after which this process starts or resumes.
      workdir: local or gs://.
      note: receives a line that says where the trace is, or why there is none.
      pause: a context in which the profiler starts and the trace is written; its time does not
        count as time of steps.
    """

    train_step: TrainStep
    steps: int
    start_step: int
    workdir: epath.Path
    note: Callable[[str], None]
    pause: Callable[[], AbstractContextManager]

    def __post_init__(self):
        self.step = self.start_step
        self.first = self.start_step + SETTLE + 1
        self.last = self.start_step + SETTLE + self.steps
        self.directory = ""  # of the trace while it is recorded

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        """Calls the step; starts the trace before its first step, and ends it after its last."""
        self.step += 1
        if self.step == self.first:
            jax.block_until_ready(state)  # the steps before do not belong to the trace
            with self.pause():
                self._start()
        with jax.profiler.StepTraceAnnotation(STEP, step_num=self.step):
            state, metrics = self.train_step(state, batch)
        if self.step == self.last:
            jax.block_until_ready(state)
            with self.pause():
                self._write()
        return state, metrics

    def _start(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="widenet_profile_")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # tracing every call of Python would slow the steps down
        options = {"create_perfetto_trace": True, "profiler_options": options}
        jax.profiler.start_trace(self.directory, **options)

    def _write(self) -> None:
        """Ends the trace and copies it to the workdir, which may be remote."""
        recorded, self.directory = self.directory, ""
        try:
            jax.profiler.stop_trace()
            into = self.workdir / "profile" / "plugins" / "profile" / f"step_{self.first:08d}"
            into.mkdir(parents=True, exist_ok=True)
            (planes,) = Path(recorded).rglob("*.xplane.pb")
            (events,) = Path(recorded).rglob("perfetto_trace.json.gz")
            host = planes.name.removesuffix(".xplane.pb")
            if jax.process_count() > 1:
                host += f"_{jax.process_index()}"
            (into / f"{host}.xplane.pb").write_bytes(planes.read_bytes())
            (into / f"{host}.perfetto.json.gz").write_bytes(events.read_bytes())
        finally:
            shutil.rmtree(recorded)
        self.note(f"profile of steps {self.first:,} to {self.step:,}: {into}")

    def close(self) -> None:
        """Ends a trace that the end of the run cut short; says so where there is none."""
        if self.directory:
            self._write()
        elif self.step < self.first:
            self.note(f"--profile: this start ended before step {self.first:,}, no step was traced")


def check_profiler() -> None:
    """Raises BadInputError where JAX would load another libtpu than it was built for.

    JAX trains with many versions of libtpu, but its profiler ends the process in a segmentation
    fault where the profiler's interface in libtpu has another size.
    """
    installed = version("libtpu")
    wanted = re.findall(r"libtpu==([\d.]+)\.\*", " ".join(requires("jax") or ()))
    if "tpu" not in (jax.config.jax_platforms or "tpu") or not installed or len(wanted) != 1:
        return  # libtpu is not loaded, or the versions are unknown
    if not f"{installed}.".startswith(f"{wanted[0]}."):
        raise BadInputError(
            f"--profile: JAX {jax.__version__} profiles with libtpu {wanted[0]}, and {installed} "
            "(of the extra `plan`) is installed; on a TPU run pip install -e '.[tpu]', elsewhere "
            "set JAX_PLATFORMS, as in JAX_PLATFORMS=cuda"
        )
