"""Workdirs and files on gs://, on a server of its protocol: see `gcs.py`."""

import string
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fsspec
import gcs
import numpy as np
import pytest
from image_sources import png
from small_runs import command, finish, run_here, start

from widenet_jax import files
from widenet_jax.data.pipeline import eval_batches
from widenet_jax.data.records import write_set
from widenet_jax.errors import BadInputError, NoAccessError, NoAnswerError
from widenet_jax.files import absolute, is_gone, matching, read_json, write_bytes, write_json
from widenet_jax.run.metrics import JsonLines, MetricsWriter
from widenet_jax.vision.data.folders import read_photo
from widenet_jax.vision.data.packed import ArrayRecord
from widenet_jax.vision.predict import image_paths

TRACKING = {"tensorboard": True, "wandb_project": ""}


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> type:
    """How long this process sends requests again: 0.6 s, after short waits."""
    from widenet_jax import object_store

    monkeypatch.setattr(object_store, "FIRST_WAIT", 0.02)
    monkeypatch.setattr(object_store.Patience, "seconds", 0.6)
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


OF_SET = {"class_names": ["a", "b"], "provenance": {}}
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


TOO_FAST = ("403 rateLimitExceeded", "403 userRateLimitExceeded")


@pytest.mark.parametrize("fault", [408, 429, *TOO_FAST, 500, 503, "reset", "silent", "cut", "lost"])
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
    with gcs.way(gcs_server, after(1, fault)) as way, gcs.reached(way.url):
        file.unlink()
        assert not file.exists()
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


def test_a_bucket_that_is_gone(bucket: str, gcs_server: str):
    """Nothing else answers 404 to an upload."""
    told = pytest.raises(NoAccessError, match=r"a\.json: no such bucket; check its name, or crea")
    with gcs.way(gcs_server, lambda request: 404) as way, gcs.reached(way.url), told:
        write_json(absolute(bucket) / "a.json", {})


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


@pytest.mark.parametrize("fault", [503, "lost"])
def test_a_directory_is_deleted_though_an_answer_fails(
    bucket: str, gcs_server: str, fault: int | str, monkeypatch: pytest.MonkeyPatch, patience: type
):
    """At Google's, where gcsfs deletes many objects in a request that names no bucket."""
    from widenet_jax import object_store

    monkeypatch.setattr(object_store.Store, "on_google", True)
    place = absolute(bucket)
    for name in ("a", "b/c"):
        write_bytes(place / name, b"")
    changing = after(1, fault)
    faulty_way = gcs.way(gcs_server, lambda it: None if it.startswith("GET") else changing(it))
    with faulty_way as way, gcs.reached(way.url):
        place.rmtree()
        assert not place.exists()


