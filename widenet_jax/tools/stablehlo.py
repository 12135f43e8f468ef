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
from widenet_jax.tools.analysis.class_prediction import LAST_LAYER, each_example, probabilities
from widenet_jax.weights.exported import make_empty
from widenet_jax.weights.model_card import describe_model
from widenet_jax.weights.trained import Trained

FILE = "classifier.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")

README = """# {what}

Step {step:,}. `{file}` is made by `jax.export` (jax {version}), parameters included.
It needs jax and flatbuffers alone. Label k is entry k of `class_names.json`.

    from jax import export

    with open("{file}", "rb") as file:
        classify = export.deserialize(bytearray(file.read()))
    probabilities = classify.call({{{inputs}}})  # float32 [n, {classes}]

{meaning}
"""
IMAGES = """Images are cropped and resized as in evaluation. Their values are from 0 to 255."""
TEXTS = """`tokens` are ids of `tokenizer.json`, [CLS] and [SEP] among them, padded with zeros.
`segments` are 1 at the tokens of a second text. `length` is the number of tokens."""


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
        meaning=IMAGES if "image" in of_one else TEXTS,
    )
    write_text(directory / "README.md", text)


def example_spec(trained: Trained) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the arrays of one example without its label."""
    if trained.config.task.name == "classification":
        return {"image": jax.ShapeDtypeStruct(trained.task.image_shape, jnp.uint8)}
    ids = jax.ShapeDtypeStruct((trained.config.data.max_length,), jnp.int32)
    return {"tokens": ids, "segments": ids, "length": jax.ShapeDtypeStruct((), jnp.int32)}
