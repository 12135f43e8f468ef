"""Configs from files: what a file may import, and what its fields may hold."""

import os
import re
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from widenet_jax.config import imports
from widenet_jax.config.fields import override
from widenet_jax.config.files import defined_in, load_config, stored_config
from widenet_jax.errors import BadInputError

ROOT = Path(__file__).parents[2]
MINE = """
from configs import defaults

def get_config():
    config = defaults.get_config({"loop": {"core": ((2, 1),)}})
    config.update(batch_size=7)
    return config
"""


def test_a_config_anywhere_takes_the_defaults_of_this_project(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    for place in (ROOT, tmp_path, Path("/")):
        monkeypatch.chdir(place)
        config = load_config(str(tmp_path / "mine.py"))
        assert (config.batch_size, config.model.loop.core, config.checkpoint.keep) == (
            7,
            ((2, 1),),
            2,
        )


def test_the_defaults_beside_a_config_come_first(tmp_path):
    """Also after a config of this project was loaded, whose defaults are different."""
    load_config(str(ROOT / "configs" / "digits.py"))
    (tmp_path / "mine.py").write_text(MINE)
    defaults = (ROOT / "configs" / "defaults.py").read_text()
    (tmp_path / "defaults.py").write_text(defaults.replace('"keep": (2,', '"keep": (5,'))
    assert load_config(str(tmp_path / "mine.py")).checkpoint.keep == 5
    assert load_config(str(ROOT / "configs" / "digits.py")).checkpoint.keep == 2


def test_a_registering_file_finds_configs_as_it_did_when_it_was_the_config(tmp_path):
    """Commands that open its run import it by itself; they start without this project's folder."""
    (tmp_path / "mine.py").write_text("from configs import defaults, own\nFOUND = own.VALUE\n")
    (tmp_path / "own.py").write_text("VALUE = 5\n")
    before = sys.modules.get("configs")
    imports.import_once(str(tmp_path / "mine.py"), "--import=mine.py")
    assert sys.modules["imported_mine"].FOUND == 5 and sys.modules.get("configs") is before
    (tmp_path / "mine.py").write_text("x = missing")
    with pytest.raises(BadInputError, match=r"^runs/a needs mine.py: .*, line 1: NameError"):
        imports.import_once(str(tmp_path / "mine.py"), "runs/a needs mine.py")
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(0)")
    with pytest.raises(BadInputError, match=r"^--import=mine.py: .*, line 2: SystemExit"):
        imports.import_once(str(tmp_path / "mine.py"), "--import=mine.py")


@pytest.mark.parametrize("changed", ["mine.py", "own.py"])
def test_a_file_runs_as_it_is_now(tmp_path, monkeypatch, changed: str):
    """Python runs its compiled copy after a change of neither the size nor the second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    files = {"own.py": "SEED = 1\n", "mine.py": "from configs import own\nSEED = 1\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for seed in (1, 2):
        path = tmp_path / changed
        path.write_text(files[changed].replace("1", str(seed)))
        os.utime(path, (1e9, 1e9))
        found = [defined_in(str(tmp_path / "mine.py"), name, flag="") for name in ("SEED", "own")]
        imports.import_once(str(tmp_path / "mine.py"), "--import=mine.py")
        imported = sys.modules["imported_mine"]
        seeds = {"mine.py": (found[0], imported.SEED), "own.py": (found[1].SEED, imported.own.SEED)}
        assert seeds.pop(changed) == (seed, seed)
        assert [*seeds.values()] == [(1, 1)]


def test_modules_of_folders_beside_a_config(tmp_path):
    """A folder without __init__.py is a package too, also of another program's `configs`."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "small.py").write_text("SEED = 3\n")
    (tmp_path / "mine.py").write_text("from configs.folder import small\nSEED = small.SEED\n")
    assert defined_in(str(tmp_path / "mine.py"), "SEED", flag="") == 3


def test_configs_of_this_project_are_found_by_name(tmp_path, monkeypatch):
    """From any directory; a file of the same name there comes first."""
    monkeypatch.chdir(tmp_path)
    here = load_config(f"{ROOT}/configs/digits.py:vit_tiny")
    assert load_config("configs/digits.py:vit_tiny").to_dict() == here.to_dict()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "digits.py").write_text(MINE)
    assert load_config("configs/digits.py").batch_size == 7
    for name in ("configs/digit.py", "digits.py", "other/digits.py"):
        message = f"'{name}'; did you mean configs/digits.py. there are"
        with pytest.raises(BadInputError, match=message):
            load_config(name)


