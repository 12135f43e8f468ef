"""The command line of scripts/reproduce.py."""

import json
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etils import epath

from widenet_jax.cli.parser import Parser, positive
from widenet_jax.errors import BadInputError
from widenet_jax.run.metrics import without_nan
from widenet_jax.tools.launch.plan_line import Plan, plan_line, plan_of
from widenet_jax.tools.reproduce import figures
from widenet_jax.tools.reproduce.experiments import EXPERIMENTS, Experiment, chosen
from widenet_jax.tools.reproduce.runs import Measured, carry_out, look_at
from widenet_jax.tools.reproduce.scales import SCALES, Run, Scale, run_of, runs_of, trial_of
from widenet_jax.tools.reproduce.tables import markdown, norms_markdown, rows_of
from widenet_jax.tools.sweep.command import add_launch_flags, check_launch_flags, handing_over
from widenet_jax.tools.sweep.directory import Directory, write_whole
from widenet_jax.tools.sweep.runner import FAILED
from widenet_jax.tools.sweep.trials import Trial

USAGE = """The paper's tables and figures: the runs, then the paper's numbers and ours side by side.

  python scripts/reproduce.py all --scale=smoke                       minutes on a laptop, on digits
  python scripts/reproduce.py table3 fig3 --scale=small --workers=2   CIFAR-10, small models
  python scripts/reproduce.py all --scale=paper --dry_run             every run, and what it costs

The same command again goes on where it was stopped, and finished runs are shared by all tables.
--config.FIELD=VALUE sets a field of every run. Exit codes: 0 nothing failed (a run that diverged is
a result); 2 your input; 3 a run failed (the others ran); 143 stopped, running ones saved.
"""
SIZES = ("b", "l", "h")
RECORD = "reproduce.json"  # what the runs of a workdir have in common


def parser() -> Parser:
    made = Parser(USAGE)
    add = made.add_argument
    add("experiments", nargs="+", help=f"{', '.join(EXPERIMENTS)}, or all")
    about = "; ".join(f"{name}: {scale.about}" for name, scale in SCALES.items())
    add("--scale", choices=list(SCALES), default="smoke", help=about)
    add("--workdir", help="of all runs and results; runs/reproduce_SCALE by default")
    text = "where the image sets are: imagenet, cifar10 and tiny_imagenet in it (default: data)"
    add("--data_dir", default="data", help=text)
    counts = ", ".join(f"{scale.seeds} at {name}" for name, scale in SCALES.items())
    add("--seeds", type=positive, help=f"runs of each model (default: {counts})")
    add("--sizes", default=",".join(SIZES), help="of the paper's rows, run only these: b, or b,l")
    add("--workers", type=positive, default=1, help="runs at a time")
    text = "run again what diverged, from its last checkpoint; with --launch: hand over again what "
    text += "was handed over and has no result, as after a launch that failed"
    add("--retry", action="store_true", help=text)
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
    experiments = chosen(options.experiments, SIZES)
    directory = Directory(
        options.workdir or f"runs/reproduce_{options.scale}", options.trial_workdir
    )
    trials = {
        run: [
            trial_of(run, seed, directory, options.data_dir, flags)
            for seed in range(options.seeds or scale.seeds)
        ]
        for run in runs_of(scale, experiments)
    }
    wanted = runs_of(scale, chosen(options.experiments, options.sizes.split(",")))
    command = launching(options.launch, scale) if options.launch else Trial.command
    if options.dry_run:
        chosen_trials = {run: trials[run] for run in wanted}
        print_runs(chosen_trials, scale, directory, command, as_json=options.json)
        return 0
    check_same(directory, options)
    directory.check_flags(trial for of in trials.values() for trial in of)
    measured, stopped = look_at(trials, directory), False
    if not options.report:
        check_data(wanted, options, flags)
        claim(directory, options)
        ran, stopped = carry_out(
            {run: trials[run] for run in wanted}, directory,
            workers=options.workers, command=command, retry=options.retry,
        )  # fmt: skip
        measured |= ran
    made_by = provenance(measured, argv)
    # Rows that were not asked for are shown where an earlier call ran them.
    known = [run for run, of in measured.items() if run in wanted or of.accuracies]
    facts = []
    for experiment in experiments:
        rows = [row for row in experiment.rows if run_of(scale, experiment, row) in known]
        if rows:
            shown = replace(experiment, rows=tuple(rows))
            facts.append(write(shown, scale, measured, made_by, directory.path))
    if options.json:
        print(json.dumps({"scale": options.scale, "experiments": facts}))
    else:
        for one in facts:
            print((directory.path / f"{one['experiment']}.md").read_text())
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
    if options.launch and "://" not in options.data_dir and options.scale != "smoke":
        raise BadInputError(
            f"--data_dir={options.data_dir} is on this machine; with --launch name one that the "
            "TPU's hosts can read, as --data_dir=gs://BUCKET/data"
        )
    return options, flags


