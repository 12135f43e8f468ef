"""Settings, and the trials that they make: names, checked values, commands, get_sweep."""

import json
from pathlib import Path

import pytest

from configs.variants import model_section
from widenet_jax.config import imports
from widenet_jax.errors import BadInputError
from widenet_jax.ops.sweep import trials as trials_module
from widenet_jax.ops.sweep.axes import parse_axis, product, sweep, zipit
from widenet_jax.ops.sweep.trials import expand, settings_of_config

DIGITS = "configs/digits.py"
GLUE = "configs/glue.py:own"
GET_SWEEP = """
def get_sweep(sweep):
  flips = sweep.sweep('config.augment.flip', [True])
  decays = sweep.zipit([
      sweep.sweep('optimizer.weight_decay', [0.1, 0.2]),
      sweep.sweep('duration', ['5 steps', '6 steps']),
  ])
  return sweep.product([flips + decays, sweep.sweep('seed', range(2))])
"""


def test_axes_combine():
    assert product([sweep("a", [1, 2]), sweep("config.b", "xy")]) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip
    assert product([]) == [{}]
    pairs = zipit([sweep("a", [1, 2]), sweep("b", [3, 4])])
    assert pairs == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    with pytest.raises(BadInputError, match=r"a has 2, b has 3"):
        zipit([sweep("a", [1, 2]), sweep("b", [1, 2, 3])])
    for combine in (product, zipit):
        with pytest.raises(BadInputError, match=r"^seed is swept twice"):
            combine([sweep("seed", [1]), sweep("config.seed", [2])])


def test_axes_of_the_command_line():
    assert parse_axis("seed=0, 1", "--sweep") == [{"seed": "0"}, {"seed": "1"}]
    assert parse_axis("variant=vit_b;widenet_b,experts=8", "--sweep") == [
        {"variant": "vit_b"}, {"variant": "widenet_b,experts=8"},
    ]  # fmt: skip
    assert parse_axis("variant=widenet_b,experts=8;", "--sweep") == [
        {"variant": "widenet_b,experts=8"}
    ]
    with pytest.raises(BadInputError, match="a variant is empty; part those with commas by ';'"):
        parse_axis("variant=vit_tiny,", "--sweep")
    for wrong in ("seed", "seed=", "=1"):
        with pytest.raises(BadInputError, match="--zip"):
            parse_axis(wrong, "--zip")


def test_trials_import_both_files_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(imports, "IMPORTED", {})
    monkeypatch.setattr(trials_module, "NAMED", named := {})
    monkeypatch.setattr(imports, "NAMED", named)
    files = [tmp_path / folder / "mine.py" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(f"# {file}")
    imports.import_files(map(str, files))
    (trial,) = expand(DIGITS, [{}])
    assert trial.command("run")[3:5] == [f"--import={file}" for file in files]


def config_with(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.py").write_text(Path(DIGITS).read_text() + text)
    return str(tmp_path / "mine.py")


def test_a_config_asks_for_a_sweep(tmp_path: Path):
    config = config_with(tmp_path, GET_SWEEP)
    trials = expand(config, settings_of_config(config))
    assert [trial.settings for trial in trials[::2]] == [
        {"augment.flip": True, "seed": 0},
        {"duration": "5 steps", "optimizer.weight_decay": 0.1, "seed": 0},
        {"duration": "6 steps", "optimizer.weight_decay": 0.2, "seed": 0},
    ]
    assert len(trials) == 6
    assert trials[1].arguments("w") == [
        f"--config={config}", "--workdir=w", "--config.augment.flip=true", "--config.seed=1",
    ]  # fmt: skip
    assert "--config.duration=6 steps" in trials[5].arguments("w")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write get_sweep"),
        ("\ndef get_sweep(sweep): return 3", "get_sweep: TypeError"),
        ("\ndef get_sweep(sweep): return []", "returns no settings"),
        ("\ndef get_sweep(s): return s.product([s.sweep('a', [1])] * 2)", "swept twice"),
    ],
)
def test_a_config_whose_sweep_cannot_be_used(tmp_path: Path, text: str, words: str):
    with pytest.raises(BadInputError, match=words):
        settings_of_config(config_with(tmp_path, text))


def test_names_follow_from_the_settings_alone():
    axes = [sweep("optimizer.learning_rate", ["1e-3", "3e-3"]), sweep("seed", [0, 1])]
    names = [trial.name for trial in expand(DIGITS, product(axes))]
    assert names[0].startswith("learning_rate_0.001-seed_0-")
    turned = [trial.name for trial in expand(DIGITS, product(axes[::-1]))]
    assert sorted(names) == sorted(turned)
    longer = product([sweep("seed", range(5)), sweep("optimizer.learning_rate", [3e-3, 0.001])])
    assert set(names) < {trial.name for trial in expand(DIGITS, longer)}
    # The same settings spelt twice are one trial.
    assert len(expand(DIGITS, sweep("optimizer.learning_rate", ["1e-3", "0.001", 0.001]))) == 1


def test_an_axis_over_variants():
    trials = expand(DIGITS, sweep("variant", ["vit_tiny", "widenet_tiny,share_norms=true"]))
    assert [trial.config for trial in trials] == [
        "configs/digits.py:vit_tiny", "configs/digits.py:widenet_tiny,share_norms=true",
    ]  # fmt: skip
    assert trials[0].settings == {"variant": "vit_tiny"}
    assert trials[1].name.startswith("variant_widenet_tiny_share_norms_true-")
    assert trials[1].arguments("w") == [
        "--config=configs/digits.py:widenet_tiny,share_norms=true", "--workdir=w",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "settings", "flags", "words"),
    [
        (DIGITS, {"sed": 1}, [], "did you mean --config.seed"),
        (DIGITS, {"seed": "x"}, [], "needs a whole number"),
        (DIGITS, {"variant": "vit_huge"}, [], "vit_huge"),
        (f"{DIGITS}:vit_tiny", {"variant": "vit_tiny"}, [], "the variant is swept as well"),
        (DIGITS, {"seed": 1}, ["--config.seed=2"], "is set, and swept as well"),
        ("configs/none.py", {}, [], "there is no Python file"),
    ],
)
def test_mistakes(config: str, settings: dict, flags: list[str], words: str):
    with pytest.raises(BadInputError, match=words):
        expand(config, [settings], flags)


def test_fields_of_the_stored_model(tmp_path: Path):
    """They are fields of the model that config.init_from names; it is read where they are set."""
    model = model_section("albert_tiny")
    config = {"model": model, "task": {"name": "masked_lm"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = [f"--config.init_from={tmp_path}"]
    settings = product([sweep("model.norm_epsilon", ["1e-6", "1e-12"])])
    trials = expand(GLUE, settings, flags)
    assert [trial.settings["model.norm_epsilon"] for trial in trials] == [1e-6, 1e-12]
    assert trials[0].primary_metric().name == "accuracy"
    with pytest.raises(BadInputError, match=r"no such field; did you mean --config\.model\."):
        expand(GLUE, product([sweep("model.norm_epsilom", [1.0])]), flags)
    with pytest.raises(BadInputError, match="needs the model to start from"):
        expand(GLUE, settings)
    (tmp_path / "config.json").unlink()
    assert expand(GLUE, product([sweep("model.dropout", [0.1])]), flags)
