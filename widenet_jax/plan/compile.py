"""A training step, compiled on any machine for TPUs that are not there.

The `libtpu` wheel holds the compiler; no TPU and no data set is needed. What comes back is what the
TPU itself would run: its memory and its optimised HLO.
"""

import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax import train as run
from widenet_jax.durations import to_steps
from widenet_jax.errors import BadInputError
from widenet_jax.plan.facts import DataFacts
from widenet_jax.plan.topology import Topology
from widenet_jax.sharding import BATCH, build_mesh, tree_shardings
from widenet_jax.step import make_train_step
from widenet_jax.tasks.classification import TASKS

# libtpu looks for a TPU host's metadata and for a lock of its own: neither is needed to compile.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
_OUT_OF_MEMORY = re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM")
SCALE = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class CompiledStep:
    """A step as the compiler left it.

    Attributes:
      hlo: optimised HLO; '' where it did not fit.
      fits: whether it fits the device's memory.
      peak_bytes: of a device's memory at the worst moment, the program itself included.
      seconds: the compiler took.
    """

    hlo: str
    fits: bool
    peak_bytes: float
    seconds: float


class TpuCompiler:
    """Compiles steps for one slice, and remembers them.

    Args:
      topology: the slice.
      cache: a directory of steps compiled before; None for none.
      note: told what takes long.

    Raises:
      BadInputError: libtpu is missing, or does not know the slice.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        cache: Path | None = None,
        note: Callable[[str], None] = lambda text: None,
    ):
        self.topology = topology
        self._devices = tpu_devices(topology)
        self._cache = cache
        self._note = note

    def compile(self, name: str, config: ConfigDict, data: DataFacts) -> CompiledStep:
        """The training step of `config`, which the notes call `name`.

        Raises:
          BadInputError: the config does not fit itself, the data or the slice.
        """
        lowered = assemble_step(config, data, self._devices).lower()
        place = None
        if self._cache:
            place = self._cache / f"{fingerprint(lowered, self.topology)}.json.gz"
            if place.is_file():
                return CompiledStep(**json.loads(gzip.decompress(place.read_bytes())))
        self._note(f"{name}: compiling for {self.topology.name}")
        step = compile_lowered(lowered)
        if place:
            store(place, step)
        return step


def tpu_devices(topology: Topology) -> Sequence[jax.Device]:
    """Devices to compile for. JAX itself runs on the CPU.

    Raises:
      BadInputError: libtpu is not installed, or does not know the topology.
    """
    if not importlib.util.find_spec("libtpu"):
        raise BadInputError(
            "planning needs the TPU compiler, which is not installed here: "
            "pip install libtpu==0.0.51"
        )
    os.environ.update(ENVIRONMENT, TPU_ACCELERATOR_TYPE=topology.accelerator_type)
    jax.config.update("jax_platforms", "cpu")
    kind = {"chip_config_name": topology.chip.config} if topology.chip.config else {}
    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=topology.layout, **kind
        )
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise BadInputError(
            f"--topology={topology.name}: the TPU compiler knows no {topology.layout} "
            f"({' '.join(str(error).split())[:200]})"
        ) from None
    return description.devices


@dataclass(frozen=True)
class AssembledStep:
    """A run's training step, and what goes in.

    Attributes:
      mesh: it is traced and run under `jax.set_mesh(mesh)`.
      step: jitted (state, batch) -> (state, metrics); it takes over the state's memory.
      init: jitted () -> state.
      state, batch: shapes and dtypes.
    """

    mesh: jax.sharding.Mesh
    step: Any
    init: Any
    state: Any
    batch: dict[str, jax.ShapeDtypeStruct]

    def lower(self) -> Any:
        """Traced and lowered."""
        with jax.set_mesh(self.mesh):
            return self.step.lower(self.state, self.batch)


def assemble_step(
    config: ConfigDict, facts: DataFacts, devices: Sequence[jax.Device]
) -> AssembledStep:
    """The training step of a run, without its data.

    Raises:
      BadInputError: the config does not fit itself, the data or the devices.
    """
    mesh = build_mesh(config.sharding, devices)
    run.check_batch(config, mesh)
    model = run.build_model(config.model, facts.num_classes)
    task = TASKS[config.task.name](
        num_classes=facts.num_classes,
        label_smoothing=config.task.label_smoothing,
        mixup_alpha=config.augment.mixup_alpha,
        mixup_group_size=config.augment.mixup_group_size,
    )
    tx, schedule = run.build_optimizer(
        config.optimizer,
        params_or_shapes=run.parameter_shapes(model, facts.image_shape),
        total_steps=total_steps(config, facts),
        batch_size=config.batch_size,
        num_examples=facts.num_examples,
    )
    init = partial(
        run.init_state, model=model, tx=tx, image_shape=facts.image_shape, seed=config.seed
    )
    step = make_train_step(
        forward=run.make_forward(model),
        task=task,
        tx=tx,
        schedule=schedule,
        seed=config.seed,
        accumulation_steps=config.optimizer.accumulation_steps,
        group_size=run.group_size(config),
    )
    with jax.set_mesh(mesh):
        state = jax.eval_shape(init)
    shardings = tree_shardings(state, mesh)
    batched, B = NamedSharding(mesh, BATCH), config.batch_size
    return AssembledStep(
        mesh=mesh,
        step=jax.jit(
            step,
            in_shardings=(shardings, batched),
            out_shardings=(shardings, NamedSharding(mesh, P())),
            donate_argnums=0,
        ),
        init=jax.jit(init, out_shardings=shardings),
        state=state,
        batch={
            "image": jax.ShapeDtypeStruct((B, *facts.image_shape), jnp.uint8, sharding=batched),
            "label": jax.ShapeDtypeStruct((B,), jnp.int32, sharding=batched),
        },
    )


def total_steps(config: ConfigDict, facts: DataFacts) -> int:
    """Updates of the whole run."""
    return to_steps(
        config.duration,
        field="config.duration",
        batch_size=config.batch_size,
        num_examples=facts.num_examples,
    )


def compile_lowered(lowered: Any) -> CompiledStep:
    """Minutes, for a large model.

    Raises:
      BadInputError: the compiler refuses for another reason than memory.
    """
    start = time.perf_counter()
    # JAX's own cache of programs stores what it cannot read back where there is no TPU.
    threshold = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, threshold)
    jax.config.update(threshold, math.inf)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return CompiledStep("", False, needed_bytes(str(error)), time.perf_counter() - start)
    finally:
        jax.config.update(threshold, before)
    seconds = time.perf_counter() - start
    return CompiledStep(compiled.as_text(), True, peak_bytes(compiled.memory_analysis()), seconds)


def store(place: Path, step: CompiledStep) -> None:
    """Writes a step whole or not at all: other plans may be reading."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(gzip.compress(json.dumps(asdict(step)).encode(), compresslevel=1))
    unfinished.replace(place)


def fingerprint(lowered: Any, topology: Topology) -> str:
    """Of everything that decides the result: the program, the slice and the compiler."""
    versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")]
    text = "\n".join([lowered.as_text(), topology.layout, topology.chip.config, *versions])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def peak_bytes(memory: Any) -> float:
    """Arguments, results that do not take over an argument's place, temporaries, the program."""
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )


def needed_bytes(message: str) -> float:
    """What the compiler says it would need where there is not as much.

    Raises:
      BadInputError: the message is about something else.
    """
    match = _OUT_OF_MEMORY.search(message)
    if not match:
        raise BadInputError(
            f"the TPU compiler cannot compile this step: {' '.join(message.split())[:300]}"
        )
    return float(match[1]) * SCALE[match[2]]
