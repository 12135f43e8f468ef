"""Classifies image files with a trained model, and shows which expert each patch went to.

  python scripts/predict.py --workdir=runs/mine photo.jpg other.png --top=5
  python scripts/predict.py --workdir=exported/mine photo.jpg --overlay=experts.png

Images are routed one at a time, so that an answer does not depend on the other files.
Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

import argparse
import json
from collections.abc import Sequence

from widenet_jax.cli.parser import Parser, exit_code_of, positive


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return exit_code_of(lambda: predict(parser().read(argv, takes_fields=False)[0]))


def parser() -> Parser:
    made = Parser(__doc__)
    add = made.add_argument
    add("images", nargs="+", metavar="IMAGE", help="JPEG or PNG files")
    add("--workdir", required=True, metavar="DIR", help="of a run, or an exported model")
    add("--top", type=positive, default=5, metavar="N", help="classes to name")
    add("--overlay", metavar="PNG", help="draw expert choices over the images")
    add("--json", action="store_true", help="print one JSON object")
    return made


def predict(options: argparse.Namespace) -> None:
    from widenet_jax.tools.analysis.image_overlay import draw_overlay, image_router
    from widenet_jax.tools.analysis.image_prediction import best, classifier, read_picture
    from widenet_jax.weights.trained import open_trained

    trained = open_trained(options.workdir)
    trained.require_task("classification")
    route = image_router(trained) if options.overlay else None
    pictures = [read_picture(path, trained) for path in options.images]
    classify = classifier(trained)
    answers = [best(classify(picture), trained, options.top) for picture in pictures]
    if route:
        titles = [f"{a[0]['class']} {a[0]['probability']:.0%}" for a in answers]
        routings = [route(picture) for picture in pictures]
        draw_overlay(trained, pictures, routings, options.overlay, titles=titles)
    named = list(zip(options.images, answers, strict=True))
    if options.json:
        rows = [{"image": path, "top": answer} for path, answer in named]
        print(json.dumps({"workdir": options.workdir, "step": trained.step, "images": rows}))
        return
    for path, answer in named:
        print(f"{path}\n" + "\n".join(f"  {a['probability']:7.2%}  {a['class']}" for a in answer))
