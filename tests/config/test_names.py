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
DIGITS, TEXT = "digits.py", "text_tiny.py"
HAS = "config.evaluation has batch_size, every, patience"
# What users of timm, Transformers, Keras, big_vision, nanoGPT and Levanter write, and slips.
ANSWERS = [
    ("lr", DIGITS, "did you mean --config.optimizer.learning_rate?"),
    ("learning_rate", DIGITS, "did you mean --config.optimizer.learning_rate?"),
    ("per_device_eval_batch_size", DIGITS, "did you mean --config.evaluation.batch_size?"),
    ("epochs", DIGITS, 'did you mean --config.duration="10 epochs"? config has'),
    ("warmup_steps", DIGITS, 'did you mean --config.optimizer.warmup="500 steps"?'),
    ("optimizer.beta2", DIGITS, "did you mean --config.optimizer.b2?"),
    ("data_dir", DIGITS, "did you mean --config.data.path?"),
    ("num_hidden_layers", DIGITS, "did you mean --config.model.loop.core?"),
    ("num_experts_per_tok", DIGITS, "did you mean --config.model.moe.num_selected_experts?"),
    ("seq_len", TEXT, "did you mean --config.data.max_length?"),
    ("optimiser.warm_up", DIGITS, "did you mean --config.optimizer.warmup"),
    ("batchsize", DIGITS, "did you mean --config.batch_size?"),
    ("model.num_head", DIGITS, "did you mean --config.model.attention.num_heads?"),
    ("augment.mix_up_alpha", DIGITS, "did you mean --config.augment.mixup_alpha?"),
    ("label-smoothing", DIGITS, "did you mean --config.task.label_smoothing?"),
    # The fields of the section that the user named are listed, or else of the suggested field's.
    ("batch", DIGITS, "seed, sharding, task, tracking, watchdog"),
    ("evaluation.xyz", DIGITS, f"--config.evaluation.xyz: the config has no such field; {HAS}"),
    ("evaluation.lr", DIGITS, f"learning_rate? {HAS}"),
    ("xyzzy", DIGITS, "--config.xyzzy: the config has no such field; config has"),
]


def answer(name: str, config: str) -> str:
    with pytest.raises(BadInputError) as caught:
        override(load_config(f"{ROOT}/configs/{config}"), [f"--config.{name}=1"])
    return str(caught.value)


@pytest.mark.parametrize(("asked", "config", "line"), ANSWERS)
def test_the_answer_names_the_field_that_was_meant(asked: str, config: str, line: str):
    assert line in answer(asked, config)


def test_only_fields_of_this_config_are_suggested():
    assert same_name("lr", {"seed"}) is None
    assert "--config.data.max_length" not in answer("seq_len", DIGITS)


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
