"""Runs a config many times, with other settings each time. Run it again to resume.

  python scripts/sweep.py --config=configs/digits.py --workdir=runs/sweep --workers=2 \\
      --sweep optimizer.learning_rate=1e-3,3e-3 --sweep seed=0,1,2
  python scripts/sweep.py --config=configs/digits.py --workdir=runs/search --search=tpe \\
      --trials=20 --prune --space model.moe.mlp_dim=64,128 \\
      --space optimizer.learning_rate=log:1e-4:1e-2

--config.FIELD=VALUE sets a field for all trials. In --sweep, 'variant' is the config's argument,
and semicolons part values that have commas; without --sweep and --zip, the config's get_sweep lists
the trials. --launch='--tpu=v3-8 --zone=europe-west4-a' hands each trial to the launcher; to hand
one over again, delete logs/TRIAL.handed_over in the sweep's directory. Exit codes: 0 all done; 2
your input; 3 a trial failed (the others ran); 143 stopped, running trials saved (launched ones go
on).
"""

import hashlib
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from widenet_jax.config.parser import Argv, Options, Parser, add_import_flag, positive, show
from widenet_jax.errors import BadInputError, raise_first
from widenet_jax.ops.launch.requests import LAUNCHER, split_words
from widenet_jax.ops.sweep import axes
from widenet_jax.ops.sweep.directory import Directory, check_finished
from widenet_jax.ops.sweep.runner import Listed, Runner
from widenet_jax.ops.sweep.search import Search, ends_of, parse_space
from widenet_jax.ops.sweep.trials import (
    MakeCommand,
    Trial,
    check_comparable,
    check_shared,
    exit_code,
    expand,
    make,
    settings_of_config,
)


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__)
    add_import_flag(parser)
    add = parser.add_argument
    add("--config", required=True, metavar="FILE[:VARIANT]")
    add("--workdir", metavar="DIR", help="the sweep's directory; runs/sweep_CONFIG by default")
    axis = {"action": "append", "default": [], "metavar": "FIELD=VALUE,..."}
    add("--sweep", **axis, help="every value with every value of the other --sweep")
    add("--zip", **axis, help="first with first, second with second of the other --zip")
    add("--workers", type=positive, default=1, metavar="N", help="trials at a time")
    add("--index", type=int, metavar="I", help="run only trial number I of the list, from 0")
    add("--search", choices=["random", "tpe"], help="search a space instead of a grid, by Optuna")
    add("--space", **axis, help="what a field may be: log:LOW:HIGH, float:..., int:..., or values")
    add("--trials", type=positive, metavar="N", help="trials of a search, in all")
    add("--prune", action="store_true", help="end hopeless trials of a search early (Hyperband)")
    add_launch_flags(parser)
    add("--dry_run", action="store_true", help="print what would run")
    add("--json", action="store_true", help="print one JSON object")
    return parser.run(run, argv)


def add_launch_flags(parser: Parser) -> None:
    """Adds the flags that hand runs to the launcher."""
    add, place = parser.add_argument, "with --launch: gs://... for the runs' workdirs"
    add("--launch", metavar="FLAGS", help="of scripts/launch_tpu.py, which gets each run once")
    add("--trial_workdir", default="", metavar="DIR", help=place)


def apart(options: Options) -> tuple[bool, str]:
    """Returns whether one of the two launch flags lacks the other, and what to say then."""
    alone = bool(options.launch) != bool(options.trial_workdir)
    return alone, "--launch and --trial_workdir=gs://BUCKET/DIR go together"


