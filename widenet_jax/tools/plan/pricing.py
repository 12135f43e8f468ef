"""What a compiled step costs, instruction by instruction.

Three sources, kept apart:
  - the compiler's own estimate of cycles, which most instructions carry;
  - a roofline for those that carry none: a ragged matmul at 80% of the peak; gathers, scatters,
    sorts, relayouts and what else there is at 50% of the memory's bandwidth;
  - collectives: the bytes a device has to send, over those links of its chip that the compiler's
    choice of rings uses. They are not part of the step's time here: how much of them hides behind
    computation, nobody says.
A loop's body counts once a trip.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from widenet_jax.tools.plan.hlo import Computation, Instruction, Module, array_bytes
from widenet_jax.tools.plan.topology import Topology

RAGGED_DOT_SHARE_OF_PEAK = 0.8
MEMORY_SHARE_OF_BANDWIDTH = 0.5

# Nothing happens at run time, or it happens inside what they call.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("opt-barrier", "partition-id", "replica-id", "add-dependency", "domain"),
}
FREE_TARGETS = {"AllocateBuffer", "AssumeGatherIndicesInBound", "Sharding"}
# Transfers that the scheduler starts early and waits for late: hidden behind other instructions.
ASYNC = {
    f"{operation}-{part}"
    for operation in ("copy", "slice", "async", "send", "recv")
    for part in ("start", "update", "done")
}
RAGGED_DOT = re.compile(r"ragged-dot(?!-metadata)|ragged_dot|gmm")

# Bytes a device sends, from its own result's bytes and the n devices that take part (rings).
SENT = {
    "all-reduce": lambda size, n: 2 * size * (n - 1) / n,
    "all-gather": lambda size, n: size * (n - 1) / n,
    "reduce-scatter": lambda size, n: size * (n - 1),
    "all-to-all": lambda size, n: size * (n - 1) / n,
    "ragged-all-to-all": lambda size, n: size * (n - 1) / n,
    "collective-broadcast": lambda size, n: size,
    "collective-permute": lambda size, n: size,
}


@dataclass(frozen=True)
class Price:
    """One instruction's part of a step, all its trips together.

    Attributes:
      instruction: which.
      trips: how often it runs in one step.
      compiler_ms: by the compiler's cycles.
      roofline_ms: by bytes or FLOPs, where the compiler says nothing.
      collective_bytes: sent by one device.
      collective_ms: these over the links.
    """

    instruction: Instruction
    trips: int
    compiler_ms: float = 0.0
    roofline_ms: float = 0.0
    collective_bytes: float = 0.0
    collective_ms: float = 0.0

    @property
    def ms(self) -> float:
        """Without collectives."""
        return self.compiler_ms + self.roofline_ms


def price_module(module: Module, topology: Topology) -> list[Price]:
    """Every instruction that runs in a step and costs something."""
    return [
        price
        for instruction, home, trips in executed(module, module.entry, 1)
        if (price := price_instruction(instruction, home, trips, module, topology))
    ]


def executed(
    module: Module, name: str, trips: int
) -> Iterator[tuple[Instruction, Computation, int]]:
    """(instruction, its computation, how often), through loops, calls and the dearest branch."""
    computation = module.computations[name]
    for instruction in computation:
        called = instruction.called
        if instruction.opcode == "while":
            counted = trip_count(module.computations[called["condition"]])
            times = trips * (1 if counted is None else counted)
            yield from executed(module, called["condition"], times)
            yield from executed(module, called["body"], times)
        elif instruction.opcode == "call":
            yield from executed(module, called["to_apply"], trips)
        elif instruction.opcode == "conditional":
            yield from executed(module, max(called.values(), key=partial(_cycles, module)), trips)
        else:
            yield instruction, computation, trips


def trip_count(condition: Computation) -> int | None:
    """Trips of a counted loop, whose condition is `i < N` from 0; None where data decides."""
    root = condition.root
    if root.opcode != "compare" or "direction=LT" not in root.text:
        return None
    limit = condition.instructions[root.operands[1]]
    match = re.search(r"constant\((\d+)\)", limit.text)
    return int(match[1]) if match else None


def price_instruction(
    instruction: Instruction,
    home: Computation,
    trips: int,
    module: Module,
    topology: Topology,
) -> Price | None:
    """Its price; None where it costs nothing."""
    opcode = instruction.opcode
    if opcode in FREE or opcode in ASYNC or instruction.target in FREE_TARGETS:
        return None
    if opcode.endswith("-done") and opcode.removesuffix("-done") in SENT:
        return None
    if sent := trips * bytes_sent(instruction, module, topology):
        ms = 1e3 * sent / (topology.ici_bandwidth * share_of_links(instruction, topology))
        return Price(instruction, trips, collective_bytes=sent, collective_ms=ms)
    if instruction.cycles:
        ms = trips * instruction.cycles / topology.cycles_per_ms
        return Price(instruction, trips, compiler_ms=ms)
    operands = [home.instructions[name] for name in instruction.operands]
    if opcode == "custom-call" and RAGGED_DOT.search(f"{instruction.name} {instruction.op_name}"):
        flops = ragged_dot_flops(instruction, operands)
        seconds = flops / (RAGGED_DOT_SHARE_OF_PEAK * topology.peak_flops)
    else:
        moved = bytes_moved(instruction, operands, module)
        seconds = moved / (MEMORY_SHARE_OF_BANDWIDTH * topology.hbm_bandwidth)
    return Price(instruction, trips, roofline_ms=1e3 * trips * seconds)


def bytes_sent(instruction: Instruction, module: Module, topology: Topology) -> float:
    """What a collective makes a device send; 0 for any other instruction.

    A reduce-scatter may be written as a fusion of an all-reduce and the slice that is kept.
    """
    kind, size = instruction.opcode.removesuffix("-start"), result_bytes(instruction)
    if kind == "fusion":
        inside = module.computations[instruction.called["calls"]]
        instruction = next((i for i in inside if i.opcode in SENT), instruction)
        kind = instruction.opcode
        if kind == "all-reduce":
            n = group_size(instruction, topology)
            kind, size = "reduce-scatter", instruction.num_bytes / n
    return SENT[kind](size, group_size(instruction, topology)) if kind in SENT else 0.0


def share_of_links(instruction: Instruction, topology: Topology) -> float:
    """A ring ("color" in the compiler's words) runs along one dimension of the torus at a time."""
    match = re.search(r"Strategy\w+\{colors:(\d+)", instruction.text)
    dimensions = topology.chip.dimensions
    return min(int(match[1]), dimensions) / dimensions if match else 1.0


def ragged_dot_flops(instruction: Instruction, operands: Sequence[Instruction]) -> int:
    """2 M K N of a ragged matmul: rows [M, K] by [E, K, N], or [M, K] by [M, N] for weights.

    The rows are the first operand of rank 2; the result's last axis is the other factor.
    Metadata operands are integer vectors.
    """
    rows = next(dims for operand in operands for _, dims in operand.arrays if len(dims) == 2)
    return 2 * math.prod(rows) * instruction.arrays[0][1][-1]


def bytes_moved(instruction: Instruction, operands: Sequence[Instruction], module: Module) -> int:
    """Bytes read and written.

    Of what a gather or a slice reads from, only what comes out; of what a scatter or an update
    writes into, only what goes in. Inside a fusion too.
    """
    opcode = instruction.opcode
    sizes = [operand.num_bytes for operand in operands]
    if opcode in ("gather", "dynamic-slice"):
        return 2 * instruction.num_bytes + sum(sizes[1:])
    if opcode == "dynamic-update-slice":
        return 2 * sizes[1] + sum(sizes[2:])
    if opcode == "scatter":
        return 3 * sizes[2] + sizes[1]  # rows are read, added to and written
    if opcode != "fusion":
        return instruction.num_bytes + sum(sizes)
    inside = module.computations[instruction.called["calls"]]
    parameters = [i for i in inside if i.opcode == "parameter"]
    return sum(_read(parameter, inside) for parameter in parameters) + _written(inside)


def _read(parameter: Instruction, inside: Computation) -> int:
    users = [i for i in inside if parameter.name in i.operands]
    slices = ("gather", "dynamic-slice", "dynamic-update-slice", "scatter")
    if users and all(i.opcode in slices and i.operands[0] == parameter.name for i in users):
        return sum(i.num_bytes for i in users if i.opcode in ("gather", "dynamic-slice"))
    return parameter.num_bytes


def _written(inside: Computation) -> int:
    root = inside.root
    position = {"scatter": 2, "dynamic-update-slice": 1}.get(root.opcode)
    if position is None:
        return root.num_bytes
    return inside.instructions[root.operands[position]].num_bytes


def result_bytes(instruction: Instruction) -> int:
    """Of a collective's result. One that is started early returns its operands along with it."""
    if instruction.opcode in ("all-gather-start", "collective-permute-start"):
        return array_bytes(instruction.arrays[1:2])
    return instruction.num_bytes


def group_size(instruction: Instruction, topology: Topology) -> int:
    """Devices that take part together; all of them where the text names no groups.

    Written as lists {{0,1},{2,3}}, as an iota [groups,size]<=[...], or as mesh axes
    mesh['a'=2,'b'=4] {'b'}.
    """
    text = instruction.text
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return match[1].count(",") + 1
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]<=", text):
        return int(match[1])
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match[1])}
        return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", match[2]))
    return topology.num_devices


def _cycles(module: Module, name: str) -> int:
    return sum((i.cycles or 0) * times for i, _, times in executed(module, name, 1))
