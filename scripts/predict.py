#!/usr/bin/env python3
"""Names what is in image files, with a trained model, and shows which expert saw which patch.

  python scripts/predict.py --workdir=runs/mine photo.jpg other.png --top=5
  python scripts/predict.py --workdir=exported/mine photo.jpg --overlay=experts.png

Each image is judged by itself. Exit codes: 0 done, 2 bad input, 3 no whole checkpoint.
"""

import argparse
import json
import sys

from widenet_jax.cli.parser import Parser, exit_code_of, positive


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code_of(lambda: predict(parser().parse_args(arguments)))


def parser() -> Parser:
    own = Parser(__doc__)
    own.add_argument("images", nargs="+", metavar="IMAGE", help="JPEG or PNG files")
    own.add_argument("--workdir", required=True, help="a run, or an exported directory")
    own.add_argument("--top", type=positive, default=5, metavar="N", help="classes to name")
    own.add_argument("--overlay", metavar="PNG", help="draw expert choices over the images")
    own.add_argument("--json", action="store_true", help="print one JSON object")
    return own


def predict(options: argparse.Namespace) -> None:
    from widenet_jax.tools.analysis.prediction import best, classifier, read_picture
    from widenet_jax.tools.analysis.routing import image_router
    from widenet_jax.tools.analysis.routing_figures import draw_overlay
    from widenet_jax.weights.trained import open_trained

    trained = open_trained(options.workdir)
    route = image_router(trained) if options.overlay else None
    pictures = [read_picture(path, trained) for path in options.images]
    classify = classifier(trained)
    answers = [best(classify(picture), trained, options.top) for picture in pictures]
    if route:
        titles = [f"{a[0]['class']} {a[0]['probability']:.0%}" for a in answers]
        routings = [route(picture) for picture in pictures]
        draw_overlay(trained, pictures, routings, options.overlay, titles=titles)
    if options.json:
        rows = [
            {"image": path, "top": answer}
            for path, answer in zip(options.images, answers, strict=True)
        ]
        print(json.dumps({"workdir": options.workdir, "step": trained.step, "images": rows}))
        return
    for path, answer in zip(options.images, answers, strict=True):
        print(f"{path}\n" + "\n".join(f"  {a['probability']:7.2%}  {a['class']}" for a in answer))


if __name__ == "__main__":
    sys.exit(main())