def run(options: Options) -> int:
    """Runs the trials and returns the exit code.

    Raises:
      BadInputError: flags, fields or settings that cannot be.
    """
    raise_first(contradictions(options))
    workdir = options.workdir or f"runs/sweep_{Path(options.config.partition(':')[0]).stem}"
    directory = Directory(workdir, options.trial_workdir, dry=options.dry_run)
    command = handing_over(options.launch) if options.launch else Trial.command
    if options.search:
        space = parse_space(options.space)
        checked = [make(options.config, end, options.fields) for end in ends_of(space)]
    else:
        trials = listed_trials(options)
        if options.dry_run:
            show_plan(options, trials, directory, command)
            return 0
        left = trials if options.index is None else [trials[options.index]]
        checked = [trial for trial in left if not directory.result(trial)]
    check_comparable(checked if options.search else trials)
    if not options.launch:  # launched trials read their data on another machine
        check_shared(checked)
    if options.search:
        source = Search(options, space, directory)
    else:
        source = Listed(trials, directory, only=options.index)
    with closing(source):
        check_finished(source.trials, directory)
        stopped = Runner(source, workers=options.workers, command=command).run()
        outcomes = source.outcomes()
    from widenet_jax.ops.sweep.results import Results  # imports Matplotlib

    results = Results(outcomes, directory)
    results.write()
    code = exit_code(outcomes, stopped=stopped)
    show(options, {"exit_code": code, **results.as_json()}, results.report())
    return code


def contradictions(options: Options) -> Iterator[str]:
    """Yields why flags contradict each other."""
    search, space, grid = options.search, options.space, options.sweep or options.zip
    indexed, counted = options.index is not None, options.trials is not None
    rows = [
        (bool(search) != bool(space), "--search and --space go together, as --help shows"),
        (search and (grid or indexed), "--search goes without --sweep, --zip and --index"),
        (search and not counted, "--search needs --trials=N, how many to make in all"),
        (search and options.dry_run, "--dry_run lists a grid; a search follows its results"),
        (not search and (counted or options.prune), "--trials and --prune belong to --search"),
        (options.launch and options.prune, "--prune cannot end launched runs; leave it out"),
        (options.launch and options.imports, "--launch takes no --import; the config may import"),
        apart(options),
    ]
    return (message for holds, message in rows if holds)


def listed_trials(options: Options) -> list[Trial]:
    """Returns the trials of the grid, or those that the config's get_sweep lists.

    Raises:
      BadInputError: settings that cannot be, or no trial has number --index.
    """
    if options.sweep or options.zip:
        parts = [axes.parse_axis(text, "--sweep") for text in options.sweep]
        if options.zip:
            parts.append(axes.zipit([axes.parse_axis(text, "--zip") for text in options.zip]))
        settings = axes.product(parts)
    else:
        settings = settings_of_config(options.config)
    trials = expand(options.config, settings, options.fields)
    if options.index is not None and not 0 <= options.index < len(trials):
        raise BadInputError(f"--index={options.index}: trials go from 0 to {len(trials) - 1}")
    return trials


def handing_over(flags: str) -> MakeCommand:
    """Returns the function that makes the command by which the launcher runs a trial.

    Raises:
      BadInputError: as `split_words`.
    """
    words = split_words("--launch", flags)

    def command(trial: Trial, workdir: str) -> list[str]:
        name = f"--name=sweep-{hashlib.sha256(workdir.encode()).hexdigest()[:8]}"
        return [sys.executable, "-m", LAUNCHER, name, *words, *trial.arguments(workdir)]

    return command


def show_plan(
    options: Options, trials: list[Trial], directory: Directory, command: MakeCommand
) -> None:
    """Prints the trials that would run."""
    rows, lines = [], []
    for index, trial in enumerate(trials):
        words, done = command(trial, directory.workdir(trial)), directory.is_done(trial)
        row = {"index": index, "trial": trial.name, "settings": trial.settings, "command": words}
        rows.append(row | {"done": done})
        lines.append(f"{index}  {trial.name}{'  (done)' if done else ''}")
        lines.append(f"   {shlex.join(words)}")
    done = directory.done_text(sum(bool(row["done"]) for row in rows))
    lines.append(f"{len(rows)} trials, {done}")
    show(options, {"trials": rows}, "\n".join(lines))
