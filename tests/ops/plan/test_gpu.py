"""Plans for GPUs: prices by hand, and what JAX compiles for GPUs that are not there."""

import csv
import importlib.util
import math
import re
from pathlib import Path

import jax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from refusals import refused, refuses

from widenet_jax.config.files import import_file, load_config
from widenet_jax.errors import BadInputError
from widenet_jax.nn.dense import linear
from widenet_jax.nn.mlp import gelu_tanh
from widenet_jax.ops.plan import gpu
from widenet_jax.ops.plan.gpu import GpuCompiler, kernels_by_kind, price_kernels
from widenet_jax.ops.plan.hlo import parse
from widenet_jax.ops.plan.planner import GIB, GPU_BAND, data_info, plan_run, size_figures
from widenet_jax.ops.plan.pricing import part_of
from widenet_jax.ops.plan.topology import GPU_CHIPS, parse_planned
from widenet_jax.sharding import build_mesh

ROOT = Path(__file__).parents[3]
needs_plugin = pytest.mark.skipif(
    not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)),
    reason="JAX's plugin for CUDA is not installed: pip install -e '.[plan_gpu]'",
)
# Twice in a loop: a product, its fusion, attention forward and backward; then a sum and a gather.
HLO = """HloModule m

%fused (p: bf16[4096,1024]) -> bf16[4096,1024] {
  %p = bf16[4096,1024]{1,0} parameter(0)
  ROOT %t = bf16[4096,1024]{1,0} tanh(%p)
}

%condition (a: (s32[])) -> pred[] {
  %a = (s32[]) parameter(0)
  ROOT %less = pred[] constant(true)
}

%body (a: (s32[])) -> (s32[]) {
  %x = bf16[4096,512]{1,0} parameter(0)
  %w = bf16[512,1024]{1,0} constant({...})
  %q = bf16[8,196,12,64]{3,2,1,0} constant({...})
  %product = (bf16[4096,1024]{1,0}, s8[4194304]{0}) custom-call(%x, %w), \
custom_call_target="__cublas$lt$matmul", backend_config={"lhs_contracting_dimensions":["1"]}
  %y = bf16[4096,1024]{1,0} get-tuple-element(%product), index=0
  %g = bf16[4096,1024]{1,0} fusion(%y), kind=kLoop, calls=%fused
  %forward = bf16[8,12,196,64]{3,1,2,0} custom-call(%q, %q, %q), \
custom_call_target="__cudnn$fmhaSoftmax", backend_config={"intermediate_tensor_shape": \
{"element_type": "BF16", "dimensions": ["8", "12", "196", "196"], "tuple_shapes": []}}
  %backward = bf16[8,12,196,64]{3,1,2,0} custom-call(%q, %q, %q), \
custom_call_target="__cudnn$fmhaSoftmaxBackward", backend_config={"intermediate_tensor_shape": \
{"element_type": "BF16", "dimensions": ["8", "12", "196", "196"], "tuple_shapes": []}}
  ROOT %tuple = (s32[]) tuple(%y)
}

ENTRY %main (x: f32[1024]) -> f32[1024] {
  %x = f32[1024]{0} parameter(0)
  %loop = (s32[]) while(%x), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"2"}}
  %sum = f32[1048576]{0} all-reduce-start(%x), replica_groups={{0,1,2,3,4,5,6,7}}
  %summed = f32[1048576]{0} all-reduce-done(%sum)
  %gather = (f32[1024]{0}, f32[8192]{0}) all-gather-start(%x), replica_groups={{0,1,2,3,4,5,6,7}}
  %scatter = ((f32[8192]{0}), f32[1024]{0}) reduce-scatter-start(%x), \
replica_groups={{0,1,2,3,4,5,6,7}}
  ROOT %copy = f32[1024]{0} copy(%x)
}
"""


