"""Classifies image files with a trained model, and shows which expert each patch went to.

  python scripts/predict.py --workdir=runs/mine photo.jpg other.png --top=5
  python scripts/predict.py --workdir=exported/mine photo.jpg --overlay=experts.png

Images are routed one at a time, so that an answer does not depend on the other files.
Exit codes: 0 done, 2 your input, 3 no checkpoint is intact.
"""

from widenet_jax.cli.parser import Argv, Options, Parser, positive, show


def main(argv: Argv = None) -> int:
    """Runs the command and returns its exit code."""
    parser = Parser(__doc__, takes_fields=False)
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="JPEG or PNG files")
    add("--workdir", required=True, metavar="DIR", help="of a run, or an exported model")
    add("--top", type=positive, default=5, metavar="N", help="classes to name")
    add("--overlay", metavar="PNG", help="draw expert choices over the images")
    add("--json", action="store_true", help="print one JSON object")
    return parser.run(predict, argv)


def predict(options: Options) -> None:
    from widenet_jax.tools.analysis.image_overlay import draw_overlay, image_router
    from widenet_jax.tools.analysis.image_prediction import best, classifier, read_picture
    from widenet_jax.weights.trained import open_trained

    trained = open_trained(options.workdir)
    trained.require_task("classification")
    route = image_router(trained) if options.overlay else None
    pictures = [read_picture(path, trained) for path in options.images]
    classify = classifier(trained)
    rows, lines, drawn = [], [], []
    for path, picture in zip(options.images, pictures, strict=True):
        top = best(classify(picture), trained, options.top)
        rows.append({"image": path, "top": top})
        lines += [path, *(f"  {one['probability']:7.2%}  {one['class']}" for one in top)]
        if route:
            title = f"{top[0]['class']} {top[0]['probability']:.0%}"
            drawn.append((title, picture, route(picture)))
    if drawn:
        draw_overlay(trained, drawn, options.overlay)
    facts = {"workdir": options.workdir, "step": trained.step, "images": rows}
    show(options, facts, "\n".join(lines))
