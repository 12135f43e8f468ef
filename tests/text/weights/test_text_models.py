"""Text models as runs, exports and Hugging Face files: opened, started from, exported."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from inference import reference_bert as reference
from inference.our_bert import exported

from widenet_jax.checkpoint.manifest import params_sha256
from widenet_jax.config.files import from_json
from widenet_jax.errors import BadInputError
from widenet_jax.inference.exported import write_exported
from widenet_jax.inference.pretrained import Pretrained, load_pretrained
from widenet_jax.inference.trained import open_trained
from widenet_jax.text.weights.huggingface import fit, from_huggingface_text
from widenet_jax.text.weights.huggingface_config import model_section

TASKS = {
    "masked_lm": ("pooler", "mlm", "order"),
    "text_classification": ("pooler", "classifier"),
    "text_regression": ("pooler", "classifier"),
    "span": ("span",),
}


def model(task: str, directory: Path, kind: str = "albert", **changes: object):
    """A stored model of a task, with random parameters."""
    section = model_section(reference.config_of(kind), source="config.json")
    section |= {"dtype": "float32", **changes}
    params = from_huggingface_text(
        reference.random_arrays(kind),
        kind=kind,
        depth=reference.L,
        shared=kind == "albert",
        source="hf",
    )
    if task == "text_regression":
        params["classifier"] = {name: x[..., :1] for name, x in params["classifier"].items()}
    heads = TASKS[task]
    backbone = {"embeddings", "projection", "encoder", *heads}
    return exported({k: v for k, v in params.items() if k in backbone}, section, task, directory)


def opened(place: Path, model: dict, info: dict) -> Pretrained:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return load_pretrained(str(place), device, model=model, info=info)


def load(place: Path, model: dict, info: dict) -> dict:
    return opened(place, model, info).params


@pytest.mark.parametrize("task", TASKS)
def test_an_export_of_each_task(task: str, tmp_path):
    """It opens, has its tokenizer, and its card says what it is."""
    stored = model(task, tmp_path)
    if task == "span":
        stored.config["task"]["head"] = "span"
    write_exported(epath.Path(tmp_path / "e"), stored, file_format="safetensors")
    assert json.loads((tmp_path / "e" / "tokenizer.json").read_text()) == stored.info["tokenizer"]
    found = open_trained(str(tmp_path / "e"))
    assert params_sha256(found.params) == params_sha256(stored.params)
    assert found.tokenizer.vocab_size == reference.V
    assert found.task.model_fields["vocab_size"] == reference.V
    assert found.class_names == stored.class_names
    message = (
        r"config.data.max_length=512 is more than the model's .*; add --config.data.max_length="
    )
    with pytest.raises(BadInputError, match=message):
        open_trained(str(tmp_path / "e"), ["--config.data.max_length=512"])
    card = (tmp_path / "e" / "README.md").read_text()
    assert "ALBERT: 3 blocks of width 8, 2 heads, embeddings of width 6, feed-forward" in card
    assert f"Texts have at most {found.config.data.max_length} tokens" in card


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_to_hugging_face_and_back(kind: str, tmp_path):
    """The parameters are equal, and so is what `pretrained` makes of the directory."""
    stored = model("masked_lm", tmp_path, kind)
    write_exported(epath.Path(tmp_path / "hf"), stored, file_format="huggingface", place="run")
    section = from_json(stored.config["model"])
    found = load(tmp_path / "hf", section, stored.info)
    assert params_sha256(found) == params_sha256(stored.params)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert model_section(config, source="config.json") | {"dtype": "float32"} == section
    with safetensors.safe_open(tmp_path / "hf" / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}  # older releases of transformers ask for it
    card = (tmp_path / "hf" / "README.md").read_text()
    assert f"transformers.{kind.capitalize()}ForPreTraining.from_pretrained(DIR)" in card
    assert "--config.init_from=DIR" in card and "predict.py" not in card


def test_scores_to_hugging_face(tmp_path):
    """As a sequence classifier of one label, which transformers then reads as a regression."""
    stored = model("text_regression", tmp_path)
    write_exported(epath.Path(tmp_path / "hf"), stored, file_format="huggingface", place="run")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["AlbertForSequenceClassification"]
    assert (config["num_labels"], config["problem_type"]) == (1, "regression")


def test_no_counterpart(tmp_path):
    heads = {"attention": {"name": "full", "num_heads": 4, "head_dim": 6}}
    theirs = "which their BERT and ALBERT do not have"
    for change, message in (
        ({"ffn": "moe", "moe": {"num_experts": 4}}, f"a model with ffn=moe, {theirs}"),
        ({"norm_position": "pre"}, f"a model with norm_position=pre, {theirs}"),
        ({"activation": "swiglu"}, f"a model with activation=swiglu, {theirs}"),
        ({"ffn_bias": False}, f"a model with ffn_bias=False, {theirs}"),
        (heads, f"a model with attention.head_dim=6, {theirs}"),
        ({"name": "vision_transformer"}, "a vision_transformer; only text models go there"),
    ):
        stored = model("masked_lm", tmp_path, **change)
        with pytest.raises(BadInputError) as caught:
            write_exported(
                epath.Path(tmp_path / "hf"), stored, file_format="huggingface", place="run"
            )
        assert str(caught.value).startswith(f"--format=huggingface: run holds {message}")
        assert str(caught.value).endswith("export it with --format=safetensors")
        assert not (tmp_path / "hf").exists()


def hugging_face(directory: Path, arrays: dict) -> Path:
    directory.mkdir()
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(reference.config_of("albert")))
    return directory


def test_another_tokenizer_or_model_is_refused(tmp_path):
    """Sizes are the same, so nothing else would notice."""
    stored = model("masked_lm", tmp_path)
    place = hugging_face(tmp_path / "hf", reference.random_arrays("albert"))
    section = model_section(reference.config_of("albert"), source="config.json")
    assumed = "no tokenizer beside the weights: the run's is taken for theirs"
    assert opened(place, section, stored.info).note == assumed
    (place / "vocab.txt").write_text((tmp_path / "vocab.txt").read_text())
    assert opened(place, section, stored.info).note == ""
    words = (place / "vocab.txt").read_text().replace("b\nc", "c\nb")
    (place / "vocab.txt").write_text(words)
    for other, message in (
        ({}, "was trained with another tokenizer: token 6 is 'c' there and 'b' here"),
        ({"activation": "gelu_tanh"}, r"add --config.model.activation=gelu$"),
        ({"name": "vision_transformer"}, "a text_encoder, and this run's model is vision_transf"),
    ):
        with pytest.raises(BadInputError, match=message):
            load(place, section | other, stored.info)


def test_damaged_weights_are_refused(tmp_path):
    """NaN, another table than config.json's, and a tokenizer that lacks more than padding."""
    section = model_section(reference.config_of("albert"), source="config.json")
    arrays = reference.random_arrays("albert")
    name = "albert.pooler.bias"
    place = hugging_face(tmp_path / "nan", arrays | {name: arrays[name] * np.nan})
    with pytest.raises(BadInputError, match=f"{name} holds NaN or infinity; download"):
        load(place, section, {})
    place = hugging_face(tmp_path / "other", arrays)
    config = reference.config_of("albert") | {"vocab_size": reference.V + 1}
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInputError, match=r"vocab_size=14, and the weights have 13 tokens"):
        load(place, section, {})
    table = np.zeros((30_720, 1))
    assert fit("embeddings/token", table, (30_522, 1), {}).shape == (30_522, 1)
    for rows, tokens in ((30_720, 29_000), (30, 22)):
        with pytest.raises(BadInputError, match=f"tokenizer has {tokens:,} tokens, and its weig"):
            fit("embeddings/token", table[:rows], (tokens, 1), {})