def test_prices_by_hand():
    """An H200: 989 TFLOP/s, 4.8 TB/s, 450 GB/s to others."""
    host = parse_planned("h200-8")
    prices = price_kernels(parse(HLO), host)
    by_name = {price.instruction.name: price for price in prices}
    launch = 1e3 * gpu.LAUNCH_SECONDS
    product = by_name["product"]
    flops = 2 * 4096 * 512 * 1024
    assert product.trips == 2
    assert product.compute_ms / 2 - launch == pytest.approx(1e3 * flops / (0.77 * 989e12))
    # Operands and result, 2 bytes each; not the space that cuBLAS works in, which it need not fill.
    moved = 2 * (4096 * 512 + 512 * 1024 + 4096 * 1024)
    assert product.memory_ms / 2 - launch == pytest.approx(1e3 * moved / (0.75 * 4.8e12))
    assert product.ms == max(product.compute_ms, product.memory_ms)
    fusion = by_name["g"]
    assert fusion.ms / 2 - launch == pytest.approx(1e3 * 2 * 2 * 4096 * 1024 / (0.75 * 4.8e12))
    one = 2 * 8 * 12 * 196 * 196 * 64  # FLOPs of a product of heads
    for name, products in (("forward", 2), ("backward", 5)):
        attention = by_name[name].compute_ms / 2 - launch
        assert attention == pytest.approx(1e3 * products * one / (0.12 * 989e12))
    # A ring of eight sends 7/8 of an array, and a sum twice.
    sent = {"sum": 2 * 4 * 2**20, "gather": 4 * 8192, "scatter": 4 * 8192}
    for name, size in sent.items():
        assert by_name[name].collective_bytes == size * 7 / 8 and by_name[name].ms == 0
        ms = launch + 1e3 * size * 7 / 8 / (0.77 * 450e9)
        assert by_name[name].collective_ms == pytest.approx(ms)
    kinds = kernels_by_kind(parse(HLO), prices)
    assert {kind: sums["count"] for kind, sums in kinds.items()} == {
        "cuBLASLt": 2, "XLA fusions": 2, "cuDNN": 4, "NCCL": 3, "copies": 1
    }  # fmt: skip
    assert kinds["NCCL"]["ms"] == pytest.approx(sum(by_name[n].collective_ms for n in sent))


def test_products_of_float32_run_at_half_the_peak():
    halved = HLO.replace("bf16[4096,512]", "f32[4096,512]")
    both = [price_kernels(parse(hlo), parse_planned("a100-1")) for hlo in (HLO, halved)]
    launch = 2 * 1e3 * gpu.LAUNCH_SECONDS
    exact, rounded = (found[0].compute_ms - launch for found in both)
    assert rounded == pytest.approx(2 * exact)


@pytest.mark.parametrize("name", GPU_CHIPS)
def test_names(name: str):
    host = parse_planned(f"{name.upper()}-4")
    assert (host.num_cores, host.num_devices, host.layout) == (4, 4, "1x1x4")
    assert host.peak_flops == 4 * GPU_CHIPS[name].peak_flops
    assert re.search(r"device_memory_size: \d+\s", host.chip.config)


@pytest.mark.parametrize("name", ["h100-16", "h100-0", "h100", "h100-x", "b200-99999999999"])
def test_refused_names(name: str):
    with pytest.raises(BadInputError, match=rf"{name}: GPUs are planned for one host, .*-8$"):
        parse_planned(name)


