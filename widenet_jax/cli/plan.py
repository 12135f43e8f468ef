"""Plans runs on TPUs that you need not have: whether they fit, step time and cost. Needs no data.

  python scripts/plan.py --config=configs/imagenet.py:widenet_l --topology=v3-256
  python scripts/plan.py --compare configs/imagenet.py:vit_l configs/imagenet.py:widenet_l
  python scripts/plan.py --paper                 every vision model of the paper, beside its Table 4
  python scripts/plan.py --counts                parameters of every row of its tables

Any field of the configs can be set, as in --config.batch_size=2048. Exit codes: 0 done, 2 your
input.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from widenet_jax.config.files import load_config
from widenet_jax.config.parser import (
    Argv,
    Options,
    Parser,
    add_import_flag,
    positive,
    show,
)
from widenet_jax.errors import BadInputError
from widenet_jax.files import user_cache
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.ops.plan.topology import parse_topology

if TYPE_CHECKING:
    from widenet_jax.data.contract import DataInfo

DATA_SIZES = ("num_examples", "num_classes", "vocab_size")
PAPER_CONFIG = "configs/imagenet.py"
CACHE = user_cache("plan")


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__)
    add_import_flag(parser)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE[:VARIANT]", help="plan one run")
    what.add_argument("--compare", metavar="FILE[:VARIANT]", nargs="+", help="tabulate several")
    what.add_argument("--paper", action="store_true", help="tabulate the paper's vision models")
    what.add_argument("--counts", action="store_true", help="parameters of the paper's tables")
    add("--topology", default="v3-256", metavar="TPU", help="v3-256, v4-128, v5e-16, v3:8x16, ...")
    add("--json", action="store_true", help="print JSON and nothing else")
    add("--breakdown", action="store_true", help="add where the step's time goes")
    add("--dump_hlo", type=Path, metavar="FILE", help="write the optimised HLO (one run)")
    add("--price_per_core_hour", type=float, metavar="PRICE", help="in any currency")
    add_data_flags(add)
    add("--no_cache", action="store_true", help=f"compile again; do not read {CACHE}")
    return parser.run(run, argv)


def add_data_flags(add: Callable[..., Any]) -> None:
    """Adds the flags that stand for a data set, DATA_SIZES; `read_configs` reads them."""
    for name in DATA_SIZES:
        add(f"--{name}", type=positive, metavar="N", help="of a data set that the plan cannot know")


def read_configs(
    names: Sequence[str], options: Options
) -> list[tuple[str, ConfigDict, "DataInfo"]]:
    """Returns (name, config, facts about its data) for each name, with the fields of `options`."""
    known = {name: getattr(options, name) for name in DATA_SIZES}
    configs = [set_fields(load_config(name), options.fields) for name in names]
    from widenet_jax.ops.plan.data_info import data_info

    return [(name, one, data_info(one, **known)) for name, one in zip(names, configs, strict=True)]


def run(options: Options) -> None:
    if options.counts:
        from widenet_jax.ops.plan.counts import count_rows, counts_table

        rows = count_rows()
        show(options, rows, counts_table(rows))
        return
    reports = plan(options)
    from widenet_jax.ops.plan.report import breakdown_table, comparison, plan_rows

    parts = [plan_rows(reports[0]) if options.config else comparison(reports, paper=options.paper)]
    for report in reports if options.breakdown else ():
        parts.append(f"{report['config']}\n{breakdown_table(report['breakdown'])}")
    show(options, reports[0] if options.config else reports, "\n\n".join(parts))


def plan(options: Options) -> list[dict[str, Any]]:
    """Returns the facts about every run that `options` name, as docs/PERFORMANCE.md has them.

    Raises:
      BadInputError: flags, a config or the slice do not fit together; libtpu is not installed.
    """
    topology = parse_topology(options.topology)
    names = options.compare or [options.config]
    if options.paper:
        from widenet_jax.ops.plan.report import PAPER_VARIANTS

        names = [f"{PAPER_CONFIG}:{variant}" for variant in PAPER_VARIANTS]
    if len(names) > 1 and options.dump_hlo:
        raise BadInputError("--dump_hlo writes one program; give one --config")
    configs = read_configs(names, options)
    from widenet_jax.ops.plan.compile import TpuCompiler
    from widenet_jax.ops.plan.planner import plan_run
    from widenet_jax.ops.plan.pricing import breakdown

    note = partial(print, file=sys.stderr, flush=True)
    compiler = TpuCompiler(topology, cache=None if options.no_cache else CACHE, note=note)
    reports = []
    for config in configs:
        planned = plan_run(*config, compiler, options.price_per_core_hour)
        parts = {"breakdown": breakdown(planned.prices)} if options.breakdown else {}
        reports.append(planned.facts | parts)
        if options.dump_hlo:
            options.dump_hlo.write_text(planned.hlo)
    return reports


if __name__ == "__main__":
    raise SystemExit(main())
