"""Prices of small programs, with the calculation beside them.

A v3 core has 940,000 cycles per millisecond, 450 GB/s of memory bandwidth, 61.5 TFLOP/s and 332
GB/s over the links of its chip.
"""

import pytest

from widenet_jax.ops.plan.hlo import parse, parse_instruction
from widenet_jax.ops.plan.pricing import Price, breakdown, group_size, part_of, price_module
from widenet_jax.ops.plan.schedule import Schedule
from widenet_jax.ops.plan.topology import Topology, parse_topology

V3 = parse_topology("v3-8")
# Ten trips; the compiler estimates 2 ms, and a schedule of 94,000 cycles a trip makes it 1 ms.
CYCLES = 'backend_config={"estimated_cycles":"1880000","iteration_bounds":["5","2"]}'
MS, SHORT = Schedule(0, 94_000), Schedule(0, 940)


def prices(entry: str, others: str = "", topology: Topology = V3, **scheduled: Schedule):
    """Returns the prices by instruction; `scheduled` holds the schedules."""
    text = f"HloModule m\n\n{others}\nENTRY %main (x: f32[1]) -> f32[1] {{\n{entry}\n}}\n"
    found = price_module(parse(text), scheduled, topology)
    return {price.instruction.name: price for price in found}


def test_cycles_become_milliseconds_and_bookkeeping_is_free():
    found = prices(
        "  %x = f32[1024]{0} parameter(0)\n"
        "  %y = f32[1024]{0} bitcast(%x)\n"
        f"  %z = f32[1024]{{0}} negate(%y), {CYCLES}\n"
        "  ROOT %t = (f32[1024]{0}) tuple(%z)",
        z=MS,
    )
    assert found.keys() == {"z"}
    assert found["z"].ms == pytest.approx(1.0)
    assert found["z"].estimate_ms == pytest.approx(2.0)
    assert found["z"].roofline_ms == 0


def test_the_longer_of_computing_and_memory_counts():
    """bf16[16,196,196] is padded to 200 x 256: 1,638,400 bytes, read and written, at 85%."""
    scores = "bf16[16,196,196]{2,1,0:T(8,128)(2,1)}"
    line = f"  %x = {scores} parameter(0)\n  ROOT %y = {scores} negate(%x), {CYCLES}"
    moved = 1e3 * 2 * 1_638_400 / (0.85 * 450e9)
    short, long = prices(line, y=Schedule(0, 94))["y"], prices(line, y=MS)["y"]
    assert short.ms == short.memory_ms == pytest.approx(moved)
    assert short.serial_ms == pytest.approx(moved + 0.001)
    assert long.ms == long.compute_ms == pytest.approx(1.0)
    # What stays in the core's own memory is not moved.
    inside = prices(line.replace("(2,1)}", "(2,1)S(1)}"), y=MS)["y"]
    assert inside.memory_ms == 0
    # Without a schedule it counts all the same, at 50% and without the padding.
    unknown = prices(line.replace("(2,1)}", "(2,1)S(1)}"))["y"]
    assert unknown.ms == pytest.approx(1e3 * 2 * 2 * 16 * 196 * 196 / (0.5 * 450e9))


# 765 MB take 2 ms at 85% of the bandwidth.
BIG, INSIDE = "f32[2,95625000]{1,0}", "f32[2,95625000]{1,0:S(1)}"
WORK = f"  %NAME = f32[8]{{0:S(1)}} negate(%NAME), {CYCLES}\n"
COPY = f"  %s = ({INSIDE}, {BIG}, u32[]{{:S(2)}}) copy-start(%x)\n"
ARGUMENT, DONE = f"  %x = {BIG} parameter(0)\n", f"  ROOT %d = {INSIDE} copy-done(%s)\n"


@pytest.mark.parametrize("beside", ["", "z", "zw", "zwv"])
def test_copies_pass_while_others_compute(beside: str):
    """A copy of 2 ms beside each 1 ms of computing waits 1 ms less."""
    work = "".join(WORK.replace("NAME", name) for name in beside)
    copy = prices(ARGUMENT + COPY + work + DONE, **dict.fromkeys(beside, MS))["s"]
    assert copy.memory_ms == copy.serial_ms == pytest.approx(2.0)
    assert copy.ms == pytest.approx(max(0, 2 - len(beside)))
    assert copy.roofline_ms == copy.estimate_ms == 0


