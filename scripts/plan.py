#!/usr/bin/env python3
"""What a run costs on TPUs nobody has rented yet, and whether it fits. Needs neither TPU nor data.

  python scripts/plan.py --config=configs/imagenet.py:widenet_l --topology=v3-256
  python scripts/plan.py --compare configs/imagenet.py:vit_l configs/imagenet.py:widenet_l
  python scripts/plan.py --paper                 every vision model of the paper, beside its Table 4
  python scripts/plan.py --counts                parameters of every row of its tables

Any field of the configs can be set, as in --config.batch_size=2048.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from widenet_jax.cli.parser import Parser, exit_code_of, positive
from widenet_jax.config.files import load_config, override
from widenet_jax.errors import BadInputError

PAPER_CONFIG = "configs/imagenet.py"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "widenet_jax" / "plan"


def parser() -> Parser:
    own = Parser(__doc__)
    what = own.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE[:VARIANT]", help="plan one run")
    what.add_argument("--compare", metavar="FILE[:VARIANT]", nargs="+", help="tabulate several")
    what.add_argument("--paper", action="store_true", help="tabulate the paper's vision models")
    what.add_argument("--counts", action="store_true", help="parameters of the paper's tables")
    own.add_argument("--topology", default="v3-256", help="v3-256, v4-128, v5e-16, v3:8x16, ...")
    own.add_argument("--json", action="store_true", help="print JSON and nothing else")
    own.add_argument("--breakdown", action="store_true", help="also where the time goes")
    own.add_argument("--dump_hlo", metavar="PATH", help="write the optimised HLO (one run)")
    own.add_argument("--price_per_core_hour", type=float, help="in any currency")
    own.add_argument("--num_examples", type=positive, help="of an image set that is not known")
    own.add_argument("--num_classes", type=positive, help="likewise")
    own.add_argument("--no_cache", action="store_true", help=f"compile again; not from {CACHE}")
    return own


def read_config(text: str, overrides: Sequence[str]) -> ConfigDict:
    config = load_config(text)
    override(config, ["plan.py", *overrides])
    return config


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 2 for a mistake in the command line or a config."""

    def run() -> int:
        arguments, overrides = parser().parse_known_args(argv)
        return counts(arguments) if arguments.counts else plan(arguments, overrides)

    return exit_code_of(run)


def counts(arguments: argparse.Namespace) -> int:
    from widenet_jax.tools.plan.counts import count_rows, counts_table

    rows = count_rows()
    print(json.dumps(rows, indent=1) if arguments.json else counts_table(rows))
    return 0


def plan(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    from widenet_jax.tools.plan.topology import parse_topology

    topology = parse_topology(arguments.topology)
    names = arguments.compare or [arguments.config]
    if arguments.paper:
        from widenet_jax.tools.plan.report import PAPER_VARIANTS

        names = [f"{PAPER_CONFIG}:{variant}" for variant in PAPER_VARIANTS]
    if len(names) > 1 and arguments.dump_hlo:
        raise BadInputError("--dump_hlo writes one program; give one --config")
    configs = [read_config(name, overrides) for name in names]  # mistakes before JAX is imported

    from widenet_jax.tools.plan.breakdown import breakdown
    from widenet_jax.tools.plan.compile import TpuCompiler
    from widenet_jax.tools.plan.facts import data_facts
    from widenet_jax.tools.plan.planner import plan_run
    from widenet_jax.tools.plan.report import breakdown_table, comparison, plan_rows

    compiler = TpuCompiler(
        topology,
        cache=None if arguments.no_cache else CACHE,
        note=lambda text: print(text, file=sys.stderr, flush=True),
    )
    known = {key: getattr(arguments, key) for key in ("num_examples", "num_classes")}
    reports = []
    for name, config in zip(names, configs, strict=True):
        planned = plan_run(
            name,
            config,
            data_facts(config, **known),
            compiler,
            price_per_core_hour=arguments.price_per_core_hour,
        )
        parts = breakdown(planned.prices) if arguments.breakdown else None
        reports.append(planned.facts | ({"breakdown": parts} if parts is not None else {}))
        if arguments.dump_hlo:
            Path(arguments.dump_hlo).write_text(planned.hlo)

    if arguments.json:
        print(json.dumps(reports[0] if arguments.config else reports))
    elif arguments.config:
        print(plan_rows(reports[0]))
    else:
        print(comparison(reports, paper=arguments.paper))
    if arguments.breakdown and not arguments.json:
        for report in reports:
            print(f"\n{report['config']}\n{breakdown_table(report['breakdown'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
