"""The package in Python: `import widenet_jax as wj`."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from refusals import refuses
from sklearn.datasets import load_digits
from small_runs import ROOT
from untrained import export_texts, image_spec

import widenet_jax as wj
from configs import glue, language_model, squad, text_tiny
from widenet_jax.config import imports
from widenet_jax.corpus.novel import FOLDER
from widenet_jax.errors import BadInputError, RunFailedError, naming_arguments
from widenet_jax.nn.build import count_parameters, parameter_shapes
from widenet_jax.text.predict import rows_of

DIGITS = load_digits().images[40:43].astype(np.uint8) * 15
TEXT = "She was persuaded to believe the engagement a wrong thing."
CONFIGS = {
    "texts": lambda: glue.get_config("own,model=albert_tiny"),
    "scores": lambda: glue.get_config("scores,model=albert_tiny"),
    "masks": text_tiny.get_config,
    "answers": lambda: squad.get_config("v2,model=albert_tiny"),
    "more": lambda: language_model.get_config("tiny"),
}


@pytest.fixture(scope="module")
def opened(
    digits_export: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], wj.Model]:
    """Opens a model by what it is for; those of texts are untrained and of one block."""
    folder = tmp_path_factory.mktemp("models")
    models = {"images": wj.load(digits_export)}

    def model_for(name: str) -> wj.Model:
        if name not in models:
            config = CONFIGS[name]()
            info = {"class_names": ["no", "yes"]} if name == "texts" else {}
            info |= {"pairs": False} if name in ("texts", "scores") else {}
            if name == "answers":
                config.update_from_flattened_dict({"data.max_question_length": 4, "data.stride": 4})
            models[name] = wj.load(export_texts(config, FOLDER, folder / name, **info))
        return models[name]

    return model_for


def softmax_of(model: wj.Model, features: np.ndarray, layer: str) -> np.ndarray:
    """Returns the probabilities that the last layer makes of features."""
    last = model.params[layer]
    return np.asarray(jax.nn.softmax(features @ last["kernel"] + last["bias"]))


def test_the_package_is_imported_without_jax(tmp_path: Path):
    """From another directory; the names that import JAX are listed."""
    code = (
        "import sys, widenet_jax as wj; print(wj.__version__, set(wj.__all__) <= set(dir(wj)), "
        "[m for m in ('jax', 'numpy', 'flax') if m in sys.modules], hasattr(wj, 'lode'))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert out.stdout.split() == [wj.__version__, "True", "[]", "False"]


def test_images_in_every_form(opened, tmp_path: Path, monkeypatch):
    """A file, Pillow's image and arrays of the same pixels; each image is predicted by itself."""
    model, file = opened("images"), tmp_path / "digit.png"
    assert "/export', classification, WideNet: 2 blocks of width 32" in repr(model)
    Image.fromarray(DIGITS[0]).save(file)
    forms = [file, str(file), file.read_bytes(), Image.open(file).convert("RGBA"), DIGITS[0],
             DIGITS[0][..., None], np.stack([DIGITS[0]] * 3, axis=-1)]  # fmt: skip
    apply = jax.jit(lambda x: model.module.apply({"params": model.params}, x, train=False)[0][0])
    images = DIGITS[:, None, ..., None].astype(np.float32) / 127.5 - 1
    probs = [np.asarray(jax.nn.softmax(apply({"image": image}))) for image in images]
    found = model.predict([*DIGITS, *forms], top=10)
    for top, expected in zip(found, [*probs, *[probs[0]] * len(forms)], strict=True):
        order = np.argsort(-expected)
        assert [one["class"] for one in top] == [model.class_names[k] for k in order]
        np.testing.assert_allclose([one["probability"] for one in top], expected[order], 1e-4)
    ((alone,),) = model.predict([DIGITS[1]], top=1)
    assert alone["class"] == found[1][0]["class"] and model.predict([]) == []
    assert alone["probability"] == pytest.approx(found[1][0]["probability"], abs=1e-6)
    assert model.features([]).shape == (0, 32)
    for batch in (32, 2):
        monkeypatch.setattr("widenet_jax.inference.api.BATCH", batch)
        shares = softmax_of(model, model.features(DIGITS), "head")
        np.testing.assert_allclose(shares, np.stack(probs), atol=1e-5)


def test_texts(opened):
    model = opened("texts")
    texts = [TEXT, "Anne Elliot"]
    features = model.features(texts)
    assert features.shape == (2, 64)
    shares = softmax_of(model, features, "classifier")
    for found, expected in zip(model.predict(texts), shares, strict=True):
        assert [one["probability"] for one in found] == pytest.approx(-np.sort(-expected))


