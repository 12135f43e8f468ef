"""Plans runs on TPUs and GPUs that you need not have: memory, step time and cost. Needs no data.

  python scripts/plan.py --config=configs/imagenet.py:widenet_l --topology=v3-256
  python scripts/plan.py --compare configs/imagenet.py:vit_l configs/imagenet.py:widenet_l
  python scripts/plan.py --compare configs/text_pretrain.py:bert --topology v3-256 v5e-256
  python scripts/plan.py --config=configs/imagenet.py:vit_b --topology=h100-8      eight GPUs
  python scripts/plan.py --paper                 every vision model of the paper, beside its Table 4
  python scripts/plan.py --counts                parameters of every row of its tables
  python scripts/plan.py --counts configs/language_model.py:moeut_44m     of the parts of one model
  python scripts/plan.py --calibrate             prices beside times that others measured on TPUs

Any field of the configs can be set, as in --config.batch_size=2048. Exit codes: 0 done, 2 your
input.
"""

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from widenet_jax.config.files import load_config
from widenet_jax.config.parser import (
    Argv,
    Options,
    Parser,
    add_import_flag,
    picture,
    positive,
    show,
)
from widenet_jax.errors import raise_first
from widenet_jax.files import user_cache
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.ops.plan.topology import parse_planned

if TYPE_CHECKING:
    from widenet_jax.data.contract import DataInfo

DATA_SIZES = ("num_examples", "num_classes", "vocab_size")
PAPER_CONFIG = "configs/imagenet.py"
NOTE = partial(print, file=sys.stderr, flush=True)


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__)
    add_import_flag(parser)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE[:VARIANT]", help="plan one run")
    what.add_argument("--compare", metavar="FILE[:VARIANT]", nargs="+", help="tabulate several")
    what.add_argument("--paper", action="store_true", help="tabulate the paper's vision models")
    text = "parameters, part by part; without a file: of all rows of the papers' tables"
    what.add_argument("--counts", metavar="FILE[:VARIANT]", nargs="*", help=text)
    measured = {"nargs": "?", "const": True, "metavar": "FILE"}
    what.add_argument("--calibrate", **measured, help="compare with measured times")
    add("--rows", nargs="+", metavar="NAME", help="with --calibrate: these workloads alone")
    add("--out", type=picture, metavar="FILE.png", help="with --calibrate: draw the ratios")
    slices = {"nargs": "+", "default": ["v3-256"], "metavar": "DEVICES"}
    add(
        "--topology",
        **slices,
        help="v3-256, v3:8x16, 2xv5e-256 (two slices), h100-8 (GPUs), ...; several make a table",
    )
    add("--json", action="store_true", help="print JSON and nothing else")
    add("--breakdown", action="store_true", help="add where the step's time goes")
    add("--price_per_core_hour", type=float, metavar="PRICE", help="in any currency")
    add_data_flags(add)
    return parser.run(run, argv)


def add_data_flags(add: Callable[..., Any]) -> None:
    """Adds the flags that stand for a data set, DATA_SIZES; `read_configs` reads them."""
    for name in DATA_SIZES:
        add(f"--{name}", type=positive, metavar="N", help="of a data set that the plan cannot know")


def read_configs(
    names: Sequence[str], options: Options
) -> list[tuple[str, ConfigDict, "DataInfo"]]:
    """Returns (name, config, DataInfo) for each name, with the fields of `options`."""
    known = {name: getattr(options, name) for name in DATA_SIZES}
    configs = [set_fields(load_config(name), options.fields) for name in names]
    from widenet_jax.ops.plan.planner import data_info

    return [(name, one, data_info(one, **known)) for name, one in zip(names, configs, strict=True)]


def run(options: Options) -> None:
    raise_first(contradictions(options))
    if options.counts is not None:
        count(options)
        return
    if options.calibrate:
        calibrate_rows(options)
        return
    reports = plan(options)
    from widenet_jax.ops.plan.report import breakdown_table, by_slice, comparison, plan_rows

    several = len(options.topology) > 1
    if several:
        parts = [by_slice(reports)]
    elif options.config:
        parts = [plan_rows(reports[0])]
    else:
        parts = [comparison(reports, paper=options.paper)]
    for report in reports if options.breakdown else ():
        title = f"{report['config']}, {report['topology']}"
        parts.append(f"{title}\n{breakdown_table(report['breakdown'])}")
    show(options, reports if several or not options.config else reports[0], "\n\n".join(parts))


