"""Killed, damaged or moved runs resume exactly, or report in one line why they cannot."""

import json
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import cv2
import jax
import numpy as np
import pytest
from checkpoint.test_series import everything_in, flip
from etils import epath
from orbax.checkpoint import multihost
from refusals import refused
from small_runs import (
    assert_same_end,
    at_step,
    command,
    commands_of_two,
    final_state,
    finish,
    last_step,
    lines_in,
    metrics_of,
    run_here,
    small_config,
    start,
    start_two,
    train_here,
    wait_until,
)

from widenet_jax.config.durations import Interval
from widenet_jax.data import pipeline
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.main import main
from widenet_jax.run.runtime import Runtime

# Other fields of the run, and so its compiled programs, are as in `digits_run`.
OFTEN = {"checkpoint.every": "4 steps", "evaluation.every": "4 steps"}
# Save and evaluate as often and as long as a short run can, so that random kills hit these phases.
LONGER = {
    "duration": "32 steps",
    "checkpoint.every": "2 steps",
    "evaluation.every": "4 steps",
    "evaluation.batch_size": 32,
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """Returns a function that trains an unbroken run of a kind; it keeps all checkpoints."""

    @cache
    def trained(run: str, *, longer: bool) -> Path:
        workdir = tmp_path_factory.mktemp("runs") / f"unbroken_{run}"
        changes = (LONGER if longer else OFTEN) | {"checkpoint.keep": 16}
        # This process has eight devices, and more threads for each of them: XLA splits sums
        # differently. What ends in another process is compared with a run of such a process.
        if run == "digits" and not longer:
            run_here(workdir, run=run, **changes)
        else:
            for process in begin(workdir, run, **changes):
                finish(process)
        return workdir

    return trained


@pytest.fixture(scope="module")
def unbroken(reference: Callable) -> Path:
    return reference("digits", longer=False)


def begin(workdir: Path, run: str, **changes: object) -> list[subprocess.Popen]:
    """Starts the process, or the two processes, of a run of a kind."""
    if run == "digits of two":
        return start_two(workdir, **changes)
    return [start(command(workdir, run=run, **changes))]


def is_saving(workdir: Path) -> bool:
    """Returns whether a checkpoint is being written and is not committed yet."""
    return any(workdir.glob("checkpoints/*tmp*")) or any(workdir.glob("best/*tmp*"))


def is_evaluating(workdir: Path) -> bool:
    """Returns whether the run is evaluating: the last step's evaluation is not written yet."""
    last = (lines_in(workdir) or [""])[-1]
    step = re.match(r'{"step": (\d+), "split": "train"', last)
    return bool(step) and int(step[1]) % 4 == 0


def is_compiling(workdir: Path) -> bool:
    return (workdir / "environment.json").exists() and not lines_in(workdir)


def moment(workdir: Path) -> str:
    """Describes the run's phase according to its files; saving overlaps with other phases."""
    if not (workdir / "environment.json").exists():
        return "starting"
    doing = [what for what, holds in DOING.items() if holds(workdir)]
    return " and ".join(doing) or ("training" if lines_in(workdir) else "compiling")


DOING = {"saving": is_saving, "evaluating": is_evaluating}


def run_and_kill(
    processes: list[subprocess.Popen], workdir: Path, when: Callable[[Path], bool], pause: float = 0
) -> str | None:
    """Kills a run once `when` holds; returns the phase, None if it finished.

    The second of two processes goes on for `pause` seconds more.
    """
    while all(process.poll() is None for process in processes) and not when(workdir):
        time.sleep(0.002)
    for number, process in enumerate(processes):
        time.sleep(pause * number)
        process.kill()
    errors = [process.communicate()[1] for process in processes]
    if any(process.returncode == -signal.SIGKILL for process in processes):
        return moment(workdir)
    assert all(process.returncode == 0 for process in processes), errors
    return None


@pytest.mark.parametrize(
    ("run", "when", "longer"),
    [
        ("digits", is_saving, False),
        pytest.param("text_tiny", is_saving, True, marks=pytest.mark.slow),
        pytest.param("language", is_saving, True, marks=pytest.mark.slow),
        pytest.param("digits", is_evaluating, True, marks=pytest.mark.slow),
    ],
)
def test_killed_at_a_bad_moment(
    reference: Callable, tmp_path: Path, run: str, when: Callable, longer: bool
):
    arguments = command(tmp_path / "run", run=run, **(LONGER if longer else OFTEN))
    assert run_and_kill([start(arguments)], tmp_path / "run", when) is not None
    if run == "digits" and not longer:
        run_here(tmp_path / "run", **OFTEN)
    else:  # see `reference`
        finish(start(arguments))
    assert_same_end(tmp_path / "run", reference(run, longer=longer))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["compiling", *DOING])
