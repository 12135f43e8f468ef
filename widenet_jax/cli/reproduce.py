"""Reproduces two papers' tables and figures: runs the models and shows both sets of numbers.

  python scripts/reproduce.py all --scale=smoke                       on a laptop: digits, a novel
  python scripts/reproduce.py table3 fig3 --scale=small --workers=2   CIFAR-10, small models
  python scripts/reproduce.py all --scale=paper --dry_run             every run, and what it costs
  python scripts/reproduce.py sigma_table4 --scale=smoke --workers=2  feed-forwards, on a novel

WideNet's have the names table1 to fig5, and together all; the names of "Approximating Two-Layer
Feedforward Networks" (sigma-MoE) begin with sigma_, and together are sigma. At --scale=small these
read the text --data_dir/bytes, a file or a set that scripts/prepare_data.py stream wrote. claims,
at --scale=small, decides seven claims of WideNet, and is not part of all.

Run the same command again to resume. Finished runs are shared by all tables. --config.FIELD=VALUE
sets a field of every run. Exit codes: 0 no run failed (a run that diverged is a result); 2 your
input; 3 a run failed (the others ran); 143 stopped, running ones saved (launched ones go on).
"""

import json
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from widenet_jax.cli.plan import plan_line, plan_of
from widenet_jax.cli.sweep import add_launch_flags, apart, handing_over
from widenet_jax.config.parser import Argv, Options, Parser, positive, show
from widenet_jax.errors import BadInputError, raise_first, refuse
from widenet_jax.files import read_object, without_nan, write_json
from widenet_jax.ops.sweep.directory import Directory, check_finished
from widenet_jax.ops.sweep.trials import MakeCommand, Status, Trial, check_shared, exit_code
from widenet_jax.papers import kept
from widenet_jax.papers.experiments import EXPERIMENTS, GROUPS, PAPER_SIZES, chosen
from widenet_jax.papers.runs import Trials, carry_out, look_at
from widenet_jax.papers.scales import SCALES, Scale, runnable, runs_of, trial_of
from widenet_jax.run.tables import text_table

RECORD = "reproduce.json"  # in a workdir, the flags of its runs: SHARED and the last call's others
SHARED = {"scale": "smoke", "data_dir": "data", "trial_workdir": ""}  # with their defaults
DATA_FIELDS = ("--config.data.path=", "--config.data.source=")
ALL_SIZES = ",".join(PAPER_SIZES)


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__)
    add = parser.add_argument
    names = [*EXPERIMENTS, *GROUPS]
    add("experiments", nargs="*", metavar="NAME", help=", ".join(names))
    add("--list", action="store_true", help="only print the experiments and the scales")
    about = "; ".join(f"{name}: {scale.about['images']}" for name, scale in SCALES.items())
    add("--scale", choices=list(SCALES), help=f"{about} (default: --workdir's, or smoke)")
    add("--workdir", metavar="DIR", help="of runs and results; default: runs/reproduce_SCALE")
    add("--data_dir", metavar="DIR", help="has DIR/SET for each (default: --workdir's, or data)")
    counts = ", ".join(f"{scale.seeds} at {name}" for name, scale in SCALES.items())
    add("--seeds", type=positive, metavar="N", help=f"runs of each model (default: {counts})")
    add("--sizes", default=ALL_SIZES, help="run only rows of these sizes: b, or b,l")
    add("--workers", type=positive, default=1, metavar="N", help="runs at a time")
    what = "JSON lines of finished runs: they are not run again, and new ones are added"
    add("--results", metavar="FILE", help=what)
    add_launch_flags(parser)
    add("--dry_run", action="store_true", help="list the runs; at --scale=paper with core-days")
    add("--report", action="store_true", help="run nothing: tables and figures of finished runs")
    add("--json", action="store_true", help="print one JSON object")
    return parser.run(run, argv)