def count(options: Options) -> None:
    """Prints the parameters of the configs that `options` names, or of the papers' models."""
    from widenet_jax.ops.plan.counts import count_rows, counts_table, part_rows, parts_table

    if options.counts:
        options.num_examples = options.num_examples or 1  # changes no parameter
        configs = read_configs(options.counts, options)
        parts = {name: part_rows(config, data) for name, config, data in configs}
        show(options, parts, "\n\n".join(parts_table(*one) for one in parts.items()))
    elif options.json:
        print(json.dumps(list(count_rows())))
    else:
        for line in counts_table(count_rows()):
            print(line, flush=True)


def contradictions(options: Options) -> Iterator[str]:
    """Yields why flags do not fit together."""
    price = options.price_per_core_hour
    if (options.rows or options.out) and not options.calibrate:
        yield "--rows and --out belong to --calibrate; leave them out"
    if price is not None and not 0 <= price < math.inf:
        yield f"--price_per_core_hour={price:g} must be a number, 0 or more"
    if price is not None and len(options.topology) > 1 and not options.json:
        yield "--price_per_core_hour: a table of several slices has no costs; give one"


def calibrate_rows(options: Options) -> None:
    """Prices the measured workloads, and shows and draws predicted / measured."""
    from widenet_jax.ops.plan import calibrate

    file = calibrate.MEASUREMENTS if options.calibrate is True else options.calibrate
    measured = calibrate.read_measurements(str(file), options.rows)
    rows = [calibrate.calibrate(row, user_cache("plan"), NOTE) for row in measured]
    if options.out:
        calibrate.draw(rows, options.out)
    show(options, rows, calibrate.calibration_table(rows))


def plan(options: Options) -> list[dict[str, Any]]:
    """Returns the plan of every run that `options` name, on every slice that they name.

    Raises:
      BadInputError: flags, a config or the slice do not fit together; a compiler is missing.
    """
    topologies = [parse_planned(name) for name in options.topology]
    names = options.compare or [options.config]
    if options.paper:
        from widenet_jax.ops.plan.report import PAPER_VARIANTS

        names = [f"{PAPER_CONFIG}:{variant}" for variant in PAPER_VARIANTS]
    configs = read_configs(names, options)
    from widenet_jax.ops.plan.compile import TpuCompiler
    from widenet_jax.ops.plan.gpu import GpuCompiler
    from widenet_jax.ops.plan.planner import plan_run
    from widenet_jax.ops.plan.pricing import breakdown

    reports = []
    for topology in topologies:
        kind = TpuCompiler if topology.platform == "tpu" else GpuCompiler
        compiler = kind(topology, cache=user_cache("plan"), note=NOTE)
        for config in configs:
            report, prices = plan_run(*config, compiler, options.price_per_core_hour)
            parts = {"breakdown": breakdown(prices)} if options.breakdown else {}
            reports.append(report | parts)
    return reports


def plan_of(
    config: str, tpu: str, flags: Sequence[str], *, timeout: float | None = None
) -> dict[str, Any] | str:
    """Returns the JSON object that this command prints, or the reason why it printed none.

    Runs in its own process, because the compiler for TPUs takes JAX's devices away. Callers read
    `fits` (bool), `hours` and `core_days` (numbers; None if the run does not fit).
    """
    command = [sys.executable, "-m", "widenet_jax.cli.plan", f"--config={config}"]
    command += [f"--topology={tpu}", "--json", *flags]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"plan.py was stopped after {timeout:.0f} s"
    with contextlib.suppress(ValueError, IndexError):  # before it, a compiler may print
        return json.loads(completed.stdout.splitlines()[-1])
    reason = completed.stderr.strip() or f"plan.py ended with exit code {completed.returncode}"
    # The launcher has another name for the flag.
    return reason.splitlines()[-1].removeprefix("error: ").replace("--topology=", "--tpu=")


def plan_line(plan: dict[str, Any] | str) -> str:
    """Formats a plan: "plan: fits, 13 h (11 to 16), 81 core-days", or "no plan: REASON"."""
    if isinstance(plan, str):
        return f"no plan: {plan}"
    if not plan["fits"]:
        return "plan: does not fit"
    low, high = (plan["hours"] * ms / plan["step_ms"] for ms in plan["step_ms_range"])
    hours = f"{plan['hours']:.3g} h ({low:.3g} to {high:.3g})"
    return f"plan: fits, {hours}, {plan['core_days']:.3g} core-days"


if __name__ == "__main__":
    raise SystemExit(main())