def test_the_memory_serves_one_at_a_time():
    """Two copies of 2 ms, 3 ms of computing, then a read of 2 ms: 6 ms of bytes in all."""
    work = "".join(WORK.replace("NAME", name) for name in "zwv")
    ends = f"  %d = {INSIDE} copy-done(%s)\n  %e = {INSIDE} copy-done(%r)\n"
    read = f"  %u = f32[8]{{0:S(1)}} negate(%x), {CYCLES}\n"
    entry = ARGUMENT + COPY + COPY.replace("%s", "%r") + work + read + ends
    found = prices(entry, **dict.fromkeys("zwv", MS), u=Schedule(0, 1))
    assert found["s"].ms == 0 and found["r"].ms == pytest.approx(1.0)
    assert sum(price.ms for price in found.values()) == pytest.approx(6.0)


def test_copies_of_parts():
    """Half of the array is read; written too where it stays in HBM. So for all slices."""
    half, kept = "f32[1,95625000]{1,0:S(1)}", "f32[1,95625000]{1,0}"
    start = f"  ROOT %s = (({BIG}), RESULT, s32[]{{:S(2)}}) slice-start(%x), slice={{[0:1]}}"
    for result, ms in ((half, 1.0), (kept, 2.0)):
        found = prices(ARGUMENT + start.replace("RESULT", result))
        assert found["s"].ms == pytest.approx(ms)
        line = f"  ROOT %s = {result} slice(%x), slice={{[0:1], [0:95625000]}}, {CYCLES}"
        assert prices(ARGUMENT + line, s=Schedule(0, 1))["s"].ms == pytest.approx(ms)


def test_other_work_that_runs_beside():
    """As the compiler writes it: `async-start` of a computation, here a part, a sum, a gather."""
    part = "f32[1,95625000]{1,0:S(1)}"
    inside = f"%part (p: f32[2]) -> f32[1] {{\n  %p = {BIG} parameter(0)\n"
    inside += f"  ROOT %i = {part} slice(%p), slice={{[0:1], [0:95625000]}}\n}}\n"
    start = f"  ROOT %s = (({BIG}), {part}, s32[]{{:S(2)}}) async-start(%x), calls=%part"
    copy = prices(ARGUMENT + start, inside)["s"]
    assert copy.ms == pytest.approx(1.0) and copy.scheduled
    summed = "%part (p: f32[2]) -> f32[2] {\n  %p = f32[1000000]{0} parameter(0)\n"
    summed += "  ROOT %i = f32[1000000]{0} all-reduce(%p)\n}\n"
    found = prices(ARGUMENT + start, summed)["s"]
    assert found.collective_bytes == pytest.approx(7e6) and found.ms == 0
    # A gather of 1,000 rows of 4 kB by a SparseCore: read and written at 50%, beside 0.01 ms.
    gather = "%part (p: f32[2]) -> f32[1] {\n  %p = f32[50000,1024]{1,0} parameter(0)\n"
    gather += "  ROOT %i = f32[1000,1024]{1,0} custom-call(%p)\n}\n"
    start = "  %s = (f32[2], f32[1]) async-start(), calls=%part\n"
    given = "  %g = (f32[2], f32[1]) async-update(%s, %x)\n"
    done = "  ROOT %d = f32[1] async-done(%g)"
    found = prices(ARGUMENT + start + given + WORK.replace("NAME", "z") + done, gather, z=SHORT)
    assert found.keys() == {"s", "z"}
    moved = 1e3 * 2 * 1000 * 4096 / 225e9
    assert found["s"].roofline_ms == found["s"].ms == pytest.approx(moved - 0.01)


def test_schedules_of_instructions_that_look_alike():
    """Only one of them is dumped; it may be in another memory, and have other operands."""
    array, inside = "f32[8]{0:T(256)}", "f32[8]{0:T(256)S(1)}"
    entry = (
        f"  %x = {array} parameter(0)\n  %a = {array} negate(%x), {CYCLES}\n"
        f"  %b = {inside} negate(%a), {CYCLES}\n  ROOT %c = {array} sqrt(%b), {CYCLES}"
    )
    found = prices(entry, a=MS)
    assert found["b"].compute_ms == found["a"].compute_ms == pytest.approx(1.0)
    assert not found["c"].scheduled and found["c"].estimate_ms == pytest.approx(2.0)