def run(options: Options) -> int:
    """Runs the models, writes tables and figures, and returns the exit code.

    Raises:
      BadInputError: flags, names, fields, data or a workdir that cannot be.
    """
    if options.list:
        show_names(options)
        return 0
    lacking = "name an experiment, as table1, or all; --list prints their names"
    rows = ((not options.experiments, lacking), apart(options))
    raise_first(problem for wrong, problem in rows if wrong)
    options.workdir = options.workdir or f"runs/reproduce_{options.scale or SHARED['scale']}"
    file = Path(options.workdir) / RECORD
    before = read_object(file) if file.exists() else {}
    recall(options, before)
    scale = SCALES[options.scale]
    experiments = runnable(scale, chosen(options.experiments))
    options.seeds = options.seeds or max(one.seeds for one in experiments) or scale.seeds
    wanted = runs_of(scale, runnable(scale, chosen(options.experiments, options.sizes.split(","))))
    directory = Directory(options.workdir, options.trial_workdir, dry=options.dry_run)
    models = [one.name for one in experiments if one.statistic or one.finetuned or one.text]
    told = f"keeps results and no models, which {', '.join(models)} read; leave one of them out"
    refuse(f"--results={options.results}", (options.results and models, told))
    seeds, how = range(options.seeds), (directory, options.data_dir, options.fields)
    runs = runs_of(scale, experiments)
    trials = {one: [trial_of(one, seed, *how) for seed in seeds] for one in runs}
    asked = {one: trials[one] for one in wanted}
    command = launching(options.launch, scale) if options.launch else Trial.command
    every = [trial for of in trials.values() for trial in of]
    lines = kept.read(options.results, every) if options.results else []
    if options.dry_run:
        known = {line["trial"] for line in lines}
        print_runs(asked, scale, directory, command, known, as_json=options.json)
        return 0
    kept.restore(lines, every, directory)
    lacks_runs = options.report and not (lines or directory.path.is_dir())
    refuse(f"--workdir={directory.path}", (lacks_runs, "there is nothing to report"))
    check_finished(every, directory)
    measured, stopped = look_at(trials, directory), False
    if not options.report:
        begin(asked, directory, options)
        new, stopped = carry_out(asked, directory, workers=options.workers, command=command)
        measured |= new
    from widenet_jax.papers import figures, report  # import JAX

    for one in experiments:
        if one.layer and not (options.report or stopped):
            figures.time_layers(one, scale, directory.path)
    header, texts, contents = report.write_all(
        experiments, scale, wanted, measured, words_of(options), directory.path
    )
    if options.results:  # after the tables, as others may have damaged the file meanwhile
        kept.add(options.results, every, directory)
    text = "\n".join([header, "", *texts, f"tables and figures  {directory.path}"])
    show(options, {"scale": options.scale, "ran": header, "experiments": contents}, text)
    outcomes = [outcome for of in measured.values() for outcome in of.outcomes]
    return exit_code(outcomes, stopped=stopped, failures=[Status.FAILED])


def begin(asked: Trials, directory: Directory, options: Options) -> None:
    """Makes the directory of runs whose data and fields are right, and notes the flags there."""
    own_data = any(one.startswith(DATA_FIELDS) for one in options.fields)
    if "://" not in options.data_dir and not own_data:  # else the run itself checks them
        paths = (Path(options.data_dir) / run.stage.data for run in asked if run.stage.data)
        told = "scripts/prepare_data.py makes it, --data_dir says where"
        raise_first(f"there is no {path}; {told}" for path in paths if not path.exists())
    first = [trial for one, of in asked.items() if not one.backbone for trial in of]
    if not options.launch:  # launched runs read their data on another machine
        check_shared([trial for trial in first if not directory.result(trial)])
    directory.make()
    names = ("launch", "seeds", "fields", *SHARED)
    write_json(directory.path / RECORD, {name: getattr(options, name) for name in names})


def show_names(options: Options) -> None:
    """Prints the experiments, the names for several of them, and the scales."""
    titles = {name: one.title for name, one in EXPERIMENTS.items()}
    groups = {name: " ".join(of) for name, of in GROUPS.items()}
    scales = {name: "; ".join(scale.about.values()) for name, scale in SCALES.items()}
    flags = {f"--scale={name}": about for name, about in scales.items()}
    found = {"experiments": titles, "groups": GROUPS, "scales": scales}
    show(options, found, text_table([*titles.items(), *groups.items(), *flags.items()]))


