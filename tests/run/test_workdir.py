"""Refused workdirs, changes allowed between two starts, and the files that a run leaves."""

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest
from checkpoint.test_series import everything_in
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


CHANGED = (
    " holds a run of another config ({}); name a new --workdir, or repeat that run's config; "
    "scripts/evaluate.py evaluates other data"
)
SEEN = "seed: 0 there, 1 here"
NO_JSON = (
    "is no config of a run, so it was changed or damaged; restore it from a copy (every "
    "checkpoint's meta/metadata has one), or name a new --workdir"
)
WILD = "{} in a name would be taken as a wildcard, and other files be read and written; choose a "
WILD += "name without it"
# The place beside the workdir of a run, the mode, changes to the config -> the line from the place.
REFUSED = [
    ("run", "train", {"seed": 1}, CHANGED.format(SEEN)),
    ("run", "eval", {"seed": 1}, CHANGED.format(SEEN)),
    ("run", "train", {"model.loop.core": ((1, 4),)},
     CHANGED.format("model.loop.core: [[1, 3]] there, [[1, 4]] here")),
    ("run", "train", {"model.moe.num_experts": 2, "seed": 1},
     CHANGED.format(f"model.moe.num_experts: 4 there, 2 here; {SEEN}")),
    ("run", "eval", {"duration": "9 epochs"},
     CHANGED.format("duration: '100 epochs' there, '9 epochs' here")),
    ("new", "eval", {}, ": no run there; give the --workdir of a training run"),
    ("", "train", {}, " is not empty and holds no run of this program; name another"),
    ("", "eval", {}, ": no run there; give the --workdir of a training run"),
    ("thesis.txt", "train", {}, " is a file; name a directory"),
    *((f"{text}/config.json", "train", {}, f"/config.json {NO_JSON}")
      for text in ('{"seed": 0,', "[]", "3", "{}", '{"duration": 5}',
                   '{"duration": "1 epochs", "imports": [3]}')),
    *((f"{name}/x", "train", {}, f": {WILD.format(mark)}")  # Orbax would read what matches
      for name, mark in (("a[1]", "["), ("a*", "*"), ("a?", "?"), ("a\\b", "\\"))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mode", "changes", "line"), REFUSED)
def test_what_is_refused(workdir: epath.Path, name: str, mode: str, changes: dict, line: str):
    """Nothing is written; a damaged config.json stays as it is."""
    (workdir.parent / "thesis.txt").write_text("precious")
    place, damaged = workdir.parent / name, name.removesuffix("/config.json")
    if damaged != name:
        place = workdir
        (place / "config.json").write_text(damaged)
    before = everything_in(Path(workdir.parent))
    with pytest.raises(BadInputError) as caught:
        check_workdir(place, changed_config(**changes), mode=mode)
    assert str(caught.value).removeprefix("--workdir=") == f"{place}{line}"
    assert everything_in(Path(workdir.parent)) == before


def test_a_run_of_before_there_was_a_field_has_its_default(workdir: epath.Path):
    stored = json.loads((workdir / "config.json").read_text())
    del stored["model"]["drop_path"], stored["model"]["adapter"], stored["watchdog"]
    (workdir / "config.json").write_text(json.dumps(stored))
    for mode in ("train", "eval"):
        check_workdir(workdir, digits.get_config(), mode=mode)
    with pytest.raises(BadInputError, match=r"model\.drop_path: 0\.0 there, 0\.1 here"):
        check_workdir(workdir, changed_config(**{"model.drop_path": 0.1}), mode="train")


def test_a_new_place(tmp_path: Path):
    """A new directory, an empty one, or one whose name earlier versions accepted."""
    for name in ("new", "", "a[1]"):
        if name == "a[1]":
            write_run(epath.Path(tmp_path / name), digits.get_config(), INFO)
        check_workdir(epath.Path(tmp_path / name), digits.get_config(), mode="train")


def test_only_training_takes_another_duration(workdir: epath.Path):
    """`check_length` decides whether it may be longer; config.json then has the new one."""
    longer = changed_config(duration="900 epochs")
    check_workdir(workdir, longer, mode="train")
    before = json.loads((workdir / "config.json").read_text())
    write_run(workdir, changed_config(duration="900 epochs", **{"checkpoint.keep": 9}), INFO)
    after = json.loads((workdir / "config.json").read_text())
    assert after == before | {"duration": "900 epochs"}


def test_an_export_is_no_place_to_train(workdir: epath.Path):
    """Training would begin anew beside it, and commands would still open the export."""
    (workdir / "export.json").write_text("{}")
    told = rf"{workdir} is an export; name a new one, and --config.init_from={workdir} to start"
    with pytest.raises(BadInputError, match=told):
        check_workdir(workdir, digits.get_config(), mode="train")


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("saved", ["checkpoints/20.damaged", "best/20", "metrics.jsonl", ""])
def test_the_config_of_a_start_that_saved_nothing_is_replaced(
    workdir: epath.Path, saved: str, older: bool
):
    """A shorter, other run takes its place; where anything else lies there, nothing changes."""
    (workdir / "metrics.jsonl").unlink()
    file = workdir / "environment.json"
    file.unlink()
    write_run(workdir, digits.get_config(), INFO | {"tokenizer": {}})
    if older:
        (start,) = json.loads(file.read_text())
        file.write_text(json.dumps([{name: start[name] for name in start.keys() - {"info"}}]))
    (workdir / "notes.json").write_text("{}")  # the user's
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
    assert (workdir / "notes.json").exists()
    assert len(json.loads((workdir / "environment.json").read_text())) == (2 if saved else 1)


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


FACTS = {"tokenizer": {"model": {"vocab": [["a", -1.5]]}}, "unigram_entropy": 5.25, "step": 3}
SAME = {"tokenizer": {"model": {"vocab": [("a", -1.5)]}}, "unigram_entropy": 5.25 + 1e-12}
CONTENT = {"content_sha256": "a", "vocab_size": 8}


@pytest.mark.parametrize(
    ("meta", "info", "fact"),
    [
        (FACTS, SAME, ""),  # JSON has no tuples, and other machines round otherwise
        ({}, SAME, ""),
        ({"step": 3}, SAME, ""),
        (FACTS, SAME | {"tokenizer": {"model": {"vocab": [["b", -1.5]]}}}, "tokenizer"),
        (FACTS, SAME | {"unigram_entropy": 5.2}, "unigram_entropy"),
        (
            {"vocab_size": 8, "text_sha256": "a"},
            {"vocab_size": 9, "text_sha256": "b"},
            "vocab_size",
        ),
        (CONTENT, CONTENT | {"content_sha256": "b"}, "content"),
        (CONTENT, {"content_sha256": "b", "vocab_size": 9}, "vocab_size"),
    ],
)
def test_data_with_other_facts_is_refused(tmp_path: Path, meta: dict, info: dict, fact: str):
    """Other examples of the same kind are accepted with --extend."""
    place = epath.Path(tmp_path)
    extends = "; to continue this run on other examples add --extend" * (fact == "content")
    for extend in (False, True):
        if not fact or (extends and extend):
            told = "the data has changed since this run began" if fact else ""
            assert check_info(meta, info, workdir=place, extend=extend) == told
            continue
        with pytest.raises(BadInputError) as caught:
            check_info(meta, info, workdir=place, extend=extend)
        assert str(caught.value) == (
            f"--workdir={place} was trained on data with another {fact} than the data that it is "
            "given now; give that run's data, or name a new --workdir, in which "
            f"--config.init_from={place} starts from this model{extends}"
        )


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
