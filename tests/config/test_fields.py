"""Every field has a meaning, which --print_config and docs/reference/config.md show."""

import functools
import itertools
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from config_page import page
from ml_collections import ConfigDict

from configs.defaults import WITHOUT_EFFECT
from configs.sizes import ROUTER_FIELDS
from widenet_jax.config.fields import (
    described,
    field_names,
    fields_of,
    limits,
    override,
    rows_of,
    without_effect,
    wrong_types,
)
from widenet_jax.config.files import NO_EXPERIMENTS, from_json, load_config
from widenet_jax.errors import BadInputError
from widenet_jax.main import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "config.md"
FFNS = ("soft_moe", "top_k", "product_key")
CONFIGS = [
    *("digits", "cifar10", "finetune", "tiny_imagenet", "text_tiny", "text_pretrain:widenet_16"),
    *("imagenet:vit_b", "imagenet:widenet_b,preset=authors_code", "language_model:tiny,ffn=moe"),
    *("glue:sst2,model=widenet_4", "glue:own", "glue:stsb", "squad:v2", "squad:v1,model=bert_s"),
    *(f"digits:widenet_tiny,ffn={ffn}" for ffn in FFNS),
    *(f"text_tiny:albert_tiny,ffn={ffn}" for ffn in FFNS),
    *(f"language_model:wt_s,ffn={ffn}" for ffn in FFNS),
    *(f"digits:widenet_tiny,router={router}" for router in ROUTER_FIELDS),
]


def config_named(name: str) -> ConfigDict:
    file, colon, variant = name.partition(":")
    return load_config(f"{ROOT}/configs/{file}.py{colon}{variant}")


def test_all_configs_are_here():
    here = {path.name for path in (ROOT / "configs").glob("*.py")} - NO_EXPERIMENTS
    assert here == {f"{name.partition(':')[0]}.py" for name in CONFIGS}


def test_every_field_has_a_meaning_and_is_on_the_page():
    text = PAGE.read_text()
    for field in itertools.chain.from_iterable(described(config_named(name)) for name in CONFIGS):
        assert field.comment, f"{field.name} has no meaning in configs/defaults.py"
        if field.value is not None:
            assert f"\n`{field.name}` |" in text, f"{field.name} is not in docs/reference/config.md"


def test_the_page_is_up_to_date():
    command = "PYTHONPATH=. python tests/config_page.py > docs/reference/config.md"
    assert PAGE.read_text() == page(), f"out of date; run {command}"


def test_tasks_have_their_own_meanings():
    of_span, of_stream = (rows_of(task) for task in ("span", "language_modeling"))
    assert of_span["data.max_length"][1] == "T, tokens of a window"
    assert of_stream["data.max_length"][1] == "T, tokens of a window"
    assert "task.memory_length" not in of_span
    assert {"task.memory_length", "data.stride"} <= field_names()