def test_rows_outside_the_loop_and_loops_of_unknown_length():
    entry = "  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] negate(%x)"
    assert prices(entry, y=Schedule(470, 0))["y"].compute_ms == pytest.approx(470 / 940e3)
    assert not prices(entry, y=Schedule(470, 5))["y"].scheduled
    nested = prices(f"{entry}, {CYCLES}", y=Schedule(470, 5, nested=2))["y"]
    assert nested.compute_ms > 0 and not nested.scheduled
    assert prices(f"{entry}, {CYCLES}", y=Schedule(470, 50, nested=5))["y"].scheduled
    assert prices(f"{entry}, {CYCLES}", y=Schedule(470, 5))["y"].compute_ms == pytest.approx(
        (470 + 10 * 5) / 940e3
    )


def test_rows_that_run_at_one_index_of_the_loop():
    """Of 900 rows a trip 500 run in 5 of the 10 trips, [5, 2], and 300 in 2: 900 - 250 - 240."""
    entry = f"  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] negate(%x), {CYCLES}"
    found = prices(entry, y=Schedule(20, 900, seldom=(300, 500)))
    assert found["y"].compute_ms == pytest.approx((20 + 10 * 410) / 940e3)


def test_two_cores_of_a_device_share_the_trips():
    entry = f"  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] negate(%x), {CYCLES}"
    found = prices(entry, topology=parse_topology("v4-8"), y=Schedule(0, 1050))
    assert found["y"].compute_ms == pytest.approx(10 * 1050 / 2 / 1.05e6)
    entry = entry.replace('["5","2"]', '["3","1"]')  # two on one core, one on the other
    found = prices(entry, topology=parse_topology("v4-8"), y=Schedule(0, 1050))
    assert found["y"].compute_ms == pytest.approx(2 * 1050 / 1.05e6)


def test_a_loop_counts_once_per_trip():
    condition = (
        "%cond (p: (s32[], f32[8])) -> pred[] {\n"
        "  %p = (s32[], f32[8]) parameter(0)\n"
        "  %i = s32[] get-tuple-element(%p), index=0\n"
        "  %n = s32[]{:T(256)} constant(24)\n"
        "  ROOT %lt = pred[] compare(%i, %n), direction=LT\n}\n"
    )
    body = (
        "%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {\n"
        "  %p = (s32[], f32[8]) parameter(0)\n"
        f"  %work = f32[8]{{0}} negate(%p), {CYCLES}\n"
        "  ROOT %t = (s32[], f32[8]) tuple(%p, %work)\n}\n"
    )
    loop = "  ROOT %w = (s32[], f32[8]) while(%x), condition=%cond, body=%body"
    found = prices(f"  %x = (s32[], f32[8]) parameter(0)\n{loop}", condition + body, work=MS)
    assert found["work"].trips == 24
    assert found["work"].ms == pytest.approx(24.0)
    # A trip count that depends on data is unknown: the body counts once, and as guessed.
    undecided = condition.replace("compare(%i, %n), direction=LT", "custom-call(%i, %n)")
    entry = f"  %x = (s32[], f32[8]) parameter(0)\n{loop}"
    found = prices(entry, undecided + body, work=MS)
    assert found["work"].trips == 1
    assert found["work"].roofline_ms == found["work"].ms == pytest.approx(1.0)
    # Unless the compiler says how often.
    said = f'{entry}, backend_config={{"known_trip_count":{{"n":"7"}}}}'
    found = prices(said, undecided + body, work=MS)
    assert found["work"].ms == pytest.approx(7.0) and found["work"].scheduled


def test_calls_and_the_slowest_branch():
    others = (
        "%cheap (p: f32[8]) -> f32[8] {\n  %p = f32[8] parameter(0)\n"
        f"  ROOT %a = f32[8] negate(%p), {CYCLES}\n}}\n"
        "%dear (q: f32[8]) -> f32[8] {\n  %q = f32[8] parameter(0)\n"
        '  ROOT %b = f32[8] negate(%q), backend_config={"estimated_cycles":"1880001"}\n}\n'
    )
    entry = (
        "  %x = f32[8] parameter(0)\n"
        "  %c = f32[8] call(%x), to_apply=%cheap\n"
        "  ROOT %d = f32[8] conditional(%i, %x, %x), branch_computations={%cheap, %dear}"
    )
    found = prices(entry, others, a=MS, b=Schedule(1_880_000, 0))
    assert {name: price.ms for name, price in found.items()} == pytest.approx({"a": 1.0, "b": 2.0})