def test_ctrl_c_in_other_phases(reference: Callable, tmp_path: Path, phase: str):
    """The message says what is on disk, and the resumed run ends with the same bytes."""
    workdir = tmp_path / "run"
    begun = {"compiling": is_compiling, **DOING}[phase]
    run = start(command(workdir, **LONGER))
    wait_until(lambda: begun(workdir), run)
    run.send_signal(signal.SIGINT)
    line, step = finish(run, 130).splitlines()[-1], last_step(workdir)
    if phase == "compiling":
        assert line.startswith("stopped: Ctrl-C; nothing new to save. ") and step == 0
    else:
        assert line.startswith(f"stopped: Ctrl-C; saved after step {step}. ") and step > 0
    finish(start(command(workdir, **LONGER)))
    assert_same_end(workdir, reference("digits", longer=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "count"),
    [("digits", 20), ("digits of two", 10), ("text_tiny", 10), ("squad", 10), ("language", 10)],
)
def test_runs_killed_at_random_moments(reference: Callable, tmp_path: Path, run: str, count: int):
    """Each run is killed up to four times, then finishes: all end with the same bytes."""
    rng, moments = random.Random(0), Counter()
    aims = [is_saving, is_evaluating, is_compiling]
    for number in range(count):
        workdir, hits = tmp_path / str(number), []
        for kill in range(rng.randint(1, 4)):
            deadline = time.monotonic() + rng.uniform(0.5, 14.0)
            late = lambda _, deadline=deadline: time.monotonic() > deadline  # noqa: E731
            aimed = aims[(number + kill) % 3] if rng.random() < 0.3 else late
            processes = begin(workdir, run, **LONGER)[:: rng.choice([1, -1])]
            hit = run_and_kill(processes, workdir, aimed, pause=rng.random())
            if hit is None:
                break
            hits.append(hit)
        if not hits:  # the run finished before its deadline
            shutil.rmtree(workdir)
            hits.append(run_and_kill(begin(workdir, run, **LONGER), workdir, is_saving))
        for process in begin(workdir, run, **LONGER):
            finish(process)
        assert_same_end(workdir, reference(run, longer=True))
        moments.update(" and ".join(hits).split(" and "))
        print(f"run {number}: killed while {', '.join(hits)}", flush=True)
        shutil.rmtree(workdir)
    print(f"{count} of {count} the same; kills: {dict(moments)}")
    assert run != "digits" or set(moments) > {"compiling", *DOING}


@pytest.mark.slow
def test_other_devices_and_hosts_go_on(reference: Callable, tmp_path: Path):
    """1 -> 8 -> 1 -> 4 -> 8 devices and 2 processes: the same data, the next loss within 1e-5.

    (tests/checkpoint tests that the restored tree is bit-identical on every mesh.)
    """
    unbroken = reference("digits", longer=True)
    theirs = {r["step"]: r for r in metrics_of(unbroken)}
    workdir = at_step(tmp_path / "run", unbroken, 6)
    for step, devices in ((6, 8), (12, 1), (18, 4), (24, 8)):
        for path in (workdir / "checkpoints").iterdir():
            if int(path.name) > step:
                shutil.rmtree(path)
        keep = {"checkpoint.keep": 16}
        errors = finish(start(command(workdir, **LONGER, **keep), devices=devices))
        assert f"resuming after step {step}:" in errors and f"{devices} cpu devices" in errors
        ours = {r["step"]: r for r in metrics_of(workdir)}
        assert sorted(ours) == list(range(1, 33))
        np.testing.assert_allclose(ours[step + 1]["loss"], theirs[step + 1]["loss"], rtol=1e-5)
    workdir = at_step(tmp_path / "two", unbroken, 14)
    for process in [start(c, devices=2) for c in commands_of_two(workdir, **LONGER)]:
        finish(process)
    ours = {r["step"]: r for r in metrics_of(workdir)}
    np.testing.assert_allclose(ours[15]["loss"], theirs[15]["loss"], rtol=1e-5)
    assert ours[15]["load"] == theirs[15]["load"]


