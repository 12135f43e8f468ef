"""Workdirs and files on gs://, on a server of its protocol: see `gcs.py`."""

import string
import sys
import time
from pathlib import Path

import gcs
import pytest
from small_runs import command, finish, start

from widenet_jax import files
from widenet_jax.files import absolute, is_gone, matching, write_bytes, write_json
from widenet_jax.run.metrics import JsonLines


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
    assert [line.split(" ")[0] for line in way.requests] == ["POST", "POST"]  # place and content
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


@pytest.mark.slow
def test_a_stalled_connection_is_given_up(
    bucket: str, gcs_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """gcsfs itself would wait for ever. It asks again a second or two later."""
    write_json(absolute(bucket) / "config.json", {})
    monkeypatch.setattr(files, "STALL_SECONDS", 0.2)
    with gcs.way(gcs_server, stalls=1) as way, gcs.reached(way.url):
        began = time.monotonic()
        assert not is_gone(absolute(bucket) / "config.json")
        assert time.monotonic() - began > 0.2
    line = "warning: gs:// gave no answer for 0.2 s; asking again\n"
    assert capsys.readouterr().err == line


@pytest.mark.slow
def test_a_run_on_gs_ends_as_a_local_one(bucket: str, tmp_path: Path):
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
    assert next((ours / "tensorboard").iterdir()).stat().length > 1000


@pytest.mark.slow
def test_a_run_whose_store_stalls_ends_in_one_line(bucket: str, gcs_server: str):
    """After six tries of 1 s each, and the waits between them."""
    write_json(absolute(bucket) / "config.json", {})
    code = "import sys; from widenet_jax import files, main; files.STALL_SECONDS = 1.0; "
    code += "sys.exit(main.command())"
    with gcs.way(gcs_server, stalls=1 << 30) as way, gcs.reached(way.url):
        errors = finish(start([sys.executable, "-c", code, *command(bucket)[3:]]), 3)
    *again, last = errors.splitlines()
    assert set(again) == {"warning: gs:// gave no answer for 1 s; asking again"}
    assert last.startswith("failed: gs:// does not answer; see whether")
