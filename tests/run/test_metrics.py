"""The bytes of the records on disk, and the events that TensorBoard reads back."""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
from etils import epath
from small_runs import run_here, small_config

from widenet_jax.errors import BadInputError
from widenet_jax.run.metrics import JsonLines, MetricsWriter, rounded
from widenet_jax.run.workdir import check_workdir

NO_TRACKING = {"tensorboard": False, "wandb_project": ""}


def json_lines(directory: Path, *, in_parts: bool) -> JsonLines:
    """Returns JsonLines in a file, or in parts as on an object store (here a local directory)."""
    lines = JsonLines(epath.Path(directory / "metrics.jsonl"))
    if in_parts:
        lines.parts = epath.Path(directory / "metrics.jsonl.parts")
    return lines


def write_steps(lines: JsonLines, first: int, last: int, *, flush_every: int = 2) -> None:
    for step in range(first, last + 1):
        lines.write({"step": step, "loss": 1 / step})
        if step % flush_every == 0:
            lines.flush()
    lines.flush()


def contents(directory: Path) -> bytes:
    """Returns the concatenated bytes of every file."""
    return b"".join(p.read_bytes() for p in sorted(directory.rglob("*.jsonl")) if p.is_file())


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_resumed_file_equals_an_unbroken_one(tmp_path: Path, in_parts: bool):
    for name in ("unbroken", "resumed"):
        (tmp_path / name).mkdir()
    write_steps(json_lines(tmp_path / "unbroken", in_parts=in_parts), 1, 9)
    lines = json_lines(tmp_path / "resumed", in_parts=in_parts)
    write_steps(lines, 1, 7)

    again = json_lines(tmp_path / "resumed", in_parts=in_parts)
    again.resume(5)
    assert [r["step"] for r in again.read()] == [1, 2, 3, 4, 5]
    write_steps(again, 6, 9)

    assert contents(tmp_path / "resumed") == contents(tmp_path / "unbroken")
    assert not list(tmp_path.rglob("*.tmp"))


CHANGES = {
    "intact": (lambda text: text, ""),
    "more": (lambda text: text + b'{"step": 7, "los', ""),
    "a byte": (lambda text: text.replace(b"0.5", b"0.6"), "has changed among its first 116 bytes"),
    "no record": (lambda text: b"x" + text[1:], "has changed among its first 116 bytes"),
    "half": (lambda text: text[:40], "has 40 bytes instead of 116"),
    "zeroed": (lambda text: bytes(len(text)), "has changed among its first 116 bytes"),
    "deleted": (lambda text: None, "is missing"),
    "older": (lambda text: text[:25], "has 25 bytes instead of 116"),
    "no first line": (lambda text: text[25:], "has 91 bytes instead of 116"),
}


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_not_what_the_checkpoint_saw(tmp_path: Path, capsys, change, in_parts):
    """What comes before the restored step is compared; a file that is whole there is cut to it."""
    damage, problem = CHANGES[change]
    lines = json_lines(tmp_path, in_parts=in_parts)
    lines.resume(0)
    write_steps(lines, 1, 4, flush_every=4)
    written, before = lines.written(), contents(tmp_path)
    assert len(before) == written["bytes"] == 116
    write_steps(lines, 5, 6)
    damaged = damage(contents(tmp_path)) if change == "more" else damage(before)
    for extra in lines.files()[1:]:
        extra.unlink()
    lines.files()[0].unlink() if damaged is None else lines.files()[0].write_bytes(damaged)
    again = json_lines(tmp_path, in_parts=in_parts)
    again.resume(4, written=written)
    path = f"{tmp_path}/metrics.jsonl{'.parts' if in_parts else ''}"
    told = capsys.readouterr().err
    if problem:
        assert told.startswith(f"warning: {path} {problem}, compared with checkpoint 4")
        assert (".jsonl.damaged: metrics of" in told) == (change == "no record")
    else:
        assert (told, contents(tmp_path), again.written()) == ("", before, written)
    assert again.written()["bytes"] == len(contents(tmp_path))
    assert told.count("\n") == bool(problem)


