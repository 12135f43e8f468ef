"""config.model.name="pretrained": the section of a run, an export or a Hugging Face model."""

import json
import shutil
from pathlib import Path

import pytest
from inference import reference_bert as reference
from ml_collections import ConfigDict
from refusals import refuses

from configs import cifar10, defaults, finetune, glue, squad
from configs.variants import model_section
from widenet_jax.inference.pretrained_config import merged, set_fields
from widenet_jax.main import parse_flags
from widenet_jax.text.weights import huggingface_config

WIDENET = model_section("widenet_4_s")
ALBERT = model_section("albert_s")


def run(place: Path, model: dict, **sections: dict) -> str:
    """Writes what the workdir of a run has that matters here."""
    place.mkdir()
    content = {"model": model, "task": {"name": "masked_lm"}, **sections}
    (place / "config.json").write_text(json.dumps(content))
    return str(place)


def public(place: Path) -> dict:
    """Writes what a directory of Hugging Face has that matters here, and returns it."""
    place.mkdir(exist_ok=True)
    facts = reference.config_of("albert", hidden_act="gelu_new", hidden_dropout_prob=0)
    (place / "config.json").write_text(json.dumps(facts))
    return facts


def config(**beside: object) -> ConfigDict:
    return defaults.get_config({"name": "pretrained", **beside}, "text_classification")


def test_the_whole_section_is_taken_and_may_be_overridden(tmp_path):
    """Fields beside the name override it. Flags come last, and may set any field of the model."""
    flags = [f"--config.init_from={run(tmp_path / 'run', WIDENET)}"]
    whole = set_fields(config(), flags)
    assert whole.model.to_dict() == WIDENET
    with pytest.raises(AttributeError):  # the config is locked, as any other
        whole.model.other = 1
    moe = {"capacity_factor": 1.5, "losses": {"load_balance": 0.0}}
    changed = config(dropout=0.25, dtype="bfloat16", moe=moe)
    set_fields(changed, [*flags, "--config.model.dropout=0.5", "--config.model.remat=block"])
    expected = WIDENET | {"dropout": 0.5, "dtype": "bfloat16", "remat": "block"}
    losses = WIDENET["moe"]["losses"] | moe["losses"]
    expected["moe"] = WIDENET["moe"] | moe | {"losses": losses}
    assert changed.model.to_dict() == expected
    other = defaults.get_config(dict(ALBERT), "text_classification")  # names its model
    assert set_fields(other, ["--config.seed=5"]).model.to_dict() == ALBERT


def test_a_width_that_no_block_has(tmp_path):
    """Without the refusal a search over it would train the same model many times."""
    flags = ["--config.model.mlp_dim=64"]
    refuses("ffn=moe is in all blocks; set", set_fields, cifar10.get_config("widenet_s"), flags)
    for variant in ("vit_s", "widenet_s,ffn_blocks=last_2"):
        assert set_fields(cifar10.get_config(variant), flags).model.mlp_dim == 64
    place = run(tmp_path / "begun", WIDENET)
    begun = set_fields(cifar10.get_config("widenet_s"), flags, workdir=place)
    assert begun.model.mlp_dim == 64  # a run of earlier versions resumes


@pytest.mark.parametrize("router", ["top_k", "noisy_top_k", "sigmoid"])
def test_a_stored_router_has_the_losses_that_it_has_from_scratch(router: str, tmp_path):
    variant = f"widenet_4_s,router={router}"
    place = run(tmp_path / "run", model_section(variant))
    pretrained = set_fields(glue.get_config("mnli"), [f"--config.init_from={place}"])
    scratch = glue.get_config(f"mnli,model={variant}")
    assert pretrained.model.to_dict() == scratch.model.to_dict()
    weights = {name for name, weight in pretrained.model.moe.losses.items() if weight}
    own = {"top_k": {"load_balance"}, "noisy_top_k": {"importance", "load"}}
    assert weights == own.get(router, {"entropy"}) | {"over"}


def test_photos_have_the_size_of_the_stored_model_and_its_learning_rate(tmp_path):
    """A flag, and a config of one's own, go before; a run that has begun keeps what it has."""

    def found(*flags: str, own: float | None = None, workdir: str = "") -> tuple[int, float]:
        made = finetune.get_config("pretrained")
        if own:
            made.optimizer.learning_rate = own
        set_fields(made, flags, workdir=workdir)
        assert "image_size" not in made.model and "learning_rate" not in made.model
        return made.data.image_size, made.optimizer.learning_rate

    for size, pixels, rate in (("b", 224, 1e-4), ("s", 24, 1e-3)):
        place, model = tmp_path / size, model_section(f"widenet_{size}")
        run(place, model, data={"image_size": pixels}, optimizer={"learning_rate": 7.0})
        flag = f"--config.init_from={place}"
        assert found(flag) == (pixels, rate)
        assert found(flag, "--config.data.image_size=32", own=0.5) == (32, 0.5)
        (place / "checkpoints").mkdir()
        assert found(flag, workdir=str(place)) == (pixels, 7.0)
        paper = set_fields(cifar10.get_config("pretrained"), [flag])  # its own learning rate
        assert (paper.data.image_size, paper.optimizer.learning_rate) == (pixels, 0.03)
        assert (paper.model.moe.examples_per_group, paper.model.pre_logits) == (16, False)


