"""Workdirs and files on gs://, on a server of its protocol: see `gcs.py`."""

import string
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gcs
import pytest
from small_runs import command, finish, run_here, start

from widenet_jax import files
from widenet_jax.errors import BadInputError, NoAccessError, NoAnswerError
from widenet_jax.files import absolute, is_gone, matching, read_json, write_bytes, write_json
from widenet_jax.run.metrics import JsonLines, MetricsWriter

TRACKING = {"tensorboard": True, "wandb_project": ""}


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> type:
    """How long this process sends requests again: 0.3 s, after short waits."""
    from widenet_jax import object_store

    monkeypatch.setattr(object_store, "FIRST_WAIT", 0.02)
    monkeypatch.setattr(object_store.Patience, "seconds", 0.3)
    monkeypatch.setattr(object_store.Patience, "told", -1e9)
    return object_store.Patience


def test_metrics_stay_where_a_bucket_deletes_the_oldest(bucket: str):
    """As by a rule of the bucket on the age of its objects."""
    lines = JsonLines(absolute(bucket) / "metrics.jsonl")
    for step in range(6):
        lines.write({"step": step})
        lines.flush()
        if step == 2:
            lines.files()[0].unlink()
    assert [record["step"] for record in lines.read()] == [1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs
def test_an_object_is_written_whole_or_not_at_all(bucket: str, gcs_server: str):
    file, large = absolute(bucket) / "a.json", bytes(6 << 20)  # of more than one block
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        write_json(file, [1])
    assert [line.split(" ")[0] for line in way.requests] == ["POST"]
    unfinished = file.open("wb")
    unfinished.write(large)
    unfinished.flush()
    assert file.read_text() == "[\n 1\n]\n"
    unfinished.discard()
    write_bytes(file, large)
    assert file.stat().length == len(large)
    assert [path.name for path in file.parent.iterdir()] == ["a.json"]


def test_names_of_every_other_character(bucket: str):
    """`files.WILDCARDS` are refused; these are written, listed and deleted as they are."""
    others = "".join(mark for mark in string.punctuation if mark not in files.WILDCARDS + "/")
    place = absolute(f"{bucket}/a mä{others}")
    write_json(place / "a.json", {})
    write_json(place / "a.json", {"again": 1})
    (place / "run").mkdir()
    (place / "run" / "b.json").write_text("1")
    assert files.read_json(place / "a.json") == {"again": 1}
    assert [path.name for path in matching(place, "*.json")] == ["a.json"]
    (place / "run" / "b.json").unlink()
    assert not (place / "run" / "b.json").exists()
    place.rmtree()
    assert is_gone(place / "a.json") and not place.exists()


ASKING = (  # of a file that is there
    read_json,
    lambda file: write_json(file, {"a": 1}),
    lambda file: file.exists(),
    lambda file: file.is_dir(),
    lambda file: file.stat(),
    lambda file: matching(file.parent, "*"),
)


def after(times: int, fault: int | str) -> Callable[[str], int | str | None]:
    """Returns the fault of the first requests, `times` of them; the others are answered."""
    left = iter([fault] * times)
    return lambda request: next(left, None)


@pytest.mark.parametrize("fault", [408, 429, 500, 503, "reset", "silent", "cut", "lost"])
def test_a_request_that_fails_is_sent_again(
    bucket: str, gcs_server: str, fault: int | str, patience: type, capsys: pytest.CaptureFixture
):
    """gcsfs itself would wait for ever where an answer is lost."""
    file = absolute(bucket) / "a.json"
    write_json(file, {"a": 1})
    for ask in ASKING:
        with gcs.way(gcs_server, after(1, fault)) as way, gcs.reached(way.url):
            ask(file)
    assert read_json(file) == {"a": 1}
    lines = capsys.readouterr().err.splitlines()  # one in 30 s
    if fault not in ("reset", "lost"):  # of these aiohttp itself may send again
        assert lines[0].startswith("warning: gs:// does not answer (")
    assert len(lines) <= 1


@pytest.mark.parametrize("status", [400, 401, 403, 412])
def test_a_request_that_is_refused_is_not_sent_again(bucket: str, gcs_server: str, status: int):
    """As none of a run's files may be taken for one that is missing or damaged."""
    file = absolute(bucket) / "a.json"
    write_json(file, {})
    with gcs.way(gcs_server, lambda request: status) as way, gcs.reached(way.url):
        for ask in ASKING:
            with pytest.raises((NoAccessError, BadInputError), match=f"{status}.*; ") as error:
                ask(file)
            assert "\n" not in str(error.value)
        assert len(way.requests) < 3 * len(ASKING)


@pytest.mark.parametrize("fault", [503, "silent"])
def test_a_request_without_an_answer_ends_in_one_line(
    bucket: str, gcs_server: str, fault: int | str, patience: type
):
    file = absolute(bucket) / "a.json"
    write_json(file, {})
    with gcs.way(gcs_server, lambda request: fault) as way, gcs.reached(way.url):
        for ask in ASKING:
            with pytest.raises(NoAnswerError, match=r"^gs:// does not answer \(.+\): see whether"):
                ask(file)


def test_events_for_tensorboard_are_uploaded_once(bucket: str, gcs_server: str):
    """A failed upload is told of, and made good by the next one."""
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        out = MetricsWriter(absolute(bucket), config={"tracking": TRACKING})
        out.resume(0)
        for step in range(4):
            out.write(step, "train", {"loss": 1.0})
            refused = "/tensorboard/" if step == 1 else " nothing"
            way.fault = lambda request, name=refused: 403 if name in request else None
            out.flush()
            out.flush()
        out.close()
    files = matching(absolute(bucket) / "tensorboard", "*")
    assert len(files) == 4
    assert [file.read_bytes().count(b"train/loss") for file in files] == [1, 1, 1, 1]
    assert b"".join(file.read_bytes() for file in files).count(b"brain.Event:2") == 4
    assert len(JsonLines(absolute(bucket) / "metrics.jsonl").read()) == 4


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs
def test_a_run_on_gs_ends_as_a_local_one(bucket: str, gcs_server: str, tmp_path: Path):
    """In few requests: each takes tens of milliseconds at Google's, some while the run waits."""
    changes = {"evaluation.every": "2 steps", "checkpoint.every": "2 steps"}
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        run_here(bucket, **changes | {"duration": "2 steps"})
        place = f"/download/storage/v1/b/{gcs.BUCKET}/o/{Path(bucket).name}/checkpoints/2/"
        read = [line for line in way.requests if place in line and "/d/" in line]  # of arrays
        first = len(way.requests)
        ours = run_here(bucket, **changes | {"duration": "4 steps"})
    assert ours == run_here(tmp_path / "run", **changes | {"duration": "4 steps"})
    parts = JsonLines(absolute(bucket) / "metrics.jsonl").files()
    metrics = b"".join(part.read_bytes() for part in parts)
    assert metrics == (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert 5 < len(read) == len(set(read))  # for the manifest
    # The start, metrics, the best and the last checkpoint; then the same again, with a restore and
    # without two checkpoints, 26 objects each (Google deletes 100 in one request).
    assert first < 330
    assert len(way.requests) - first < 500


@pytest.mark.slow
def test_a_stopped_run_on_gs_ends_as_a_local_one(bucket: str, tmp_path: Path):
    """Stopped half-way and resumed, with events for TensorBoard."""
    changes = {"evaluation.every": "10 steps"}
    tracked = changes | {"tracking.tensorboard": True}
    finish(start(command(bucket, **tracked | {"duration": "10 steps"})))
    finish(start(command(bucket, **tracked)))
    finish(start(command(tmp_path / "run", **changes)))
    ours, theirs = absolute(bucket), tmp_path / "run"
    assert (ours / "result.json").read_bytes() == (theirs / "result.json").read_bytes()
    parts = JsonLines(ours / "metrics.jsonl").files()
    assert len(parts) == 2
    metrics = b"".join(part.read_bytes() for part in parts)
    assert metrics == (theirs / "metrics.jsonl").read_bytes()
    events = matching(ours / "tensorboard", "*")
    assert sum(file.read_bytes().count(b"eval/accuracy") for file in events) == 2


STARTS = {  # of a command: what follows --workdir
    "train": [sys.executable, "-m", "widenet_jax.main"],
    "evaluate": [sys.executable, "scripts/evaluate.py"],
    "predict": [sys.executable, "scripts/predict.py", "--text=a"],
}
ANSWERS = {401: 2, 403: 2, 404: 2, 412: 2, 408: 3, 429: 3, 503: 3, "reset": 3, "silent": 3}


@pytest.mark.slow
@pytest.mark.parametrize("start_of", STARTS)
@pytest.mark.parametrize("fault", ANSWERS)
def test_a_start_without_its_store_ends_in_one_line(
    bucket: str, gcs_server: str, fault: int | str, start_of: str
):
    """At once where it is refused, after 15 s where it is not answered."""
    arguments = command(bucket)[3:] if start_of == "train" else [f"--workdir={bucket}"]
    with gcs.way(gcs_server, lambda request: fault) as way, gcs.reached(way.url):
        began = time.monotonic()
        errors = finish(start([*STARTS[start_of], *arguments]), ANSWERS[fault])
        seconds = time.monotonic() - began
    *again, last = errors.splitlines()
    kind = {2: "error", 3: "failed"}[ANSWERS[fault]]
    # Where a bucket that is not there is only read, there is no model in it.
    assert last.startswith((f"{kind}: gs://", "error: --workdir=gs://")), errors
    assert all(line.startswith("warning: gs:// does not answer (") for line in again), errors
    print(f"{start_of} {fault}: {seconds:.1f} s {errors}")
    assert seconds < {2: 15, 3: 40}[ANSWERS[fault]]  # with Python's own imports