def test_the_newest_checkpoint_is_damaged(unbroken: Path, tmp_path: Path, capsys):
    """The run restores the previous one and renames the damaged one; its end is the same."""
    workdir = at_step(tmp_path / "run", unbroken, 16)
    flip(workdir / "checkpoints" / "16" / "params" / "manifest.ocdbt", 3)
    run_here(workdir, **OFTEN)
    errors = capsys.readouterr().err
    assert (
        f"warning: {workdir}/checkpoints/16 params/manifest.ocdbt has changed bytes; renamed to"
        in errors
    )
    assert "resuming after step 12:" in errors
    assert (workdir / "checkpoints" / "16.damaged").is_dir()
    assert_same_end(workdir, unbroken)


@pytest.mark.slow
def test_metrics_that_are_damaged(unbroken: Path, tmp_path: Path, capsys):
    """A byte before the restored step: a line says so. Parameters are those of an unbroken run."""
    workdir = at_step(tmp_path / "run", unbroken, 16)
    file = workdir / "metrics.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"loss": 2', b'"loss": 3', 1))
    run_here(workdir, **OFTEN)
    assert f"warning: {file} has changed among its first " in capsys.readouterr().err
    assert final_state(workdir) == final_state(unbroken)


def test_every_checkpoint_is_damaged(unbroken: Path, tmp_path: Path):
    """The run fails; nothing is overwritten, in particular not by a new run."""
    workdir = at_step(tmp_path / "run", unbroken, 8)
    for step in ("4", "8"):
        (workdir / "checkpoints" / step / "manifest.json").write_text("{")
    before = everything_in(workdir)
    with pytest.raises(RunFailedError) as error:
        run_here(workdir, **OFTEN)
    told = f"{workdir}/checkpoints is not intact (8: manifest"
    assert str(error.value).startswith(told)
    assert everything_in(workdir) == before


@pytest.mark.slow
def test_debris_of_the_first_save(unbroken: Path, tmp_path: Path, capsys):
    """The run starts at step 0 again, and says so."""
    workdir = at_step(tmp_path / "run", unbroken, 4)
    (workdir / "checkpoints" / "4").rename(workdir / "checkpoints" / "4.orbax-checkpoint-tmp")
    shutil.rmtree(workdir / "best")
    run_here(workdir, **OFTEN)
    errors = capsys.readouterr().err
    assert f"note: {workdir}/checkpoints held an unfinished checkpoint (4); it is removed" in errors
    assert "starting: 20 steps" in errors
    assert_same_end(workdir, unbroken)


def test_checkpoints_that_are_gone(unbroken: Path, tmp_path: Path):
    """A run that has metrics does not start again from step 0 and overwrite them."""
    workdir = tmp_path / "run"
    shutil.copytree(unbroken, workdir)
    shutil.rmtree(workdir / "checkpoints")
    (workdir / "result.json").unlink()
    before = everything_in(workdir)
    with pytest.raises(RunFailedError) as error:
        run_here(workdir, **OFTEN)
    told = f"--workdir={workdir} has metrics up to step 20 and no check"
    assert str(error.value).startswith(told)
    assert everything_in(workdir).keys() - before.keys() == {".lock"} - before.keys()
    assert before.items() <= everything_in(workdir).items()


