"""The time of a compiled step, instruction by instruction.

An instruction takes the longer of two times, which overlap: its schedule, as cycles of the core
(`schedule.py`) times the trips of its loop; and its bytes in HBM over 85% of the memory bandwidth,
which is what copies and attention reached on v4, v5p and v6e (`plan.py --calibrate`). Instructions
without a schedule are priced by roofline alone: a ragged matmul at 80% of the peak; gathers,
scatters, sorts, relayouts and all others by their bytes, also those outside HBM, at 50% of the
memory bandwidth. The body of a loop counts once per trip; where the program does not say how often
it runs, it counts once, as if without a schedule.

Copies between HBM and a core's own memory may run while other instructions do. They take what the
instructions between their start and their end leave of the bandwidth, the earliest first; the end
waits for the rest. So may work of a SparseCore, whose time is guessed from the bytes of its result.

Collectives stand apart: the bytes that a device sends, over the links of its chip that the
compiler's choice of rings uses, and a microsecond for each hop. They are not part of the step time,
because the compiler does not report how much of them overlaps with computation.

So do bytes between slices. The compiler sums gradients within a slice, hands each device's share to
its host (`send`), which sums it with the hosts of other slices, and receives the result (`recv`).

The compiler's own estimate of cycles is kept beside the price. It steers the compiler's choices; it
is 2 to 11 times too high for reductions, exponentials and products with a small contraction.

`breakdown` sums the prices by part of the model. The compiler keeps one source operation per
instruction, as a path of Linen modules and `jax.named_scope`s such as "router". A fusion counts as
the operation that it is named after: a norm fused into a matrix product counts as the product.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from widenet_jax.ops.plan.hlo import Computation, Instruction, Module, array_bytes, root_of
from widenet_jax.ops.plan.schedule import Schedule, Schedules
from widenet_jax.ops.plan.topology import Chip, Topology

RAGGED_DOT_SHARE_OF_PEAK = 0.8
HBM_SHARE_OF_BANDWIDTH = 0.85
UNSCHEDULED_SHARE_OF_BANDWIDTH = 0.5
# "Each hop over an ICI link has some intrinsic overhead [...] typically around 1us", and a gather
# passes half of each of its rings: jax-ml.github.io/scaling-book/sharding. There three hops took
# 8 us.
SECONDS_PER_HOP = 1e-6
# Between two v6e slices of four chips an all-reduce of 1 GiB a chip moved the bytes of a ring at
# 198 of their machines' 400 Gb/s: storage.googleapis.com/yppublic/v6e-dcn-allreduce-20260826
# (August 2026). That is one measurement; small arrays and more slices may be slower.
DCN_SHARE_OF_BANDWIDTH = 0.5

# No cost at run time, or priced through the instructions that they call.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all",
        "opt-barrier", "partition-id", "replica-id", "add-dependency", "domain",
        "send-done", "recv", "recv-done"}  # fmt: skip
FREE_TARGETS = {"AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast", "Sharding"}
# Transfers that run beside other instructions.
ASYNC = re.compile(r"(copy|slice|async)-(start|update|done)")
CHANNEL = re.compile(r"channel_id=(\d+)")
BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
STRATEGY = re.compile(r"Strategy\w+\{colors:(?P<colors>\d+) phases:\d+(?P<rings>[^n]*)")
SLICES = ("slice", "dynamic-slice")


class Executed(NamedTuple):
    """An instruction that runs in a step, in `home`, `trips` times; 1 for each unknown loop."""

    instruction: Instruction
    home: Computation
    trips: int
    known: bool


RAGGED_DOT = re.compile(r"ragged-dot(?!-metadata)|ragged_dot|gmm")

# Bytes that a device sends in a ring of n devices, from the bytes of its result.
SENT = {
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1),
    "all-gather": lambda size, n: size * (n - 1) / n,
    "collective-permute": lambda size, n: size,
}
SENT |= dict.fromkeys(("all-to-all", "ragged-all-to-all"), SENT["all-gather"])
SENT["collective-broadcast"] = SENT["collective-permute"]


@dataclass(frozen=True)
class Price:
    """The cost of one instruction in a step, all trips together.

    Attributes:
      instruction: the instruction.
      trips: how often it runs in one step.
      compute_ms: by its schedule; by roofline for a ragged matmul without one.
      memory_ms: its bytes in HBM.
      hidden_ms: of `memory_ms`, what passed while instructions before it left the HBM idle.
      scheduled: whether its time is known: it has a schedule, or is a copy of the compiler's, and
        runs in no loop of unknown trips.
      estimate_ms: by the compiler's own estimate; `ms` where it gives none.
      collective_bytes: bytes that one device sends.
      collective_hops: links that these bytes pass one after another.
      collective_ms: time of the bytes and of the hops.
      dcn_bytes: bytes that one device sends to other slices.
      dcn_ms: time of these bytes on the links of the hosts.
    """

    instruction: Instruction
    trips: int
    compute_ms: float = 0.0
    memory_ms: float = 0.0
    hidden_ms: float = 0.0
    scheduled: bool = False
    estimate_ms: float = 0.0
    collective_bytes: float = 0.0
    collective_hops: float = 0.0
    collective_ms: float = 0.0
    dcn_bytes: float = 0.0
    dcn_ms: float = 0.0

    @property
    def ms(self) -> float:
        """Milliseconds, where computing and memory overlap, without collectives."""
        return max(self.compute_ms, self.memory_ms - self.hidden_ms)

    @property
    def serial_ms(self) -> float:
        """Milliseconds, where computing waits for memory, without collectives."""
        return self.compute_ms + self.memory_ms

    @property
    def roofline_ms(self) -> float:
        """`ms` that is guessed."""
        return 0.0 if self.scheduled else self.ms


def price_module(module: Module, schedules: Schedules, topology: Topology) -> list[Price]:
    """Prices every instruction that runs in a step; instructions without cost are left out."""
    runs = list(executed(module, module.entry))
    # Of instructions that are alike the compiler dumps only one.
    alike = {look(i): schedules[i.name] for i, *_ in reversed(runs) if i.name in schedules}
    begun: dict[str, str] = {}
    under_way: dict[str, int] = {}  # transfers: their places in `prices`
    prices = []
    for run in runs:
        instruction = run.instruction
        transfer = ASYNC.fullmatch(instruction.opcode)
        if transfer and transfer[2] != "start":
            place = under_way.pop(instruction.operands[0], None)
            if transfer[2] == "update" and place is not None:
                under_way[instruction.name] = place
            continue
        schedule = schedules.get(instruction.name) or alike.get(look(instruction))
        cycles = scheduled_cycles(instruction, schedule, topology.chip)
        price = price_instruction(run, cycles, module, topology, begun)
        if not price:
            continue
        guessed = not run.known or (schedule and schedule.uncertain)
        prices.append(replace(price, scheduled=False) if guessed else price)
        if transfer and not price.collective_bytes:
            under_way[instruction.name] = len(prices) - 1
        else:
            hide(prices, under_way.values(), price.ms - price.memory_ms)
    return prices


def hide(prices: list[Price], transfers: Iterable[int], spare: float) -> None:
    """Lets the transfers at these places of `prices` pass in `spare` ms of an idle HBM."""
    for place in transfers:
        price = prices[place]
        moved = min(spare, price.memory_ms - price.hidden_ms)
        prices[place] = replace(price, hidden_ms=price.hidden_ms + moved)
        spare -= moved


def look(instruction: Instruction) -> Hashable:
    """Returns what instructions of one schedule have in common."""
    return (instruction.opcode, instruction.shape, instruction.bounds, instruction.cycles)


def scheduled_cycles(
    instruction: Instruction, schedule: Schedule | None, chip: Chip
) -> float | None:
    """Returns the cycles of one run; None if the schedule, or the trips of its loop, is unknown.

    The two cores of a device, in v4 and v5p, share the trips; one cannot be halved.
    """
    if schedule is None or (schedule.per_trip and instruction.iterations is None):
        return None
    trips = math.ceil((instruction.iterations or 0) * chip.devices / chip.cores)
    skipped = sum(
        rows - rows / n for rows, n in zip(schedule.seldom, instruction.bounds, strict=False) if n
    )
    return schedule.once + (schedule.per_trip - skipped) * trips


def executed(module: Module, name: str, trips: int = 1, known: bool = True) -> Iterator[Executed]:
    """Yields what runs in a computation, through loops, calls and the slowest branch."""
    computation = module.computations[name]
    for instruction in computation.values():
        called = instruction.called
        if instruction.opcode == "while":
            count = trip_count(instruction, module.computations[called["condition"]])
            inside = trips * (count or 1), known and count is not None
            yield from executed(module, called["condition"], *inside)
            yield from executed(module, called["body"], *inside)
        elif instruction.opcode == "call":
            yield from executed(module, called["to_apply"], trips, known)
        elif instruction.opcode == "conditional":
            slowest = max(called.values(), key=partial(_cycles, module))
            yield from executed(module, slowest, trips, known)
        else:
            yield Executed(instruction, computation, trips, known)


def trip_count(loop: Instruction, condition: Computation) -> int | None:
    """Returns how often a loop runs; None if that depends on data.

    It is what the compiler says, or N where the condition is `i < N`, as for i from 0.
    """
    if said := TRIPS.search(loop.text):
        return int(said[1])
    root = root_of(condition)
    if root.opcode != "compare" or "direction=LT" not in root.text:
        return None
    match = re.search(r"constant\((\d+)\)", condition[root.operands[1]].text)
    return int(match[1]) if match else None


def price_instruction(
    run: Executed, cycles: float | None, module: Module, topology: Topology, begun: dict[str, str]
) -> Price | None:
    """Prices one instruction; returns None if it costs nothing.

    Args:
      cycles: of one run, by its schedule; None if unknown.
      begun: channel of each collective that fusions carry, and the first of these fusions; is
        extended.
    """
    (instruction, home, trips, _), chip = run, topology.chip
    opcode = instruction.opcode
    if opcode in FREE or instruction.target in FREE_TARGETS:
        return None
    if opcode.endswith("-done") and opcode.removesuffix("-done") in SENT:
        return None
    if opcode == "send":
        sent = trips * bytes_between_slices(instruction, topology.slices)
        ms = 1e3 * sent / (DCN_SHARE_OF_BANDWIDTH * chip.dcn / chip.devices) if sent else 0.0
        return Price(instruction, trips, scheduled=True, dcn_bytes=sent, dcn_ms=ms)
    compute = 1e3 * trips * (cycles or 0) / chip.clock
    estimate = 1e3 * trips * (instruction.cycles or 0) / chip.clock
    if sent := trips * bytes_sent(instruction, module, topology):
        # A collective may pass through several fusions, which compute meanwhile.
        if opcode != "fusion" or not instruction.iterations:
            compute = estimate = 0.0
        channel = opcode == "fusion" and CHANNEL.search(collective_of(instruction, module).text)
        hops = trips * hops_passed(instruction, module, topology)
        if channel and begun.setdefault(channel[1], instruction.name) != instruction.name:
            sent = hops = 0.0
        seconds = sent / (chip.ici * share_of_links(instruction, chip)) + hops * SECONDS_PER_HOP
        times = {"collective_bytes": sent, "collective_hops": hops, "collective_ms": 1e3 * seconds}
        price = Price(instruction, trips, compute, scheduled=True, estimate_ms=estimate, **times)
        return price if sent or compute else None
    operands = [home[name] for name in instruction.operands]
    transfer, copied = bool(ASYNC.fullmatch(opcode)), is_copy(instruction, module)
    by_schedule = HBM_SHARE_OF_BANDWIDTH, attrgetter("hbm_bytes")  # only what lies in HBM
    share, size = by_schedule if cycles or copied else (UNSCHEDULED_SHARE_OF_BANDWIDTH, all_bytes)
    name = f"{instruction.name} {instruction.op_name}"
    if not cycles and opcode == "custom-call" and RAGGED_DOT.search(name):
        flops = ragged_dot_flops(instruction, operands)
        compute = 1e3 * trips * flops / (RAGGED_DOT_SHARE_OF_PEAK * chip.peak_flops)
        share, size = by_schedule
    memory = bytes_moved(instruction, operands, module, size) / (share * chip.hbm_bandwidth)
    known = cycles is not None or copied
    price = Price(instruction, trips, compute, 1e3 * trips * memory, scheduled=known)
    if transfer:  # the compiler estimates none
        return price if price.ms else None
    return replace(price, estimate_ms=estimate or price.ms) if price.ms else None


def is_copy(instruction: Instruction, module: Module) -> bool:
    """Whether an instruction starts a copy of an array, or of a part of one."""
    if instruction.opcode == "async-start":
        return root_of(module.computations[instruction.called["calls"]]).opcode in SLICES
    return instruction.opcode in ("copy-start", "slice-start")


def bytes_sent(instruction: Instruction, module: Module, topology: Topology) -> float:
    """Returns the bytes that a device sends in one trip; 0 unless it is a collective."""
    collective, kind = collective_of(instruction, module), kind_of(instruction, module)
    n, size = group_size(collective, topology), result_bytes(collective)
    size = size if collective.opcode.startswith(kind) else size / n
    return SENT[kind](size, n) if kind in SENT else 0.0


def hops_passed(instruction: Instruction, module: Module, topology: Topology) -> float:
    """Returns the hops of a collective in one trip: half of each ring that it passes in turn.

    The compiler names the rings of a strategy, "cores:{32 8},{16 16}": two at once, in two phases.
    Any other collective passes one ring of its group. An all-reduce passes its rings twice, and a
    permute is one hop, as between neighbours.
    """
    kind = kind_of(instruction, module)
    if kind in ("collective-permute", "collective-broadcast"):
        return 1.0
    strategy = STRATEGY.search(instruction.text)
    at_once = re.findall(r"\{([\d ]+)\}", strategy["rings"]) if strategy else []
    n = group_size(collective_of(instruction, module), topology)
    length = max((sum(map(int, rings.split())) for rings in at_once), default=n)
    return length if kind == "all-reduce" else length / 2


def bytes_between_slices(send: Instruction, slices: int) -> float:
    """Returns the bytes that a device sends to other slices, in a ring of the slices.

    The hosts sum an all-reduce, and keep no more than a part of it.
    """
    match, size = BETWEEN_SLICES.search(send.text), array_bytes(send.arrays[:1])
    if not match:
        return 0.0
    return size * {"ALL_REDUCE": 2 - 2 / slices, "ALL_GATHER": slices - 1}.get(match[1], 1)


def collective_of(instruction: Instruction, module: Module) -> Instruction:
    """Returns the collective that an instruction carries; any other instruction as it is."""
    if instruction.opcode not in ("fusion", "async-start"):
        return instruction
    inside = module.computations[instruction.called["calls"]]
    return next((i for i in inside.values() if i.opcode in SENT), instruction)


def kind_of(instruction: Instruction, module: Module) -> str:
    """Returns the kind of the collective that an instruction carries, "all-reduce" for example.

    The compiler may write a reduce-scatter as a fusion of an all-reduce and a slice.
    """
    kind = collective_of(instruction, module).opcode.removesuffix("-start")
    fused = kind == "all-reduce" and instruction.opcode == "fusion"
    return "reduce-scatter" if fused else kind


def share_of_links(instruction: Instruction, chip: Chip) -> float:
    """Returns the share of a chip's links that a collective uses.

    A ring (a "color" in the compiler's text) uses one dimension of the torus at a time.
    """
    match = STRATEGY.search(instruction.text)
    return min(int(match["colors"]), chip.dimensions) / chip.dimensions if match else 1.0


def ragged_dot_flops(instruction: Instruction, operands: Sequence[Instruction]) -> int:
    """Returns 2 M K N of a ragged matmul.

    The product is rows [M, K] by kernels [E, K, N], or [M, K] by [M, N] for the kernels' gradient.
    [M, K] is the first operand of rank 2 (metadata operands have rank 1); N is the result's last
    axis.
    """
    rows = next(dims for operand in operands for _, dims in operand.arrays if len(dims) == 2)
    return 2 * math.prod(rows) * instruction.arrays[0][1][-1]


def bytes_moved(
    instruction: Instruction,
    operands: Sequence[Instruction],
    module: Module,
    size: Callable[[Instruction], int],
) -> float:
    """Returns the bytes read and written.

    A gather or slice reads only the elements that it returns; a scatter or update writes only the
    elements that it changes. The same holds inside a fusion.

    Args:
      size: the bytes of an instruction's result that count.
    """
    opcode, own = instruction.opcode, size(instruction)
    sizes = [size(operand) for operand in operands]
    if opcode == "copy-start":
        return own  # the result names the source too
    if is_copy(instruction, module):
        return (bool(sizes[0]) + (own > sizes[0])) * array_bytes(instruction.arrays[1:2])
    if opcode == "async-start":
        inside = module.computations[instruction.called["calls"]]
        root = root_of(inside)
        if root.opcode in ("call", "custom-call"):
            return 2 * root.num_bytes
        return bytes_moved(root, [inside[name] for name in root.operands], module, size)
    if opcode in ("gather", *SLICES):
        return own + bool(sizes[0]) * instruction.num_bytes + sum(sizes[1:])
    if opcode == "dynamic-update-slice":
        return 2 * sizes[1] + sum(sizes[2:])
    if opcode == "scatter":
        return 3 * sizes[2] + sizes[1]  # rows are read, added to and written
    if opcode != "fusion":
        return own + sum(sizes)
    inside = module.computations[instruction.called["calls"]]
    parameters = [i for i in inside.values() if i.opcode == "parameter"]
    parameters.sort(key=lambda i: int(re.search(r"parameter\((\d+)\)", i.text)[1]))
    read = [_read(parameter, inside) for parameter in parameters]
    return sum(map(min, sizes, read)) + min(own, _written(inside))


def all_bytes(instruction: Instruction) -> int:
    """Returns the bytes of the result, wherever they lie."""
    return max(instruction.hbm_bytes, instruction.num_bytes)


def _read(parameter: Instruction, inside: Computation) -> float:
    users = [i for i in inside.values() if parameter.name in i.operands]
    slices = ("gather", *SLICES, "dynamic-update-slice", "scatter")
    if users and all(i.opcode in slices and i.operands[0] == parameter.name for i in users):
        return sum(i.num_bytes for i in users if i.opcode in ("gather", *SLICES))
    return math.inf


def _written(inside: Computation) -> float:
    root = root_of(inside)
    position = {"scatter": 2, "dynamic-update-slice": 1}.get(root.opcode)
    return math.inf if position is None else inside[root.operands[position]].num_bytes


def result_bytes(instruction: Instruction) -> int:
    """Returns the bytes of a collective's result, without the operands that a start returns."""
    if instruction.opcode.endswith("-start") and instruction.opcode != "all-reduce-start":
        count = len(instruction.operands)
        return array_bytes(instruction.arrays[count : 2 * count])
    return instruction.num_bytes


def group_size(instruction: Instruction, topology: Topology) -> int:
    """Returns the number of devices per group of a collective; all if it names no groups.

    HLO writes groups as lists {{0,1},{2,3}}, as an iota [groups,size]<=[...], or as mesh axes
    mesh['a'=2,'b'=4] {'b'}.
    """
    text = instruction.text
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return match[1].count(",") + 1
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]<=", text):
        return int(match[1])
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match[1])}
        return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", match[2]))
    return topology.num_devices