def test_fields_that_the_stored_model_lacks(tmp_path):
    """A section has no effect; a flag or another field is a mistake."""
    flag = f"--config.init_from={run(tmp_path / 'run', ALBERT)}"
    found = set_fields(config(moe={"capacity_factor": 1.5}), [flag])
    assert found.model.to_dict() == ALBERT
    width = "--config.model.moe.mlp_dim=8"
    refuses("config.model.moe is empty in this config", set_fields, config(), [flag, width])
    told = "config.model.odd is no field of the model in .*=run"
    refuses(told, merged, ALBERT, {"odd": 1}, "run")


def test_loops_that_have_grown_stay_grown(tmp_path):
    """A run that has begun keeps its own, and a flag lets them grow again."""
    counts = WIDENET["loop"]["counts"] | {"train": "grow"}
    place = run(tmp_path / "run", WIDENET | {"loop": WIDENET["loop"] | {"counts": counts}})
    flags = [f"--config.init_from={place}"]
    assert set_fields(config(), flags).model.to_dict() == WIDENET
    again = [*flags, "--config.model.loop.counts.train=grow"]
    (tmp_path / "run" / "checkpoints").mkdir()
    for how in ({"flags": again}, {"flags": flags, "workdir": place}):
        assert set_fields(config(), **how).model.loop.counts.to_dict() == counts


def test_a_model_of_another_kind(tmp_path):
    """A table of texts and photos need different models, also of one that is public."""
    images = {"data": {"image_size": 24}, "optimizer": {"learning_rate": 1.0}}
    run(tmp_path / "images", model_section("widenet_s"), **images)
    run(tmp_path / "more", model_section("tiny"))
    run(tmp_path / "texts", ALBERT)
    public(tmp_path / "public")
    for made, name, holds, needs in (
        (glue, "images", "vision_transformer", "=text_classification needs a text_encoder; start"),
        (squad, "images", "vision_transformer", "=span needs a text_encoder"),
        (glue, "more", "language_model", "needs a text_encoder; start from such"),
        (finetune, "more", "language_model", "=classification needs a vision_transformer"),
        (cifar10, "texts", "text_encoder", "needs a vision_transformer"),
        (finetune, "public", "text_encoder", "needs a vision_transformer"),
    ):
        start = made.get_config({squad: "v2", glue: "own"}.get(made, "pretrained"))
        source = f"config.init_from={tmp_path / name}"
        refuses(f"^{source} holds a {holds}, and .*{needs}", set_fields, start, [f"--{source}"])


def test_a_hugging_face_model(tmp_path):
    facts = public(tmp_path)
    (tmp_path / "model.safetensors").touch()
    for place in (tmp_path, tmp_path / "model.safetensors"):
        made = config()
        set_fields(made, [f"--config.init_from={place}", "--config.model.dropout=0.1"])
        expected = huggingface_config.model_section(facts, source="config.json") | {"dropout": 0.1}
        assert made.model.to_dict() == expected


def test_the_command_line_of_a_run(tmp_path):
    """A run that has begun resumes without the model that it started from."""
    place = tmp_path / "first"
    run(place, WIDENET)
    flags = ["main", "--config=configs/glue.py:own", f"--config.init_from={place}",
             f"--workdir={tmp_path / 'run'}", "--config.model.dropout=0.5"]  # fmt: skip
    _, made = parse_flags(flags)
    assert made.model.num_positions == 128 and made.model.dropout == 0.5
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(made.to_dict()))
    (tmp_path / "run" / "environment.json").write_text("[]")
    corrected = [*flags, f"--config.init_from={run(tmp_path / 'other', ALBERT)}"]
    assert parse_flags(corrected)[1].model.moe is None  # nothing has been saved yet
    (tmp_path / "run" / "checkpoints").mkdir()
    shutil.rmtree(place)
    assert parse_flags(flags)[1].to_dict() == made.to_dict()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no model and no weights there; give the workdir of a"),
        ("{", "Expecting property name"),
        ("[" * 100_000, r"config\.json: cannot be read .nested too deep"),
        ("[]", "or public weights of a ViT, BERT or ALBERT, or"),
        ('{"model_type": "vit"}', "no model and no weights there; give the workdir of a"),
        ('{"model_type": "roberta"}', "no model and no weights there; give the workdir of a"),
        ('{"model_type": "albert", "num_hidden_groups": 4}', "num_hidden_groups=4 of 12 layers"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "hidden_size='wide' is not a number"),
        ('{"model_type": "bert", "hidden_size": 8.5}', "hidden_size=8.5 is not a number"),
        ('{"model_type": "bert", "num_attention_heads": NaN}', "heads=nan is not a number"),
        ('{"model_type": "bert", "layer_norm_eps": Infinity}', "layer_norm_eps=inf is not a numb"),
        ('{"model_type": "bert", "hidden_act": "swish"}', "hidden_act='swish' is not an activ"),
        ('{"model_type": "bert", "num_attention_heads": 0}', "heads=0 is not a number of at least"),
        ('{"model_type": "bert", "hidden_act": []}', r"hidden_act=\[\] is not an activation"),
        ('{"model_type": "bert", "position_embedding_type": "relative_key"}',
         "position_embedding_type='relative_key', and our models have 'absolute' only"),
    ],
)  # fmt: skip
def test_no_stored_model(content: str | None, message: str, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    refuses(message, set_fields, config(), [f"--config.init_from={tmp_path}"])
    refuses(r"^config.model.name=pretrained needs the model to", set_fields, config(), [])
