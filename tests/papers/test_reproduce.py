"""scripts/reproduce.py as a user calls it."""

import json
import shlex
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from ops import trial_program
from refusals import refused

from widenet_jax.cli import prepare_data, reproduce
from widenet_jax.cli.reproduce import launching, main, total_text
from widenet_jax.corpus.novel import FOLDER
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis.norm_divergence import norm_divergence
from widenet_jax.ops.sweep.directory import Directory
from widenet_jax.ops.sweep.trials import Trial, mistake_of
from widenet_jax.papers.experiments import CHOICES_SHA256, EXPERIMENTS, chosen
from widenet_jax.papers.scales import SCALES, runnable, runs_of, trial_of

SMOKE = ("--scale=smoke",)
TEXT = FOLDER / "persuasion.txt"


def call(*arguments: str) -> int:
    return main(arguments)


@pytest.fixture
def stand_in(monkeypatch):
    """Replaces training by a program that ends at once."""
    monkeypatch.setattr(Trial, "command", trial_program.command)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tabel3"], "no experiment 'tabel3'; did you mean table3? --list prints all names"),
        (["table2_mnli"], "this --scale has no data for table2_mnli"),
        (["table4", "--sizes=b"], "table4 has no row of that size"),
        (["fig3", "--scale=big"], "--scale"),
        (["fig3", "--config.optimizer.learning_rat=1"], "learning_rat"),
        (["fig3", "--scale=small", "--data_dir=nowhere"], "there is no nowhere/cifar10"),
        (["fig3", "--launch=--tpu=v3-8"], "--trial_workdir"),
        (["fig3", "--report"], "there is nothing to report"),
        (["fig3", "--scale=paper", "--launch=--zone=z", "--trial_workdir=/t"], "--data_dir=data"),
        ([], "name an experiment, as table1, or all; --list prints"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], says: str, tmp_path: Path, capsys):
    assert says in refused(capsys, main, *arguments, f"--workdir={tmp_path / 'w'}")
    assert not (tmp_path / "w").exists()