@pytest.mark.parametrize("file", ["finetune", "cifar10"])
def test_a_pretrained_model_takes_no_options(file: str):
    with pytest.raises(BadInputError, match="pretrained takes no options"):
        load_config(f"configs/{file}.py:pretrained,experts=8")


def test_values_take_the_type_of_their_field():
    config = ConfigDict({"a": {"b": 1}, "c": 0.5, "d": "x", "e": True, "f": (1, 2), "g": [1]})
    flags = ["--config.a.b=2", "--config.c=3", "--config.d=y=z", "--config.e=False"]
    override(config, [*flags, "--config.f=(4, 5, 6)", "--config.g=[7]"])
    values = {"a": {"b": 2}, "c": 3.0, "d": "y=z", "e": False, "f": (4, 5, 6), "g": [7]}
    assert config.to_dict() == values
    assert type(config.c) is float


@pytest.mark.parametrize("text", ["(1", "3", "[1, 2]", "__import__('os')"])
def test_a_tuple_is_written_as_in_python(text: str):
    with pytest.raises(BadInputError, match=r"this field needs a tuple, such as \(1, 2\)"):
        override(ConfigDict({"f": (1, 2)}), [f"--config.f={text}"])


RATES = ("learning_rate", "weight_decay", "grad_clip_norm", "eps", "b1")


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        # Such values used to hang for over 75 s, drawing the batch's order or building blocks.
        ("batch_size=1000000000000", "1", 2**20),
        ("optimizer.accumulation_steps=1000000000000", "1", 2**31 - 1),
        ("augment.crop_area_min=nan", "0", "1"),
        ("augment.randaugment_magnitude=99.0", "0", "30"),
        ("augment.mixup_alpha=-0.5", "0", r"1e\+300"),
        ("data.num_workers=-1", "0", "1024"),
        ("task.label_smoothing=1.0", "0", "0.99"),
        *((f"optimizer.{name}=1.0", "0", "0.999999") for name in ("momentum", "b1", "ema_decay")),
        *((f"optimizer.{name}={bad}", "0", ".*") for name in RATES for bad in (-0.1, "nan", "inf")),
    ],
)
def test_numbers_out_of_range(field: str, least: str, most: object):
    config = load_config(str(ROOT / "configs" / "digits.py"))
    with pytest.raises(
        BadInputError, match=f"^--config.{field} must be between {least} and {most}"
    ):
        override(config, [f"--config.{field}"])
    if isinstance(most, int):
        override(config, [f"--config.{field.partition('=')[0]}={most}"])


def test_a_threshold_may_be_negative():
    """As the best one of an evaluation often is; a rate may not."""
    config = load_config(str(ROOT / "configs" / "squad.py"))
    assert override(config, ["--config.task.null_threshold=-1.5"]).task.null_threshold == -1.5
    with pytest.raises(BadInputError, match=r"null_threshold=-inf must be between .* and 1e\+300"):
        override(config, ["--config.task.null_threshold=-inf"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (MINE.replace("batch_size", "batchsize"), r"mine.py, line 6: .*batchsize"),
        ("def get_config():\n    return {}", r"its get_config\(\) must return a ConfigDict"),
    ],
)
def test_a_config_file_with_a_mistake(content: str, told: str, tmp_path):
    (tmp_path / "mine.py").write_text(content)
    with pytest.raises(BadInputError, match=told):
        load_config(str(tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("peer.txt", "batches = 1", "there is no such Python file"),
        ("peer.py", "x = (", "SyntaxError"),
        ("peer.py", "raise OSError('no disk')", "line 1: OSError: no disk"),
        ("peer.py", "", "has no attribute 'batches'"),
    ],
)
def test_a_file_that_does_not_define_what_a_flag_needs(name, content, told, tmp_path):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(BadInputError, match=f"^--peer={re.escape(str(file))}: .*{told}"):
        defined_in(str(file), "batches", flag="--peer")
    file.with_suffix(".py").write_text("batches = 1")
    assert defined_in(str(file.with_suffix(".py")), "batches", flag="--peer") == 1


@pytest.mark.parametrize("content", ["{}", "[]", '{"task": {}}', '{"model_type": "bert"}'])
def test_a_config_json_of_no_run(content: str, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(BadInputError, match=r"^--workdir=.*: no run there; give the --workdir of"):
        stored_config(str(tmp_path))