def launching(flags: str, scale: Scale) -> Callable[[Trial, str], list[str]]:
    """What gives a trial to the launcher, on the scale's slice unless the flags name one."""
    hand_over = [handing_over(flags)] * 2
    if scale.topologies and "--tpu" not in flags:
        hand_over = [handing_over(f"{flags} --tpu={slice_}") for slice_ in scale.topologies]

    def command(trial: Trial, workdir: str) -> list[str]:
        return hand_over["init_from" in trial.settings](trial, workdir)

    return command


def record_of(options: Any) -> dict[str, str]:
    return {"scale": options.scale, "data_dir": options.data_dir}


def check_same(directory: Directory, options: Any) -> None:
    """Raises BadInputError where the workdir's runs are of another scale or of other images, or
    where there is none to report on.
    """
    file = directory.path / RECORD
    before = json.loads(file.read_text()) if file.exists() else record_of(options)
    for name, value in record_of(options).items():
        if before[name] != value:
            raise BadInputError(
                f"--workdir={directory.path} holds runs with --{name}={before[name]}; name a new "
                "--workdir, or repeat that"
            )
    if options.report and not directory.path.is_dir():
        raise BadInputError(f"--workdir={directory.path}: there is nothing to report")


def claim(directory: Directory, options: Any) -> None:
    """Notes what the workdir's runs have in common."""
    directory.make()
    write_whole(directory.path / RECORD, json.dumps(record_of(options)) + "\n")


def check_data(runs: Iterable[Run], options: Any, flags: Sequence[str]) -> None:
    """Raises BadInputError where an image set is not there, before the first run starts."""
    named = any(flag.startswith(("--config.data.path=", "--config.data.source=")) for flag in flags)
    if named or "://" in options.data_dir:  # the run itself looks
        return
    for name in dict.fromkeys(run.stage.data for run in runs if run.stage.data):
        path = Path(options.data_dir) / name
        if not path.exists():
            raise BadInputError(
                f"there is no {path}; scripts/prepare_data.py makes it, --data_dir names another "
                "place"
            )


def provenance(measured: Mapping[Run, Measured], argv: Sequence[str]) -> dict[str, Any]:
    """The command, and the commits and devices that the finished runs noted."""
    commits, devices = set(), set()
    for workdir in (workdir for of in measured.values() for workdir in of.workdirs):
        file = epath.Path(workdir) / "environment.json"
        for start in json.loads(file.read_text()) if file.exists() else []:
            commits.add((start.get("git") or {}).get("commit", "unknown")[:7])
            devices.add(f"{len(start['devices'])} x {start['devices'][0]}")
    return {
        "command": shlex.join(["scripts/reproduce.py", *argv]),
        "commits": sorted(commits),
        "devices": sorted(devices),
    }


