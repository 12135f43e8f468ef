"""Reproduces two papers' tables and figures: runs the models and shows both sets of numbers.

  python scripts/reproduce.py all --scale=smoke                       on a laptop: digits, a novel
  python scripts/reproduce.py table3 fig3 --scale=small --workers=2   CIFAR-10, small models
  python scripts/reproduce.py all --scale=paper --dry_run             every run, and what it costs
  python scripts/reproduce.py sigma_table4 --scale=smoke --workers=2  feed-forwards, on a novel

WideNet's have the names table1 to fig5, and together all; those of "Approximating Two-Layer
Feedforward Networks" (sigma-MoE) begin with sigma_, and together are sigma. At --scale=small these
read the text --data_dir/bytes, a file or a set that scripts/prepare_data.py stream wrote.

Run the same command again to resume. Finished runs are shared by all tables. --config.FIELD=VALUE
sets a field of every run. Exit codes: 0 no run failed (a run that diverged is a result); 2 your
input; 3 a run failed (the others ran); 143 stopped, running ones saved (launched ones go on).
"""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from widenet_jax.cli.sweep import add_launch_flags, check_launch_flags, handing_over
from widenet_jax.config.parser import Argv, Options, Parser, positive, show
from widenet_jax.errors import BadInputError
from widenet_jax.files import write_json
from widenet_jax.ops.launch.plan_line import Plan, plan_line, plan_of
from widenet_jax.ops.sweep.check import check_finished, check_shared
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.trials import MakeCommand, Trial, exit_code
from widenet_jax.papers.experiment import PaperExperiment
from widenet_jax.papers.experiments import EXPERIMENTS, GROUPS, PAPER_SIZES, chosen
from widenet_jax.papers.runs import (
    Trials,
    carry_out,
    look_at,
    seeds_of,
    with_known_flags,
)
from widenet_jax.papers.scales import (
    SCALES,
    Run,
    Scale,
    runnable,
    runs_of,
    trial_of,
)

RECORD = "reproduce.json"  # in a workdir, with the SHARED flags of its runs and the last --launch
SHARED = {"scale": "smoke", "data_dir": "data", "trial_workdir": ""}  # and what they are by default
ALL_SIZES = ",".join(PAPER_SIZES)


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    parser = Parser(__doc__)
    parser.set_defaults(words=words)
    add = parser.add_argument
    add("experiments", nargs="+", metavar="NAME", help=f"{', '.join([*EXPERIMENTS, *GROUPS])}")
    about = "; ".join(f"{name}: {scale.about}" for name, scale in SCALES.items())
    add("--scale", choices=list(SCALES), help=f"{about} (default: that of --workdir, or smoke)")
    add("--workdir", metavar="DIR", help="of runs and results; default: runs/reproduce_SCALE")
    text = (
        "where the sets are, each in a directory of its name (default: that of --workdir's runs, "
    )
    add("--data_dir", metavar="DIR", help=text + "or data)")
    counts = ", ".join(f"{scale.seeds} at {name}" for name, scale in SCALES.items())
    add("--seeds", type=positive, metavar="N", help=f"runs of each model (default: {counts})")
    add("--sizes", default=ALL_SIZES, help="run only rows of these sizes: b, or b,l")
    add("--workers", type=positive, default=1, metavar="N", help="runs at a time")
    add("--retry", action="store_true", help="run again what diverged, from its last checkpoint")
    add_launch_flags(parser)
    add("--dry_run", action="store_true", help="list the runs; at --scale=paper with core-days")
    add("--report", action="store_true", help="run nothing: tables and figures of finished runs")
    add("--json", action="store_true", help="print one JSON object")
    return parser.run(run, words)


