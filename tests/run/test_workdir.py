"""Refused workdirs, changes allowed between two starts, and the files that a run leaves."""

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest
from etils import epath
from ml_collections import ConfigDict

from configs import digits
from widenet_jax.config import imports
from widenet_jax.config.files import from_json, load_config
from widenet_jax.errors import BadInputError
from widenet_jax.files import warn_without_locks
from widenet_jax.main import main
from widenet_jax.ops.sweep import directory
from widenet_jax.ops.sweep.trials import expand
from widenet_jax.run.workdir import check_info, check_workdir, flatten, locked, write_run

INFO = {"class_names": ["zero", "one"]}


@pytest.fixture
def workdir(tmp_path: Path) -> epath.Path:
    """Makes the workdir of a run of configs/digits.py that has recorded metrics."""
    made = epath.Path(tmp_path / "run")
    write_run(made, digits.get_config(), INFO)
    (made / "metrics.jsonl").write_text('{"step": 1, "split": "train"}\n')
    return made


def changed_config(**changes: object) -> ConfigDict:
    config = digits.get_config()
    config.update_from_flattened_dict(changes)
    return config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sharding.fsdp", 2),
        ("data.path", "elsewhere"),
        ("tracking.wandb_project", "digits"),
        ("on_nonfinite", "skip"),
        ("data.on_bad_example", "skip"),
        ("data.max_bad_fraction", 0.5),
    ],
)
def test_what_no_number_depends_on_may_change(workdir: epath.Path, field: str, value: object):
    for mode in ("train", "eval"):
        check_workdir(workdir, changed_config(**{field: value}), mode=mode)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("seed", 1, "seed: 0 there, 1 here"),
        ("model.moe.num_experts", 2, "model.moe.num_experts: 4 there, 2 here"),
    ],
)
def test_another_config_is_refused_by_what_differs(
    workdir: epath.Path, field: str, value: object, told: str
):
    before = {p.name: p.read_text() for p in workdir.iterdir()}
    with pytest.raises(BadInputError) as caught:
        check_workdir(workdir, changed_config(**{field: value}), mode="train")
    assert str(caught.value) == (
        f"--workdir={workdir} holds a run of another config ({told}); name a new --workdir, or "
        "repeat that run's config; scripts/evaluate.py evaluates other data"
    )
    assert {p.name: p.read_text() for p in workdir.iterdir()} == before


def test_only_training_takes_another_duration(workdir: epath.Path):
    """`check_length` decides whether it may be longer; config.json then has the new one."""
    longer = changed_config(duration="900 epochs")
    check_workdir(workdir, longer, mode="train")
    with pytest.raises(BadInputError, match="duration: '100 epochs' there, '900 epochs' here"):
        check_workdir(workdir, longer, mode="eval")
    before = json.loads((workdir / "config.json").read_text())
    write_run(workdir, changed_config(duration="900 epochs", **{"checkpoint.keep": 9}), INFO)
    after = json.loads((workdir / "config.json").read_text())
    assert after == before | {"duration": "900 epochs"}


@pytest.mark.parametrize("saved", ["checkpoints/20.damaged", "best/20", "metrics.jsonl", ""])
def test_the_config_of_a_start_that_saved_nothing_is_replaced(workdir: epath.Path, saved: str):
    """A shorter, other run takes its place; where anything else lies there, nothing changes."""
    (workdir / "metrics.jsonl").unlink()
    (workdir / "tokenizer.json").write_text("{}")  # of the start's data
    if saved:
        (workdir / saved).mkdir(parents=True)
    (workdir / "tensorboard").mkdir()  # opened before the first step
    other = changed_config(seed=1, duration="3 steps")
    if saved:
        with pytest.raises(BadInputError, match="seed: 0 there, 1 here"):
            check_workdir(workdir, other, mode="train")
    else:
        check_workdir(workdir, other, mode="train")
        with pytest.raises(BadInputError, match="duration: '100 epochs' there, '3 steps' here"):
            check_workdir(workdir, other, mode="eval")
    write_run(workdir, other, INFO)
    assert json.loads((workdir / "config.json").read_text())["seed"] == (0 if saved else 1)
    assert (workdir / "tokenizer.json").exists() == bool(saved)
    assert len(json.loads((workdir / "environment.json").read_text())) == (2 if saved else 1)