def write(
    experiment: Experiment,
    scale: Scale,
    measured: Mapping[Run, Measured],
    made_by: Mapping[str, Any],
    out: Path,
) -> dict[str, Any]:
    """NAME.md, NAME.json and NAME.png in `out`; returns what the JSON file holds.

    In JSON the paper's NaN is the text "NaN"; an accuracy of null is a seed that diverged.
    """
    rows = rows_of(experiment, scale, measured)
    facts: dict[str, Any] = {
        "experiment": experiment.name,
        "about": scale.about,
        "made_by": dict(made_by),
        "rows": [row | {"paper": paper_json(row["paper"])} for row in rows],
    }
    picture = epath.Path(out / f"{experiment.name}.png")
    if experiment.norms:
        curves = figures.divergences(experiment, scale, measured)
        figures.draw_norms(experiment, curves, picture)
        facts["divergence"] = {name: y.tolist() for name, y in curves.items()}
        text = norms_markdown(experiment, scale, curves)
    else:
        if experiment.name in figures.AXES:
            figures.draw_against(experiment, scale, rows, picture)
        else:
            figures.draw_table(experiment, rows, picture)
        text = markdown(experiment, scale, rows)
    text += f"\nMade by {made_by_text(made_by)}.\n"
    write_whole(out / f"{experiment.name}.md", text)
    write_whole(out / f"{experiment.name}.json", json.dumps(without_nan(facts), indent=1) + "\n")
    return without_nan(facts)


def paper_json(value: float | str | None) -> float | str | None:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def made_by_text(made_by: Mapping[str, Any]) -> str:
    parts = [f"`{made_by['command']}`"]
    parts += [f"on {', '.join(made_by['devices'])}"] if made_by["devices"] else []
    parts += [f"at commit {', '.join(made_by['commits'])}"] if made_by["commits"] else []
    return ", ".join(parts)


def exit_code(measured: Mapping[Run, Measured], *, stopped: bool) -> int:
    """143 where stopped, 3 where a run failed, else 0: a run that diverged is a result."""
    if stopped:
        return 143
    return 3 if any(FAILED in of.statuses for of in measured.values()) else 0


def print_runs(
    trials: Mapping[Run, Sequence[Trial]],
    scale: Scale,
    directory: Directory,
    command: Callable[[Trial, str], list[str]],
    *,
    as_json: bool,
) -> None:
    """What would run; where there is something to rent, with what the plan says of each."""
    rows = []
    for run, seeds in trials.items():
        row = {
            "config": seeds[0].config,
            "finetuned": run.backbone is not None,
            "seeds": len(seeds),
            "done": sum(directory.result(trial) is not None for trial in seeds),
            "commands": [shlex.join(command(t, directory.workdir(t))) for t in seeds],
        }
        if scale.topologies:
            topology = scale.topologies[1 if run.backbone else 0]
            row |= {"topology": topology, "plan": plan_of(row["config"], topology, seeds[0].flags)}
        rows.append(row)
        print(run_text(row), file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps({"runs": rows}))
        return
    count, done = sum(row["seeds"] for row in rows), sum(row["done"] for row in rows)
    total = total_text(rows) if scale.topologies else ""
    print(f"{count} runs of {len(rows)} models, {done} of them done{total}")


def run_text(row: Mapping[str, Any]) -> str:
    seeds = f"{row['seeds']} x " if row["seeds"] > 1 else ""
    finetuned = " (finetuned)" if row["finetuned"] else ""
    plan = f"\n   {row['topology']}, {plan_line(row['plan'])}" if "plan" in row else ""
    commands = "".join(f"\n   {command}" for command in row["commands"])
    return f"{seeds}{row['config']}{finetuned}{plan}{commands}"


def total_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """ ": 1,234 core-days", and how many models are not in it."""
    days = [(row["seeds"], core_days(row["plan"])) for row in rows]
    known = [seeds * each for seeds, each in days if each is not None]
    if not known:
        return ": core-days unknown"
    unknown = len(days) - len(known)
    missing = f", without {unknown} of the models" if unknown else ""
    return f": {sum(known):,.0f} core-days of TPUv3{missing}"


def core_days(plan: Plan | str) -> float | None:
    """None where there is no plan, or no run because it does not fit."""
    return None if isinstance(plan, str) or not plan["fits"] else plan["core_days"]