def _cycles(module: Module, name: str) -> int:
    return sum((run.instruction.cycles or 0) * run.trips for run in executed(module, name))


# (part, pattern of a whole path component); the first match counts. Operations inside a layer, such
# as dropout, count as the layer.
PARTS = (
    ("router", r"router"),
    ("dispatch", r"dispatch|combine"),
    ("experts", r"experts|((block|core)_[\d_]+)?(soft_)?moe"),
    ("norms", r"((block|core)_[\d_]+)?norm_\w+"),
    ("attention", r"((block|core)_[\d_]+)?attention"),
    ("feed-forward", r"((block|core)_[\d_]+)?(mlp|top_k_mlp|product_key)"),
    ("embedding", r"embed(dings)?|position"),
    ("head", r"head|pre_logits|pooler|mlm|order|classifier|span|output"),
    ("rest of the model", r"encoder|[A-Z]\w*"),  # the class of a model, such as VisionTransformer
)
TIMES = ("ms", "serial_ms", "estimate_ms", "roofline_ms", "collective_ms")
LOSS, OPTIMIZER, UNNAMED = "loss and mixup", "optimizer", "no scope"


def part_of(op_name: str) -> str:
    """Returns the part of the step that an op_name belongs to, e.g. "jit(f)/jvp(Model)/.../add"."""
    wrapper = r"^(\w+\()+|\)+$"  # transpose(jvp(encoder)) -> encoder
    steps = [re.sub(wrapper, "", step) for step in op_name.split("/")[1:-1]]
    for name, pattern in PARTS:
        if any(re.fullmatch(pattern, step) for step in steps):
            return name
    if "jvp(" in op_name:  # differentiated, but outside the model
        return LOSS
    return OPTIMIZER if op_name.startswith("jit(") else UNNAMED


def totals(prices: Iterable[Price]) -> dict[str, float]:
    """Returns {"ms", "serial_ms", "estimate_ms", "roofline_ms", "collective_ms"}, summed."""
    prices = list(prices)
    return {time: sum(getattr(price, time) for price in prices) for time in TIMES}


def breakdown(prices: Iterable[Price]) -> dict[str, dict[str, float]]:
    """Returns the totals of each part; the slowest part comes first."""
    parts: dict[str, list[Price]] = {}
    for price in prices:
        parts.setdefault(part_of(price.instruction.op_name), []).append(price)
    summed = {name: totals(of) for name, of in parts.items()}
    return dict(sorted(summed.items(), key=lambda item: -item[1]["ms"]))
