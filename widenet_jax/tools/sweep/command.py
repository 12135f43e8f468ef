"""The command line of scripts/sweep.py."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from widenet_jax.cli.parser import Parser
from widenet_jax.errors import BadInputError
from widenet_jax.tools.sweep import axes, results
from widenet_jax.tools.sweep.directory import Directory
from widenet_jax.tools.sweep.runner import Listed, Outcome, Runner, Source
from widenet_jax.tools.sweep.trials import Trial, expand, settings_of_config

LAUNCHER = Path(__file__).parents[3] / "scripts" / "launch_tpu.py"
USAGE = """Runs a config many times, with other settings each time; the same command again goes on.

  python scripts/sweep.py --config=configs/digits.py --workdir=runs/sweep --workers=2 \\
      --sweep optimizer.learning_rate=1e-3,3e-3 --sweep seed=0,1,2
  python scripts/sweep.py --config=configs/digits.py --workdir=runs/search --search=tpe \\
      --trials=20 --prune --space optimizer.learning_rate=log:1e-4:1e-2 --space model.depth=2,3

--config.FIELD=VALUE sets a field for all trials. Exit codes: 0 all done; 2 your input; 3 a trial
failed (the others ran); 143 stopped, running trials saved.
"""


def parser() -> Parser:
    made = Parser(USAGE)
    add = made.add_argument
    add("--config", required=True, help="FILE.py or FILE.py:ARGUMENT")
    add("--workdir", help="the sweep's directory; runs/sweep_CONFIG by default")
    text = "FIELD=VALUE,VALUE: every value with every value of the other --sweep; 'variant' is the "
    text += "config's argument. Semicolons part values that have commas. Without any --sweep or "
    text += "--zip: what the config's get_sweep or get_hyper says"
    add("--sweep", action="append", default=[], metavar="FIELD=...", help=text)
    text = "FIELD=VALUE,VALUE: first with first, second with second of the other --zip"
    add("--zip", action="append", default=[], metavar="FIELD=...", help=text)
    add("--workers", type=int, default=1, help="trials at a time")
    add("--index", type=int, help="run only trial number INDEX of the list, from 0")
    add("--search", choices=["random", "tpe"], help="search a space instead of a grid, by Optuna")
    text = "FIELD=log:LOW:HIGH, FIELD=float:LOW:HIGH, FIELD=int:LOW:HIGH or FIELD=VALUE,VALUE"
    add("--space", action="append", default=[], metavar="FIELD=...", help=text)
    add("--trials", type=int, help="of a search, in all")
    add("--prune", action="store_true", help="end hopeless trials of a search early (Hyperband)")
    add("--search_seed", type=int, default=0, help="another one searches elsewhere")
    add_launch_flags(made)
    add("--dry_run", action="store_true", help="print what would run")
    add("--json", action="store_true", help="print one JSON object")
    return made


def add_launch_flags(made: Parser) -> None:
    text = "hand each run to scripts/launch_tpu.py with these flags, as in "
    text += (
        "--launch='--tpu=v3-8 --zone=europe-west4-a --backend=skypilot'; once: to hand one over "
    )
    text += "again, delete logs/TRIAL.handed_over in the sweep's directory"
    made.add_argument("--launch", metavar="FLAGS", help=text)
    text = "with --launch: gs://... for the runs' workdirs"
    made.add_argument("--trial_workdir", default="", help=text)


def check_launch_flags(options: Any) -> None:
    if bool(options.launch) != bool(options.trial_workdir):
        raise BadInputError("--launch and --trial_workdir=gs://BUCKET/DIR go together")


def main(argv: Sequence[str]) -> int:
    """Returns the exit code.

    Raises:
      BadInputError: any of the flags is not as it should be.
    """
    options, flags = understand(argv)
    file = options.config.partition(":")[0]
    workdir = options.workdir or f"runs/sweep_{Path(file).stem}"
    directory = Directory(workdir, options.trial_workdir)
    command = handing_over(options.launch) if options.launch else Trial.command
    if options.search:
        source, total = search_of(options, flags, directory), options.trials
    else:
        trials = listed_trials(options, flags)
        if options.dry_run:
            print_plan(trials, directory, command, as_json=options.json)
            return 0
        directory.make()
        directory.remember(trials)
        source = Listed(trials, directory, only=options.index)
        total = len(source.left)
    runner = Runner(source, directory, workers=options.workers, command=command, total=total)
    stopped = runner.run()
    outcomes = source.outcomes()
    results.write(outcomes, directory)
    code = results.exit_code(outcomes, stopped=stopped)
    print_results(outcomes, directory, code, as_json=options.json)
    return code


def understand(argv: Sequence[str]) -> tuple[Any, list[str]]:
    """The options, and the `--config.FIELD=VALUE` for all trials."""
    made = parser()
    options, rest = made.parse_known_args(list(argv))
    for flag in rest:
        if not flag.startswith("--config.") or "=" not in flag:
            raise BadInputError(f"{flag!r} is no flag; fields are set as --config.FIELD=VALUE")
    if bool(options.search) != bool(options.space):
        raise BadInputError("--search and --space go together, as in the example of --help")
    if options.search and (options.sweep or options.zip or options.index is not None):
        raise BadInputError("--search goes without --sweep, --zip and --index")
    if options.search and (options.trials is None or options.trials < 1):
        raise BadInputError("--search needs --trials=N, how many to make in all")
    if options.search and options.dry_run:
        raise BadInputError("--dry_run lists a grid; what a search tries follows from its results")
    if not options.search and (options.trials is not None or options.prune):
        raise BadInputError("--trials and --prune belong to --search=random or --search=tpe")
    check_launch_flags(options)
    return options, rest


def listed_trials(options: Any, flags: Sequence[str]) -> list[Trial]:
    """Of a grid, or of the config's own sweep; with --index, one of them."""
    if options.sweep or options.zip:
        parts = [axes.parse_axis(text, "--sweep") for text in options.sweep]
        if options.zip:
            parts.append(axes.zipit([axes.parse_axis(text, "--zip") for text in options.zip]))
        settings = axes.product(parts)
    else:
        settings = settings_of_config(options.config)
    trials = expand(options.config, settings, flags)
    if options.index is not None and not 0 <= options.index < len(trials):
        raise BadInputError(f"--index={options.index}: trials go from 0 to {len(trials) - 1}")
    return trials