def test_ragged_matmuls_at_80_percent_of_the_peak():
    """Rows [M, K] = [2048, 1024] to N = 4096: 2 M K N = 17.2 GFLOP; the kernels' gradient too."""
    metadata = "  %m = s32[5]{0} parameter(0)\n"
    forward = (
        "  %rows = f32[2048,1024]{1,0} parameter(1)\n  %w = f32[4,1024,4096]{2,1,0} parameter(2)\n"
        "  ROOT %ragged-dot-none.1 = f32[2048,4096]{1,0} custom-call(%m, %rows, %w), "
        'custom_call_target="tpu_custom_call"'
    )
    weights = (
        "  %rows = f32[2048,1024]{1,0} parameter(1)\n  %g = f32[2048,4096]{1,0} parameter(2)\n"
        "  ROOT %ragged-dot-none.1 = f32[4,1024,4096]{2,1,0} custom-call(%m, %rows, %g), "
        'custom_call_target="tpu_custom_call"'
    )
    ms = 1e3 * 2 * 2048 * 1024 * 4096 / (0.8 * 61.5e12)
    for entry in (forward, weights):
        assert prices(metadata + entry)["ragged-dot-none.1"].roofline_ms == pytest.approx(ms)


@pytest.mark.parametrize(
    ("line", "rows", "indices"),
    [
        ("[1000,128]{1,0} gather(%t, %i)", 2, 4000),  # read and written
        ("[1000000,128]{1,0} scatter(%t, %i, %u), to_apply=%add", 3, 4000),  # and added to
        ("[1000000,128]{1,0} dynamic-update-slice(%t, %u, %o, %o)", 2, 8),  # in place
    ],
)
def test_only_the_rows_that_an_instruction_touches_count(line: str, rows: int, indices: int):
    """1000 of 1,000,000 rows of 512 B, with an index of 4 B each."""
    entry = (
        "  %t = f32[1000000,128]{1,0} parameter(0)\n  %i = s32[1000]{0} parameter(1)\n"
        "  %u = f32[1000,128]{1,0} parameter(2)\n  %o = s32[] parameter(3)\n"
        f"  ROOT %x = f32{line}"
    )
    moved = rows * 1000 * 512 + indices
    assert prices(entry)["x"].roofline_ms == pytest.approx(1e3 * moved / 225e9)


def test_fusions_without_cycles_are_priced_by_their_instructions():
    inside = (
        "%gather_inside (a: f32[1000000,128], b: s32[1000]) -> f32[1000,128] {{\n"
        "  %a = f32[1000000,128]{{1,0}} parameter(0)\n  %b = s32[1000]{{0}} parameter(1)\n"
        "  {root}%g = f32[1000,128]{{1,0}} gather(%a, %b)\n{rest}}}\n"
    )
    fusion = (
        "  %t = f32[1000000,128]{1,0} parameter(0)\n  %i = s32[1000]{0} parameter(1)\n"
        "  ROOT %f = f32[1000,128]{1,0} fusion(%t, %i), kind=kCustom, calls=%gather_inside"
    )
    moved = 2 * 1000 * 512 + 1000 * 4
    found = prices(fusion, inside.format(root="ROOT ", rest=""))
    assert found["f"].roofline_ms == pytest.approx(1e3 * moved / 225e9)
    # Written into a larger buffer in place: only the rows count.
    update = (
        "  %z = f32[9000,128]{1,0} constant(0)\n  %o = s32[] constant(0)\n"
        "  ROOT %u = f32[9000,128]{1,0} dynamic-update-slice(%z, %g, %o, %o)\n"
    )
    found = prices(fusion, inside.format(root="", rest=update))
    assert found["f"].roofline_ms == pytest.approx(1e3 * moved / 225e9)


def test_collectives_are_priced_separately_by_bytes_in_a_ring():
    """Of 4 MB among 8 devices an all-reduce sends 2 * 7/8, an all-gather 7/8, a permute all.

    An all-gather passes both halves of the ring at once, 4 hops of 1 us, and an all-reduce twice.
    """
    array = "f32[1000000]{0}"
    for opcode, sent, hops in (
        ("all-reduce", 7e6, 8),
        ("all-gather", 3.5e6, 4),
        ("all-to-all", 3.5e6, 4),
        ("collective-permute", 4e6, 1),
        ("reduce-scatter", 28e6, 4),  # the result is an eighth of the input
    ):
        found = prices(f"  %x = {array} parameter(0)\n  ROOT %c = {array} {opcode}(%x)")
        assert found["c"].collective_bytes == pytest.approx(sent)
        assert found["c"].collective_hops == hops
        assert found["c"].collective_ms == pytest.approx(1e3 * sent / 332e9 + hops / 1e3)
        assert found["c"].ms == 0


