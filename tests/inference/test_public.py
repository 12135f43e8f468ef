"""Public weights that predict as they are: masked words of a BERT or ALBERT, classes of a ViT."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from inference import reference_bert as reference
from inference import reference_vit
from PIL import Image
from refusals import answered, refused, refuses

import widenet_jax as wj
from widenet_jax.cli import evaluate, predict

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]  # V of them


def write(directory: Path, kind: str, arrays: dict) -> Path:
    directory.mkdir()
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(reference.config_of(kind)))
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return directory


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        ("bert", "no part"),
        pytest.param("albert", "pooler, sop_classifier, classifier", marks=pytest.mark.slow),
    ],
)
def test_masked_words(kind: str, left_out: str, tmp_path: Path, monkeypatch, capsys):
    """As the function of their library, whose ForMaskedLM has neither pooler nor order head."""
    parts = tuple(left_out.split(", "))
    arrays = reference.random_arrays(kind)
    kept = {k: v for k, v in arrays.items() if not k.removeprefix(f"{kind}.").startswith(parts)}
    place = write(tmp_path / "hf", kind, kept)
    flags = [f"--workdir={place}", "--fill=a [MASK] b", f"--top={reference.V}", "--json"]
    assert predict.main(flags) == 0
    (row,) = json.loads(capsys.readouterr().out)["fills"]
    found = {one["word"].removeprefix("##"): one["probability"] for one in row["masks"][0]}

    monkeypatch.setattr(reference, "TOKENS", np.array([[2, 5, 4, 6, 3]]))  # [CLS] a [MASK] b [SEP]
    monkeypatch.setattr(reference, "SEGMENTS", np.zeros((1, 5), int))
    monkeypatch.setattr(reference, "LENGTHS", (5,))
    logits = reference.outputs(kind, arrays, reference.config_of(kind), 0)["mlm"][2]
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose([found[word] for word in WORDS], expected, atol=1e-5)


def test_what_it_cannot_do_is_one_line(tmp_path: Path, capsys):
    arrays = reference.random_arrays("bert")
    headless = {k: v for k, v in arrays.items() if not k.startswith("cls.")}
    for name, stored, flag, message in (
        ("whole", arrays, "--text=a", "which takes --fill"),
        ("headless", headless, "--fill=[MASK]", "without a head for masked words"),
        ("short", arrays, "--fill=[MASK]", "its tokenizer has 14 tokens, and its weights have 13"),
    ):
        place = write(tmp_path / name, "bert", stored)
        if name == "short":
            (place / "vocab.txt").write_text("\n".join([*WORDS, "i"]) + "\n")
        err = refused(capsys, predict.main, f"--workdir={place}", flag)
        assert message in err
        assert name != "headless" or f"--config.init_from={place}" in err
    for flags, message in (  # the set comes from the user
        ((), "config.data.source=text needs a directory: add --config.data.path=DIR"),
        (("--config.data.source=tiny_text",), "was trained with another tokenizer: token 0 is"),
    ):
        whole = f"--workdir={tmp_path / 'whole'}"
        assert message in refused(capsys, evaluate.main, whole, *flags)


@pytest.mark.parametrize("kind", ["timm", "timm without head", "google"])
def test_a_vit(kind: str, tmp_path: Path, capsys):
    """Its classes are numbers; without a classifier its features are read."""
    vit = reference_vit.random_vit()
    if kind == "google":
        exact, file = reference_vit.gelu_tanh, tmp_path / "vit.npz"
        np.savez(file, **reference_vit.google_names(vit))
    else:
        exact, file = reference_vit.gelu_erf, tmp_path / "vit_tiny.augreg.safetensors"
        arrays = {k: np.ascontiguousarray(v) for k, v in reference_vit.timm_names(vit).items()}
        kept = (k for k in arrays if kind == "timm" or not k.startswith("head."))
        safetensors.numpy.save_file({k: arrays[k] for k in kept}, file)
        facts = {"model_args": {"num_heads": reference_vit.N}}
        (tmp_path / "config.json").write_text(json.dumps(facts))
    model = wj.load(file)
    told = "no config.json says its pixels: as of augreg, by the name of the file\n"
    assert capsys.readouterr().err == ("" if kind == "google" else f"note: {file}: {told}")
    side = reference_vit.SIDE * reference_vit.P
    assert model.config.data.image_size == side
    pixels = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), np.uint8)
    logits = reference_vit.logits(vit, pixels / 127.5 - 1, activation=exact)
    features = model.features(list(pixels))
    ours = features @ vit.outside["head_kernel"] + vit.outside["head_bias"]
    np.testing.assert_allclose(ours, logits, atol=1e-5)
    if kind == "timm without head":
        refuses("holds weights without a classifier", model.predict, list(pixels))
        return
    assert model.class_names == tuple("01234")
    probabilities = np.exp(logits[0]) / np.exp(logits[0]).sum()
    (best,) = model.predict(list(pixels), top=1)[0]
    assert best["class"] == str(logits.argmax())
    np.testing.assert_allclose(best["probability"], probabilities.max(), atol=1e-5)
    if kind == "google":  # folders are its classes in their order
        images = np.random.default_rng(1).integers(0, 256, (5, side, side, 3), np.uint8)
        for name, image in zip("abcde", images, strict=True):
            (tmp_path / "photos" / "test" / name).mkdir(parents=True)
            Image.fromarray(image).save(tmp_path / "photos" / "test" / name / "1.png")
        fields = {"source": "image_folder", "path": tmp_path / "photos", "eval_split": "test"}
        flags = [f"--config.data.{name}={value}" for name, value in fields.items()]
        found = answered(capsys, evaluate.main, f"--workdir={file}", *flags)
        named = [top[0]["class"] for top in model.predict(list(images), top=1)]
        assert found["top_1"] == pytest.approx(np.mean(np.array(named) == list("01234")))