def test_scores_of_texts(opened):
    """The only logit of each."""
    model = opened("scores")
    found = model.score([TEXT, "Anne Elliot", "Anne"])
    assert found.shape == (3,) and len({*found.tolist()}) == 3 and model.score([]).shape == (0,)
    (row,) = rows_of(model._trained, ["Anne"], None)
    inputs = model._trained.task.inputs({name: array[None] for name, array in row.items()})
    apply = jax.jit(lambda x: model.module.apply({"params": model.params}, x, train=False)[0])
    assert np.asarray(apply(inputs)) == pytest.approx(found[2:, None], abs=1e-5)


def test_masks_answers_and_more_text(opened):
    """One list for each mask; a span of the context; as many bytes as asked for."""
    ((first, second),) = opened("masks").fill(["She was [MASK] and [MASK]."], top=3)
    for words in (first, second):
        shares = [one["probability"] for one in words]
        assert len(words) == 3 and shares == sorted(shares, reverse=True)
    found = opened("answers").answer("Who?", TEXT, top=1)
    assert found.top[0]["text"] in TEXT and found.answer in ("", found.top[0]["text"])
    writer = opened("more")
    greedy = writer.continue_text("She was", length=3, temperature=0)
    assert greedy.startswith("she was")
    assert greedy == writer.continue_text("She was", length=3, top_k=1, seed=7)