@pytest.mark.parametrize(
    ("there", "here", "gone"), [(50, 10, False), (10, 50, True), (0, 10, True), (0, 50, False)]
)
def test_the_interval_of_the_killed_start_tells_whether_it_saved(
    tmp_path: Path, there: float, here: int, gone: bool
):
    """It reached step 30. Starts of before December 2026 do not tell theirs."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 30, "split": "train"}\n')
    start = {"save_every": float(there)} if there else {}
    (tmp_path / "environment.json").write_text(json.dumps([start]))
    experiment = SimpleNamespace(save_every=Interval(Fraction(here)))
    runtime = SimpleNamespace(workdir=epath.Path(tmp_path), experiment=experiment)
    with pytest.raises(RunFailedError, match="up to step 30") if gone else nullcontext():
        Runtime._check_history(runtime)


@pytest.mark.parametrize(
    ("save", "log"),
    [
        pytest.param(4, 20, marks=pytest.mark.slow),
        pytest.param(20, 1, marks=pytest.mark.slow),
        (20, 20),
    ],
)
def test_a_workdir_that_is_moved_away(tmp_path: Path, save: int, log: int):
    """The next save, written line or evaluation ends the run, rather than begin a new workdir."""
    often = {"checkpoint.every": f"{save} steps", "log_every_steps": log}
    config, workdir, moved = small_config(**OFTEN | often), tmp_path / "run", tmp_path / "moved"
    with pytest.raises(RunFailedError) as error:
        train_here(config, workdir, on_evaluation=lambda *_: workdir.rename(moved))
    told = f"--workdir={workdir}: its config.json is gone, so the directory or this file was del"
    assert str(error.value).startswith(told)
    assert (moved / "config.json").exists() and not (workdir / "config.json").exists()


def test_a_run_that_would_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture):
    """A terabyte of experts is refused before anything is compiled."""
    huge = {"model.moe.num_experts": 4096, "model.embed_dim": 1024, "model.moe.mlp_dim": 4096}
    line = refused(capsys, main, *command(tmp_path / "run", **huge)[2:])
    assert line.startswith(f"error: --workdir={tmp_path}/run: its checkpoints take up to ")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_with_workers_leaves_no_shared_memory(tmp_path: Path):
    errors = finish(start(command(tmp_path / "run", **{"data.num_workers": 2})))
    assert "leaked" not in errors


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Writes two classes of 32 pictures for training and 16 for testing; one is truncated."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 32), ("test", 16)):
        for name in ("cat", "dog"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture = rng.integers(0, 255, (8, 8, 3), np.uint8)
                cv2.imwrite(str(folder / f"{number:02d}.jpg"), picture)
    cut = tmp_path / "photos" / "train" / "cat" / "07.jpg"
    cut.write_bytes(cut.read_bytes()[:200])
    return tmp_path / "photos"


def of(photos: Path) -> dict[str, object]:
    """Returns the fields of a run on the photos; all runs have the same compiled programs."""
    data = {"data.source": "image_folder", "data.path": str(photos)}
    return {"duration": "10 steps", "batch_size": 32, **data}


@pytest.mark.slow
def test_no_image_can_be_read(photos: Path, tmp_path: Path):
    """The first batch fails while parameters are being initialised: the run exits in order."""
    for path in (photos / "train").rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:200])
    errors = finish(start(command(tmp_path / "run", **of(photos))), 2)
    assert "truncated JPEG" in errors.splitlines()[-1] and "Traceback" not in errors


def test_bad_examples_of_small_splits_are_met_before_training(photos: Path, tmp_path: Path, capsys):
    """1 of 64 photos; both ways nothing is written."""
    with pytest.raises(BadInputError, match=r"cat/07\.jpg.*truncated JPEG.*on_bad_example=skip"):
        run_here(tmp_path / "run", **of(photos))
    skip = {"data.on_bad_example": "skip", "data.max_bad_fraction": 0.0}
    with pytest.raises(BadInputError, match="1 of 64 training images could not be read"):
        run_here(tmp_path / "run", **of(photos) | skip)
    assert "cat/07.jpg" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_bad_evaluation_example_loses_no_step(photos: Path, tmp_path: Path, capsys, monkeypatch):
    """The run saves the steps it has made before it ends, and goes on once the file is mended."""
    monkeypatch.setattr(pipeline, "SMALL_SPLIT", 0)
    bad = photos / "test" / "dog" / "00.jpg"
    good, workdir = bad.read_bytes(), tmp_path / "run"
    bad.write_bytes(good[:100])
    (photos / "train" / "cat" / "07.jpg").write_bytes(good)
    # 5.2 epochs are 10.4 steps, and a quarter of them 2.6: evaluated after steps 3, 5, 8 and 10.
    changes = of(photos) | {"duration": "5.2 epochs", "evaluation.every": "1.3 epochs"}
    changes["checkpoint.every"] = "100 steps"
    with pytest.raises(BadInputError, match=r"dog/00\.jpg"):
        run_here(workdir, **changes)
    assert "saved after step 3" in capsys.readouterr().err
    assert last_step(workdir) == 3
    bad.write_bytes(good)  # another content, as the run with --extend accepts
    train_here(small_config(**changes), workdir, extend=True)
    assert "resuming after step 3" in capsys.readouterr().err
    assert [r["step"] for r in metrics_of(workdir, "eval")] == [3, 5, 8, 10]


@pytest.mark.slow
def test_an_image_that_cannot_be_read(photos: Path, tmp_path: Path, capsys, monkeypatch):
    """It is an error that names the image, or is skipped and counted, up to the allowed share."""
    monkeypatch.setattr(pipeline, "SMALL_SPLIT", 0)  # what a run with a large set meets
    data = of(photos) | {"checkpoint.every": "4 steps"}
    with pytest.raises(BadInputError, match=r"cat/07\.jpg.*truncated JPEG"):
        run_here(tmp_path / "error", **data)

    data |= {"data.on_bad_example": "skip", "data.max_bad_fraction": 0.05}
    capsys.readouterr()
    result = run_here(tmp_path / "skip", **data)
    err = capsys.readouterr().err
    assert err.count("cat/07.jpg") == err.count("skipped, another takes its place: ") == 1
    assert "warning: 5 times training met images that could not be read" in err
    assert result["train_bad_examples"] == 5 and "bad_examples" not in result
    counts = [r["bad_examples"] for r in metrics_of(tmp_path / "skip")]
    assert counts[-1] == 5 and counts == sorted(counts)  # 10 steps of 32 are 5 epochs of 64
    assert {r["bad_examples"] for r in metrics_of(tmp_path / "skip", "eval")} == {0}

    data |= {"data.max_bad_fraction": 0.0}
    capsys.readouterr()
    # As if this process were the second one to join, and the output of the first were followed.
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(multihost, "is_runtime_to_distributed_ids_initialized", lambda: True)
    monkeypatch.setattr(multihost, "runtime_to_distributed_ids", lambda: [1])
    with pytest.raises(RunFailedError) as error:
        run_here(tmp_path / "many", **data)
    (line,) = capsys.readouterr().err.splitlines()
    assert "cat/07.jpg" in line  # which only this process can name
    assert metrics_of(tmp_path / "many")[0]["step"] == 1  # this first host writes the files
    told = "1 of 32 training images drawn so far could not be read"  # at the first step
    assert told in str(error.value)
    assert "at most 0 of 64 may be (config.data.max_bad_fraction=0); mend" in str(error.value)

    for number in range(16, 24):  # after training: empty some test images, too
        (photos / "test" / "dog" / f"{number - 16:02d}.jpg").write_bytes(b"")
    data |= {"data.max_bad_fraction": 0.001}
    allowed = r"at most 1 of 32 may be \(config.data.max_bad_fraction=0.001; of small sets 10, but "
    told = f"8 of 32 evaluation images could not be read; in each pass {allowed}no more than 5%"
    with pytest.raises(RunFailedError, match=told):
        run_here(tmp_path / "skip", mode="eval", **data)
