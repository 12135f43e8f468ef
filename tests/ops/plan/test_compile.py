"""Compiling for TPUs without TPUs; the tests of the compiler itself need libtpu."""

import importlib.util
from pathlib import Path

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ops.compiler import needs_libtpu

from widenet_jax.config.files import import_file, load_config
from widenet_jax.errors import BadInputError
from widenet_jax.ops.plan import compile as planning
from widenet_jax.ops.plan.compile import TpuCompiler, needed_bytes
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.planner import data_info, plan_run
from widenet_jax.ops.plan.pricing import price_module
from widenet_jax.ops.plan.schedule import dump_directory
from widenet_jax.ops.plan.topology import parse_topology
from widenet_jax.sharding import BATCH, build_mesh

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def no_flags(monkeypatch: pytest.MonkeyPatch):
    """libtpu aborts on a flag that it does not know."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@needs_libtpu
def test_a_small_step_for_eight_tpu_cores(tmp_path: Path):
    config = load_config("configs/digits.py:widenet_tiny,depth=2")
    data, notes = data_info(config), []
    compiler = TpuCompiler(parse_topology("v3-8"), cache=tmp_path, note=notes.append)
    step = compiler.compile("digits", config, data)
    assert notes == ["digits: compiling for v3-8"]
    assert step.fits
    # At least the parameters and two moments in float32.
    assert 3 * 4 * 52_810 < step.peak_bytes < 2**30

    prices = price_module(parse(step.hlo), step.schedules, compiler.topology)
    scopes = "\n".join(price.instruction.op_name for price in prices)
    for scope in ("attention", "router", "dispatch", "experts"):
        assert f"/{scope}/" in scopes
    ms = sum(price.ms for price in prices)
    assert sum(price.roofline_ms for price in prices) < 0.05 * ms
    assert not list(Path(dump_directory().name).iterdir())
    # The gradients of all parameters are summed over the cores.
    assert sum(price.collective_bytes for price in prices) > 4 * 52_810

    # The second time the same step comes from the cache, without a note.
    assert compiler.compile("digits", config, data) == step
    assert len(notes) == 1


@needs_libtpu
def test_a_gradient_of_two_slices(tmp_path: Path):
    """Each of 4 devices a slice sends a quarter of a gradient, bfloat16 [1024, 1024]."""
    compiler = TpuCompiler(parse_topology("2xv5e-4"), cache=tmp_path)
    mesh = build_mesh({"fsdp": 1, "expert": 1}, compiler.devices[::-1])
    assert [device.slice_index for device in mesh.devices.flat] == [0] * 4 + [1] * 4
    kernel, x = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((1024, 1024), (64, 1024)))
    places = NamedSharding(mesh, P()), NamedSharding(mesh, BATCH)

    def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
        return ((x @ kernel).astype("float32") ** 2).sum()

    gradient = jax.jit(jax.grad(loss), in_shardings=places, out_shardings=places[0])
    step = compiler.compile_lowered("a gradient", gradient.lower(kernel, x))
    prices = price_module(parse(step.hlo), step.schedules, compiler.topology)
    assert sum(price.dcn_bytes for price in prices) == 2 * 1024 * 1024 / 4
    assert sum(price.collective_bytes for price in prices) > 0


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize("tpu", ["2xv4-16", "2xv5p-16", "2xv5e-8", "2xv6e-8"])
def test_a_step_of_two_slices(tmp_path: Path, tpu: str):
    """Each of 8 devices a slice sends a part of the gradients, padded to tiles, at least 1/8."""
    config = load_config("configs/digits.py:widenet_tiny,depth=2")
    config.sharding.fsdp = -1
    compiler = TpuCompiler(parse_topology(tpu), cache=tmp_path)
    figures = plan_run("digits", config, data_info(config), compiler).figures
    sent, whole = 1e6 * figures["dcn_mb"], 4 * 52_810
    assert whole / 8 < sent < whole / 2
    assert figures["dcn_ms"] > 0


@needs_libtpu
def test_what_a_stored_step_is_found_by(monkeypatch: pytest.MonkeyPatch):
    """The program, the scopes of its operations, the slice, and the code that reads schedules."""

    def key(number: float = 2.0, scope: str = "router", tpu: str = "v3-8") -> str:
        def step(x):
            with jax.named_scope(scope):
                return x * number

        lowered = jax.jit(step).lower(jax.ShapeDtypeStruct((8,), jax.numpy.float32))
        return planning.fingerprint(lowered, parse_topology(tpu))

    found = {key(), key(number=3.0), key(scope="experts"), key(tpu="v3-16"), key(tpu="v4-8")}
    found.add(key(tpu="2xv4-8"))
    assert key() in found and len(found) == 6
    monkeypatch.setattr(planning, "file_sha256", lambda file: f"another {file.name}")
    assert key() not in found


@needs_libtpu
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("v5e-4", (8192, 2048, 4096)),
        *(
            pytest.param(name, (8192, 2048, 4096), marks=pytest.mark.slow)
            for name in ("v3-8", "v4-8", "v5p-8", "v6e-4")
        ),
        # The sum of 16 blocks of the contraction is written once.
        pytest.param("v6e-4", (8192, 8192, 8192), marks=pytest.mark.slow),
    ],
)
def test_a_large_product_runs_at_the_peak(name: str, sizes: tuple[int, int, int]):
    """2 M K N operations by schedule take at most 10% longer than at the peak."""
    topology, (m, k, n) = parse_topology(name), sizes
    place = jax.sharding.SingleDeviceSharding(planning.tpu_devices(topology)[0])
    x, w = (
        jax.ShapeDtypeStruct(shape, jax.numpy.bfloat16, sharding=place)
        for shape in ((m, k), (k, n))
    )
    step = planning.compile_lowered(jax.jit(jax.numpy.dot).lower(x, w))
    prices = price_module(parse(step.hlo), step.schedules, topology)
    peak_ms = 1e3 * 2 * m * k * n / topology.chip.peak_flops
    assert peak_ms <= sum(price.compute_ms for price in prices) <= 1.1 * peak_ms


@needs_libtpu
@pytest.mark.slow
def test_the_estimate_is_right_for_products_alone():
    """As `docs/log/compiler_estimate.md` has it."""
    found = import_file(str(ROOT / "scripts/compare/schedules.py")).cycles("v5e-4")
    ratios = {name: estimate / schedule for name, (estimate, schedule) in found.items()}
    assert ratios["8192 x 3072 x 768"] == pytest.approx(1, abs=0.05)
    assert ratios["sum of the exponentials of scores"] > 5 < ratios["gradient of the scores"]


@needs_libtpu
@pytest.mark.slow
def test_the_attention_kernel_against_xla_by_schedule():
    """As `docs/log/full_attention.md` has it, at T = 512."""
    prices, v5e = import_file(str(ROOT / "scripts/compare/attention.py")), parse_topology("v5e-4")
    assert prices.alone(v5e, "pallas", 512, masked=True) < 0.42
    assert prices.layer(v5e, "pallas", 512) < 0.8 * prices.layer(v5e, "xla", 512)


def test_the_program_is_the_largest_that_was_written(tmp_path: Path):
    """Work for a SparseCore is a program of its own; of a step there are earlier texts too."""
    with pytest.raises(BadInputError, match="does not write the program"):
        planning.final_program(tmp_path)
    for name, text in (
        ("module_0000.jit_step.after_codegen.txt", "the step"),
        ("module_0000.jit_step.after_optimizations.txt", "an earlier text"),
        ("module_0002.extracted.after_codegen.txt", "part"),
    ):
        (tmp_path / name).write_text(text)
    assert planning.final_program(tmp_path) == "the step"


def test_a_program_without_schedules():
    """As libtpu leaves it if JAX loaded it before the plan set its flags."""

    class Lowered:
        def compile(self, compiler_options: dict):
            dump = Path(compiler_options["xla_dump_to"])
            (dump / "module_0000.jit_step.after_codegen.txt").write_text("the step")

    with pytest.raises(BadInputError, match="libtpu wrote no schedules"):
        planning.compile_lowered(Lowered())


@needs_libtpu
def test_memory_that_a_step_would_need():
    """192 GiB of arguments and 192 GiB of results on one v3 core."""
    devices = planning.tpu_devices(parse_topology("v3-8"))
    place = jax.sharding.SingleDeviceSharding(devices[0])
    shape = jax.ShapeDtypeStruct((48, 2**30), jax.numpy.float32)
    lowered = jax.jit(lambda x: x + 1, in_shardings=place, out_shardings=place).lower(shape)
    step = planning.compile_lowered(lowered)
    assert not step.fits and step.hlo == ""
    assert step.peak_bytes == pytest.approx(2 * 192 * 2**30, rel=0.01)


@needs_libtpu
def test_an_unknown_slice(tmp_path: Path):
    with pytest.raises(BadInputError, match="does not know v3:3x5"):
        TpuCompiler(parse_topology("v3:3x5"), cache=tmp_path)


@needs_libtpu
def test_a_batch_that_does_not_divide(tmp_path: Path):
    config = load_config("configs/digits.py:widenet_tiny")
    config.batch_size = 60
    with pytest.raises(BadInputError, match=r"config\.batch_size=60 must be a multiple"):
        TpuCompiler(parse_topology("v3-8"), cache=tmp_path).compile("x", config, data_info(config))


def test_a_missing_compiler_is_reported_with_its_install_command(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInputError, match=r"pip install -e '\.\[plan\]'"):
        TpuCompiler(parse_topology("v3-8"), cache=tmp_path)


def test_error_messages_of_the_compiler():
    message = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (17.80G) exceeds available HBM (15.48G). HLO module: jit_f."
    )
    assert needed_bytes(message) == 17.8 * 2**30
    with pytest.raises(BadInputError, match="cannot compile this step: INTERNAL: no"):
        needed_bytes("INTERNAL:\n no")
