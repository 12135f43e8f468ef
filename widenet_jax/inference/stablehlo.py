"""Classifiers as StableHLO: one file, with the parameters in it, that a program with JAX calls.

classifier.stablehlo               (arrays of n examples) -> probabilities of the classes, any n
class_names.json  tokenizer.json   facts of the data, as in the workdir
README.md                          how to call it
"""

from functools import partial

import jax
from etils import epath
from jax import export

from widenet_jax.errors import BadInputError
from widenet_jax.files import write_bytes, write_json, write_text
from widenet_jax.inference.exported import make_empty
from widenet_jax.inference.model_card import describe_model
from widenet_jax.specs import task_spec
from widenet_jax.trained import Trained, each_example, probabilities

FILE = "classifier.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")

README = """# {what}

Step {step:,}. `{file}` is made by `jax.export` (jax {version}), parameters included.
It needs jax and flatbuffers alone. Label k is entry k of `class_names.json`.

    from jax import export

    with open("{file}", "rb") as file:
        classify = export.deserialize(bytearray(file.read()))
    # classify.call({{{inputs}}}) gives the probabilities, float32 [n, {classes}]

{meaning}
"""


def write_stablehlo(directory: epath.Path, trained: Trained) -> None:
    """Exports a classifier of images or texts.

    Each example is routed alone. The program runs on CPUs, NVIDIA's GPUs and TPUs.

    Raises:
      BadInputError: a model of another task, or the directory is not empty.
    """
    spec = task_spec(trained.config.task.name)
    if not spec.last_layer:
        raise BadInputError(
            f"{trained.place} holds a model of the task {spec.name}; --format=stablehlo writes "
            "classifiers of images and texts"
        )
    make_empty(directory)
    (n,) = export.symbolic_shape("n")
    batch = {
        name: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype)
        for name, x in trained.task.batch_spec(1).items()
        if name != "label"
    }
    classify = jax.jit(partial(each_example(trained, probabilities), trained.params))
    program = export.export(classify, platforms=PLATFORMS)(batch)
    write_bytes(directory / FILE, bytes(program.serialize()))
    for name in ("class_names", "tokenizer"):
        if name in trained.info:
            write_json(directory / f"{name}.json", trained.info[name])
    arrays = (f'"{name}": {x.dtype} {["n", *x.shape[1:]]}' for name, x in batch.items())
    text = README.format(
        what=describe_model(trained.config.model),
        step=trained.step,
        file=FILE,
        version=jax.__version__,
        inputs=", ".join(arrays).replace("'", ""),
        classes=len(trained.class_names),
        meaning=spec.card.arrays,
    )
    write_text(directory / "README.md", text)
