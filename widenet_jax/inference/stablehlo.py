"""Classifiers as StableHLO: one file, with the parameters in it, that a program with JAX calls.

classifier.stablehlo               (arrays of n examples) -> probabilities of the classes, any n
class_names.json  tokenizer.json   facts of the data, as in the workdir
README.md                          how to call it
"""

from functools import partial

import jax
import jax.numpy as jnp
from etils import epath
from jax import export

from widenet_jax.files import write_bytes, write_json, write_text
from widenet_jax.inference.classes import LAST_LAYER, each_example, probabilities
from widenet_jax.inference.exported import make_empty
from widenet_jax.inference.model_card import describe_model
from widenet_jax.inference.trained import Trained
from widenet_jax.typing import Shapes
from widenet_jax.vision.data.transforms import build_transforms

FILE = "classifier.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")

README = """# {what}

Step {step:,}. `{file}` is made by `jax.export` (jax {version}), parameters included.
It needs jax and flatbuffers alone. Label k is entry k of `class_names.json`.

    from jax import export

    with open("{file}", "rb") as file:
        classify = export.deserialize(bytearray(file.read()))
    # classify.call({{{inputs}}}) gives the probabilities, float32 [n, {classes}]

{meaning}"""
# What `preparation` fills in. Pillow's filters weight the pixels at the edges of an area by 0 or 1,
# so shrinking is written out.
IMAGES = """Images are {size} x {size} pixels of {colours}, from 0 to 255; the program
itself scales them to -1..1. The code below reads a file with Pillow and NumPy alone, as evaluation
does, up to one level of 255 by rounding{but}:

    import json

    import numpy as np
    from PIL import Image, ImageOps

    def shares(old, new):  # [new, old]: of which old pixels a new one is the mean; rows sum to 1
        edges, pixels = np.arange(new + 1)[:, None] * old / new, np.arange(old)
        inside = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
        return np.maximum(inside, 0) * new / old

    def prepare(path):
        image = {opened}
        if image.mode.startswith("I;16"):  # keep the upper 8 bits; convert would clip at 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image = image.convert({mode})
        {scaled}
        if width <= image.width and height <= image.height:  # averages over areas
            rows, columns = shares(image.height, height), shares(image.width, width)
            pixels = np.asarray(image).reshape(image.height, image.width, {channels})
            pixels = np.einsum("yh,hwc,xw->yxc", rows, pixels, columns, optimize=True)
        else:
            pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
            pixels = pixels.reshape(height, width, {channels})
        top, left = (height - {size}) // 2, (width - {size}) // 2
        return np.rint(pixels[top : top + {size}, left : left + {size}]).astype(np.uint8)

    with open("class_names.json") as file:
        names = json.load(file)
    images = np.stack([prepare(path) for path in ["photo.jpg"]])
    for row in np.asarray(classify.call({{"image": images}})):
        print(names[row.argmax()], row.max())
"""
TEXTS = """`tokens` are ids of `tokenizer.json`, [CLS] and [SEP] among them, padded with zeros.
`token_types` are 1 at the tokens of a second text. `length` is the number of tokens.
"""


def write_stablehlo(directory: epath.Path, trained: Trained) -> None:
    """Exports a classifier of images or texts.

    Each example is routed alone. The program runs on CPUs, NVIDIA's GPUs and TPUs.

    Raises:
      BadInputError: a model of another task, or the directory is not empty.
    """
    trained.require_task(*LAST_LAYER)
    make_empty(directory)
    (n,) = export.symbolic_shape("n")
    of_one = example_spec(trained)
    batch = {name: jax.ShapeDtypeStruct((n, *x.shape), x.dtype) for name, x in of_one.items()}
    classify = jax.jit(partial(each_example(trained, probabilities), trained.params))
    program = export.export(classify, platforms=PLATFORMS)(batch)
    write_bytes(directory / FILE, bytes(program.serialize()))
    for name in ("class_names", "tokenizer"):
        if name in trained.info:
            write_json(directory / f"{name}.json", trained.info[name])
    arrays = (f'"{name}": {x.dtype} {["n", *x.shape]}' for name, x in of_one.items())
    text = README.format(
        what=describe_model(trained.config.model),
        step=trained.step,
        file=FILE,
        version=jax.__version__,
        inputs=", ".join(arrays).replace("'", ""),
        classes=len(trained.class_names),
        meaning=preparation(trained) if "image" in of_one else TEXTS,
    )
    write_text(directory / "README.md", text)


def preparation(trained: Trained) -> str:
    """Says how an image file becomes an input of the program, with code that does it."""
    augment, (size, _, channels) = trained.config.augment, trained.task.image_shape
    opened = "Image.open(path)"
    if augment.exif_orientation:
        opened = f"ImageOps.exif_transpose({opened})"
    scaled, but = f"width = height = {size}", " (and files larger in one direction only)"
    if augment.eval_crop == "central":
        _, transform = build_transforms(augment, size)
        scaled = (
            f"scale = {transform.resize} / min(image.size)  # the shorter side\n"
            "        width, height = (round(side * scale) for side in image.size)"
        )
        but = ""
    return IMAGES.format(
        size=size,
        colours="red, green and blue" if channels == 3 else "grey",
        channels=channels,
        opened=opened,
        mode='"RGB").convert("L"' if channels == 1 else '"RGB"',
        scaled=scaled,
        but=but,
    )


def example_spec(trained: Trained) -> Shapes:
    """Returns the arrays of one example without its label."""
    if trained.config.task.name == "classification":
        return {"image": jax.ShapeDtypeStruct(trained.task.image_shape, jnp.uint8)}
    ids = jax.ShapeDtypeStruct((trained.config.data.max_length,), jnp.int32)
    return {"tokens": ids, "token_types": ids, "length": jax.ShapeDtypeStruct((), jnp.int32)}
