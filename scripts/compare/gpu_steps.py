"""Prices training steps that others timed on NVIDIA GPUs, which are compiled without a GPU.

  python scripts/compare/gpu_steps.py [NAME ...]

Needs .[plan_gpu]. A JSON line for each row: the measured and the planned milliseconds of a step,
their ratio, and the collectives, which the plan shows apart. Deep models are compiled with 2 and 4
blocks and extrapolated. No factor of the prices comes from these rows.
"""

import json
import sys
from functools import partial
from typing import Any, NamedTuple

from widenet_jax.config.files import load_config
from widenet_jax.config.parser import exit_code_of
from widenet_jax.errors import choose
from widenet_jax.files import user_cache
from widenet_jax.ops.plan.gpu import GpuCompiler
from widenet_jax.ops.plan.planner import data_info, price_step
from widenet_jax.ops.plan.pricing import totals
from widenet_jax.ops.plan.topology import parse_planned

ROSETTA = "NVIDIA/JAX-Toolbox, rosetta/projects/vit/README.md, 2023: JAX, T5X, bfloat16"
NEMO = "NVIDIA NeMo user guide, Vision Transformer, Performance, 2024: PyTorch, one node of eight"
SIZES = {  # as ViT-H otherwise, with 16 heads; ViT-g and ViT-G of arXiv:2106.04560
    "giant": {"embed_dim": 1408, "mlp_dim": 6144},
    "gigantic": {"embed_dim": 1664, "mlp_dim": 8192},
}
# Published without a batch: these images are assumed on each GPU.
ASSUMED = 32


class Row(NamedTuple):
    """A time that others measured; `images` on each of the GPUs, `per_second` of them together."""

    name: str
    topology: str
    images: int
    per_second: float
    source: str
    variant: str = "vit_b"
    size: str = ""
    depth: int = 0  # 0: the variant's, compiled as it is


ROWS = (
    Row("b16", "a100-8", 512, 7200.38, ROSETTA),
    Row("b16", "h100-8", 512, 11669.52, ROSETTA),
    Row("b16_384", "a100-8", 64, 1841.43, ROSETTA, "vit_b,image_size=384"),
    Row("gigantic14", "a100-8", 16, 8 * 34.63, ROSETTA, "vit_h", "gigantic", 48),
    Row("giant14", "a100-8", ASSUMED, 693, NEMO, "vit_h", "giant", 40),
    Row("giant14", "h100-8", ASSUMED, 1428, NEMO, "vit_h", "giant", 40),
)


def main(*names: str) -> None:
    if "--help" in names:
        print(__doc__)
        return
    for name in names:
        choose({row.name: row for row in ROWS}, name, field="NAME", flag="")
    for row in ROWS:
        if row.name in (names or (row.name,)):
            print(json.dumps(compare(row)), flush=True)


def compare(row: Row) -> dict[str, Any]:
    """Returns a row with its price."""
    two, four = (priced(row, depth) for depth in (2, 4)) if row.depth else (None, priced(row, 0))
    found = dict(four)
    if two:
        found = {key: four[key] + (row.depth - 4) / 2 * (four[key] - two[key]) for key in four}
    topology = parse_planned(row.topology)
    measured = 1e3 * row.images * topology.num_devices / row.per_second
    about = {"name": row.name, "topology": row.topology, "images": row.images}
    about |= {"measured_ms": measured, "planned_ms": found["ms"]}
    about |= {"ratio": found["ms"] / measured, "collective_ms": found["collective_ms"]}
    return about | {"source": row.source}


def priced(row: Row, depth: int) -> dict[str, float]:
    """Compiles and prices a row's step; the recipe is as plain as the sources'."""
    config = load_config(f"configs/imagenet.py:{row.variant}" + f",depth={depth}" * (depth > 0))
    topology = parse_planned(row.topology)
    batch = row.images * topology.num_devices
    fields = {"batch_size": batch, "evaluation.batch_size": batch, "augment.mixup_alpha": 0.0}
    fields |= {"optimizer.name": "adamw", "sharding.fsdp": 1}
    fields |= {f"model.{name}": value for name, value in SIZES.get(row.size, {}).items()}
    if row.source == ROSETTA:  # older than JAX's attention by cuDNN
        fields["model.attention.implementation"] = "xla"
    config.update_from_flattened_dict(fields)
    compiler = GpuCompiler(
        topology, cache=user_cache("plan"), note=partial(print, file=sys.stderr, flush=True)
    )
    step = compiler.compile(f"{row.name}, depth {depth or 'full'}", config, data_info(config))
    return totals(price_step(step, topology)[0])


if __name__ == "__main__":
    raise SystemExit(exit_code_of(partial(main, *sys.argv[1:])))