def test_a_login_that_cannot_be_read_is_named(
    bucket: str, gcs_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """gcsfs then sends requests without one, and the store would only say that it knows no one."""
    from fsspec import config

    key = tmp_path / "key.json"
    key.write_text("{")
    for status in (401, 403):
        with gcs.way(gcs_server, lambda request, s=status: s) as way, gcs.reached(way.url):
            with pytest.raises(NoAccessError) as told:  # no login is asked for
                absolute(bucket).exists()
            assert "credentials were sent" not in str(told.value)
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
            monkeypatch.setitem(config.conf, "gcs", {})
            gcs.forget()
            with pytest.raises(NoAccessError, match=f"{status}.* sent: .*key.json is not a valid"):
                absolute(bucket).exists()


@pytest.mark.parametrize(
    "fault, kind, told",
    [
        (401, NoAccessError, r"^gs://bucket: status 401 for a test \(status 401\); log in with"),
        (403, NoAccessError, r"^gs://bucket: status 403 for a test \(status 403\); give this acc"),
        *((fault, NoAnswerError, r"\(status 403 for a test\): see whether") for fault in TOO_FAST),
        (503, NoAnswerError, r"^gs:// does not answer \(.*status 503 for a test\): see whether"),
        ("reset", NoAnswerError, r"^gs:// does not answer \(.*\): see whether"),
    ],
)
def test_what_tensorstore_is_answered(
    bucket: str, gcs_server: str, fault: int | str, kind: type[Exception], told: str
):
    """It has requests of its own, and on the second host of a run there are no others."""
    import tensorstore as ts

    from widenet_jax.object_store import of_tensorstore

    tries = ts.Context({"gcs_request_retries": {"initial_delay": "10ms", "max_retries": 1}})
    with gcs.way(gcs_server, lambda request: fault) as way, gcs.reached(way.url):
        place = {"driver": "gcs", "bucket": gcs.BUCKET, "path": f"{Path(bucket).name}/"}
        store = ts.KvStore.open({"driver": "ocdbt", "base": place}, context=tries).result()
        with pytest.raises(ValueError, match="ocdbt") as error:
            store.write("a", b"1").result()
    named = of_tensorstore(error.value, absolute(bucket))
    assert type(named) is kind
    with pytest.raises(kind, match=told):
        raise named
    assert of_tensorstore(other := ValueError("a"), absolute(bucket)) is other


@pytest.mark.parametrize("seconds", [15, 18, 40, 60, 600])
def test_tensorstore_asks_as_long_as_others(seconds: float):
    from orbax.checkpoint._src.serialization.tensorstore_utils import _BASE_TS_CONTEXT

    from widenet_jax.checkpoint.failed_save import bound_tries

    bound_tries(seconds)
    limits = _BASE_TS_CONTEXT["gcs_request_retries"]
    first, longest = (float(limits[f"{name}_delay"][:-1]) for name in ("initial", "max"))
    waits = sum(min(first * 2**n, longest) for n in range(limits["max_retries"]))
    assert seconds <= waits <= seconds + longest


def test_a_probe_that_cannot_be_deleted_leaves_the_workdir_usable(bucket: str, gcs_server: str):
    """The user grants the role that the line names, and runs the same command again."""
    from widenet_jax.config.files import load_config
    from widenet_jax.object_store import probe
    from widenet_jax.run.workdir import check_workdir

    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        way.fault = lambda request: 403 if request.startswith("DELETE") else None
        with pytest.raises(NoAccessError):
            probe(absolute(bucket))
        way.fault = lambda request: None
        assert [path.name[:6] for path in absolute(bucket).iterdir()] == ["probe-"]
        check_workdir(absolute(bucket), load_config("configs/digits.py"), mode="train")


def test_a_token_that_no_server_gives_may_come_later():
    """As where the metadata server of a virtual machine restarts; a login that is over stays so."""
    from gcsfs.retry import HttpError
    from google.auth.exceptions import RefreshError, TransportError

    from widenet_jax.object_store import refusal

    def raised(cause: Exception) -> Exception:  # as gcsfs's credentials do
        try:
            raise HttpError({"code": 401, "message": "Invalid Credentials"}) from cause
        except HttpError as error:
            return error

    unreached, over = RefreshError("no answer"), RefreshError("invalid_grant")
    unreached.__cause__ = TransportError("no answer")
    for error in (TransportError("no answer"), unreached, raised(unreached)):
        assert refusal(error) is None
    for error in (over, raised(over), raised(None)):
        assert refusal(error)[0] == 401
    assert "invalid_grant" in refusal(raised(over))[1]


def test_a_read_of_a_shard_that_is_refused_once(bucket: str, gcs_server: str, tmp_path: Path):
    """The image is neither skipped nor called damaged; refused for good, it is the store's line."""
    write_set(tmp_path / "set", {"train": [(0, png(1)), (1, png(2))]}, **OF_SET)
    for file in (tmp_path / "set").iterdir():
        write_bytes(absolute(bucket) / file.name, file.read_bytes())
    for fault in (401, 403, TOO_FAST[0], 404):
        with gcs.way(gcs_server) as way, gcs.reached(way.url):
            images, once = ArrayRecord(bucket, "train"), after(1, fault)
            way.fault = lambda it, once=once: once(it) if "array_record?alt=media" in it else None
            assert [images[index]["label"] for index in (1, 0)] == [1, 0]
            assert once("") is None  # it was met
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        images, way.fault = ArrayRecord(bucket, "train"), lambda request: 403
        with pytest.raises(NoAccessError, match="gs://bucket: status 403 for a test; give this"):
            images[0]
        # TensorStore is refused and gcsfs answered, as with other credentials: no bad image.
        way.fault = lambda request: 403 if "&tensorstore=" in request else None
        with pytest.raises(NoAnswerError, match=r"^gs:// does not answer \(.*403.*\); run"):
            images[0]


def test_images_to_predict(bucket: str, capsys: pytest.CaptureFixture):
    from widenet_jax import object_store

    place = absolute(bucket)
    for name in ("a/1.png", "a/b/2.jpg", "a/notes.txt"):
        write_bytes(place / name, name.encode())
    object_store.write(f"{bucket}/a/", b"")  # as Google's console stands for a folder
    photos = [f"{bucket}/a/1.png", f"{bucket}/a/b/2.jpg"]
    assert list(image_paths([f"{bucket}/a"])) == photos
    assert "1 file left out (.txt 1)" in capsys.readouterr().err
    assert list(image_paths([photos[1]])) == [photos[1]]
    assert read_photo(photos[0]) == b"a/1.png"
    for name, told in (("c", "no image found"), ("*.png", "would be taken as a wildcard")):
        with pytest.raises(BadInputError, match=told):
            list(image_paths([f"{bucket}/{name}"]))


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
    # without two checkpoints, 26 objects each.
    assert first < 330
    assert len(way.requests) - first < 500


class Asked:
    """Examples that tell how the process which reads them reaches gs://, and its patience."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        store = type(fsspec.filesystem("gs"))
        own = store.__module__ == "widenet_jax.object_store"
        seconds = sys.modules[store.__module__].Patience.seconds if own else -1.0
        return {"own": np.bool_(own), "seconds": np.float32(seconds)}

    def describe(self, index: int) -> str:
        return f"example {index}"


@pytest.mark.slow
def test_processes_that_read_data_ask_as_long_as_the_run(bucket: str):
    from widenet_jax.object_store import patience

    absolute(bucket)
    arrays = lambda example, rng: {name: example[name] for name in ("own", "seconds")}  # noqa: E731
    how = {"batch_size": 4, "positions": np.arange(4), "transform": arrays, "prefetch": 1}
    with patience(2.0), eval_batches(Asked(), num_workers=1, **how) as batches:
        batch = next(batches)
    assert batch["own"].all() and set(batch["seconds"]) == {120.0}


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


def faulty(began: str, seconds: float, fault: int | str = 503) -> Callable[[str], int | str | None]:
    """Returns the fault of a store that answers nothing for some seconds from one request on.

    Args:
      began: part of that request.
      seconds: of the outage.
      fault: of every request in it.
    """
    since: list[float] = []

    def of(request: str) -> int | str | None:
        if began in request and not since:
            since.append(time.monotonic())
        return fault if since and time.monotonic() < since[0] + seconds else None

    return of


PHASES = {  # a request in each phase of the small run that `command` starts
    "save": "name=PLACE/checkpoints/10/params/ocdbt",
    "commit": "DELETE /storage/v1/b/bucket/o/PLACE/checkpoints/10/commit_success.txt",
    "read back": "/PLACE/checkpoints/10/manifest.json?alt=media",
    "evaluation": "prefix=PLACE/best/10",
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", [503, "silent"])
def test_a_run_outlives_an_outage(
    bucket: str, gcs_server: str, fault: int | str, phase: str, digits_unbroken: Path
):
    """Of more seconds than a start waits."""
    began = PHASES[phase].replace("PLACE", Path(bucket).name)
    with gcs.way(gcs_server, faulty(began, 20.0, fault)) as way, gcs.reached(way.url):
        errors = finish(start(command(bucket, **{"evaluation.every": "10 steps"})))
    assert "warning: gs:// does not answer (" in errors
    assert_same_as(bucket, digits_unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_ends_where_an_outage_lasts(
    bucket: str, gcs_server: str, phase: str, digits_unbroken: Path
):
    """With a line and code 3; the next start goes on from a whole checkpoint."""
    began = PHASES[phase].replace("PLACE", Path(bucket).name).replace("10", "20")
    run = command(bucket, **{"evaluation.every": "10 steps", "checkpoint.retry_minutes": 0.3})
    with gcs.way(gcs_server, faulty(began, 1e9)) as way, gcs.reached(way.url):
        errors = finish(start(run), 3)
    *_, last = errors.splitlines()
    assert "Traceback" not in errors, errors
    assert last.startswith("failed: ") and "gs:// does not answer (" in last
    print(last)
    finish(start(run))
    assert_same_as(bucket, digits_unbroken)


@pytest.fixture(scope="module")
def digits_unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains as `command` does on this machine's disk."""
    workdir = tmp_path_factory.mktemp("digits") / "run"
    finish(start(command(workdir, **{"evaluation.every": "10 steps"})))
    return workdir


def assert_same_as(bucket: str, local: Path) -> None:
    """Asserts that a run on gs:// has the result and the metrics of a local one."""
    ours = absolute(bucket)
    assert (ours / "result.json").read_bytes() == (local / "result.json").read_bytes()
    parts = JsonLines(ours / "metrics.jsonl").files()
    assert b"".join(part.read_bytes() for part in parts) == (local / "metrics.jsonl").read_bytes()
