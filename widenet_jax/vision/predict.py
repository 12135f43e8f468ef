"""Images for a trained classifier: files and arrays, cropped as in evaluation."""

import glob
import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from widenet_jax.data.blocks import tried
from widenet_jax.data.labelled import left_out_text
from widenet_jax.errors import BadInputError, refuse
from widenet_jax.files import absolute, is_remote
from widenet_jax.trained import Predictions, Trained, best, classifier, shares
from widenet_jax.vision.data.files import decode
from widenet_jax.vision.data.folders import files_below
from widenet_jax.vision.data.objects import stored_image
from widenet_jax.vision.data.transforms import build_transforms

Picture = str | os.PathLike[str] | bytes | Image.Image | np.ndarray  # see `stored_image`


def picture_of(image: Picture, trained: Trained) -> np.ndarray:
    """Returns an image cropped and resized as in evaluation: uint8 [h, w, C].

    Raises:
      BadExampleError: the file or Pillow's image cannot be read or decoded.
      BadInputError: an array of another type or shape.
    """
    turn = trained.config.augment.exif_orientation
    pixels = stored_image(image, turn)
    if isinstance(pixels, bytes):
        where = "the bytes of an image" if isinstance(image, bytes) else os.fspath(image)
        pixels = decode(pixels, where, exif_orientation=turn)
    pixels = np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
    if trained.task.image_shape[2] == 1:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None]
    _, transform = build_transforms(trained.config.augment, trained.config.data.image_size)
    return transform.picture(pixels)


def rows_of(
    trained: Trained, images: Sequence[Picture], pairs: object
) -> Iterator[dict[str, np.ndarray]]:
    """Returns the arrays of each image, as in a batch.

    Raises:
      BadInputError: one image stands for a list of them, or there are pairs.
    """
    shape = getattr(images, "shape", ())
    if isinstance(images, bytes | Image.Image) or (len(shape) == 3 and shape[2] in (1, 3)):
        size = "x".join(map(str, shape or getattr(images, "size", ["bytes"])))
        raise BadInputError(f"the input ({size}) is one image: give a list, as in [image]")
    refuse(f"{trained.place} classifies images", (pairs is not None, "leave pairs out"))
    return ({"image": picture_of(image, trained)} for image in images)


# --- Files for scripts/predict.py


def predict_images(options: Namespace, trained: Trained) -> Predictions:
    """Classifies every image that can be read; see `specs.PredictSpec`.

    Raises:
      BadInputError: no image is found.
    """
    classify = classifier(trained)
    rows, pictures, unreadable = [], [], []
    for path in image_paths(options.files):
        picture, problem = tried(picture_of, path, trained)
        if problem:
            unreadable.append(problem)
            continue
        top = best(classify([{"image": picture}])[0], trained, options.top)
        rows.append(({"image": path, "top": top}, [path, *shares(top, "class")]))
        if options.overlay:
            name = os.fsencode(Path(path).name).decode(errors="replace")
            pictures.append((f"{name}\n{top[0]['class']} {top[0]['probability']:.0%}", picture))
    return Predictions("images", rows, pictures, unreadable)


def image_paths(names: Sequence[str]) -> Iterator[str]:
    """Yields files: as named, matching a pattern such as '*.jpg', or anywhere under a folder.

    Prints on stderr what is left out of a folder.

    Raises:
      BadInputError: a folder or a pattern has no image.
    """
    for path in names:
        if os.path.isdir(path) or is_remote(absolute(path)):
            found, left_out, _ = files_below(path)
            if left_out:
                print(f"{path}: {left_out_text(Counter(left_out.values()))}", file=sys.stderr)
        elif glob.has_magic(path) and not os.path.exists(path):
            matching = sorted(glob.glob(path, recursive=True))
            found = [file for file in matching if not os.path.isdir(file)]
        else:
            found = [path]
        refuse(path, (not found, "no image found"))
        yield from found