def test_only_gs_paths_write_parts(tmp_path: Path):
    """Two parts of one step are both kept."""
    assert JsonLines(tmp_path / "metrics.jsonl").parts is None
    assert str(JsonLines("gs://b/run/metrics.jsonl").parts) == "gs://b/run/metrics.jsonl.parts"
    lines = json_lines(tmp_path, in_parts=True)
    for split in ("train", "eval"):
        lines.write({"step": 4, "split": split})
        lines.flush()
    assert [r["split"] for r in lines.read()] == ["train", "eval"]


def test_no_part_takes_the_place_of_another(tmp_path: Path):
    """A bucket's rule may delete the oldest while a run goes on; other files have other names."""
    lines = json_lines(tmp_path, in_parts=True)
    write_steps(lines, 1, 4, flush_every=1)
    lines.files()[0].unlink()
    lines.files()[1].unlink()
    (lines.parts / "mine.jsonl").write_text("")
    write_steps(lines, 5, 7, flush_every=1)
    assert [r["step"] for r in lines.read()] == [2, 4, 5, 6, 7]
    assert [file.stem for file in lines.files()[:-1]] == [f"{n:08d}" for n in (1, 3, 4, 5, 6)]


@pytest.mark.parametrize("rest", ['{"step": 3, "lo', '{"step": 3}', "[3]\n"])
def test_half_a_line_and_what_is_no_record_go(tmp_path: Path, rest: str):
    """A killed run may leave incomplete lines; a last line without its newline is incomplete."""
    lines = json_lines(tmp_path, in_parts=False)
    write_steps(lines, 1, 3)
    before = lines.path.read_text()
    lines.path.write_text(before + rest)
    lines.resume(3)
    assert lines.path.read_text() == before


@pytest.mark.parametrize("in_parts", [False, True])
def test_parts_wait_for_flush_and_a_file_does_not(tmp_path: Path, in_parts: bool):
    lines = json_lines(tmp_path, in_parts=in_parts)
    lines.write({"step": 1})
    assert lines.read() == ([] if in_parts else [{"step": 1}])
    lines.flush()
    lines.flush()
    assert lines.read() == [{"step": 1}]
    assert len(lines.files()) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.1), "0.1"),  # 0.10000000149 as a double
        (1 / 3, "0.3333333"),
        (np.float32(1.2345678e-9), "1.234568e-09"),
        (np.int32(123456789), "123456789"),  # a count is exact
        (np.array([[1 / 3, 2.0]]), "[[0.3333333, 2.0]]"),
        (ml_dtypes.bfloat16(0.5), "0.5"),
    ],
)
def test_numbers_keep_seven_digits(value: object, text: str):
    assert json.dumps(rounded(value)) == text


def writer(workdir: Path, *, main_host: bool = True, **tracking: object) -> MetricsWriter:
    config = {"tracking": NO_TRACKING | tracking}
    return MetricsWriter(epath.Path(workdir) if main_host else None, config=config)


def test_times_stay_out_of_the_metrics(tmp_path: Path):
    out = writer(tmp_path)
    out.write(1, "train", {"loss": np.float32(0.1), "drop_rate": np.array([0.5])})
    out.write_timing(1, {"images_per_second": 12.34567})
    out.flush()
    metrics = (tmp_path / "metrics.jsonl").read_text()
    assert metrics == '{"step": 1, "split": "train", "loss": 0.1, "drop_rate": [0.5]}\n'
    times = (tmp_path / "timing.jsonl").read_text()
    assert times == '{"step": 1, "images_per_second": 12.34567}\n'


