"""`wj.train` on Python objects: the guide's example, resumed; other examples; no arguments."""

import re
from pathlib import Path

import grain
import pytest
from small_runs import (
    ROOT,
    assert_same_end,
    at_step,
    last_step,
    metrics_of,
    small_config,
    train_here,
)

import widenet_jax as wj
from widenet_jax import train
from widenet_jax.errors import BadInputError

*EXAMPLES, EXAMPLE = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "howto" / "use.md").read_text(), re.DOTALL
)
FIELDS = {"duration": "4 epochs", "evaluation.every": "1 epoch", "checkpoint.every": "1 epoch"}


@pytest.mark.slow
def test_the_guides_example_runs_and_resumes(tmp_path: Path, monkeypatch, capsys):
    """A killed run ends with the same bytes; other examples and labels are refused."""
    (tmp_path / "first").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    found: dict = {}
    exec(compile(EXAMPLE, "use.md", "exec"), found)
    first, again = (tmp_path / place / "runs" / "objects" for place in ("first", "again"))
    evaluations = metrics_of(first, "eval")
    assert found["result"]["test_accuracy"] > 0.3
    printed = capsys.readouterr().out.splitlines()
    told = [tuple(map(float, line.split())) for line in printed[:-1]]
    assert told == [pytest.approx((one["step"], one["accuracy"]), 1e-6) for one in evaluations]

    again.parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "again")
    at_step(again, first, evaluations[-2]["step"])
    exec(compile(EXAMPLE, "use.md", "exec"), {})
    assert_same_end(again, first)
    assert capsys.readouterr().out.splitlines() == printed[-2:]
    examples = found["examples"]
    other = [(255 - image, label) for image, label in examples]
    for data, eval_data in ((other, examples[1500:]), (examples[:1499], examples[1500:])):
        with pytest.raises(BadInputError, match="was trained on data with another content"):
            how = {"data": data, "eval_data": eval_data, "fields": FIELDS}
            wj.train("configs/digits.py", again, **how)


@pytest.mark.slow
def test_the_guides_other_examples_run():
    """A model of the package, its routing, and an untrained model."""
    found: dict = {}
    for example in EXAMPLES:
        exec(compile(example, "use.md", "exec"), found)
    assert found["model"].task == "classification"
    assert found["routing"].expert_index.shape == (1, 16, 2)  # the last block's
    assert found["untrained"].feed_forwards["moe"].num_experts == 8


def test_mistakes_are_exceptions(tmp_path: Path):
    """Of the config, of a field, of data without evaluation data."""
    for config, answer, how in (
        ("configs/digits.py:vit", "no model is named 'vit'", {}),
        (5, "config is int; give a ConfigDict, or a file", {}),
        ("configs/digits.py", "the config has no such field", {"fields": {"epochs": 3}}),
        ("configs/digits.py", "fields is list; give a dict", {"fields": ["duration=2 steps"]}),
        ("configs/digits.py", "give both data and eval_data", {"data": [(0, 0)]}),
        (
            "configs/digits.py",
            "eval_data is list_iterator, without __len__ and __getitem__; give a",
            {"data": [(0, 0)], "eval_data": iter([])},
        ),
        (
            "configs/digits.py",
            "data is dict; give a list of its examples",
            {"data": {"image": [0], "label": [0]}, "eval_data": [(0, 0)]},
        ),
        (
            "configs/digits.py",
            r"eval_data has no end; give it without repeat\(\)",
            {"data": [(0, 0)], "eval_data": grain.MapDataset.source([(0, 0)]).repeat()},
        ),
        (
            "configs/digits.py",
            "on_evaluation takes a step and metrics: too many positional",
            {"on_evaluation": lambda step: None},
        ),
    ):
        with pytest.raises(BadInputError, match=answer):
            wj.train(config, tmp_path / "run", **how)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_a_callback_raises_ends_a_run_that_was_saved(tmp_path: Path):
    """The run that resumes evaluates and calls again, once, and ends like an unbroken one."""
    config = small_config(**{"evaluation.every": "3 steps"})
    told = []

    def raising(step: int, metrics: dict):
        told.append(step)
        if step in (3, 20) and told.count(step) == 1:
            raise KeyError("acc")

    for step in (3, 20):
        with pytest.raises(KeyError, match="acc"):
            wj.train(config, tmp_path / "run", on_evaluation=raising)
        assert told[-1] == step == last_step(tmp_path / "run")
    for _ in range(2):  # the second start finds a run that has ended
        train_here(config, tmp_path / "run", devices=8, on_evaluation=raising)
        assert told == [3, 3, 6, 9, 12, 15, 18, 20, 20]
    train_here(config, tmp_path / "unbroken", devices=8)
    assert_same_end(tmp_path / "run", tmp_path / "unbroken")


def test_a_config_of_the_callers_stays_as_it_is(tmp_path: Path):
    config = small_config()
    how = {"data": [(0, 0)], "eval_data": [(0, 0)], "fields": {"model.loop.core": ((1, 7),)}}
    with pytest.raises(BadInputError, match=r"data\[0\]: an image is an array int64"):
        wj.train(config, tmp_path / "run", **how)
    assert (config.data.source, config.model.loop.core) == ("digits", ((1, 2),))


def test_the_function_and_its_module_have_one_name(monkeypatch: pytest.MonkeyPatch):
    """Before the module is imported, too, when the package looks it up."""
    assert wj.train is train and callable(train.run)
    monkeypatch.delattr(wj, "train")
    assert wj.train is train