def run(options: Options) -> int:
    """Runs the models, writes tables and figures, and returns the exit code.

    Raises:
      BadInputError: flags, names, fields, data or a workdir that cannot be.
    """
    check_launch_flags(options)
    recall(options)
    if options.launch and "://" not in options.data_dir and options.scale != "smoke":
        raise BadInputError(
            f"--data_dir={options.data_dir} is on this machine; with --launch name one that the "
            "TPU's hosts can read, as --data_dir=gs://BUCKET/data"
        )
    scale = SCALES[options.scale]
    experiments = runnable(scale, chosen(options.experiments, PAPER_SIZES))
    of_sizes = runnable(scale, chosen(options.experiments, options.sizes.split(",")))
    wanted = runs_of(scale, of_sizes)
    directory = Directory(options.workdir, options.trial_workdir)
    known = directory.known() if options.report else {}
    seeds = range(options.seeds or seeds_of(of_sizes, scale, known) or scale.seeds)
    trials = {
        one: [trial_of(one, seed, directory, options.data_dir, options.fields) for seed in seeds]
        for one in runs_of(scale, experiments)
    }
    command = launching(options.launch, scale) if options.launch else Trial.command
    asked = {one: trials[one] for one in wanted}
    if options.dry_run:
        print_runs(asked, scale, directory, command, as_json=options.json)
        return 0
    record, differing = check_same(directory, options), []
    if options.report and not options.fields:
        trials, options.fields, differing = with_known_flags(trials, known)
    every = [trial for of in trials.values() for trial in of]
    directory.check_flags(every)
    check_finished(every, directory)
    measured, stopped = look_at(trials, directory), False
    if not options.report:
        check_data(wanted, options)
        check_runs(asked, directory, options)
        directory.make()
        write_json(directory.path / RECORD, record | {"launch": options.launch})
        new, stopped = carry_out(
            asked, directory, workers=options.workers, command=command, retry=options.retry
        )
        measured |= new
        time_layers(experiments, scale, directory, stopped=stopped)
    from widenet_jax.papers.results import provenance, write_all  # imports JAX

    words = words_of_runs(options, len(seeds)) if options.report else options.words
    made_by = provenance(measured, ["scripts/reproduce.py", *words], differing)
    header, texts, facts = write_all(experiments, scale, wanted, measured, made_by, directory.path)
    text = "\n".join([header, "", *texts, f"tables and figures  {directory.path}"])
    show(options, {"scale": options.scale, "ran": header, "experiments": facts}, text)
    outcomes = [outcome for of in measured.values() for outcome in of.outcomes]
    return exit_code(outcomes, stopped=stopped)


def recall(options: Options) -> None:
    """Fills in the flags that were not given: of the runs in the workdir, or the defaults.

    Launched runs are found by a report alone. To continue them, repeat --launch.
    """
    options.workdir = options.workdir or default_workdir(options.scale or SHARED["scale"])
    before = record_in(options.workdir)
    if options.report and not options.launch:
        options.launch, options.trial_workdir = (
            before.get("launch"),
            before.get("trial_workdir", ""),
        )
    for name, default in SHARED.items():
        if getattr(options, name) is None:
            setattr(options, name, before.get(name, default))


def record_in(workdir: str) -> dict[str, Any]:
    """Reads RECORD; {} where there is none."""
    file = Path(workdir) / RECORD
    return json.loads(file.read_text()) if file.exists() else {}


def words_of_runs(options: Options, seeds: int) -> list[str]:
    """Returns the arguments that make the runs of a report."""
    flags = [f"--scale={options.scale}", f"--data_dir={options.data_dir}", f"--seeds={seeds}"]
    flags += [f"--sizes={options.sizes}"] if options.sizes != ALL_SIZES else []
    elsewhere = options.workdir != default_workdir(options.scale)
    flags += [f"--workdir={options.workdir}"] if elsewhere else []
    if options.launch:
        flags += [f"--launch={options.launch}", f"--trial_workdir={options.trial_workdir}"]
    return [*options.experiments, *flags, *options.fields]


def default_workdir(scale: str) -> str:
    """Returns where runs of a scale and their results go without --workdir."""
    return f"runs/reproduce_{scale}"


