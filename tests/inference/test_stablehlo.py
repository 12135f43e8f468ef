"""Export to StableHLO: a process that has JAX only gets the model's predictions."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from jax import export
from refusals import answered, refused
from sklearn.datasets import load_digits
from untrained import export_texts

import widenet_jax as wj
from configs import glue
from widenet_jax.cli import export as export_command
from widenet_jax.corpus.novel import FOLDER
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.inference.exported import stablehlo_files
from widenet_jax.inference.trained import open_trained
from widenet_jax.nn import build
from widenet_jax.nn.moe import layer
from widenet_jax.nn.moe.dispatch import DISPATCHERS
from widenet_jax.trained import classifier

ONLY_JAX = """
import sys
import numpy as np
images = np.load("images.npy")
found = [classify.call({"image": batch}) for batch in (images, images[:1])]
np.savez("found.npz", *found)
print([name for name in ("flax", "optax", "orbax", "widenet_jax") if name in sys.modules])
"""


def probabilities(model: wj.Model, *inputs: object) -> list[list[float]]:
    """Returns the probabilities that `predict` gives, in the order of the classes."""
    tops = model.predict(*inputs, top=len(model.class_names))
    found = [{one["class"]: one["probability"] for one in top} for top in tops]
    return [[top[name] for name in model.class_names] for top in found]


def code_in(readme: str) -> str:
    """Returns the indented lines of a README."""
    lines = (line for line in readme.splitlines() if line.startswith("    ") or not line)
    return textwrap.dedent("\n".join(lines))


USUAL = ("ragged", "auto of a TPU")  # without `--slow`


@pytest.mark.parametrize(
    "dispatch",
    [
        pytest.param(one, marks=[] if one in USUAL else pytest.mark.slow)
        for one in (*DISPATCHERS, "auto of a TPU")
    ],
)
def test_each_dispatch_predicts_the_same(monkeypatch: pytest.MonkeyPatch, dispatch: str):
    """Each example is computed alone under `jax.vmap`, for which JAX has no `ragged_dot`."""
    images = load_digits().images[:3, ..., None].astype(np.uint8) * 15
    expected = probabilities(wj.load("widenet_tiny_digits"), images)
    name, _, tpu = dispatch.partition(" of a ")
    for module in (build, layer) if tpu else ():
        monkeypatch.setattr(module, "platform", lambda: "tpu")
    trained = open_trained("widenet_tiny_digits", [f"--config.model.moe.dispatch={name}"])
    found = [classifier(trained)([{"image": image} for image in images])]
    program = stablehlo_files(trained, "", "program")["program"]
    found += [export.deserialize(bytearray(program)).call({"image": images})]
    for probs in found:
        np.testing.assert_allclose(probs, expected, atol=1e-6)


@pytest.mark.slow
def test_images_in_a_process_with_jax_only(digits_run: Path, tmp_path: Path, capsys):
    out = tmp_path / "program"
    flags = [f"--workdir={digits_run}", f"--out={out}", "--format=stablehlo"]
    assert answered(capsys, export_command.main, *flags)["step"] == 20
    readme = (out / "README.md").read_text()
    images = load_digits().images[:3, ..., None].astype(np.uint8) * 15
    np.save(out / "images.npy", images)
    command, how = [sys.executable, "-c", code_in(readme) + ONLY_JAX], {"cwd": out, "text": True}
    assert subprocess.run(command, **how, capture_output=True, check=True).stdout == "[]\n"
    with np.load(out / "found.npz") as found:
        all_three, first = found["arr_0"], found["arr_1"]
    model = wj.load(digits_run)
    np.testing.assert_allclose(all_three, probabilities(model, images), atol=1e-6)
    np.testing.assert_allclose(first, all_three[:1], atol=1e-6)
    assert json.loads((out / "class_names.json").read_text()) == list(model.class_names)
    assert '"image": uint8 [n, 8, 8, 1]' in readme
    augment = model.config.augment
    for name in ("eval_crop", "eval_crop_fraction", "exif_orientation"):
        assert f"\n- {name}: {augment[name]}" in readme
    assert "\n- filter: OpenCV's INTER_AREA first, along sides that shrink" in readme
    assert "is not empty; name a new directory" in refused(capsys, export_command.main, *flags)


@pytest.mark.slow
def test_texts(tmp_path: Path):
    """[CLS] text [SEP] pair [SEP] by hand, padded with zeros."""
    out, info = tmp_path / "program", {"pairs": True, "class_names": ["no", "yes"]}
    config = glue.get_config("own,model=widenet_4_tiny")
    place = export_texts(config, FOLDER, tmp_path / "classes", **info)
    flags = [f"--workdir={place}", f"--out={out}", "--format=stablehlo"]
    assert export_command.main(flags) == 0
    tokenizer = load_tokenizer(str(out / "tokenizer.json"))
    text, pair = (tokenizer.encode(words) for words in ("She was", "persuaded"))
    second, sep = [*pair, tokenizer.sep_id], [tokenizer.sep_id]
    first = [tokenizer.cls_id, *text, *sep]
    rows = np.zeros((2, 1, 16), np.int32)
    length = len(first) + len(second)
    rows[:, 0, :length] = [*first, *second], [0] * len(first) + [1] * len(second)
    classify = export.deserialize(bytearray((out / "classifier.stablehlo").read_bytes()))
    batch = {"tokens": rows[0], "token_types": rows[1], "length": np.int32([length])}
    expected = probabilities(wj.load(place), ["She was"], ["persuaded"])
    np.testing.assert_allclose(classify.call(batch), expected, atol=1e-6)
