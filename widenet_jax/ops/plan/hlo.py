"""Parser for the text of optimised HLO.

Reads what pricing needs: names, opcodes, sizes, operands, called computations, the compiler's cycle
estimates and loop bounds, and the scopes that operations come from.
"""

import base64
import math
import re
import string
from dataclasses import dataclass, field
from typing import NamedTuple

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\(\d+\)")  # a memory other than HBM, such as a core's own
_CALLED = re.compile(r"\b(calls|to_apply|condition|body|(?:true|false)_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_BOUNDS = re.compile(r'"iteration_bounds":\[([^\]]*)\]')
_BROKEN = re.compile(r'\n(?=["}]\S)')  # within the metadata of a kernel
_KERNEL = re.compile(r'"custom_call_config":\{(?:"\w+":\[[^]]*\],)*"body":"([^"]+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')

Arrays = tuple[tuple[str, tuple[int, ...]], ...]  # (dtype, dimensions)


def array_bytes(arrays: Arrays) -> int:
    """Returns the bytes of arrays, without tile padding; types without data, as tokens, count 0."""
    return sum(bits(dtype) * math.prod(dims) for dtype, dims in arrays) // 8


def hbm_bytes(shape: str) -> int:
    """Returns the bytes that a result occupies in HBM, from its shape as HLO writes it.

    Tiles are padded: bf16[16,196]{1,0:T(8,128)(2,1)} occupies 16 x 256 elements. Arrays whose
    layout names another memory, such as S(1), count 0.
    """
    total = 0
    for dtype, dimensions, order, layout in _ARRAY.findall(shape):
        if _SPACE.search(layout):
            continue
        sizes = [int(n) for n in dimensions.split(",") if n]
        sizes = [sizes[int(n)] for n in reversed(order.split(",")) if n] or sizes
        tile = [int(n) for n in _TILE.search(layout)[1].split(",")] if "T(" in layout else []
        start = max(0, len(sizes) - len(tile))
        for axis, multiple in zip(range(start, len(sizes)), tile[-len(sizes) :], strict=False):
            sizes[axis] = math.ceil(sizes[axis] / multiple) * multiple
        total += bits(dtype) * math.prod(sizes) // 8
    return total


def bits(dtype: str) -> int:
    """Returns the bits of an element, such as 16 for "bf16"."""
    return 8 if dtype == "pred" else int(dtype.lstrip(string.ascii_lowercase) or 0)


@dataclass(frozen=True)
class Instruction:
    """One HLO instruction.

    Attributes:
      name: unique in the module.
      opcode: "fusion", "all-reduce", ...
      arrays: (dtype, dimensions) of the result; several for a tuple.
      operands: names of instructions.
      called: computation by role: calls, to_apply, condition, body, branch_0, ...; a conditional
        on a boolean calls true_computation and false_computation.
      cycles: the compiler's estimate; None if it gives none.
      bounds: trips of each dimension of the loop that the compiler makes of it, or the grid of a
        kernel; () if it names none.
      hbm_bytes: bytes of the result in HBM, with the padding of tiles.
      shape: the result as HLO writes it, without memory spaces.
      op_name: scopes and primitive, such as "jit(train_step)/jvp(Model)/encoder/add".
      is_root: whether the instruction is the result of its computation.
      text: the whole line.
    """

    name: str
    opcode: str
    arrays: Arrays
    operands: tuple[str, ...]
    called: dict[str, str]
    cycles: int | None
    bounds: tuple[int, ...]
    hbm_bytes: int
    shape: str
    op_name: str
    is_root: bool
    text: str = field(repr=False)

    @property
    def iterations(self) -> int | None:
        """Trips of the loop, over all dimensions; None if they are unknown."""
        return math.prod(self.bounds) if min(self.bounds, default=0) > 0 else None

    @property
    def num_bytes(self) -> int:
        """Bytes of the result, without tile padding."""
        return array_bytes(self.arrays)

    @property
    def target(self) -> str:
        """The target of a custom call; "" for other instructions."""
        match = _TARGET.search(self.text)
        return match[1] if match else ""


Computation = dict[str, Instruction]  # by name, in order


class Module(NamedTuple):
    """An HLO module: its computations by name, and the name of the entry computation."""

    computations: dict[str, Computation]
    entry: str


def root_of(computation: Computation) -> Instruction:
    """Returns the instruction whose result is the computation's."""
    return next(i for i in computation.values() if i.is_root)


def parse(text: str) -> Module:
    """Parses `compiled.as_text()`.

    Raises:
      ValueError: the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    current, entry = None, ""
    for line in _BROKEN.sub("", text).splitlines():
        if not line.startswith(" "):
            header = _COMPUTATION.match(line)
            if header:
                current = computations[header[2]] = {}
                entry = header[2] if header[1] else entry
        elif current is not None and (instruction := parse_instruction(line)):
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("no ENTRY computation: this is not the text of an HLO module")
    return Module(computations, entry)


def parse_instruction(line: str) -> Instruction | None:
    """Parses one line; returns None if it holds no instruction."""
    start = _INSTRUCTION.match(line)
    if not start:
        return None
    tuple_shape = line[start.end()] == "("
    shape_end = _closing(line, start.end()) + 1 if tuple_shape else line.index(" ", start.end())
    open_paren = line.index("(", shape_end)
    close_paren = _closing(line, open_paren)
    attributes = line[close_paren:]
    called = dict(_CALLED.findall(attributes))
    if branches := _BRANCHES.search(attributes):
        names = branches[1].replace("%", "").split(", ")
        called |= {f"branch_{i}": name for i, name in enumerate(names)}
    cycles, op_name = _CYCLES.search(attributes), _OP_NAME.search(attributes)
    loop, kernel = _BOUNDS.search(attributes), _KERNEL.search(attributes)
    bounds = re.findall(r"\d+", loop[1]) if loop else kernel_grid(kernel[1]) if kernel else ()
    shape = line[start.end() : shape_end]
    return Instruction(
        name=start[2],
        opcode=line[shape_end:open_paren].strip(),
        arrays=tuple(
            (dtype, tuple(int(n) for n in dimensions.split(",") if n))
            for dtype, dimensions, *_ in _ARRAY.findall(shape)
        ),
        operands=tuple(re.findall(r"%([\w.\-]+)", line[open_paren:close_paren])),
        called=called,
        cycles=int(cycles[1]) if cycles and int(cycles[1]) else None,
        bounds=tuple(int(n) for n in bounds),
        hbm_bytes=hbm_bytes(shape),
        shape=_SPACE.sub("", shape),
        op_name=op_name[1] if op_name else "",
        is_root=bool(start[1]),
        text=line,
    )


def kernel_grid(body: str) -> tuple[int, ...]:
    """Returns the grid of a kernel (base 64 of its program); dynamic sizes are below 0.

    The programs of Pallas kernels are bytecode, of the compiler's own kernels text. A kernel
    without a grid runs once: ().
    """
    program = base64.b64decode(body)
    if not program.startswith(b"ML\xefR"):  # the mark of MLIR's bytecode
        bounds = re.search(rb"iteration_bounds = array<i64: ([-\d, ]+)>", program)
        return tuple(map(int, bounds[1].split(b","))) if bounds else ()
    from jax.extend.mlir import ir
    from jaxlib.mosaic.python import tpu

    with ir.Context() as context:
        tpu.register_dialect(context)
        context.allow_unregistered_dialects = True
        kernel = ir.Module.parse(program).body.operations[0]
        return tuple(kernel.attributes["iteration_bounds"])


def _closing(line: str, opening: int) -> int:
    """Returns the position of the parenthesis that closes the one at `opening`."""
    depth = 0
    for match in re.finditer(r"[()]", line[opening:]):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return opening + match.start()
    raise ValueError(f"unbalanced parentheses in {line[:200]!r}")