def time_layers(
    experiments: Sequence[PaperExperiment], scale: Scale, directory: Directory, *, stopped: bool
) -> None:
    """Times the single layers that figures compare, unless the runs were stopped."""
    for one in experiments:
        if one.layer and not stopped:
            from widenet_jax.papers.layers import measure  # imports JAX

            measure(one, scale, directory.path)


def launching(flags: str, scale: Scale) -> MakeCommand:
    """Returns the function that makes the command by which the launcher runs a trial.

    The slice is the scale's, unless `flags` name one.
    """
    if not scale.topologies or "--tpu" in flags:
        return handing_over(flags)

    def command(trial: Trial, workdir: str) -> list[str]:
        slice_ = scale.topology_of(trial.config, finetuned="init_from" in trial.settings)
        return handing_over(f"{flags} --tpu={slice_}")(trial, workdir)

    return command


def check_same(directory: Directory, options: Options) -> dict[str, str]:
    """Returns the flags that all runs of a workdir share, as RECORD holds them.

    Raises:
      BadInputError: the workdir has runs of another scale or other data, or --report finds no
        workdir.
    """
    record = {name: getattr(options, name) for name in SHARED}
    for name, before in record_in(options.workdir).items():
        if name in record and before != record[name] and directory.any_begun():
            given = f"--{name}={before}" if before else f"no --{name}"
            raise BadInputError(
                f"--workdir={directory.path} holds runs with {given}; name a new "
                "--workdir, or repeat that"
            )
    if options.report and not directory.path.is_dir():
        raise BadInputError(f"--workdir={directory.path}: there is nothing to report")
    return record


def check_runs(trials: Trials, directory: Directory, options: Options) -> None:
    """Raises BadInputError with the mistake that all runs have that are left.

    Those that need a backbone, or are launched on another machine, are not looked at.
    """
    left = [
        trial
        for run, of in trials.items()
        for trial in of
        if not run.backbone and not directory.result(trial)
    ]
    if not options.launch:
        check_shared(left)


def check_data(runs: Iterable[Run], options: Options) -> None:
    """Raises BadInputError where a data set is missing, before the first run starts."""
    named = ("--config.data.path=", "--config.data.source=")
    if "://" in options.data_dir or any(one.startswith(named) for one in options.fields):
        # The run itself checks them.
        return
    for name in dict.fromkeys(run.stage.data for run in runs if run.stage.data):
        path = Path(options.data_dir) / name
        if not path.exists():
            raise BadInputError(
                f"there is no {path}; scripts/prepare_data.py makes it, --data_dir says where"
            )


def print_runs(
    trials: Trials, scale: Scale, directory: Directory, command: MakeCommand, *, as_json: bool
) -> None:
    """Prints the runs that would start; at a scale for TPUs with the plan of each."""
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
            topology = scale.topology_of(row["config"], finetuned=run.backbone is not None)
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
    """Returns a model, its plan and its commands as lines for people."""
    seeds = f"{row['seeds']} x " if row["seeds"] > 1 else ""
    finetuned = " (finetuned)" if row["finetuned"] else ""
    plan = f"\n   {row['topology']}, {plan_line(row['plan'])}" if "plan" in row else ""
    commands = "".join(f"\n   {command}" for command in row["commands"])
    return f"{seeds}{row['config']}{finetuned}{plan}{commands}"


def total_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns ": 1,234 core-days", and how many models the sum leaves out."""
    days = [(row["seeds"], core_days(row["plan"])) for row in rows]
    known = [seeds * each for seeds, each in days if each is not None]
    if not known:
        return ": core-days unknown"
    unknown = len(days) - len(known)
    missing = f", without {unknown} of the models" if unknown else ""
    total = sum(known)
    return f": {total:,.{0 if total >= 10 else 1}f} core-days of TPUv3{missing}"


def core_days(plan: Plan | str) -> float | None:
    """Returns None where there is no plan, or the run does not fit."""
    return None if isinstance(plan, str) or not plan["fits"] else plan["core_days"]
