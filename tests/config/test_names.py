"""Misspelt field names, and names from other libraries, are answered with ours."""

import tomllib
from pathlib import Path

import pytest

from widenet_jax.config.fields import field_names, override
from widenet_jax.config.files import load_config
from widenet_jax.config.names import ELSEWHERE, elsewhere, same_name
from widenet_jax.config.parser import Parser
from widenet_jax.errors import BadInputError

ROOT = Path(__file__).parents[2]
# What users of timm, Transformers, Keras, big_vision, nanoGPT and Levanter write, and slips.
FOREIGN = {
    "lr": "optimizer.learning_rate",
    "learning_rate": "optimizer.learning_rate",
    "per_device_eval_batch_size": "evaluation.batch_size",
    "epochs": "duration",
    "warmup_steps": "optimizer.warmup",
    "optimizer.beta2": "optimizer.b2",
    "data_dir": "data.path",
    "num_hidden_layers": "model.loop.core",
    "num_experts_per_tok": "model.moe.num_selected_experts",
}
MISSPELT = {
    "optimiser.warm_up": "optimizer.warmup",
    "batchsize": "batch_size",
    "model.num_head": "model.attention.num_heads",
    "augment.mix_up_alpha": "augment.mixup_alpha",
    "label-smoothing": "task.label_smoothing",
}


def answer(name: str, config: str = "digits.py") -> str:
    with pytest.raises(BadInputError) as caught:
        override(load_config(f"{ROOT}/configs/{config}"), [f"--config.{name}=1"])
    return str(caught.value)


def test_the_answer_names_the_field_that_was_meant():
    for asked, meant in (FOREIGN | MISSPELT).items():
        suggested = answer(asked).partition("did you mean --config.")[2].partition("?")[0]
        assert suggested.partition("=")[0] == meant


def test_the_answer_lists_the_fields_of_the_section():
    """Of the one that the user named, or else of the one in which the field is."""
    assert answer("batch").endswith("seed, sharding, task, tracking, watchdog")
    assert answer("evaluation.xyz") == (
        "--config.evaluation.xyz: the config has no such field; config.evaluation has batch_size, "
        "every, patience"
    )
    assert answer("evaluation.lr").endswith(
        "learning_rate? config.evaluation has batch_size, every, patience"
    )
    assert answer("xyzzy").startswith("--config.xyzzy: the config has no such field; config has")


def test_durations_come_with_their_unit():
    assert 'did you mean --config.duration="10 epochs"? config has' in answer("epochs")
    assert 'did you mean --config.optimizer.warmup="500 steps"?' in answer("warmup_steps")


def test_only_fields_of_this_config_are_suggested():
    assert same_name("lr", {"seed"}) is None
    assert "did you mean --config.data.max_length?" in answer("seq_len", "text_tiny.py")
    assert "--config.data.max_length" not in answer("seq_len")


def test_every_name_from_elsewhere_leads_to_a_field():
    table = tomllib.loads(ELSEWHERE.read_text())
    names = " ".join(table.values()).split()
    assert len(names) == len(elsewhere()), "a name stands at two fields"
    assert {ours.partition("=")[0] for ours in table} <= field_names()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--lr=0.1", "there is no flag --lr; did you mean --config.optimizer.learning_rate?"),
        ("--data-dir=x", "did you mean --config.data.path?"),
        ("--ouput=x", "did you mean --output?"),
    ],
)
def test_a_field_written_as_a_flag(flag: str, message: str):
    parser = Parser()
    parser.add_argument("--output")
    with pytest.raises(BadInputError) as caught:
        parser.read([flag])
    assert message in str(caught.value)
