"""scripts/sweep.py as a user calls it. Runs are real where a test says so."""

import csv
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ops import trial_program
from refusals import refused
from small_runs import OVERRIDES, ROOT, command, finish, last_step, start

from widenet_jax.cli.sweep import handing_over, main
from widenet_jax.config import imports
from widenet_jax.ops.sweep.axes import sweep
from widenet_jax.ops.sweep.trials import Trial, check_shared, expand

PATIENCE_SECONDS = 900  # for a whole sweep on a busy machine
DIGITS = "--config=configs/digits.py"
SEARCH = ["--search=tpe", "--space=seed=0,1", "--trials=3"]
SMALL = {"model.loop.core": ((1, 1),), "model.embed_dim": 16}


def call(*arguments: str) -> int:
    return main(arguments)


def sweep_command(workdir: Path, *extra: str, **changes: object) -> list[str]:
    flags = [f"--config.{name}={value}" for name, value in (OVERRIDES | changes).items()]
    program = [sys.executable, "scripts/sweep.py", DIGITS, f"--workdir={workdir}"]
    return [*program, *flags, *extra]


def rows_of(workdir: Path) -> list[dict]:
    return list(csv.DictReader((workdir / "results.csv").open()))


def params_alone(workdir: Path, **changes: object) -> str:
    finish(start(command(workdir, **changes)))
    return json.loads((workdir / "result.json").read_text())["params_sha256"]


@pytest.mark.slow
def test_a_sweep_killed_midway_and_resumed_equals_each_run_alone(tmp_path: Path):
    workdir = tmp_path / "sweep"
    changes = SMALL | {"duration": "800 steps", "checkpoint.every": "100 steps"}
    axes = ("--sweep=optimizer.learning_rate=1e-3,3e-3", "--sweep=seed=0,1,2", "--workers=2")
    arguments = sweep_command(workdir, *axes, **changes)
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        process = start(arguments)
        until = time.monotonic() + PATIENCE_SECONDS
        finished = len(list(workdir.glob("*/result.json")))
        while (
            not any(
                last_step(path) and not (path / "result.json").exists()
                for path in workdir.glob("*-seed_*")
            )
            or len(list(workdir.glob("*/result.json"))) == finished
        ):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == code
    assert start(arguments).wait(PATIENCE_SECONDS) == 0
    assert (workdir / "sweep.png").exists() and (workdir / "learning_curves.png").exists()
    rows = rows_of(workdir)
    assert len(rows) == 6
    for row in rows:
        swept = {name: row[name] for name in ("optimizer.learning_rate", "seed")}
        alone = tmp_path / "-".join(swept.values())
        assert row["params_sha256"] == params_alone(alone, **changes | swept)


def test_a_failed_trial_is_exit_code_3(tmp_path: Path, capsys):
    """The run is real: only it knows the number of its devices."""
    flags = ("--sweep=sharding.fsdp=7", f"--workdir={tmp_path}")
    assert call(DIGITS, *flags) == 3
    out = capsys.readouterr().out
    assert "exit code 2: error: " in out and "config.sharding.fsdp" in out
    assert {row["exit_code"] for row in rows_of(tmp_path)} == {"2"}
    assert "best" not in out


@pytest.mark.parametrize(
    "flags", [["--sweep=optimizer.name=nothing"], [*SEARCH, "--config.optimizer.name=nothing"]]
)
def test_what_is_wrong_for_all_trials_is_said_before_the_first(tmp_path, capsys, flags):
    workdir = tmp_path / "sweep"
    line = refused(capsys, main, DIGITS, f"--workdir={workdir}", *flags)
    assert "config.optimizer.name='nothing' is unknown" in line
    assert not workdir.exists()


