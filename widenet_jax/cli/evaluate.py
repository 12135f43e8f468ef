"""Evaluates a trained model on any image set: top-1, top-5, each class, and the confusions.

  python scripts/evaluate.py --workdir=runs/mine
  python scripts/evaluate.py --workdir=exported/mine --out=evaluation \
      --config.data.source=image_folder --config.data.path=photos --config.data.eval_split=val

The set is the run's evaluation split unless fields change it. Classes of the set and of the model
are matched by name; a set may have fewer of them. Writes to --out: evaluation.json, confusion.csv
and confusion.png. Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

from widenet_jax.cli.parser import Argv, Options, Parser, show
from widenet_jax.tools.markdown import text_table

WORST, CONFUSED = 5, 5  # rows of the report


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--workdir", required=True, metavar="DIR", help="of a run, or an exported model")
    add("--out", metavar="DIR", help="where tables and a picture go")
    add("--json", action="store_true", help="print one JSON object")
    return parser.run(evaluate, argv)


def evaluate(options: Options) -> None:
    from widenet_jax.files import absolute, write_json, write_text
    from widenet_jax.tools.analysis import classification
    from widenet_jax.weights.trained import open_trained

    trained = open_trained(options.workdir, options.fields)
    trained.require_task("classification")
    accuracy = classification.measure_accuracy(trained)
    facts = {"workdir": options.workdir, "step": trained.step, **accuracy.as_json()}
    if options.out:
        out = absolute(options.out)
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "evaluation.json", facts)
        write_text(out / "confusion.csv", classification.confusion_csv(accuracy))
        classification.draw_confusion(accuracy, out / "confusion.png")
    show(options, facts, report(facts, accuracy.confused(CONFUSED)))


def report(facts: dict, confused: list[tuple[str, str, int]]) -> str:
    """Returns a table for people."""
    worst = sorted(facts["per_class"].items(), key=lambda item: item[1])[:WORST]
    rows = [
        ("images", f"{facts['images']:,}"),
        ("top-1", f"{facts['top_1']:.2%}"),
        ("top-5", f"{facts['top_5']:.2%}"),
        ("cross-entropy", f"{facts['cross_entropy']:.4f}"),
        ("hardest classes", ", ".join(f"{name} {share:.1%}" for name, share in worst)),
        ("taken for another", ", ".join(f"{a} for {b} {n:,}" for a, b, n in confused) or "none"),
    ]
    return text_table(rows)