def test_a_place_that_is_no_run(tmp_path: Path):
    """A new directory is for training alone; a file, and a directory of others, for nothing."""
    for workdir in (tmp_path / "new", tmp_path):
        check_workdir(epath.Path(workdir), digits.get_config(), mode="train")
        with pytest.raises(BadInputError, match="no run there"):
            check_workdir(epath.Path(workdir), digits.get_config(), mode="eval")
    (tmp_path / "thesis.txt").write_text("precious")
    for place, problem in ((tmp_path, "is not empty and holds no run of this program"),
                           (tmp_path / "thesis.txt", "is a file; name a directory")):  # fmt: skip
        with pytest.raises(BadInputError, match=problem):
            check_workdir(epath.Path(place), digits.get_config(), mode="train")


@pytest.mark.parametrize("name", ["a[1]", "a*", "a?", "a\\b"])
def test_a_new_run_is_not_named_like_a_pattern(tmp_path: Path, name: str):
    """Orbax would look for its own files in the places that match, and leave them unread."""
    place = epath.Path(tmp_path / name / "run")
    with pytest.raises(BadInputError, match="would be taken as a wildcard"):
        check_workdir(place, digits.get_config(), mode="train")
    assert list(tmp_path.iterdir()) == []
    write_run(place, digits.get_config(), INFO)  # as an earlier version did
    check_workdir(place, digits.get_config(), mode="train")


def test_what_a_run_leaves(workdir: epath.Path):
    stored = json.loads((workdir / "config.json").read_text())
    assert flatten(from_json(stored)) == flatten(digits.get_config().to_dict())
    assert json.loads((workdir / "class_names.json").read_text()) == ["zero", "one"]
    [found] = json.loads((workdir / "environment.json").read_text())
    assert found["devices"] == ["cpu"] * 8
    assert found["processes"] == 1
    assert found["packages"]["jax"].count(".") >= 2


def test_the_config_of_the_first_start_stays(workdir: epath.Path):
    """A resumed run on another mesh keeps its config; its environment is recorded again."""
    before = (workdir / "config.json").read_text()
    write_run(workdir, changed_config(**{"sharding.fsdp": 2}), INFO)
    assert (workdir / "config.json").read_text() == before
    assert len(json.loads((workdir / "environment.json").read_text())) == 2


def test_data_with_other_facts_is_refused(tmp_path: Path):
    """Beside what JSON changes and what other machines round otherwise."""
    place = epath.Path(tmp_path)
    meta = {"tokenizer": {"model": {"vocab": [["a", -1.5]]}}, "unigram_entropy": 5.25, "step": 3}
    same = {"tokenizer": {"model": {"vocab": [("a", -1.5)]}}, "unigram_entropy": 5.25 + 1e-12}
    check_info(meta, same, workdir=place)
    check_info({}, same, workdir=place)
    check_info({"step": 3}, same, workdir=place)
    other = same | {"tokenizer": {"model": {"vocab": [["b", -1.5]]}}}
    with pytest.raises(BadInputError, match="trained on data with another tokenizer"):
        check_info(meta, other, workdir=place)
    with pytest.raises(BadInputError, match="another vocab_size than"):  # no model to start from
        check_info(
            {"vocab_size": 8, "text_sha256": "a"},
            {"vocab_size": 256, "text_sha256": "b"},
            workdir=place,
        )
    with pytest.raises(BadInputError, match="another unigram_entropy"):
        check_info(meta, same | {"unigram_entropy": 5.2}, workdir=place)
    saved, here = {"content_sha256": "a"}, {"content_sha256": "b"}
    with pytest.raises(BadInputError, match=r"another content than .* examples add --extend$"):
        check_info(saved, here, workdir=place)
    assert check_info(saved, here, workdir=place, extend=True).startswith("the data has changed")
    assert check_info(saved, saved, workdir=place, extend=True) == ""
    with pytest.raises(BadInputError, match="another vocab_size than"):
        check_info(saved | {"vocab_size": 8}, here | {"vocab_size": 9}, workdir=place, extend=True)