@pytest.mark.slow
def test_the_check_takes_no_device(tmp_path: Path):
    """A TPU that the sweep itself held could not be used by its trials."""
    code = (
        "from widenet_jax.ops.sweep.trials import expand, mistake_of\n"
        "from jax._src import xla_bridge\n"
        "print([mistake_of(t) for t in expand('configs/digits.py', [{'seed': 1}])])\n"
        "print(xla_bridge.backends_are_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["['']", "False"], done.stderr


def test_what_one_trial_alone_has_wrong_ends_that_trial_alone():
    """The mistakes differ, or some trial has none."""
    for names in (["nothing", "adamw"], ["adamw", "nothing"], ["nothing", "none"]):
        check_shared(expand("configs/digits.py", sweep("optimizer.name", names)))
    check_shared([])


MINE = """from configs import digits

def get_config():
    config = digits.get_config()
    config.FIELD = VALUE
    return config
"""


def config_with(path: Path, field: str, value: object) -> str:
    path.write_text(MINE.replace("FIELD", field).replace("VALUE", repr(value)))
    return f"--config={path}"


@pytest.mark.parametrize("search", [False, True])
def test_results_of_an_edited_config_file_or_other_flags_are_not_mixed(
    tmp_path: Path, monkeypatch, capsys, search: bool
):
    """Fields that a resumed run may change are accepted; so is a longer sweep."""
    if search:
        pytest.importorskip("optuna", reason="pip install -e '.[sweep]'")
    monkeypatch.setattr(Trial, "command", trial_program.command)
    axes = ("--search=random", "--space=seed=0,1", "--trials=1") if search else ("--sweep=seed=0",)
    longer = (*axes[:-1], "--trials=2" if search else "--sweep=seed=0,1")
    mine, workdir = tmp_path / "my.py", f"--workdir={tmp_path / 'sweep'}"
    first = config_with(mine, "batch_size", 32)
    assert call(first, workdir, *axes) == 0
    capsys.readouterr()
    for size, flags in ((128, []), (32, ["--config.batch_size=128"])):
        config_with(mine, "batch_size", size)
        line = refused(capsys, main, first, workdir, *longer, *flags)
        assert "batch_size: 32 there, 128 here" in line and "seed_" in line
    config_with(mine, "batch_size", 32)
    line = refused(capsys, main, first, workdir, *longer, "--config.evaluation.patience=5")
    assert "evaluation.patience: 0 there, 5 here" in line  # what it cut short would stay short
    assert call(first, workdir, *longer, "--config.checkpoint.keep=7") == 0
    assert [row["status"] for row in rows_of(tmp_path / "sweep")] == ["done", "done"]


def test_the_dry_run_lists_the_commands(tmp_path: Path, capsys):
    flags = ("--sweep=seed=0,1", "--zip=model.mlp_dim=1,2", "--zip=optimizer.weight_decay=0.1,0.2")
    assert (
        call(DIGITS, *flags, f"--workdir={tmp_path}", "--dry_run", "--config.duration=1 steps") == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "4 trials, 0 of them done"
    words = shlex.split(lines[3])
    assert words[1:5] == ["-m", "widenet_jax.main", DIGITS, words[4]]
    assert words[5:] == [
        "--config.duration=1 steps", "--config.model.mlp_dim=2",
        "--config.optimizer.weight_decay=0.2", "--config.seed=0",
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_needs_no_gcsfs(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    """It cannot know then which trials are done; to run them it is needed."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    flags = [DIGITS, "--sweep=seed=0,1", f"--workdir={tmp_path}", "--launch=--zone=z"]
    flags.append("--trial_workdir=gs://b/s")
    assert call(*flags, "--dry_run") == 0
    missing = "--trial_workdir=gs://b/s needs the gcsfs package: pip install -e '.[gcs]'"
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"2 trials, {missing}, to see which are done"
    assert call(*flags, "--dry_run", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["trials"]
    assert [row["done"] for row in rows] == [None, None]
    assert rows[1]["command"][-1] == "--config.seed=1"
    assert missing in refused(capsys, main, *flags)


def test_json_is_one_object(tmp_path: Path, capsys):
    assert call(DIGITS, "--sweep=seed=0,1", f"--workdir={tmp_path}", "--dry_run", "--json") == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert [trial["settings"] for trial in trials] == [{"seed": 0}, {"seed": 1}]
    for trial in trials:
        workdir = tmp_path / trial["trial"]
        workdir.mkdir()
        accuracy = {"test_accuracy": 0.5 + trial["index"] / 4, "params_sha256": "x"}
        (workdir / "result.json").write_text(json.dumps(accuracy))
    assert call(DIGITS, "--sweep=seed=0,1", f"--workdir={tmp_path}", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [trial["seed"] for trial in found["trials"]] == [1, 0]
    assert shlex.split(found["best"]["command"])[-1] == "--config.seed=1"
    for content in ("{", "[]", '{"primary_metric": {"name": "x"}}', '{"primary_metric": 3}'):
        (tmp_path / trials[0]["trial"] / "result.json").write_text(content)
        flags = (DIGITS, "--sweep=seed=0,1", f"--workdir={tmp_path}", "--dry_run")
        told = refused(capsys, main, *flags)
        assert "/result.json: damaged (" in told and "; remove it and repeat the command" in told
    spread = {"std": pytest.approx(0.1767767), "interval": pytest.approx([-0.963276, 2.213276])}
    assert found["over_seeds"] == [{"seeds": 2, "mean": 0.625} | spread]


def test_launched_trials_take_no_imported_file(tmp_path: Path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text("")
    for name in ("IMPORTED", "NAMED"):
        monkeypatch.setattr(imports, name, {})
    flags = [
        f"--import={tmp_path / 'mine.py'}",
        "--launch=a",
        "--trial_workdir=b",
        "--sweep=seed=1",
    ]
    assert "--launch takes no --import" in refused(capsys, main, DIGITS, *flags)


def test_trials_of_other_metrics_are_refused_before_they_run(tmp_path: Path, capsys):
    flags = [
        "--config=configs/glue.py",
        f"--workdir={tmp_path / 'sweep'}",
        "--sweep=variant=sst2,stsb",
    ]
    told = refused(capsys, main, "--config=configs/glue.py", *flags)
    assert "the trials' primary metrics differ (accuracy, spearman); make a sweep for each" in told
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "write get_sweep(sweep) in configs/digits.py"),
        (["--sweep=sed=1"], "did you mean --config.seed?"),
        (["--sweep=seed=0,1", "--index=2"], "trials go from 0 to 1"),
        (["--search=tpe", "--trials=3"], "--search and --space go together"),
        ([*SEARCH, "--prune", "--launch=a", "--trial_workdir=b"], "--prune cannot end launched"),
        ([SEARCH[0], "--space=model.mlp_dim=1,x", SEARCH[2]], "whole number"),
        (["--sweep=seed=0", "--launch=--tpu=v3-8"], "--launch and --trial_workdir"),
        (["--sweep=seed=0", "--launch='a", "--trial_workdir=b"], "No closing quotation"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys, flags: list[str], words: str
):
    assert words in refused(capsys, main, DIGITS, f"--workdir={tmp_path / 'sweep'}", *flags)
    assert not (tmp_path / "sweep").exists()


def test_each_trial_is_handed_to_the_launcher():
    (trial,) = expand("configs/digits.py", [{"seed": 1}])
    hand_over = handing_over("--tpu=v3-8 --zone=europe-west4-a --backend=tpu-vm")
    words = hand_over(trial, "gs://bucket/sweep/seed_1")
    assert words[:3] == [sys.executable, "-m", "widenet_jax.cli.launch_tpu"]
    assert words[3:] == [
        "--name=sweep-ad889ae8", "--tpu=v3-8", "--zone=europe-west4-a",
        "--backend=tpu-vm", DIGITS, "--workdir=gs://bucket/sweep/seed_1", "--config.seed=1",
    ]  # fmt: skip
    assert hand_over(trial, "gs://bucket/sweep/1-seed_1")[3] != words[3]  # proposed twice