def test_print_config(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Every field once, with the value that the flags give it; needs no workdir, trains nothing."""
    monkeypatch.chdir(ROOT)
    flags = ["--config=configs/digits.py", "--config.optimizer.learning_rate=0.25"]
    assert main(["main", *flags, "--print_config", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)["fields"]
    config = override(load_config("configs/digits.py"), flags[1:])
    values = dict(fields_of(config))
    found = {field["name"]: from_json(field["value"]) for field in fields}
    assert len(fields) == len(found) and found["optimizer.learning_rate"] == 0.25
    assert {k: v for k, v in values.items() if not isinstance(v, ConfigDict)} == found

    monkeypatch.setitem(sys.modules, "gcsfs", None)  # printing does not ask a workdir
    assert main(["main", *flags, "--print_config", "--workdir=gs://b/run"]) == 0
    (line,) = re.findall(r"^optimizer\.learning_rate .*$", capsys.readouterr().out, re.MULTILINE)
    assert re.split("  +", line)[1:] == ["0.25", "number", "after the warm-up"]


def test_fields_of_a_flag_that_another_makes_idle_are_named(capsys: pytest.CaptureFixture):
    """Only of flags, as recipes set fields for other choices; the table names what there is."""
    for field, others in WITHOUT_EFFECT:
        assert {field, *others} <= field_names()
        for other, value in [(other, value) for other, of in others.items() for value in of]:
            row = rows_of("classification" if other.startswith("augment") else "")[other]
            known = [row[0], 0.0, *re.split(r"\W+", row[1]), *ROUTER_FIELDS]
            assert value in known or str(value) in known, (field, value)
    config = config_named("digits")
    assert without_effect(config, ["--config.optimizer.momentum=0.5", "--config.seed=3"]) == [
        "--config.optimizer.momentum has no effect beside config.optimizer.name=adamw"
    ]
    flags = ["--config.optimizer.name=sgd", "--config.optimizer.momentum=0.5"]
    assert not without_effect(override(config, flags), flags)
    flags = ["--config.optimizer.name=muon", "--config.optimizer.freeze=backbone"]
    [line] = without_effect(override(config, flags), flags)
    assert line.startswith("config.optimizer.name=muon trains no matrix beside freeze=backbone: ")
    assert without_effect(config, flags[:1]) == [line] and not without_effect(config, [])
    flags = ["--config.model.ffn_dropout=true", "--config.model.activation=silu"]
    config = config_named("language_model:tiny,ffn=product_key")
    beside = "has no effect beside config.model.ffn=product_key and config.model.ffn_blocks=all"
    assert without_effect(config, flags) == [f"--config.model.ffn_dropout {beside}"]
    config.model.ffn_blocks = "every_2"
    assert not without_effect(config, flags)
    told = "note: --config.augment.eval_crop_fraction has no effect beside config.augment.eval_crop"
    flag = "--config.augment.eval_crop_fraction=0.5"
    assert main(["", "--config", f"{ROOT}/configs/digits.py", "--print_config", flag]) == 0
    assert f"{told}=squash" in capsys.readouterr().err


# For each type of a field's default, values of another type.
WRONG = {
    bool: (None, "true", 1),
    int: (None, "4", 1.5, True, [4]),
    float: (None, "0.1", True, (0.1,)),
    str: (None, 4, [1], {"a": 1}),
    tuple: (None, 3, "(1, 2)"),
    ConfigDict: (None, 4, "name", [1]),
    type(None): (4, "name"),
}

FIRST_BLOCK = ("model.ffn_blocks", [1])  # may also be a list of blocks
OF_TASKS = (
    "digits",
    "text_pretrain:widenet_16",
    "language_model:tiny",
    "glue:own",
    "squad:v2",
    "glue:scores",
)


@pytest.mark.parametrize("name", OF_TASKS)
def test_whole_numbers_stand_for_numbers(name: str):
    """As in a section that a config file replaces; a flag may give the field a fraction."""
    before = config_named(name).to_dict()
    for field, value in fields_of(ConfigDict(before)):
        if type(value) is float:
            least, most = limits(rows_of(before["task"]["name"])[field])
            config = ConfigDict(before, type_safe=False)
            *sections, last = field.split(".")
            section = functools.reduce(ConfigDict.__getitem__, sections, config)
            section[last] = math.ceil(least)
            config = ConfigDict(config.to_dict())
            middle = (math.ceil(least) + min(most, 2)) / 2
            assert dict(fields_of(override(config, [])))[field] == math.ceil(least), field
            config = ConfigDict(config.to_dict())
            changed = override(config, [f"--config.{field}={middle}"])
            assert dict(fields_of(changed))[field] == middle, field


def test_a_field_that_a_file_adds_is_what_json_can_hold():
    for value in (Path("data"), np.float32(1), np.arange(2), {3}, b"x", min, (1, {2})):
        line = f"config.note={value!r}: a {type(value).__name__}; give a number, a text, true or"
        (told,) = wrong_types(ConfigDict({"note": value}))
        assert told.startswith(line)
    assert not list(wrong_types(ConfigDict({"note": (1, [0.5, "x"], None), "of": {"more": True}})))
    with pytest.raises(BadInputError, match=r"^config\.note\.1: the name of a field is a text"):
        dict(fields_of(ConfigDict({"note": {1: 2}})))


@pytest.mark.parametrize("name", OF_TASKS)
def test_a_value_of_another_type_is_told(name: str):
    before = config_named(name).to_dict()
    rows = rows_of(before["task"]["name"])
    assert not list(wrong_types(ConfigDict(before)))
    for field, value in fields_of(ConfigDict(before)):
        config = ConfigDict(before, type_safe=False)
        *sections, last = field.split(".")
        section = functools.reduce(ConfigDict.__getitem__, sections, config)
        may_be_empty = rows.get(field, (0,))[0] is None
        for wrong in WRONG[type(value)]:
            section[last] = wrong
            lines = list(wrong_types(config))
            if not (wrong is None and may_be_empty) and (field, wrong) != FIRST_BLOCK:
                assert len(lines) == 1 and lines[0].startswith(f"config.{field}="), (field, wrong)
            else:
                assert not lines
