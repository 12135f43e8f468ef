#!/usr/bin/env python3
"""Evaluates a trained model on any image set: top-1, top-5, every class, what is taken for what.

  python scripts/evaluate.py --workdir=runs/mine
  python scripts/evaluate.py --workdir=exported/mine --out=evaluation \
      --config.data.source=image_folder --config.data.path=photos --config.data.eval_split=val

Without changes: the evaluation split of the run. Classes of the set and of the model go together by
name; a set may have fewer of them. --out takes evaluation.json, confusion.csv and confusion.png.
Exit codes: 0 done, 2 bad input, 3 no whole checkpoint.
"""

import argparse
import json
import sys

from widenet_jax.cli.parser import Parser, exit_code_of

WORST, CONFUSED = 5, 5


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code_of(lambda: evaluate(*parser().parse_known_args(arguments)))


def parser() -> Parser:
    own = Parser(__doc__)
    own.add_argument("--workdir", required=True, help="a run, or an exported directory")
    own.add_argument("--out", help="a directory for tables and a picture")
    own.add_argument("--json", action="store_true", help="print one JSON object")
    return own


def evaluate(options: argparse.Namespace, changes: list[str]) -> None:
    from widenet_jax.checkpoint.checkpoints import absolute
    from widenet_jax.tools.analysis.accuracy import as_json, confusion_csv, measure_accuracy
    from widenet_jax.tools.analysis.figures import draw_confusion
    from widenet_jax.weights.trained import open_trained

    trained = open_trained(options.workdir, changes)
    accuracy = measure_accuracy(trained)
    facts = {"workdir": options.workdir, "step": trained.step, **as_json(accuracy)}
    if options.out:
        out = absolute(options.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / "evaluation.json").write_text(json.dumps(facts, indent=1) + "\n")
        (out / "confusion.csv").write_text(confusion_csv(accuracy))
        draw_confusion(accuracy.confusion, accuracy.class_names, out / "confusion.png")
    print(json.dumps(facts) if options.json else report(facts, accuracy.confused(CONFUSED)))


def report(facts: dict, confused: list[tuple[str, str, int]]) -> str:
    """For people."""
    worst = sorted(facts["per_class"].items(), key=lambda item: item[1])[:WORST]
    rows = [
        ("images", f"{facts['images']:,}"),
        ("top-1", f"{facts['top_1']:.2%}"),
        ("top-5", f"{facts['top_5']:.2%}"),
        ("cross-entropy", f"{facts['cross_entropy']:.4f}"),
        ("hardest classes", ", ".join(f"{name} {share:.1%}" for name, share in worst)),
        ("taken for another", ", ".join(f"{a} for {b} {n:,}" for a, b, n in confused) or "none"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


if __name__ == "__main__":
    sys.exit(main())