def test_one_start_at_a_time(tmp_path: Path):
    """The lock is released when the first start ends; each workdir has its own lock."""
    with locked(epath.Path(tmp_path / "run")):
        with (
            pytest.raises(BadInputError, match="another process is training there"),
            locked(epath.Path(tmp_path / "run")),
        ):
            pass
        with locked(epath.Path(tmp_path / "other")):
            pass
    with locked(epath.Path(tmp_path / "run")):
        pass


def test_a_failed_start_leaves_no_directory(tmp_path: Path):
    """As one whose config.init_from cannot be read. What was there, or was written, stays."""
    for name, there, written in (("new", 0, 0), ("empty", 1, 0), ("begun", 0, 1)):
        place = tmp_path / name
        if there:
            place.mkdir()
        with pytest.raises(BadInputError), locked(epath.Path(place)):
            if written:
                (place / "config.json").touch()
            raise BadInputError("no such model")
        assert place.exists() == bool(there or written)


def test_a_file_system_without_locks_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Such as Lustre without -o flock. A run and a sweep's trials start; other errors end them."""
    code = errno.ENOSYS

    def flock(*_) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    warn_without_locks.cache_clear()
    (tmp_path / "logs").mkdir()
    (trial,) = expand("configs/digits.py", [{"seed": 0}])
    for _ in range(2):
        with locked(epath.Path(tmp_path)), directory.locked(tmp_path / "trial.lock"):
            assert directory.Directory(tmp_path).outcome(trial).status == "waiting"
    assert capsys.readouterr().err == (
        f"warning: the file system of --workdir has no locks ({os.strerror(code)}): nothing keeps "
        "a second process from writing there; start one at a time\n"
    )
    code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"), locked(epath.Path(tmp_path)):
        pass


def test_a_start_that_was_cut_off_may_begin_again(tmp_path: Path):
    """The run was killed while writing config.json: the workdir holds nothing else."""
    for name in ("config.json.1a2b3c4d.tmp", "config.json.tmp", ".lock"):
        (tmp_path / name).write_text("{")
    check_workdir(epath.Path(tmp_path), digits.get_config(), mode="train")


@pytest.mark.parametrize("text", ['{"seed": 0,', "[]", "3"])
def test_a_damaged_config_is_not_overwritten(workdir: epath.Path, text: str):
    (workdir / "config.json").write_text(text)
    with pytest.raises(BadInputError, match=r"config\.json is no JSON object"):
        check_workdir(workdir, digits.get_config(), mode="train")
    assert (workdir / "config.json").read_text() == text


@pytest.mark.parametrize("place", ["model.moe.router.name", "model.moe.losses", "optimizer.name"])
def test_a_part_of_a_file_that_the_run_imported(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The file is named where this start does not import it, too."""
    monkeypatch.setattr(imports, "IMPORTED", {})
    monkeypatch.setattr(imports, "NAMED", {})
    file, config, run = (tmp_path / name for name in ("mine.py", "config.py", "run"))
    file.write_text("")
    named = {"mine": 1.0} if place.endswith("losses") else "mine"
    config.write_text(
        "from configs import digits\n\n\ndef get_config():\n    config = digits.get_config()\n"
        f"    with config.unlocked():\n        config.{place} = {named!r}\n    return config\n"
    )
    stored = load_config(str(config))
    imports.remember(stored, [str(file)])
    write_run(epath.Path(run), stored, INFO)
    (run / "metrics.jsonl").touch()
    flags = ["main", f"--config={config}", f"--workdir={run}"]
    lines = []
    for further in ([], [f"--import={file}"]):
        assert main([*flags, *further]) == 2
        lines += capsys.readouterr().err.splitlines()
    without, imported = lines
    assert imported.startswith(f"error: config.{place}") and "mine" in imported
    assert without == f"{imported}; --workdir={run} was started with --import={file}: give it again"
