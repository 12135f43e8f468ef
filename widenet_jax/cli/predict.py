"""Predicts with a trained model: classes, scores of texts, answers, masked words, more text.

  python scripts/predict.py --workdir=runs/mine photo.jpg other.png --top=5
  python scripts/predict.py --workdir=exported/mine photo.jpg --overlay=experts.png
  python scripts/predict.py --workdir=runs/mine photos/new/ 'more/*.webp' --out=found.csv
  python scripts/predict.py --workdir=runs/sst2 --text="A fine film." --text="A dull one."
  python scripts/predict.py --workdir=runs/sst2 reviews.csv --text_column=review --out=found.csv
  python scripts/predict.py --workdir=runs/mnli --text="It rains." --pair="It is dry."
  python scripts/predict.py --workdir=runs/squad --question="Who?" --context="Ada wrote it."
  python scripts/predict.py --workdir=runs/albert --fill="The capital of France is [MASK]."
  python scripts/predict.py --workdir=hf/albert-base-v2 --fill="It was a [MASK] day."
  python scripts/predict.py --workdir=runs/bytes --continue="It was" --temperature=0.8 --length=500

Each example is routed alone, so that its answer does not depend on the others. The overlay shows
which expert each patch of an image went to. Unreadable images and rows of tables are skipped and
listed, and the exit code is 2. A task's flags stand in its spec (widenet_jax/specs.py).
Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

import json
import sys
from collections.abc import Iterator, Sequence

from widenet_jax.config.imports import import_files, import_remembered
from widenet_jax.config.parser import (
    Argv,
    Options,
    Parser,
    add_import_flag,
    add_model_flags,
    exit_code_of,
    not_negative,
    picture,
    positive,
    show,
)
from widenet_jax.errors import BadArgumentError, BadInputError, raise_first
from widenet_jax.files import (
    FIGURE,
    absolute,
    check_output,
    find_model,
    is_remote,
    read_json,
    without_nan,
    write_bytes,
)
from widenet_jax.run.tables import csv_text
from widenet_jax.specs import Flag, TaskSpec, resolve, task_spec, task_specs

# What `add_argument` makes of a `specs.Flag`: one text, several texts, positional words, a number.
KINDS = {
    "text": {},
    "texts": {"action": "append"},
    "words": {"nargs": "*"},
    "picture": {"type": picture},
    "float": {"type": float},
    "positive": {"type": positive},
    "not_negative": {"type": not_negative},
}
FORMATS = (".csv", ".jsonl")  # of --out
MARKS = (b"probability_1", b"text,score", b"text,pair,score", b'"top": [', b'"score": ')  # of both


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    return exit_code_of(lambda: predict(parser_of(argv).read(argv)))


def parser_of(argv: Argv) -> Parser:
    """Returns the parser, with the flags of all tasks.

    Also of tasks in files that --import names, or that the run remembers.
    """
    early = Parser(add_help=False)
    add_import_flag(early)
    early.add_argument("--workdir")
    named, _ = early.parse_known_args(argv)
    import_files(named.imports)
    if named.workdir:
        place = absolute(find_model(named.workdir)[0]) / "config.json"
        try:
            stored = read_json(place) if place.exists() else {}
        except Exception:
            if not is_remote(named.workdir):
                raise
            stored = {}  # `open_model` says why the bucket cannot be read
        if isinstance(stored, dict):
            import_remembered(stored, named.workdir)
    parser = Parser(__doc__, takes_fields=False)
    text = "of a run, an exported model, the name of a shipped one, or public weights: a ViT, or "
    text += "for --fill a BERT or ALBERT of Hugging Face"
    add_model_flags(parser, text)
    add = parser.add_argument
    add("--top", type=positive, default=5, metavar="N", help="classes, spans or words to name")
    flags: dict[str, list[Flag]] = {}
    for name, flag in (one for spec in specs() for one in spec.predict.flags.items()):
        flags.setdefault(name, []).append(flag)
    for name, of in flags.items():
        text = "; ".join(dict.fromkeys(flag.help for flag in of))
        add(name, metavar=of[0].metavar, help=text, **KINDS[of[0].kind])
    return parser


def specs() -> list[TaskSpec]:
    """Returns the specs of the tasks whose models predict."""
    return [spec for spec in task_specs() if spec.predict]


def predict(options: Options) -> None:
    flag = main_flag(options)
    from widenet_jax.inference.pretrained import open_model

    trained = open_model(options.workdir, checkpoint=options.checkpoint)
    spec = task_spec(trained.config.task.name)
    if spec.predict is None or flag not in spec.predict.main_flags:
        others = [other for other in specs() if flag in other.predict.main_flags]
        raise BadInputError(
            f"{options.workdir} holds a model of the task {spec.name}"
            + (f", which takes {spec.predict.form}" if spec.predict else "")
            + f"; for {others[0].predict.form} give the --workdir of a model of the task "
            + " or ".join(other.name for other in others)
        )
    raise_first(flags_of_others(options, [spec]))
    if options.out and not options.out.endswith(FORMATS):
        raise BadInputError(f"--out={options.out}: give a name that ends in .csv or .jsonl")
    if options.out:  # a mistake would lose the work
        check_output(options.out, "--out", "predictions", *MARKS)
    if options.overlay:
        check_output(options.overlay, "--overlay", "a figure of this project", FIGURE)
    route = None
    if options.overlay:
        from widenet_jax.ops.analysis.image_overlay import draw_overlay, drawable, image_router

        route = image_router(trained)
    try:
        result = resolve(spec.predict.run)(options, trained)
    except BadArgumentError as error:
        own = f"--{error.name}" in spec.predict.flags
        raise error.of_flag(error.name if own else flag.lstrip("-")) from None
    rows, bad = [row for row, _ in result.rows], result.unreadable
    text = "\n".join(line for _, lines in result.rows for line in lines)
    if options.out and rows:
        write_predictions(rows, options.out)
        text = f"{options.out}: {len(rows):,} {result.key}"
    if route and result.pictures:
        pictures = drawable(trained, result.pictures, options.overlay)
        drawn = [(title, picture, route(picture)) for title, picture in pictures]
        draw_overlay(trained, drawn, options.overlay)
        print(f"wrote {options.overlay}", file=sys.stderr)
    if rows:
        found = {"workdir": options.workdir, "step": trained.step, result.key: rows}
        show(options, found | {"unreadable": bad}, text)
    if len(bad) > 1:
        print(*bad, sep="\n", file=sys.stderr)
        count = f"{len(bad):,} of {len(bad) + len(rows):,} {result.key}"
        bad = [f"{count} cannot be read; they are named above"]
    raise_first(bad)


def write_predictions(rows: Sequence[dict], out: str) -> None:
    """Writes rows of classes, or scores, as JSON lines, or as CSV, with 6 decimals.

    The columns of the CSV are the input's (image, or text and pair, of files also file and row),
    class_1, probability_1, ..., or score.
    """
    if out.endswith(".jsonl"):
        lines = (json.dumps(without_nan(rounded(row)), ensure_ascii=False) for row in rows)
        content = "".join(f"{line}\n" for line in lines)
    else:
        flat = [
            {name: value for name, value in row.items() if name != "top"}
            | {f"{n}_{k}": x for k, one in enumerate(row.get("top", ()), 1) for n, x in one.items()}
            for row in map(rounded, rows)
        ]
        content = csv_text([[*flat[0]], *(row.values() for row in flat)])
    write_bytes(out, content.encode(errors="surrogateescape"))


def rounded(row: dict) -> dict:
    """Returns a row whose probabilities have 6 decimals, or whose score has 6 digits."""
    top = [o | {"probability": round(o["probability"], 6)} for o in row.get("top", ())]
    return row | ({"top": top} if top else {"score": float(f"{row['score']:.6g}")})


def main_flag(options: Options) -> str:
    """Returns the flag that says what to predict, such as "--text".

    Raises:
      BadInputError: none or several, or a flag that does not go with it.
    """
    forms: dict[str, str] = {}
    for spec in specs():
        forms.setdefault(spec.predict.main_flags[0], spec.predict.form)
    main_flags = [flag for flag in forms if is_set(options, flag)]
    if len(main_flags) != 1:
        raise BadInputError(f"give {', '.join(forms.values())}, and one of these only")
    (flag,) = main_flags
    raise_first(flags_of_others(options, [s for s in specs() if flag in s.predict.main_flags]))
    return flag


def flags_of_others(options: Options, allowed: Sequence[TaskSpec]) -> Iterator[str]:
    """Yields a line for each flag that was set and goes with none of the allowed tasks."""
    known = {flag for spec in allowed for flag in spec.predict.flags}
    for spec in specs():
        for flag in spec.predict.flags:
            if is_set(options, flag) and flag not in known:
                yield f"{flag} goes with {spec.predict.form}"


def is_set(options: Options, flag: str) -> bool:
    """Returns whether the user set a flag."""
    return getattr(options, flag.lstrip("-")) not in (None, [])
