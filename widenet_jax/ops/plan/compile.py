"""Compiles training steps for TPUs on a machine without TPUs; for GPUs see `gpu`.

The `libtpu` wheel contains the compiler; no TPU and no data set is needed. The result is the
program that the TPU would run: its memory use, its optimised HLO, and the schedule of each of its
instructions.
"""

import gzip
import hashlib
import importlib.util
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from ml_collections import ConfigDict

from widenet_jax.data.contract import DataInfo
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import Experiment, build_experiment, train_batch_shapes
from widenet_jax.files import file_sha256, write_bytes
from widenet_jax.ops.plan.schedule import (
    Schedule,
    Schedules,
    dump_directory,
    dump_flags,
    take_schedules,
)
from widenet_jax.ops.plan.topology import Topology
from widenet_jax.run.workdir import COMPILERS, version

# Keeps libtpu from querying a TPU host's metadata server and from locking itself to one process.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
INSTALL = (
    "pip install -e '.[plan]' (on a TPU's host in another environment, as it is newer than JAX's)"
)
_OUT_OF_MEMORY = re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM")


@dataclass(frozen=True)
class CompiledStep:
    """A compiled training step.

    Attributes:
      hlo: optimised HLO; "" if the step does not fit.
      schedules: of the instructions in `hlo`.
      fits: whether the step fits the device's memory, according to the compiler.
      peak_bytes: peak memory of a device, including the program.
      seconds: compile time.
    """

    hlo: str
    schedules: Schedules
    fits: bool
    peak_bytes: float
    seconds: float


class TpuCompiler:
    """Compiles training steps for one slice, with a cache on disk.

    Args:
      topology: the slice; its `devices` are an attribute.
      cache: directory of compiled steps.
      note: receives a line before each compilation; an attribute, for the planner's own lines.

    Raises:
      BadInputError: libtpu is missing, or does not know the slice.
    """

    def __init__(self, topology: Topology, *, cache: Path, note: Callable[[str], None] = print):
        self.topology, self._cache, self.note = topology, cache, note
        self.devices = self.find_devices()

    def find_devices(self) -> Sequence[jax.Device]:
        return tpu_devices(self.topology)

    def experiment(self, config: ConfigDict, data: DataInfo, **options: Any) -> Experiment:
        return build_experiment(config, data, self.devices, **options)

    def lower(self, config: ConfigDict, data: DataInfo) -> Any:
        """Lowers the training step of `config`."""
        return lower_step(self.experiment(config, data))

    def run(self, lowered: Any) -> CompiledStep:
        """Compiles a lowered program."""
        return compile_lowered(lowered)

    def compile(self, name: str, config: ConfigDict, data: DataInfo) -> CompiledStep:
        """Compiles the training step of `config`; `name` stands for it in notes.

        Raises:
          BadInputError: the config contradicts itself, the data or the slice.
        """
        return self.compile_lowered(name, self.lower(config, data))

    def compile_lowered(self, name: str, lowered: Any) -> CompiledStep:
        """Compiles a lowered program, unless the cache has it."""
        place = self._cache / f"{fingerprint(lowered, self.topology)}.json.gz"
        if place.is_file():
            return stored_step(json.loads(gzip.decompress(place.read_bytes())))
        self.note(f"{name}: compiling for {self.topology.name}")
        step = self.run(lowered)
        self._cache.mkdir(parents=True, exist_ok=True)
        stored = json.dumps(asdict(step)).encode()
        write_bytes(place, gzip.compress(stored, compresslevel=1))
        return step


def stored_step(fields: dict[str, Any]) -> CompiledStep:
    """Rebuilds a step from the JSON object of `dataclasses.asdict`."""
    stored = fields.pop("schedules").items()
    schedules = {name: Schedule(*counts, tuple(seldom)) for name, (*counts, seldom) in stored}
    return CompiledStep(**fields, schedules=schedules)


def tpu_devices(topology: Topology) -> Sequence[jax.Device]:
    """Returns the devices to compile for. JAX itself then runs on the CPU.

    Raises:
      BadInputError: libtpu is not installed, or does not know the topology.
    """
    if not importlib.util.find_spec("libtpu"):
        raise BadInputError(f"planning needs the TPU compiler: {INSTALL}")
    os.environ.update(ENVIRONMENT, TPU_ACCELERATOR_TYPE=topology.accelerator_type)
    flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    if dump_flags() not in flags:
        os.environ["LIBTPU_INIT_ARGS"] = f"{flags} {dump_flags()}".strip()
    jax.config.update("jax_platforms", "cpu")
    kind = {"chip_config_name": topology.chip.config} if topology.chip.config else {}
    kind |= {"num_slices": topology.slices} if topology.slices > 1 else {}
    try:
        description = topologies.get_topology_desc(topology.layout, "tpu", **kind)
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise BadInputError(
            f"--topology={topology.name}: the TPU compiler does not know {topology.layout} "
            f"({' '.join(str(error).split())[:200]})"
        ) from None
    return description.devices


