"""The command line of scripts/reproduce.py."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from widenet_jax.arguments import Parser, positive
from widenet_jax.errors import BadInputError
from widenet_jax.launch.plan_line import Plan, plan_line, plan_of
from widenet_jax.metrics import without_nan
from widenet_jax.reproduce import figures
from widenet_jax.reproduce.experiments import EXPERIMENTS, Experiment, chosen
from widenet_jax.reproduce.runs import Measured, carry_out, look_at
from widenet_jax.reproduce.scales import SCALES, Run, Scale, runs_of, trial_of
from widenet_jax.reproduce.tables import markdown, norms_markdown, rows_of
from widenet_jax.sweep.command import add_launch_flags, check_launch_flags, handing_over
from widenet_jax.sweep.directory import Directory, write_whole
from widenet_jax.sweep.runner import FAILED
from widenet_jax.sweep.trials import Trial

USAGE = """The paper's tables and figures: the runs, then the paper's numbers and ours side by side.

  python scripts/reproduce.py all --scale=smoke                       minutes on a laptop, on digits
  python scripts/reproduce.py table3 fig3 --scale=small --workers=2   CIFAR-10, small models
  python scripts/reproduce.py all --scale=paper --dry_run             every run, and what it costs

The same command again goes on where it was stopped, and finished runs are shared by all tables.
--config.FIELD=VALUE sets a field of every run. Exit codes: 0 all done; 2 your input; 3 a run failed
(the others ran); 143 stopped, running ones saved.
"""
VECTORS = {"fig4": "gamma", "fig5": "beta"}


def parser() -> Parser:
    made = Parser(USAGE)
    add = made.add_argument
    add("experiments", nargs="+", help=f"{', '.join(EXPERIMENTS)}, or all")
    about = "; ".join(f"{name}: {scale.about}" for name, scale in SCALES.items())
    add("--scale", choices=list(SCALES), default="smoke", help=about)
    add("--workdir", type=Path, help="of all runs and results; runs/reproduce_SCALE by default")
    text = "where the image sets are: imagenet, cifar10 and tiny_imagenet in it (default: data)"
    add("--data_dir", default="data", help=text)
    counts = ", ".join(f"{scale.seeds} at {name}" for name, scale in SCALES.items())
    add("--seeds", type=positive, help=f"runs of each model (default: {counts})")
    add("--sizes", default="b,l,h", help="of the paper's rows, only these: b, or b,l")
    add("--workers", type=positive, default=1, help="runs at a time")
    add_launch_flags(made)
    text = "list the runs; at --scale=paper with the plan's core-days for each and in total"
    add("--dry_run", action="store_true", help=text)
    add("--report", action="store_true", help="run nothing: tables and figures of what is finished")
    add("--json", action="store_true", help="print one JSON object")
    return made


def main(argv: Sequence[str]) -> int:
    """Returns the exit code.

    Raises:
      BadInputError: any of the flags is not as it should be.
    """
    options, flags = understand(argv)
    scale = SCALES[options.scale]
    experiments = chosen(options.experiments, options.sizes.split(","))
    directory = Directory(
        options.workdir or Path("runs") / f"reproduce_{options.scale}", options.trial_workdir
    )
    trials = {
        run: [
            trial_of(run, seed, directory, options.data_dir, flags)
            for seed in range(options.seeds or scale.seeds)
        ]
        for run in runs_of(scale, experiments)
    }
    if options.dry_run:
        print_runs(trials, scale, directory, as_json=options.json)
        return 0
    check_data(trials, options)
    if options.report:
        measured, stopped = look_at(trials, directory), False
    else:
        command = handing_over(options.launch) if options.launch else Trial.command
        measured, stopped = carry_out(trials, directory, workers=options.workers, command=command)
    directory.make()
    report = [write(one, scale, measured, directory.path) for one in experiments]
    if options.json:
        print(json.dumps({"scale": options.scale, "experiments": report}))
    else:
        for one in experiments:
            print((directory.path / f"{one.name}.md").read_text())
        print(f"tables and figures  {directory.path}")
    return exit_code(measured, stopped=stopped)


def understand(argv: Sequence[str]) -> tuple[Any, list[str]]:
    """The options, and the `--config.FIELD=VALUE` for all runs."""
    made = parser()
    # What is no flag of ours belongs to the configs; experiments may stand before and after flags.
    own = [text for text in argv if not text.startswith("--config.")]
    flags = [text for text in argv if text.startswith("--config.")]
    options = made.parse_intermixed_args(own)
    if bad := next((flag for flag in flags if "=" not in flag), None):
        raise BadInputError(f"{bad}: write it as --config.FIELD=VALUE")
    check_launch_flags(options)
    return options, flags


def check_data(trials: Mapping[Run, Sequence[Trial]], options: Any) -> None:
    """Raises BadInputError where an image set is not there, before the first run starts."""
    if options.launch or options.report:
        return
    for name in dict.fromkeys(run.stage.data for run in trials if run.stage.data):
        path = epath.Path(options.data_dir) / name
        if not path.exists():
            raise BadInputError(
                f"there is no {path}; scripts/prepare_data.py makes it, --data_dir names another "
                "place"
            )


def write(
    experiment: Experiment, scale: Scale, measured: Mapping[Run, Measured], out: Path
) -> dict[str, Any]:
    """NAME.md, NAME.json and NAME.png in `out`; returns what the JSON file holds."""
    rows = rows_of(experiment, scale, measured)
    facts: dict[str, Any] = {"experiment": experiment.name, "scale": scale.about, "rows": rows}
    picture = epath.Path(out / f"{experiment.name}.png")
    if experiment.name in VECTORS:
        curves = figures.divergences(experiment, scale, measured, VECTORS[experiment.name])
        figures.draw_norms(experiment, curves, VECTORS[experiment.name], picture)
        facts["divergence"] = {name: y.tolist() for name, y in curves.items()}
        text = norms_markdown(experiment, scale, curves)
    else:
        if experiment.name in figures.AXES:
            figures.draw_against(experiment, scale, rows, picture)
        else:
            figures.draw_table(experiment, rows, picture)
        text = markdown(experiment, scale, rows)
    write_whole(out / f"{experiment.name}.md", text)
    write_whole(out / f"{experiment.name}.json", json.dumps(without_nan(facts), indent=1) + "\n")
    return without_nan(facts)


def exit_code(measured: Mapping[Run, Measured], *, stopped: bool) -> int:
    """143 where stopped, 3 where a run failed, else 0: a run that diverged is a result."""
    statuses = {outcome.status for of in measured.values() for outcome in of.outcomes}
    if stopped:
        return 143
    return 3 if FAILED in statuses else 0


def print_runs(
    trials: Mapping[Run, Sequence[Trial]], scale: Scale, directory: Directory, *, as_json: bool
) -> None:
    """What would run; where there is something to rent, with what the plan says of each."""
    rows = []
    for run, seeds in trials.items():
        row = {
            "config": seeds[0].config,
            "finetuned_from": seeds[0].settings.get("init_from"),
            "seeds": len(seeds),
            "commands": [shlex.join(t.command(directory.workdir(t))) for t in seeds],
        }
        if scale.topologies:
            topology = scale.topologies[1 if run.backbone else 0]
            found = plan_of(seeds[0].config, topology, seeds[0].flags)
            row |= {"topology": topology, "plan": found}
        rows.append(row)
        if not as_json:
            print(run_text(row), flush=True)
    if as_json:
        print(json.dumps({"runs": rows}))
        return
    count = sum(row["seeds"] for row in rows)
    total = total_text(rows) if scale.topologies else ""
    print(f"{count} runs of {len(rows)} models{total}")


def run_text(row: Mapping[str, Any]) -> str:
    seeds = f"{row['seeds']} x " if row["seeds"] > 1 else ""
    plan = f"\n   {row['topology']}, {plan_line(row['plan'])}" if "plan" in row else ""
    commands = "".join(f"\n   {command}" for command in row["commands"])
    return f"{seeds}{row['config']}{plan}{commands}"


def total_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """ ": 1,234 core-days", with how many are in none of it."""
    days = [core_days(row["plan"]) for row in rows]
    known = [row["seeds"] * d for row, d in zip(rows, days, strict=True) if d is not None]
    text = f": {sum(known):,.0f} core-days of TPUv3"
    return text + (f", {len(rows) - len(known)} models not counted" if None in days else "")


def core_days(plan: Plan | str) -> float | None:
    return None if isinstance(plan, str) else plan["core_days"]
