"""Models that come with the package: opened by name, in float16, with a card and a hash."""

import json
import os
import shutil
from pathlib import Path

import convergence
import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from refusals import answered, refused, refuses

import widenet_jax as wj
from configs import finetune
from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.cli import analyze, evaluate, export, predict
from widenet_jax.files import SHIPPED, find_model, shipped_models
from widenet_jax.inference.exported import write_exported
from widenet_jax.inference.model_card import origin
from widenet_jax.inference.pretrained import load_pretrained
from widenet_jax.inference.pretrained_config import set_fields
from widenet_jax.inference.trained import read_model
from widenet_jax.ops.launch.requests import unreadable
from widenet_jax.vision.data.digits import Digits

NAME = "widenet_tiny_digits"
COMMANDS = {"analyze": analyze, "evaluate": evaluate, "export": export, "predict": predict}
MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def half(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports the run in float16."""
    out = tmp_path_factory.mktemp("half") / "model"
    flags = ("--dtype=float16", "--license=CC0", "--json")
    assert export.main([f"--workdir={digits_run}", f"--out={out}", *flags]) == 0
    return out


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_model_is_whole(name: str):
    """Small, in float16, of the hash that its card names, and described."""
    place = SHIPPED / name
    assert sum(path.stat().length for path in place.iterdir()) <= MOST_BYTES
    arrays = safetensors.numpy.load_file(place / "params.safetensors")
    assert {array.dtype.name for array in arrays.values()} == {"float16"}
    stored = read_model(name)  # compares the hash
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(stored.params))
    card = (place / "README.md").read_text()
    assert params_sha256(stored.params) in card and "not compared" not in card
    assert " with changes |" not in card  # the commit alone gives the same model
    for row in ("data", "command", "commit", "seed", "license", "in float16", "parameters"):
        assert f"\n| {row} | " in card, row
    experts = stored.config["model"]["ffn"] == "moe"
    assert ("\n| expert load | " in card) == experts
    assert not Path(stored.config["data"]["path"]).is_absolute()


def test_the_digits_model_reads_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    images = [Digits("test")[i] for i in range(32)]
    found = wj.load(NAME).predict([image["image"] for image in images], top=1)
    right = [top[0]["class"] == str(one["label"]) for top, one in zip(found, images, strict=True)]
    assert sum(right) >= 30


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_models() if "cifar10" in name])
def test_the_accuracy_is_the_card_s(name: str, tmp_path: Path, capsys):
    """On the 9,000 test images of WIDENET_DATA_DIR."""
    if "WIDENET_DATA_DIR" not in os.environ:
        pytest.skip("needs WIDENET_DATA_DIR")
    path = convergence.packed({"test": "cifar10/test_9000.npz"}, str(tmp_path / "packed"))
    capsys.readouterr()
    found = answered(capsys, evaluate.main, f"--workdir={name}", f"--config.data.path={path}")
    told = f"\n| in float16 | {found['top_1']:.2%} of {found['images']:,} images"
    assert found["images"] == 9000 and told in (SHIPPED / name / "README.md").read_text()


def test_a_name_is_a_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Of a run here, and of one on machines that receive the code alone."""
    monkeypatch.chdir(tmp_path)
    config = set_fields(finetune.get_config("pretrained"), [f"--config.init_from={NAME}"])
    assert config.model.embed_dim == 64 and config.data.image_size == 8
    later = ["--config.model.adapter.rank=2", "--config.model.drop_path=0.1"]  # not in its file
    flags = [f"--config.init_from={NAME}", *later]
    assert set_fields(finetune.get_config("pretrained"), flags).model.adapter.rank == 2
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    taken = load_pretrained(NAME, device, model=config.model, info={}).params
    assert params_sha256(taken) == params_sha256(read_model(NAME).params)
    config.data.path = "gs://b/photos"
    assert not any("init_from" in line for line in unreadable(config))
    config.init_from = "runs/mine"
    assert any("config.init_from=runs/mine is relative" in line for line in unreadable(config))


def test_a_local_path_of_that_name_wins(
    digits_export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """And is told once."""
    monkeypatch.chdir(tmp_path)
    assert find_model(NAME) == (str(SHIPPED / NAME), "")
    assert find_model(f"{NAME}@best") == (str(SHIPPED / NAME), "best")
    refuses(f"^--workdir={NAME} is an export, and only a run has", read_model, f"{NAME}@best")
    shutil.copytree(digits_export, NAME)
    shipped, here = (read_model(str(place)).step for place in (SHIPPED / NAME, NAME))
    assert (shipped, here) == (2245, 20) and find_model(NAME) == (NAME, "")
    told = f"note: {NAME} is the local {tmp_path / NAME}, not the model that comes with widenet_jax"
    assert capsys.readouterr().err == f"{told}; for the latter rename that path\n"
    assert find_model(f"./{NAME}") == (f"./{NAME}", "") and not capsys.readouterr().err


def test_an_unknown_name_is_answered_with_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    told = "no finished checkpoint there; give the workdir of a training run, or a directory that "
    told += "scripts/export.py wrote, or a model of widenet_jax by name: did you mean "
    told += f"{NAME}? there are {', '.join(shipped_models())}"
    near = NAME[:-1]
    refuses(f"^place={near}: {told.replace('?', '[?]')}$", wj.load, near)
    words = {"analyze": "--out=a", "evaluate": "--json", "export": "--out=e", "predict": "x.png"}
    for name, word in words.items():
        line = refused(capsys, COMMANDS[name].main, word, f"--workdir={near}")
        assert line == f"error: --workdir={near}: {told}\n"
    flags = [f"--config.init_from={near}"]
    refuses(f"by name: did you mean {NAME}", set_fields, finetune.get_config("pretrained"), flags)


def test_float16_beside_float32(half: Path, digits_run: Path):
    """Nearly the same logits from a file of half the size; its hash is of what is read."""
    images = np.stack([Digits("test")[i]["image"] for i in range(4)])

    inputs = {"image": images.astype(np.float32) / 127.5 - 1}
    models = {place: wj.load(place) for place in (digits_run, half)}
    apply = jax.jit(lambda params: models[half].module.apply(params, inputs, train=False)[0])
    ours, theirs = (np.asarray(apply({"params": model.params})) for model in models.values())
    assert 0 < np.abs(ours - theirs).max() < 0.02 and np.ptp(ours) > 1
    for whole, rounded in zip(
        *(jax.tree.leaves(model.params) for model in models.values()), strict=True
    ):
        np.testing.assert_array_equal(whole.astype(np.float16).astype(np.float32), rounded)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(models[half].params))
    assert (half / "params.safetensors").stat().st_size < size / 2 + 4000
    record = json.loads((half / "export.json").read_text())
    assert record["params_sha256"] == params_sha256(models[half].params)
    assert record["params_sha256"] != record["result"]["params_sha256"]


def test_the_card_of_float16(half: Path, digits_run: Path, tmp_path: Path, capsys):
    """The measured accuracies are the run's; another export keeps the rows."""
    result = json.loads((digits_run / "result.json").read_text())
    start = json.loads((digits_run / "environment.json").read_text())[-1]
    accuracy = f"{result['test_accuracy']:.2%} of 360 images (95%: "
    again = tmp_path / "again"
    answered(capsys, export.main, f"--workdir={half}", f"--out={again}", "--format=npz")
    for place in (half, again):
        card = (place / "README.md").read_text()
        row = next(line for line in card.splitlines() if line.startswith("| in float16 | "))
        assert row.startswith("| in float16 | ") and f"; in float32: {accuracy}" in row
        assert f"| commit | {start['git']['commit']}" in card and "\n| license | CC0 |" in card
        assert "\n| command | `" in card and str(digits_run.parent) not in card
    assert "by path, in float16." in (half / "README.md").read_text()


def test_a_changed_file_is_refused(half: Path, tmp_path: Path, capsys):
    place = shutil.copytree(half, tmp_path / "model")
    file = place / "params.safetensors"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1  # the last bit of the last number
    file.write_bytes(content)
    line = refused(capsys, evaluate.main, f"--workdir={place}")
    assert line == (
        f"error: {file}: the parameters differ from the exported ones; copy or export it again\n"
    )


def test_float16_without_the_data_or_the_range(half: Path, digits_export: Path, tmp_path, capsys):
    """A set that is not here is a warning, a number that float16 has not ends the export."""
    place = shutil.copytree(digits_export, tmp_path / "model")
    config = json.loads((place / "config.json").read_text())
    config["data"] |= {"source": "array_record", "path": "nowhere"}
    (place / "config.json").write_text(json.dumps(config))
    flags = (f"--workdir={place}", "--dtype=float16")
    assert export.main([*flags, f"--out={tmp_path / 'half'}"]) == 0
    told = "warning: the evaluation split cannot be read to compare float16 with float32: "
    assert capsys.readouterr().err.startswith(told)
    assert "| in float16 | not compared with" in (tmp_path / "half" / "README.md").read_text()
    model = read_model(str(digits_export))
    model.params["head"]["bias"][3] = 70_000
    write_exported(epath.Path(tmp_path / "large"), model, file_format="npz")
    flags = (f"--workdir={tmp_path / 'large'}", f"--out={tmp_path / 'o'}", "--dtype=float16")
    assert "head/bias has numbers beyond 65,504" in refused(capsys, export.main, *flags)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ("--dtype=float16", "--format=stablehlo"),
            "stablehlo: no float16 there; leave --dtype out",
        ),
        (("--dtype=float16", "--format=huggingface"), "huggingface: no float16 there"),
        (("--license=MIT", "--format=stablehlo"), "no model card there; leave --license out"),
        (("--dtype=float61",), "choose one of float32, float16"),
    ],
)
def test_what_does_not_go_together(flags: tuple[str, ...], told: str, tmp_path: Path, capsys):
    words = (f"--workdir={NAME}", f"--out={tmp_path / 'o'}", *flags)
    assert told in refused(capsys, export.main, *words)