def lower_step(experiment: Experiment) -> Any:
    """Traces and lowers the training step."""
    with jax.set_mesh(experiment.mesh):
        return experiment.train_step.lower(experiment.state, train_batch_shapes(experiment))


def compile_lowered(lowered: Any) -> CompiledStep:
    """Compiles a lowered step; a large model takes minutes.

    Raises:
      BadInputError: the compiler fails for another reason than memory, or does not write its
        program or its schedules.
    """
    with timed_compile() as seconds:
        try:
            with tempfile.TemporaryDirectory(dir=dump_directory().name) as dump:
                options = {"xla_dump_to": dump, "xla_dump_hlo_as_text": True}
                compiled = lowered.compile(compiler_options=options)
                hlo = final_program(Path(dump))
        except jax.errors.JaxRuntimeError as error:
            return CompiledStep("", {}, False, needed_bytes(str(error)), seconds())
        finally:
            schedules = take_schedules()
    if not schedules:  # every instruction would be guessed
        raise BadInputError(
            "libtpu wrote no schedules: JAX loaded it before the plan set its flags (call "
            f"tpu_devices first), or it is another version: {INSTALL}"
        )
    peak = peak_bytes(compiled.memory_analysis())
    return CompiledStep(hlo, schedules, True, peak, seconds())


@contextmanager
def timed_compile() -> Iterator[Callable[[], float]]:
    """Keeps a step out of JAX's compilation cache, which cannot load it without its devices.

    Yields a function that returns the seconds since the start.
    """
    start, threshold = time.perf_counter(), "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, threshold)
    jax.config.update(threshold, math.inf)
    try:
        yield lambda: time.perf_counter() - start
    finally:
        jax.config.update(threshold, before)


def final_program(dump: Path) -> str:
    """Returns the HLO that libtpu wrote last, of the step itself.

    `compiled.as_text()` is the same, but jaxlib cannot read every program, such as those with work
    for a SparseCore.

    Raises:
      BadInputError: libtpu wrote none.
    """
    files = list(dump.glob("*.after_codegen.txt"))
    if not files:
        raise BadInputError(f"this libtpu does not write the program that it made: {INSTALL}")
    return max(files, key=lambda file: file.stat().st_size).read_text()


def fingerprint(lowered: Any, topology: Topology) -> str:
    """Hashes what determines a stored step: program, slice, versions, flags, how it is read."""
    versions = [str(version(name)) for name in COMPILERS]
    kept = [*CompiledStep.__dataclass_fields__]
    kept.append(file_sha256(Path(__file__).with_name("schedule.py")))
    flags = " ".join(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
    # Where schedules are dumped is each process's own.
    flags = [flag for flag in flags.split() if not flag.startswith("--xla_jf_dump_")]
    about = [topology.layout, topology.chip.config, *versions, *flags, *kept]
    about += [f"{topology.slices} slices"] if topology.slices > 1 else []
    # Scopes tell the parts of a step. They stand among the locations, whose files, lines and
    # callers differ between processes.
    scopes = set(re.findall(r'loc\("(jit\([^"]*)"\(', lowered.as_text(debug_info=True)))
    text = "\n".join([lowered.as_text(), *sorted(scopes), *about])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def peak_bytes(memory: Any) -> float:
    """Sums arguments, results that do not alias an argument, temporaries and the program."""
    parts = ("argument", "output", "temp", "generated_code")
    return sum(getattr(memory, f"{p}_size_in_bytes") for p in parts) - memory.alias_size_in_bytes


def needed_bytes(message: str) -> float:
    """Returns the memory that the compiler's out-of-memory message asks for.

    Raises:
      BadInputError: the message reports another failure.
    """
    match = _OUT_OF_MEMORY.search(message)
    if not match:
        reason = " ".join(message.split())[:300]
        raise BadInputError(f"the TPU compiler cannot compile this step: {reason}")
    return float(match[1]) * 1024 ** ("", "K", "M", "G", "T").index(match[2])