def test_a_dry_run_lists_every_run_once(tmp_path: Path, capsys):
    flags = ["table1", "table5", "--sizes=b", "--scale=small", "--dry_run"]
    assert call(*flags, f"--workdir={tmp_path}", "--config.duration=2 epochs") == 0
    lines = capsys.readouterr().out.splitlines()
    # 3 from scratch, 3 backbones, 3 finetuned; 3 seeds
    assert lines[-1] == "27 runs of 9 models, 0 of them done"
    commands = [shlex.split(line) for line in lines if "widenet_jax.main" in line]
    assert len(commands) == len({tuple(line) for line in commands}) == 27
    assert {line[0] for line in commands} == {sys.executable}
    assert all("--config.duration=2 epochs" in line for line in commands)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_needs_no_gcsfs(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    flags = ["table1", "--sizes=b", "--scale=smoke", "--dry_run", f"--workdir={tmp_path}"]
    flags += ["--launch=--zone=z --tpu=v3-8", "--trial_workdir=gs://b/r"]
    assert call(*flags) == 0
    assert "models, --trial_workdir=gs://b/r needs the gcsfs" in capsys.readouterr().out
    assert call(*flags, "--json") == 0
    assert {row["done"] for row in json.loads(capsys.readouterr().out)["runs"]} == {None}


def test_a_dry_run_says_what_it_plans(tmp_path: Path, capsys, monkeypatch):
    """A plan takes a minute; here each is a model that is too large."""
    monkeypatch.setattr(reproduce, "plan_of", lambda *_: {"fits": False})
    flags = ["table3", "--sizes=b", "--scale=paper", "--dry_run", f"--workdir={tmp_path}"]
    assert call(*flags) == 0
    out, err = capsys.readouterr()
    count = out.count("plan: does not fit")
    assert count == len(err.splitlines()) > 1
    assert err.startswith(f"planning 1 of {count}: configs/imagenet.py:")


def test_the_experiments_and_the_scales_are_listed(capsys):
    assert call("--list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["experiments"]["table1"] == "Table 1: pretraining"
    assert found["groups"]["all"][0] == "table1" and "smoke" in found["scales"]
    assert call("--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "table1" and lines[-1].startswith("--scale=smoke")


def test_core_days_are_added_up():
    """2 x 0.4 and 11.5 + 30 core-days; a model without a plan is left out."""
    plans = [{"fits": True, "core_days": days} for days in (0.385, 11.5, 30.0)]
    rows = [{"seeds": 1, "plan": plan} for plan in (*plans[1:], "no compiler")]
    assert total_text(rows) == ": 41.5 core-days of TPUv3 for 2 of the models"
    assert (
        total_text([{"seeds": 2, "plan": plans[0]}])
        == ": 0.8 core-days of TPUv3 for 1 of the models"
    )


def test_tables_and_pictures_are_written_and_nothing_runs_twice(stand_in, tmp_path: Path, capsys):
    """Rows that an earlier call ran stay in a table; the others are left out."""
    flags = ("table1", "fig3", *SMOKE, f"--workdir={tmp_path}", "--seeds=2", "--workers=2")
    assert call(*flags, "--sizes=l,b") == 0
    printed = capsys.readouterr().out
    assert "50.00 (2 seeds; no spread)" in printed
    for name in ("table1", "fig3"):
        assert (tmp_path / f"{name}.md").read_text() in printed
        assert cv2.imread(str(tmp_path / f"{name}.png")).size
        content = json.loads((tmp_path / f"{name}.json").read_text())
        assert {len(row["values"]) for row in content["rows"]} == {2}
        assert content["metric"]["name"] == "accuracy"
    starts = {path: path.read_text() for path in tmp_path.glob("*/starts")}
    assert len(starts) == 2 * 7 and set(starts.values()) == {"x"}
    assert call(*flags, "--sizes=b", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["experiments"]) == 2
    assert {path: path.read_text() for path in tmp_path.glob("*/starts")} == starts
    text = (tmp_path / "table1.md").read_text()
    assert "| WideNet-L" in text and "| WideNet-H" not in text


@pytest.mark.slow
def test_table_2_has_the_papers_columns_beside_ours(stand_in, tmp_path: Path, capsys):
    """Every metric is 0.8 here, so that every column and the mean of the four are 80."""
    workdir, text = tmp_path / "w", tmp_path / "text"
    prepare_data.main(["text", str(TEXT), f"--out={text}", f"--tokenizer={FOLDER}"])
    capsys.readouterr()
    flags = ["--scale=small", "--seeds=1", f"--config.data.path={text}"]
    flags += ["--config.optimizer.learning_rate=0.8", f"--workdir={workdir}"]
    assert call("table2_squad1", *flags) == 0
    assert len(list(workdir.glob("*/result.json"))) == 10  # five models pretrained, then finetuned
    first = "| ALBERT | 12M | 89.3/82.3 | 80.0/80.0 | 80.0/77.1 | not run |"
    assert first in " ".join((workdir / "table2.md").read_text().split())
    assert call("table2", *flags) == 0
    whole = (workdir / "table2.md").read_text()
    assert whole in capsys.readouterr().out
    last = "| 92.2 | 80.0 | 85.8 | 80.0 |"  # WideNet-16: SST-2 and the mean
    assert last in " ".join(whole.split())
    assert "not run" not in whole
    pretraining = (workdir / "table2_pretraining.md").read_text()
    assert cv2.imread(str(workdir / "table2_pretraining.png")).size
    assert "not printed" in pretraining and "0.80 (1 seed)" in pretraining


@pytest.mark.slow
def test_a_report_runs_nothing_repeats_no_flags_and_says_what_ran(stand_in, tmp_path: Path, capsys):
    """Fields, seeds, scale and data are read from the runs; the header is the command for them."""
    flags = ["--data_dir=elsewhere", "--seeds=2", f"--workdir={tmp_path}"]
    flags += ["--config.optimizer.learning_rate=0.25", "--config.duration=3 epochs"]
    assert call("fig3", *SMOKE, *flags) == 0
    before = (tmp_path / "fig3.md").read_text()
    capsys.readouterr()
    assert call("fig3", "table3", "--sizes=b", f"--workdir={tmp_path}", "--report") == 0
    out, err = capsys.readouterr()
    assert err == "" and out.count("2 waiting") == 3  # rows of Table 3
    header, _, counts = out.splitlines()[0].partition(": ")
    names = ["scripts/reproduce.py", "fig3", "table3"]
    assert shlex.split(header) == [*names, *SMOKE, *flags[:2], "--sizes=b", *flags[2:]]
    assert counts == f"{2 * before.count('2 seeds')} done, 6 waiting"
    after = (tmp_path / "fig3.md").read_text()
    assert after.partition("Made by")[0] == before.partition("Made by")[0]
    assert f"Made by `{header}`" in after


@pytest.mark.parametrize("record", ["[]", '{"scale": 3}', '{"scale": "x"}', '{"seeds": "x"}'])
def test_a_damaged_record_is_one_line(record: str, tmp_path: Path, capsys):
    (tmp_path / "reproduce.json").write_text(record)
    for more in ("--report", "--dry_run"):
        assert call("fig3", f"--workdir={tmp_path}", more) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "reproduce.json: " in err


@pytest.mark.slow
def test_a_failed_run_is_exit_code_3(stand_in, tmp_path: Path, capsys):
    arguments = ["fig3", *SMOKE, f"--workdir={tmp_path}", "--seeds=14"]  # the last one is seed 13
    assert call(*arguments, "--workers=4") == 3
    out = capsys.readouterr().out
    assert "50.00 (13 seeds; no spread); 1 failed" in out


def test_one_workdir_holds_one_experiment(stand_in, tmp_path: Path, capsys):
    """Other fields, image sets, scales or config files are refused, for a report as well."""
    made = ("fig3", *SMOKE, f"--workdir={tmp_path}", "--config.optimizer.learning_rate=0.25")
    assert call(*made) == 0
    before = (tmp_path / "fig3.md").read_text()
    capsys.readouterr()
    for other in (
        (*made[:-1], "--config.optimizer.learning_rate=0.5", "--report"),
        (*made[:-1], "--config.optimizer.learning_rate=0.5"),
        (*made, "--data_dir=elsewhere"),
        ("fig3", "--scale=small", *made[2:]),
    ):
        assert call(*other) == 2
        assert capsys.readouterr().err.count("\n") == 1
    stored = next(tmp_path.glob("*/config.json"))
    stored.write_text(stored.read_text().replace('"batch_size": ', '"batch_size": 1'))
    for mode in ([], ["--report"]):
        assert call(*made, *mode) == 2
        assert f"{stored.parent.name} is finished" in capsys.readouterr().err
    assert (tmp_path / "fig3.md").read_text() == before
    assert "25.00 (1 seed)" in before and "--config.optimizer.learning_rate=0.25" in before


def test_each_stage_is_launched_on_its_slice():
    """Pretraining on 256 cores, finetuning on 32, unless the flags name a slice."""
    for launch, slices in (
        ("--zone=z", ["--tpu=v3-256"] * 3 + ["--tpu=v3-32"] * 3),
        ("--zone=z --tpu=v4-8", ["--tpu=v4-8"] * 6),
    ):
        command = launching(launch, SCALES["paper"])
        trials = [
            trial_of(run, 0, Directory("w", "/t"), "gs://b/d")
            for run in runs_of(SCALES["paper"], chosen(["table5"], ["b"]))
        ]
        words = [command(trial, f"/t/{trial.name}") for trial in trials]
        assert [[w for w in line if w.startswith("--tpu")] for line in words] == [
            [s] for s in slices
        ]
        assert all("widenet_jax.cli.launch_tpu" in line for line in words)


def test_norms_of_finished_runs(digits_run, tmp_path: Path, capsys):
    """The same WideNet stands for both models here, so that one mean is 1.00 times the other."""
    directory = Directory(tmp_path)
    for run in runs_of(SCALES["smoke"], [EXPERIMENTS["fig4"]]):
        workdir = Path(directory.workdir(trial_of(run, 0, directory, "")))
        workdir.mkdir()
        for path in digits_run.iterdir():
            if path.name != "config.json":  # it is smaller than these models
                (workdir / path.name).symlink_to(path)
    assert call("fig4", *SMOKE, f"--workdir={tmp_path}", "--report") == 0
    alone = norm_divergence(open_trained(str(digits_run)).params)["gamma"].block
    facts = json.loads((tmp_path / "fig4.json").read_text())
    assert alone.min() > 0
    for found in facts["by_block"].values():
        np.testing.assert_allclose(found, [alone], rtol=1e-6)
    assert "The mean of widenet_tiny is 1.00 times vit_tiny's" in capsys.readouterr().out
    assert cv2.imread(str(tmp_path / "fig4.png")).size


def test_every_run_at_the_smoke_scale_can_begin(tmp_path: Path):
    scale, directory = SCALES["smoke"], Directory(str(tmp_path))
    for one in runs_of(scale, runnable(scale, EXPERIMENTS.values())):
        if not one.backbone:
            assert not mistake_of(trial_of(one, 0, directory, str(tmp_path), ())), one


@pytest.mark.slow
def test_every_experiment_at_the_smoke_scale(tmp_path: Path, capsys):
    """Real runs learn: ten classes have 10%; the frequencies of the novel's bytes 4.4 bits."""
    assert call("all", "sigma", *SMOKE, f"--workdir={tmp_path}", "--workers=2") == 0
    out = capsys.readouterr().out
    assert "sigma_table5" not in out  # of data that this scale does not have
    values = {"accuracy": [], "bits_per_byte": []}
    for one in runnable(SCALES["smoke"], chosen(["all", "sigma"])):
        assert (tmp_path / f"{one.name}.md").read_text() in out
        assert cv2.imread(str(tmp_path / f"{one.name}.png")).size
        for row in json.loads((tmp_path / f"{one.name}.json").read_text()).get("rows", []):
            values.get(one.metric.name, []).extend(row.get("values", []))
    assert len(values["accuracy"]) == 37 and min(values["accuracy"]) > 15
    assert len(values["bits_per_byte"]) > 40 and max(values["bits_per_byte"]) < 4


def test_results_outlive_the_runs(stand_in, tmp_path: Path, capsys):
    """A line a run; in another directory they are not run again, and no line comes twice."""
    file = tmp_path / "results.jsonl"
    flags = ("fig3", *SMOKE, "--seeds=1", f"--results={file}")
    assert call(*flags, f"--workdir={tmp_path / 'a'}") == 0
    text = file.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    (start,) = {path.read_text() for path in tmp_path.glob("a/*/starts")}
    assert start == "x" and len({line["trial"] for line in lines}) == len(lines) == 2
    assert {line["choices_sha256"] for line in lines} == {CHOICES_SHA256}
    assert all("--config.seed=0" in line["fields"] for line in lines)
    table = (tmp_path / "a/fig3.md").read_text().partition("Made by")[0]
    capsys.readouterr()
    assert call(*flags, f"--workdir={tmp_path / 'b'}", "--dry_run") == 0
    assert "2 of them done" in capsys.readouterr().out and not (tmp_path / "b").exists()
    assert call(*flags, f"--workdir={tmp_path / 'b'}") == 0
    assert not list(tmp_path.glob("b/*/starts")) and file.read_text() == text
    assert table in (tmp_path / "b/fig3.md").read_text()
    capsys.readouterr()
    for old, new, says in (
        ("{", "{0", "line 1: damaged"),
        ('"choices_sha256": "', '"choices_sha256": "0', "other choices"),
        ('"test_accuracy": 0.', '"test_accuracy": 50.', "line 1: damaged (test_accuracy is 50."),
        ('"test_accuracy": ', '"accuracy": ', "line 1: damaged ('test_accuracy')"),
        ('"evaluations": [', '"evaluations": 3, "e": [', "line 1: damaged ('int' object is"),
        ('"trial": "', '"trial": ["", "', "line 1: damaged"),
        ("{", "\xff", "results.jsonl: damaged ('utf-8' codec"),
    ):
        file.write_bytes(text.replace(old, new, 1).encode("latin-1"))
        assert says in refused(capsys, main, *flags, f"--workdir={tmp_path / 'c'}")
    other = text.splitlines()[0].replace('"test_accuracy": 0.', '"test_accuracy": 0.0')
    file.write_text(f"{text}{other}\n")
    told = refused(capsys, main, *flags, f"--workdir={tmp_path / 'c'}")
    assert "line 3: damaged (another line has trial" in told
    file.write_text(f"{other}\n")
    told = refused(capsys, main, *flags, f"--workdir={tmp_path / 'a'}")
    assert told.endswith(": its result is not that of --results; name another of the two\n")


def test_kept_results_of_other_fields_are_refused(stand_in, tmp_path: Path, capsys):
    """Results of 1 epoch are none of 2; of code outside git there is no commit."""
    file = tmp_path / "results.jsonl"
    flags = ("fig3", *SMOKE, "--seeds=1", f"--results={file}")
    one, two = (f"--config.duration={n} epochs" for n in (1, 2))
    assert call(*flags, one, f"--workdir={tmp_path / 'a'}") == 0
    capsys.readouterr()
    told = refused(capsys, main, *flags, two, f"--workdir={tmp_path / 'b'}")
    assert f"ran with other fields ({one}, {two}); name another file" in told
    assert call(*flags, one, f"--workdir={tmp_path / 'c'}") == 0
    capsys.readouterr()
    without = [*flags[:-1], two, f"--workdir={tmp_path / 'c'}"]  # the file, but not its runs
    assert "ran with another config (duration: '1 epochs' there" in refused(capsys, main, *without)
    models = [*flags, "fig4", one, f"--workdir={tmp_path / 'd'}"]
    assert "keeps results and no models, which fig4 read" in refused(capsys, main, *models)
    lines = [json.loads(line) | {"commit": None} for line in file.read_text().splitlines()]
    for line in lines:  # as written on another machine
        line["fields"] += ["--config.init_from=/elsewhere", "--config.data.num_workers=4"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call(*flags, one, f"--workdir={tmp_path / 'b'}", "--report") == 0
    assert "unknown" in (tmp_path / "b/fig3.md").read_text()


def test_kept_results_are_found_by_launched_runs(stand_in, tmp_path: Path, capsys):
    """Their workdirs lie elsewhere."""
    file, elsewhere = tmp_path / "results.jsonl", tmp_path / "elsewhere"
    flags = ("fig3", *SMOKE, "--seeds=1", f"--results={file}")
    assert call(*flags, f"--workdir={tmp_path / 'a'}") == 0
    launch = ("--launch=--tpu=v3-8", f"--trial_workdir={elsewhere}", f"--workdir={tmp_path / 'b'}")
    assert call(*flags, *launch, "--report") == 0
    assert len([*elsewhere.glob("*/result.json")]) == 2