def recall(options: Options, before: Mapping[str, Any]) -> None:
    """Fills in missing flags from the runs in the workdir, or with the defaults.

    A report needs none of the flags of its runs. To continue launched runs, repeat --launch.

    Raises:
      BadInputError: the runs in the workdir are of another scale or other data, or launched runs
        cannot read their data.
    """
    kinds = {**dict.fromkeys(SHARED, str), "seeds": int, "fields": list}
    stored = {name: before.get(name, SHARED.get(name, kind())) for name, kind in kinds.items()}
    raise_first(
        f"{options.workdir}/{RECORD}: {name}={value!r} is damaged; restore it, or name a new "
        "--workdir"
        for name, value in stored.items()
        if not isinstance(value, kinds[name]) or (name == "scale" and value not in SCALES)
    )
    if options.report and before and not options.launch:
        options.launch, options.trial_workdir = before.get("launch"), before.get("trial_workdir")
    for name in SHARED:
        if getattr(options, name) is None:
            setattr(options, name, stored[name])
    raise_first(
        f"--workdir={options.workdir} holds runs with --{name}={stored[name]}; name a new "
        "--workdir, or repeat that"
        for name in SHARED
        if before and getattr(options, name) != stored[name]
    )
    if options.report:
        options.fields = options.fields or stored["fields"]
        options.seeds = options.seeds or stored["seeds"]
    if options.launch and "://" not in options.data_dir and options.scale != "smoke":
        raise BadInputError(
            f"--data_dir={options.data_dir} is on this machine; with --launch name one that the "
            "TPU's hosts can read, as --data_dir=gs://BUCKET/data"
        )


def words_of(options: Options) -> list[str]:
    """Returns the command that makes these runs."""
    names = ["scale", "data_dir", "seeds", "sizes", "results", "workdir", "launch", "trial_workdir"]
    usual = {"sizes": ALL_SIZES, "workdir": f"runs/reproduce_{options.scale}"}
    values = {name: getattr(options, name) for name in names}
    flags = [f"--{name}={x}" for name, x in values.items() if x and x != usual.get(name)]
    return ["scripts/reproduce.py", *options.experiments, *flags, *options.fields]


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


def print_runs(
    trials: Trials,
    scale: Scale,
    directory: Directory,
    command: MakeCommand,
    known: Collection[str],
    *,
    as_json: bool,
) -> None:
    """Prints the runs and which are done or `known`; at a scale for TPUs with the plan of each."""
    rows = []
    for number, (run, seeds) in enumerate(trials.items(), 1):
        config, finetuned = seeds[0].config, run.backbone is not None
        commands = [shlex.join(command(trial, directory.workdir(trial))) for trial in seeds]
        found = [trial.name in known or directory.is_done(trial) for trial in seeds]
        done = None if None in found else sum(found)
        row = {"config": config, "finetuned": finetuned, "seeds": len(seeds), "done": done}
        lines = [f"{len(seeds)} x {config}{' (finetuned)' if finetuned else ''}"]
        if scale.topologies:
            topology = scale.topology_of(config, finetuned=finetuned)
            print(f"planning {number} of {len(trials)}: {config}", file=sys.stderr, flush=True)
            plan = plan_of(config, topology, seeds[0].flags)
            row |= {"topology": topology, "plan": plan}
            lines.append(f"{topology}, {plan_line(plan)}")
        rows.append(row | {"commands": commands})
        text = "\n   ".join([*lines, *commands])
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps(without_nan({"runs": rows})))
        return
    count, done = sum(row["seeds"] for row in rows), sum(row["done"] or 0 for row in rows)
    total = total_text(rows) if scale.topologies else ""
    print(f"{count} runs of {len(rows)} models, {directory.done_text(done)}{total}")


def total_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns ": 1,234 core-days", and of how many models: the others have no plan that fits."""
    fitting = [row for row in rows if not isinstance(row["plan"], str) and row["plan"]["fits"]]
    total = sum(row["seeds"] * row["plan"]["core_days"] for row in fitting)
    return f": {total:,.1f} core-days of TPUv3 for {len(fitting)} of the models"