def test_only_the_first_host_writes(tmp_path: Path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    out = writer(workdir, main_host=False, tensorboard=True, wandb_project="x")
    out.resume(0)
    out.write(1, "train", {"loss": 1.0})
    out.write_timing(1, {"images_per_second": 1.0})
    out.flush()
    assert list(workdir.iterdir()) == []


def tensorboard_events(directory: Path) -> list:
    """Parses TensorFlow's records: length (8 bytes), its checksum (4), data, its checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    events = []
    for path in sorted(directory.glob("events.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            events.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return events


def test_tensorboard_reads_the_scalars_and_where_a_run_resumed(tmp_path: Path):
    out = writer(tmp_path, tensorboard=True)
    out.resume(4)
    out.write(5, "train", {"loss": 0.5, "load": [0.25, 0.75, np.nan]})
    out.write(5, "eval", {"loss": 2.0})
    out.write_timing(5, {"images_per_second": 64.0, "seconds_per_step": 0.25})
    out.close()
    events = tensorboard_events(tmp_path / "tensorboard")
    found = {(v.tag, e.step): v.simple_value for e in events for v in e.summary.value}
    assert found == {
        ("train/loss", 5): 0.5,
        ("train/load/0", 5): 0.25,
        ("train/load/1", 5): 0.75,
        ("eval/loss", 5): 2.0,
        ("timing/images_per_second", 5): 64.0,
        ("timing/seconds_per_step", 5): 0.25,
    }
    assert '"load": [0.25, 0.75, null]' in (tmp_path / "metrics.jsonl").read_text()
    starts = [e.step for e in events if e.HasField("session_log") and e.session_log.status == 1]
    assert starts == [5]  # TensorBoard hides earlier events from this step on


class Failing:
    """A tracker whose every method raises an error."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        raise OSError("no such service")


def test_a_tracker_never_ends_a_run(tmp_path: Path, capsys: pytest.CaptureFixture):
    out = writer(tmp_path)
    out.trackers.append(Failing())
    out.resume(0)
    out.write(1, "train", {"loss": 1.0})
    out.write_timing(1, {"images_per_second": 1.0})
    out.flush()
    out.close()
    assert [record["step"] for record in out.files[0].read()] == [1]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: Failing: no such service: it may miss metrics")


def test_wandb_missing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # an import of it fails
    with pytest.raises(BadInputError) as caught:
        writer(tmp_path, wandb_project="widenet")
    text = str(caught.value)
    assert "pip install -e '.[wandb]'" in text and "\n" not in text


# A module in the place of wandb, which lets no run begin.
FAILING_WANDB = """
class errors:
    class Error(Exception): pass
    class UsageError(Error): pass
    class AuthenticationError(Error): pass

def init(**about):
    raise errors.{error}("no run\\nmore")
"""


def test_a_run_that_wandb_refuses_may_be_corrected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing is trained yet: the workdir accepts every other flag."""
    module = ModuleType("wandb")
    exec(FAILING_WANDB.format(error="UsageError"), vars(module))
    monkeypatch.setitem(sys.modules, "wandb", module)
    changes = {"tracking.wandb_project": "widenet", "tracking.tensorboard": True}
    with pytest.raises(BadInputError, match=r"W&B refuses the run: no run \("):
        run_here(tmp_path / "run", **changes)
    check_workdir(epath.Path(tmp_path / "run"), small_config(seed=1), mode="train")


def test_a_split_of_the_last_step_is_written_once_more(tmp_path: Path):
    """An evaluation that was interrupted, or not followed by a checkpoint, is repeated."""
    lines = JsonLines(epath.Path(tmp_path / "m.jsonl"))
    for step, split in ((4, "eval"), (5, "train"), (5, "eval"), (6, "train")):
        lines.write({"step": step, "split": split})
    lines.resume(5, again=("eval",))
    assert [(r["step"], r["split"]) for r in lines.read()] == [(4, "eval"), (5, "train")]


def test_damaged_lines_are_kept_aside(tmp_path: Path, capsys: pytest.CaptureFixture):
    """A damaged line in the middle is kept aside with a warning; half a last line is dropped."""
    path = epath.Path(tmp_path / "m.jsonl")
    whole = [b'{"step": %d}\n' % step for step in range(1, 5)]
    damaged = b'{"st\xffp": 2}\n'
    path.write_bytes(whole[0] + damaged + whole[2] + whole[3] + b'{"step": 5')
    JsonLines(path).resume(3)
    assert path.read_bytes() == whole[0] + whole[2]
    assert (tmp_path / "m.jsonl.damaged").read_bytes() == damaged
    told = f"warning: {path} had damaged lines, 1 in all, now in m.jsonl.damaged: metrics of"
    assert capsys.readouterr().err.startswith(told)


def test_what_is_not_finite_is_still_json(tmp_path: Path):
    lines = JsonLines(epath.Path(tmp_path / "m.jsonl"))
    lines.write({"step": 1, "loss": float("nan"), "load": [0.5, float("inf")]})
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1, "loss": null, "load": [0.5, null]}\n'
