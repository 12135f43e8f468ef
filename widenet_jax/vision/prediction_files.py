"""Predictions of images: files, folders and patterns in; text, JSON, CSV or JSON lines out."""

import csv
import glob
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from widenet_jax.config.parser import Options, show
from widenet_jax.errors import BadExampleError, BadInputError

if TYPE_CHECKING:
    from widenet_jax.inference.trained import Trained

FORMATS = (".csv", ".jsonl")


def predict_images(options: Options, trained: "Trained") -> None:
    """Predicts every image that can be read.

    Raises:
      BadInputError: no image is found, or some cannot be read; then the others are predicted first.
    """
    from widenet_jax.files import absolute, write_bytes
    from widenet_jax.inference.classes import best, classifier
    from widenet_jax.ops.analysis.image_overlay import draw_overlay, image_router
    from widenet_jax.vision.predict import picture_of

    if options.out and not options.out.endswith(FORMATS):
        raise BadInputError(f"--out={options.out}: give a name that ends in .csv or .jsonl")
    paths = list(image_paths(options.images))
    for file in filter(None, (options.out, options.overlay)):  # a mistake here would lose the work
        absolute(file).parent.mkdir(parents=True, exist_ok=True)
    route = image_router(trained) if options.overlay else None
    classify = classifier(trained)
    rows, drawn, unreadable = [], [], []
    for path in paths:
        try:
            picture = picture_of(path, trained)
        except BadExampleError as error:
            unreadable.append(str(error))
            continue
        top = best(classify([{"image": picture}])[0], trained, options.top)
        rows.append({"image": path, "top": top})
        if route:
            name = os.fsencode(Path(path).name).decode(errors="replace")
            title = f"{name}\n{top[0]['class']} {top[0]['probability']:.0%}"
            drawn.append((title, picture, route(picture)))
    if drawn:
        draw_overlay(trained, drawn, options.overlay)
    text = "\n".join(line for row in rows for line in [row["image"], *shares(row["top"], "class")])
    if options.out:
        form = csv_text if options.out.endswith(".csv") else json_lines
        write_bytes(options.out, form(rows).encode(errors="surrogateescape"))
        text = f"{options.out}: {len(rows):,} images"
    if rows:
        facts = {"workdir": options.workdir, "step": trained.step, "images": rows}
        show(options, {**facts, "unreadable": unreadable}, text)
    if len(unreadable) > 1:
        for line in unreadable:
            print(line, file=sys.stderr)
        count = f"{len(unreadable):,} of {len(paths):,}"
        raise BadInputError(f"{count} images cannot be read; they are named above")
    if unreadable:
        raise BadInputError(unreadable[0])


def image_paths(given: Sequence[str]) -> Iterator[str]:
    """Yields files: as given, matching a pattern such as '*.jpg', or anywhere under a folder.

    Prints on stderr what is left out of a folder.

    Raises:
      BadInputError: a folder or a pattern has no image.
    """
    from widenet_jax.data.labelled import left_out_text
    from widenet_jax.vision.data.folders import kind_left_out
    from widenet_jax.vision.prepare.check import walk

    for path in given:
        if os.path.isdir(path):
            inside = [file for file in walk(path) if not os.path.isdir(file)]
            kinds = {file: kind_left_out(os.path.basename(file)) for file in inside}
            found = [file for file in inside if kinds[file] is None]
            if left_out := Counter(kind for kind in kinds.values() if kind is not None):
                print(f"{path}: {left_out_text(left_out)}", file=sys.stderr)
        elif glob.has_magic(path) and not os.path.exists(path):
            matching = sorted(glob.glob(path, recursive=True))
            found = [file for file in matching if not os.path.isdir(file)]
        else:
            found = [path]
        if not found:
            raise BadInputError(f"{path}: no image found")
        yield from found


def csv_text(rows: Sequence[dict]) -> str:
    """Returns a table: image, class_1, probability_1, class_2, ..."""
    most = max((len(row["top"]) for row in rows), default=0)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    names = [f"{name}_{k}" for k in range(1, most + 1) for name in ("class", "probability")]
    writer.writerow(["image", *names])
    for row in rows:
        cells = [cell for one in row["top"] for cell in (one["class"], one["probability"])]
        writer.writerow([row["image"], *cells])
    return table.getvalue()


def json_lines(rows: Sequence[dict]) -> str:
    """Returns a line of JSON for each image."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def shares(top: list[dict], key: str) -> list[str]:
    """Formats probabilities, a line for each."""
    return [f"  {one['probability']:7.2%}  {one[key]}" for one in top]