@pytest.mark.parametrize(
    ("slices", "kind", "sent"),
    [
        (2, "ALL_REDUCE", 4e6),
        (4, "ALL_REDUCE", 6e6),
        (4, "ALL_GATHER", 12e6),
        (4, "ONE_TO_ONE", 4e6),
    ],
)
def test_bytes_between_slices(slices: int, kind: str, sent: float):
    """Of 4 MB a device sends 2 (n - 1) / n, at half of 3.125 GB/s; what receives them is free."""
    attributes = (
        f'is_host_transfer=true, frontend_attributes={{_xla_megascale_transfer_type="{kind}"}}'
    )
    array = "(f32[1000000]{0}, u32[]{:S(2)}, token[])"
    lines = (
        "  %x = f32[1000000]{0} parameter(0)\n  %a = token[] after-all()\n"
        f"  %s = {array} send(%x, %a), channel_id=3, {attributes}\n"
        f"  %r = {array} recv(%a), channel_id=2, {attributes}\n"
        "  %sd = token[] send-done(%s), channel_id=3\n"
        "  %rd = (f32[1000000]{0}, token[]) recv-done(%r), channel_id=2\n"
        "  ROOT %y = f32[1000000]{0} get-tuple-element(%rd), index=0"
    )
    found = prices(lines, topology=parse_topology(f"{slices}xv5e-8"))
    assert found.keys() == {"s"}
    assert found["s"].dcn_bytes == pytest.approx(sent)
    assert found["s"].dcn_ms == pytest.approx(1e3 * sent / (0.5 * 3.125e9))
    assert found["s"].ms == found["s"].collective_ms == 0


def test_a_collective_of_several_arrays_that_starts():
    """An eighth of 4 MB and of 8 MB are gathered; the operands stand in the result too."""
    small, large = ("(f32[125000]{0}, f32[250000]{0})", "(f32[1000000]{0}, f32[2000000]{0})")
    line = (
        "  %x = f32[125000]{0} parameter(0)\n  %y = f32[250000]{0} parameter(1)\n"
        f"  ROOT %c = ({small}, {large}) all-gather-start(%x, %y)"
    )
    assert prices(line)["c"].collective_bytes == pytest.approx(7 / 8 * 12e6)


def test_one_ring_uses_the_links_of_one_dimension():
    line = "  %x = f32[1000000]{0} parameter(0)\n  ROOT %c = f32[1000000]{0} all-reduce(%x)"
    config = ', backend_config={"strategy":"S","debug":"\\nStrategyND{colors:COLORS phases:2}"}'
    one, two = (prices(line + config.replace("COLORS", n))["c"] for n in "12")
    ring = 8 / 1e3
    assert two.collective_ms == pytest.approx(1e3 * 7e6 / 332e9 + ring)  # both dimensions
    assert one.collective_ms == pytest.approx(1e3 * 7e6 / 166e9 + ring)


@pytest.mark.parametrize(("opcode", "hops"), [("all-reduce", 40), ("all-gather", 20)])
def test_hops_of_the_rings_that_the_compiler_names(opcode: str, hops: int):
    """On 8 x 16 chips of two cores: a ring of 32 and then one of 8, beside two of 16."""
    line = (
        f"  %x = f32[1000]{{0}} parameter(0)\n  ROOT %c = f32[1000]{{0}} {opcode}(%x), config={{"
        '"debug":"\\nStrategyND{colors:2 phases:2 cores:{32 8},{16 16} nophase0:0 dim_sizes:8,16}"}'
    )
    assert prices(line, topology=parse_topology("v3-256"))["c"].collective_hops == hops