def search_of(options: Any, flags: Sequence[str], directory: Directory) -> Source:
    from widenet_jax.tools.sweep.search import Search  # Optuna is an optional requirement

    return Search(
        options.config, options.space, flags, directory,
        sampler=options.search, count=options.trials, prune=options.prune, seed=options.search_seed,
    )  # fmt: skip


def handing_over(flags: str) -> Callable[[Trial, str], list[str]]:
    """What gives a trial to the launcher."""

    def command(trial: Trial, workdir: str) -> list[str]:
        name = f"--name=sweep-{trial.name.rpartition('-')[2]}"
        return [
            *(sys.executable, str(LAUNCHER), name, *shlex.split(flags)),
            *trial.arguments(workdir),
        ]

    return command


def print_plan(
    trials: Sequence[Trial],
    directory: Directory,
    command: Callable[[Trial, str], list[str]],
    *,
    as_json: bool,
) -> None:
    """What would run."""
    rows = [
        {
            "index": index,
            "trial": trial.name,
            "settings": trial.settings,
            "command": command(trial, directory.workdir(trial)),
            "done": directory.result(trial) is not None,
        }
        for index, trial in enumerate(trials)
    ]
    if as_json:
        print(json.dumps({"trials": rows}, default=str))
        return
    for row in rows:
        done = "  (done)" if row["done"] else ""
        print(f"{row['index']}  {row['trial']}{done}\n   {shlex.join(row['command'])}")
    print(f"{len(rows)} trials, {sum(row['done'] for row in rows)} of them done")


def print_results(
    outcomes: Sequence[Outcome], directory: Directory, code: int, *, as_json: bool
) -> None:
    if as_json:
        rows = results.rows_of(outcomes, directory)
        means = results.over_seeds(rows, results.fields_swept(outcomes))
        print(json.dumps({"exit_code": code, "trials": rows, "over_seeds": means}, default=str))
    else:
        print(results.report(outcomes, directory))