@pytest.mark.parametrize(
    ("word", "shown"),
    [("--workdir=/tmp/a b/run", "--workdir=run"), ("--out=../../home/me/run", "--out=run"),
     ("/home/me/kernel.json", "kernel.json"), ("--workdir=~/run", "--workdir=run"),
     ("--config=configs/digits.py", "--config=configs/digits.py"),
     ("--config.data.path=gs://bucket/set", "--config.data.path=set")],
)  # fmt: skip
def test_a_card_shows_no_places_of_a_machine(word: str, shown: str):
    assert origin([{"argv": ["/x/main.py", word], "git": None}]) == {
        "command": f"`python -m widenet_jax.main {shown}`"
    }


def test_a_card_follows_its_file(half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A bar or a line break ends no cell of its table; what is no table is refused."""
    out = tmp_path / "whole"
    assert export.main([f"--workdir={half}", f"--out={out}", "--license=a|b\nc"]) == 0
    card = (out / "README.md").read_text()
    assert r"| license | a\|b c |" in card
    record = json.loads((out / "export.json").read_text())
    (out / "export.json").write_text(json.dumps(record | {"card": ["a"]}))
    capsys.readouterr()
    flags = (f"--workdir={out}", f"--out={tmp_path / 'again'}")
    assert "card ['a'] is not an object" in refused(capsys, export.main, *flags)


def test_a_launch_looks_at_the_local_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = finetune.get_config("pretrained")
    config.data.path, config.init_from = "/data", NAME
    assert list(unreadable(config)) == []
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    assert any(f"config.init_from={NAME} is relative" in line for line in unreadable(config))
