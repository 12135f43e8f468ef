"""Plans runs on TPUs that you need not have: whether they fit, step time and cost. Needs no data.

  python scripts/plan.py --config=configs/imagenet.py:widenet_l --topology=v3-256
  python scripts/plan.py --compare configs/imagenet.py:vit_l configs/imagenet.py:widenet_l
  python scripts/plan.py --paper                 every vision model of the paper, beside its Table 4
  python scripts/plan.py --counts                parameters of every row of its tables

Any field of the configs can be set, as in --config.batch_size=2048. Exit codes: 0 done, 2 your
input.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from widenet_jax.cli.parser import Parser, exit_code_of, positive
from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError
from widenet_jax.weights.stored import set_fields

PAPER_CONFIG = "configs/imagenet.py"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "widenet_jax" / "plan"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return exit_code_of(lambda: run(*parser().read(argv)))


def parser() -> Parser:
    made = Parser(__doc__)
    add = made.add_argument
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE[:VARIANT]", help="plan one run")
    what.add_argument("--compare", metavar="FILE[:VARIANT]", nargs="+", help="tabulate several")
    what.add_argument("--paper", action="store_true", help="tabulate the paper's vision models")
    what.add_argument("--counts", action="store_true", help="parameters of the paper's tables")
    add("--topology", default="v3-256", metavar="TPU", help="v3-256, v4-128, v5e-16, v3:8x16, ...")
    add("--json", action="store_true", help="print JSON and nothing else")
    add("--breakdown", action="store_true", help="add where the step's time goes")
    add("--dump_hlo", type=Path, metavar="FILE", help="write the optimised HLO (one run)")
    add("--price_per_core_hour", type=float, metavar="PRICE", help="in any currency")
    add("--num_examples", type=positive, metavar="N", help="of a data set that is not known")
    add("--num_classes", type=positive, metavar="N", help="likewise")
    add("--vocab_size", type=positive, metavar="N", help="likewise")
    add("--no_cache", action="store_true", help=f"compile again; do not read {CACHE}")
    return made


def run(options: argparse.Namespace, fields: Sequence[str]) -> None:
    if options.counts:
        from widenet_jax.tools.plan.counts import count_rows, counts_table

        rows = count_rows()
        print(json.dumps(rows, indent=1) if options.json else counts_table(rows))
        return
    reports = plan(options, fields)
    if options.json:
        print(json.dumps(reports[0] if options.config else reports))
    else:
        print_plans(options, reports)


def plan(options: argparse.Namespace, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the facts about every run that `options` name, as docs/PERFORMANCE.md has them.

    Raises:
      BadInputError: flags, a config or the slice do not fit together; libtpu is not installed.
    """
    from widenet_jax.tools.plan.topology import parse_topology

    topology = parse_topology(options.topology)
    names = options.compare or [options.config]
    if options.paper:
        from widenet_jax.tools.plan.report import PAPER_VARIANTS

        names = [f"{PAPER_CONFIG}:{variant}" for variant in PAPER_VARIANTS]
    if len(names) > 1 and options.dump_hlo:
        raise BadInputError("--dump_hlo writes one program; give one --config")
    configs = [load_config(name) for name in names]
    for config in configs:  # before JAX is imported, so that a mistake is answered at once
        set_fields(config, fields)

    from widenet_jax.tools.plan.breakdown import breakdown
    from widenet_jax.tools.plan.compile import TpuCompiler
    from widenet_jax.tools.plan.facts import data_facts
    from widenet_jax.tools.plan.planner import plan_run

    note = partial(print, file=sys.stderr, flush=True)
    compiler = TpuCompiler(topology, cache=None if options.no_cache else CACHE, note=note)
    price = options.price_per_core_hour
    known = {key: getattr(options, key) for key in ("num_examples", "num_classes", "vocab_size")}
    reports = []
    for name, config in zip(names, configs, strict=True):
        data = data_facts(config, **known)
        planned = plan_run(name, config, data, compiler, price_per_core_hour=price)
        parts = breakdown(planned.prices) if options.breakdown else None
        reports.append(planned.facts | ({"breakdown": parts} if parts is not None else {}))
        if options.dump_hlo:
            options.dump_hlo.write_text(planned.hlo)
    return reports


def print_plans(options: argparse.Namespace, reports: Sequence[dict[str, Any]]) -> None:
    """Prints one plan in full, or a table of several."""
    from widenet_jax.tools.plan.report import breakdown_table, comparison, plan_rows

    print(plan_rows(reports[0]) if options.config else comparison(reports, paper=options.paper))
    for report in reports if options.breakdown else ():
        print(f"\n{report['config']}\n{breakdown_table(report['breakdown'])}")
