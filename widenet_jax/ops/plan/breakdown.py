"""A step's time by part of the model, from the scopes of its instructions.

The compiler keeps one source operation per instruction, as a path of Linen modules and
`jax.named_scope`s such as "router". A fusion counts as the operation that it is named after: a norm
fused into a matrix product counts as the product.
"""

import re
from collections.abc import Iterable

from widenet_jax.ops.plan.pricing import Price

# (part, pattern of a whole path component); the first match counts. Operations inside a layer, such
# as dropout, count as the layer.
PARTS = (
    ("router", r"router"),
    ("dispatch", r"dispatch|combine"),
    ("experts", r"experts|moe"),
    ("norms", r"(block_\d+_)?norm_\w+"),
    ("attention", r"(block_\d+_)?attention"),
    ("feed-forward", r"(block_\d+_)?(mlp|top_k_mlp|product_key)"),
    ("embedding", r"embed(dings)?|position"),
    ("head", r"head|pre_logits|pooler|mlm|order|classifier|span|output"),
    ("rest of the model", r"encoder|[A-Z]\w*"),  # the class of a model, such as VisionTransformer
)
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


def breakdown(prices: Iterable[Price]) -> dict[str, dict[str, float]]:
    """Returns {part: {"ms", "roofline_ms", "collective_ms"}}, slowest part first."""
    parts: dict[str, dict[str, float]] = {}
    for price in prices:
        name = part_of(price.instruction.op_name)
        part = parts.setdefault(name, dict.fromkeys(("ms", "roofline_ms", "collective_ms"), 0.0))
        for time in part:
            part[time] += getattr(price, time)
    return dict(sorted(parts.items(), key=lambda item: -item[1]["ms"]))