MISTAKES = [
    ("images", lambda m: m.predict("a.jpg"), r"'a.jpg' is one input: give a list, as in \['a.jpg"),
    ("images", lambda m: m.predict(["no.jpg"]), "no.jpg: No such file"),
    ("images", lambda m: m.predict([DIGITS[0] / 1.0]), r"an array float64 \[8, 8, 1\]; give a pa"),
    ("images", lambda m: m.predict(DIGITS, top=0), "top=0 must be a whole number of at least 1"),
    ("images", lambda m: m.predict(b"\xff\xd8"), r"\(bytes\) is one image: give a list"),
    ("images", lambda m: m.predict([b"GIF"]), "the bytes of an image: no JPEG, PNG"),
    ("images", lambda m: m.predict(np.zeros((8, 8, 3), np.uint8)), r"\(8x8x3\) is one image: giv"),
    ("images", lambda m: m.predict(DIGITS, ["a"]), "export classifies images: leave pairs out"),
    ("images", lambda m: m.fill(["a [MASK]"]), r"no fill\(\); use predict\(\) or features\(\)"),
    ("texts", lambda m: m.continue_text("a"), r"task text_classification, which has no continue_t"),
    ("texts", lambda m: m.predict([""]), "text='' is empty: give a text$"),
    ("texts", lambda m: m.predict(["\u200b"]), "is empty: give a text$"),
    ("texts", lambda m: m.predict(["a", "b", " "]), r"text=' ' is empty.* text \(index 2\)$"),
    ("texts", lambda m: m.predict(["a", None]), r"text=None is no text.* text \(index 1\)$"),
    ("scores", lambda m: m.predict([TEXT]), r"has no predict\(\); use score\(\)$"),
    ("scores", lambda m: m.score(TEXT), "is one input: give a list"),
    ("scores", lambda m: m.score([TEXT], [TEXT]), "single texts: leave the pair out"),
    ("masks", lambda m: m.features([TEXT]), r"which has no features\(\); use fill\(\)$"),
    ("masks", lambda m: m.fill(TEXT), "is one input: give a list"),
    ("masks", lambda m: m.fill([5]), "^text=5 is no text: give a text$"),
    ("more", lambda m: m.continue_text(""), "^text='' is empty: give at least one word"),
    ("more", lambda m: m.continue_text(["It was"]), r"^text=\['It was'\] must be one text, s"),
    ("more", lambda m: m.continue_text("a", temperature="1"), "^temperature='1' must be 0 or more"),
    ("more", lambda m: m.continue_text("a", top_p=None), "^top_p=None must be above 0 and at most"),
    ("more", lambda m: m.continue_text("a", top_p=2), "^top_p=2 must be above 0 and at most 1"),
    ("more", lambda m: m.continue_text("a", length=0), "^length=0 must be a whole number of at le"),
    ("answers", lambda m: m.answer("", TEXT), "^question='' is empty: give one that the context"),
    ("answers", lambda m: m.answer("\u200b", TEXT), "is empty: give one that the context answers"),
    ("answers", lambda m: m.answer("Who?", None), "^context=None is no text: give a text$"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call", "message"), MISTAKES)
def test_mistakes(opened, kind: str, call: Callable, message: str):
    refuses(message, call, opened(kind))


def test_opening_names_the_arguments_of_python(digits_export: Path, tmp_path: Path):
    """Not the flags that a command has for them."""
    export = tmp_path / "export"
    shutil.copytree(digits_export, export)
    config = json.loads((export / "config.json").read_text())
    gone = {"imports": [f"sha256:{'0' * 64} {tmp_path}/it is mine.py"]}
    (export / "config.json").write_text(json.dumps(config | gone))
    file = tmp_path / "it is mine.py"
    for place, how, message in (
        (export, {}, f"{file}, which .* is not there; .* add imports=.'FILE/it is mine.py'.$"),
        (tmp_path / "no", {}, f"^place={tmp_path}/no: no finished checkpoint there; give the"),
        (digits_export, {"checkpoint": "best"}, f"^place={digits_export} is an export, and only"),
        (f"{export}@last", {"checkpoint": 3}, f"^place={export}@last and checkpoint=3 both name"),
        (export, {"imports": str(file)}, "^imports='.* is one file: give a list, as in .'.*mine"),
        (export, {"imports": [file]}, f"^imports={file}: there is no Python file"),
    ):
        refuses(message, wj.load, place, **how)
    file.touch()
    refuses(r"has changed since; .* add imports=\['.*/it is mine.py", wj.load, export)
    try:
        assert wj.load(export, imports=[file]).task == "classification"
    finally:
        imports.NAMED.clear()
        imports.IMPORTED.clear()


def test_files_of_an_iterator_are_remembered(tmp_path: Path):
    (tmp_path / "mine.py").touch()
    paths = imports.import_files(tmp_path.glob("*.py"), flag="imports")
    imports.NAMED.clear()
    imports.IMPORTED.clear()
    assert paths == [f"{tmp_path}/mine.py"]


def test_training_names_the_arguments_of_python(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").touch()
    for workdir, how, message in (
        ("file", {}, f"^workdir={tmp_path}/file is a file; name a directory$"),
        ("other", {}, "other is not empty and holds no run of this program; name another"),
        ("new", {"fields": {"data.eval_split": "val"}}, r"test \(config.data.eval_split"),
        ("new", {"fields": {"optimizer.name": "sgdd"}}, r"of .* \(config.optimizer.name="),
        ("new", {"imports": "a.py"}, "^imports='a.py' is one file: give a list, as in .'a.py'.$"),
        ("new", {"imports": ["a.py"]}, "^imports=a.py: there is no Python file"),
    ):
        with pytest.raises(BadInputError, match=message) as caught:
            wj.train("configs/digits.py", tmp_path / workdir, **how)
        assert "--" not in str(caught.value)


@pytest.mark.parametrize("kind", [BadInputError, RunFailedError])
def test_commands_within_a_message_keep_their_flags(kind: type[Exception]):
    command = "python -m widenet_jax.main --mode=replay --workdir=runs/a"
    packed = "scripts/prepare_data.py image_folder --extend"
    others = f"Or {command}; or {packed}."
    with pytest.raises(kind) as caught, naming_arguments(extend="extend=True"):
        raise kind(f"--workdir=runs/a: add --extend. {others} --config.x=1; no --force")
    told = f"workdir=runs/a: add extend=True. {others} config.x=1; no --force"
    assert str(caught.value) == told


def test_untrained_models():
    """The digits' WideNet has 53,066 parameters; the representation layer of D = 64 is extra."""
    digits = wj.build_model("widenet_tiny", num_classes=10)
    shapes = parameter_shapes(digits, image_spec((8, 8, 1)))
    assert count_parameters(shapes) == 53_066 + 64 * 64 + 64
    assert wj.build_model("widenet_b,experts=8").feed_forwards["moe"].num_experts == 8
    assert wj.build_model("albert", vocab_size=21).vocab_size == 21
    assert wj.build_model("wt_s,ffn=moe,depth=2").depth == 2
    for variant, fields, message in (
        ("widenet_c", {}, "no model is named 'widenet_c'; .*there are vit_tiny, .*albert, .*wt_s"),
        ("alberta", {}, "no model is named 'alberta'; did you mean albert. there are vit_tiny"),
        ("widenet_b,expert=8", {}, "widenet_b has no option 'expert'; did you mean experts. there"),
        ("wt_s", {"num_classes": 10}, "wt_s.num_classes is unknown; wt_s may have vocab_size"),
    ):
        refuses(message, wj.build_model, variant, **fields)