def test_a_reduce_scatter_written_as_a_fusion():
    """4 MB summed among 4 of 8 devices, each keeping a quarter: 3/4 is sent, not 2 * 3/4."""
    inside = (
        "%all-reduce-scatter (input: f32[1000000]) -> f32[250000] {\n"
        "  %input = f32[1000000]{0} parameter(0)\n"
        "  %r = f32[1000000]{0} all-reduce(%input), replica_groups={{0,1,2,3},{4,5,6,7}}\n"
        "  ROOT %s = f32[250000]{0} dynamic-slice(%r, %i)\n}\n"
    )
    entry = (
        "  %x = f32[1000000]{0} parameter(0)\n"
        "  ROOT %f = f32[250000]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter"
    )
    found = prices(entry, inside)
    assert found["f"].collective_bytes == pytest.approx(3e6)
    assert found["f"].ms == 0


def test_a_collective_that_fusions_carry_counts_once():
    """An all-gather of 4 MB passes through a product that takes 1 ms."""
    inside = "".join(
        f"%part{n} (input: f32[125000]) -> f32[1000000] {{\n"
        "  %input = f32[125000]{0} parameter(0)\n"
        "  ROOT %g = f32[1000000]{0} all-gather(%input), channel_id=7\n}\n"
        for n in range(3)
    )
    entry = (
        "  %x = f32[125000]{0} parameter(0)\n"
        "  %start = (f32[125000]{0}, f32[1000000]{0}) fusion(%x), calls=%part0\n"
        f"  %product = (f32[1000000]{{0}}, f32[64]{{0}}) fusion(%start), calls=%part1, {CYCLES}\n"
        "  ROOT %done = f32[1000000]{0} fusion(%product), calls=%part2"
    )
    found = prices(entry, inside, product=MS)
    assert found.keys() == {"start", "product"}
    assert found["start"].collective_bytes == pytest.approx(3.5e6)
    assert found["start"].ms == found["product"].collective_bytes == 0
    assert found["product"].ms == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4),
        ("replica_groups=[4,2]<=[8]", 2),
        ("replica_groups=mesh['data'=2,'fsdp'=4] {'fsdp'}", 4),
        ("replica_groups=mesh['data'=2,'fsdp'=4] {'data','fsdp'}", 8),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", 4),
        ("", 8),
    ],
)
def test_group_size(groups: str, size: int):
    found = prices(f"  %x = f32[8] parameter(0)\n  ROOT %c = f32[8] all-reduce(%x), {groups}")
    assert group_size(found["c"].instruction, V3) == size


FORWARD = "jit(train_step)/jvp(VisionTransformer)"
BACKWARD = "jit(train_step)/transpose(jvp(VisionTransformer))"


@pytest.mark.parametrize(
    ("op_name", "part"),
    [
        (f"{FORWARD}/encoder/block_03/block_03_attention/query/dot_general", "attention"),
        (f"{BACKWARD}/encoder/block_03/attention/vmap(BTNH,BSNH->BNTS)/dot_general", "attention"),
        (f"{FORWARD}/encoder/block_03/moe/experts/experts/experts.dense/dot_general", "experts"),
        (f"{FORWARD}/encoder/block_05_moe/shared/wi/dot_general", "experts"),
        (f"{FORWARD}/head/dot_general", "head"),
        ("jit(train_step)/jvp(LanguageModel)/output/btd,df->btf/dot_general", "head"),
        (f"{FORWARD}/convert_element_type", "rest of the model"),
        ("jit(train_step)/jvp(jit(log_softmax))/reduce_sum", "loss and mixup"),
        ("jit(train_step)/reduce_sum", "optimizer"),
        ("", "no scope"),
    ],
)
def test_parts(op_name: str, part: str):
    assert part_of(op_name) == part


def test_sums_per_part_slowest_first():
    def price(op_name: str, **ms: float) -> Price:
        line = f'  %x = f32[] negate(%y), metadata={{op_name="{op_name}"}}'
        return Price(parse_instruction(line), 1, **ms)

    parts = breakdown(
        [
            price("jit(train_step)/add", compute_ms=1.0, memory_ms=0.5, scheduled=True),
            price(f"{FORWARD}/head/add", compute_ms=2.0, scheduled=True, estimate_ms=5.0),
            price(f"{FORWARD}/head/add", memory_ms=0.5),
            price("jit(train_step)/add", collective_ms=3.0),
        ]
    )
    names = ("ms", "serial_ms", "estimate_ms", "roofline_ms", "collective_ms")
    assert [(name, *part.values()) for name, part in parts.items()] == [
        ("head", 2.5, 2.5, 5.0, 0.5, 0.0),
        ("optimizer", 1.0, 1.5, 0.0, 0.0, 3.0),
    ]
    assert all(tuple(part) == names for part in parts.values())
