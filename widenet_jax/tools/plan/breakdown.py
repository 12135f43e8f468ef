"""Where a step's time goes, by the scopes that the operations came from.

The compiler keeps for each instruction the path of one operation it stems from: Linen's modules,
and `jax.named_scope`s such as "router". A fusion of several operations counts where the one that
named it belongs: a norm folded into the matrix product before it counts as that product.
"""

import re
from collections.abc import Iterable

from widenet_jax.tools.plan.pricing import Price

# First match wins; patterns are of whole components of the path. Dropout and the like inside
# a layer count as the layer.
PARTS = (
    ("router", r"router"),
    ("dispatch", r"dispatch|combine"),
    ("experts", r"experts|moe"),
    ("norms", r"(block_\d+_)?norm_\w+"),
    ("attention", r"(block_\d+_)?attention"),
    ("feed-forward", r"(block_\d+_)?mlp"),
    ("embedding", r"embed|position"),
    ("head", r"head|representation"),
    ("rest of the model", r"encoder|VisionTransformer"),
)
LOSS, OPTIMIZER, UNNAMED = "loss and mixup", "optimizer", "no scope"


def part_of(op_name: str) -> str:
    """The part of the step that "jit(train_step)/jvp(Model)/encoder/.../add" belongs to."""
    wrapper = r"^(\w+\()+|\)+$"  # transpose(jvp(encoder)) is still encoder
    steps = [re.sub(wrapper, "", step) for step in op_name.split("/")[1:-1]]
    for name, pattern in PARTS:
        if any(re.fullmatch(pattern, step) for step in steps):
            return name
    if "jvp(" in op_name:  # differentiated, but no part of the model
        return LOSS
    return OPTIMIZER if op_name.startswith("jit(") else UNNAMED


def breakdown(prices: Iterable[Price]) -> dict[str, dict[str, float]]:
    """{part: {"ms", "roofline_ms", "collective_ms"}}, dearest first, without empty ones."""
    parts: dict[str, dict[str, float]] = {}
    for price in prices:
        name = part_of(price.instruction.op_name)
        part = parts.setdefault(name, dict.fromkeys(("ms", "roofline_ms", "collective_ms"), 0.0))
        part["ms"] += price.ms
        part["roofline_ms"] += price.roofline_ms
        part["collective_ms"] += price.collective_ms
    return dict(sorted(parts.items(), key=lambda item: -item[1]["ms"]))