def test_without_the_plugin(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    main = import_file(str(ROOT / "scripts/plan.py")).main
    command = ["--config=configs/digits.py", "--topology=h100-8"]
    assert refused(capsys, main, *command).strip().endswith("pip install -e '.[plan_gpu]'")


def test_the_band_is_that_of_the_rows_on_the_page():
    """Planned by measured time, in the table of docs/log/plans_gpu.md and the CSV beside it."""
    log = ROOT / "docs" / "log"
    table = (log / "plans_gpu.md").read_text().split("| ratio | source |\n")[1].split("\n\n")[0]
    shown = [row.split("|")[4:7] for row in table.splitlines()[1:]]
    with (log / "plans_gpu.csv").open(newline="") as file:
        stored = [row[3:6] for row in list(csv.reader(file))[1:]]
    assert len(shown) == len(stored) == 10
    for (measured, planned, ratio), exact in zip(shown, stored, strict=True):
        assert list(map(float, (measured, planned))) == pytest.approx(
            list(map(float, exact[:2])), abs=0.06
        )
        assert float(ratio) == pytest.approx(float(planned) / float(measured), abs=0.006)
    ratios = [float(ratio) for *_, ratio in shown]
    assert (min(ratios), max(ratios)) == GPU_BAND


def test_parameters_are_counted_without_a_gpu():
    """Whatever kernel the config names."""
    config = load_config("configs/imagenet.py:vit_b,depth=1")
    count = size_figures(config, data_info(config), parse_planned("h100-8"))
    config.model.attention.implementation = "cudnn"
    assert size_figures(config, data_info(config), parse_planned("h100-8")) == count
    config = load_config("configs/imagenet.py:widenet_b,depth=1")
    count = size_figures(config, data_info(config), parse_planned("h100-8"))["params"]
    config.model.moe.dispatch = "hopper"
    assert size_figures(config, data_info(config), parse_planned("h100-8"))["params"] == count
    lower = object.__new__(gpu.GpuCompiler).lower
    refuses("dispatch=hopper is not planned: .*; plan with", lower, config, data_info(config))


@needs_plugin
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "rows", "attention", "experts"),
    [
        ("configs/imagenet.py:vit_b,depth=2", 64, "cuDNN", False),  # 197 tokens, and a hidden row
        ("configs/imagenet.py:widenet_b,depth=2", 64, "cuDNN", True),
        ("configs/text_pretrain.py:albert,depth=2", 16, "cuDNN", False),
        ("configs/language_model.py:wt_b,preset=sigma_moe,depth=2", 16, "cuBLASLt", True),
        ("configs/language_model.py:moeut_44m,loop=2x1", 16, "cuBLASLt", True),
    ],
)
def test_every_family_compiles_for_an_h100(
    config: str, rows: int, attention: str, experts: bool, tmp_path: Path
):
    """These libraries compute products of attention, and of experts; the step fits."""
    run = load_config(config)
    run.batch_size = run.evaluation.batch_size = 8 * rows
    compiler = GpuCompiler(parse_planned("h100-8"), cache=tmp_path, note=lambda line: None)
    plan = plan_run(config, run, data_info(run), compiler)
    assert plan.figures["fits"] and 0 < plan.figures["hbm_peak_gib"] * GIB < 40 * GIB
    low, high = plan.figures["step_ms_range"]
    assert plan.figures["limit_ms"] < low < high

    def libraries(part: str) -> set[str]:
        kernels = [price.instruction for price in plan.prices]
        calls = [one for one in kernels if one.opcode == "custom-call"]
        return {gpu.kind_of(one, parse(HLO)) for one in calls if part_of(one.op_name) == part}

    # Gradients of the residual stream stay with the examples: nothing moves them between GPUs.
    in_blocks = [one.instruction for one in plan.prices if "/block_" in one.instruction.op_name]
    assert not any(one.opcode.startswith("all-to-all") for one in in_blocks)
    # Nor does a fusion write the stream with the examples innermost: [D, T, B].
    fusions = (one for one in in_blocks if one.opcode == "fusion")
    written = [dims for one in fusions for _, dims in one.arrays if len(dims) == 3]
    assert not any((dims[0], dims[2]) == (run.model.embed_dim, rows) for dims in written)
    assert libraries("attention") >= {attention}
    assert bool(libraries("experts") & {"cuBLASLt"}) == experts


@needs_plugin
@pytest.mark.slow
@pytest.mark.parametrize("experts", [(), (4,)], ids=["dense", "experts"])
def test_a_feed_forward_layer_stores_four_arrays(experts: tuple, tmp_path: Path):
    """Of hidden entries, in bfloat16: what GELU and its gradient read, and what they write."""
    compiler = GpuCompiler(parse_planned("h100-1"), cache=tmp_path, note=lambda line: None)
    mesh = build_mesh({"fsdp": 1, "expert": 1}, compiler.devices)
    sizes, specs = (*experts, 64, 128, 256), ("btd,df->btf", "btf,fd->btd")  # B, T, D; F is 1024
    if experts:
        specs = ("egci,eio->egco",) * 2
    weights = [(*experts, *shape) for shape in [(256, 1024), (1024,), (1024, 256), (256,)]]

    def layer(x: jax.Array, wi: jax.Array, bi: jax.Array, wo: jax.Array, bo: jax.Array):
        return linear(specs[1], gelu_tanh(linear(specs[0], x, wi, bi)), wo, bo)

    def gradients(x: jax.Array, *weights: jax.Array):
        out, pull = jax.vjp(layer, x, *weights)
        return pull(out)

    place = NamedSharding(mesh, P())
    x = jax.ShapeDtypeStruct(sizes, "bfloat16", sharding=place)
    arrays = [jax.ShapeDtypeStruct(shape, "float32", sharding=place) for shape in weights]
    with jax.set_mesh(mesh):
        step = compiler.compile_lowered("a layer", jax.jit(gradients).lower(x, *arrays))
    stored = parse(step.hlo).computations[parse(step.hlo).entry].values()
    kernels = [one for one in stored if one.opcode in ("fusion", "custom-call")]
    hidden = math.prod(sizes) * 1024 // 256  # entries
    large = [array for one in kernels for array in one.arrays if math.prod(array[1]) == hidden]
    assert [dtype for dtype, _ in large] == ["bf16"] * 4
