"""What gs:// costs: requests of a resumed run and of the benchmark, data read ahead."""

import hashlib
import json
import threading
from pathlib import Path

import gcs
import pytest

from widenet_jax.cli import benchmark
from widenet_jax.files import absolute
from widenet_jax.run.metrics import JsonLines


def test_a_resume_reads_the_parts_of_the_metrics_at_a_time_and_once(bucket: str, gcs_server: str):
    """Parts 3 to 5 hold records after the checkpoint: one is cut, and the others are emptied."""
    path, both = absolute(bucket) / "metrics.jsonl", threading.Barrier(2, timeout=30)
    lines = JsonLines(path)
    for part in range(6):
        for step in (2 * part, 2 * part + 1):
            lines.write({"step": step})
        if part == 3:
            written = {"bytes": lines.bytes + len('{"step": 6}\n'), "sha256": None}
        lines.flush()
    before = b'{"step": %d}\n' * 7 % tuple(range(7))
    written["sha256"] = hashlib.sha256(before).hexdigest()

    def meet(request: str) -> None:
        if "alt=media" in request and not both.broken and meet.first:
            meet.first -= 1
            both.wait()

    meet.first = 2
    resumed = JsonLines(path)
    with gcs.way(gcs_server, meet) as way, gcs.reached(way.url):
        resumed.resume(6, written=written)
    assert not both.broken
    assert sum("alt=media" in request for request in way.requests) == 6
    assert b"".join(file.read_bytes() for file in resumed.files()) == before
    assert resumed.written() == written


def test_flushes_of_a_start_list_the_parts_once(bucket: str, gcs_server: str):
    lines = JsonLines(absolute(bucket) / "metrics.jsonl")
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        for step in range(4):
            lines.write({"step": step})
            lines.flush()
    assert len(way.requests) == 1 + 4


@pytest.mark.slow
def test_the_benchmark_counts_what_the_store_is_asked(bucket: str, gcs_server: str, capsys):
    """And removes what it has written; a directory of this machine takes no requests."""
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        assert benchmark.main(["storage", f"--path={bucket}", "--rounds=1", "--json"]) == 0
    rows = {row.pop("phase"): row for row in json.loads(capsys.readouterr().out)}
    assert [*rows][:5] == ["start", "log", "evaluation", "save", "restore"]
    assert 20 < rows["start"]["requests"] <= 40
    assert 100 < rows["save"]["requests"] <= 135
    assert 80 < rows["restore"]["requests"] <= 120
    assert rows["metrics of 90 evaluations"]["requests"] <= 2 * (90 + 2) + 2
    assert rows["save"]["blocking_ms"] < rows["save"]["whole_ms"]
    assert sum(row["requests"] for row in rows.values()) < len(way.requests)
    assert not absolute(bucket).exists()


@pytest.mark.slow
def test_the_benchmark_of_a_directory(tmp_path: Path, capsys):
    assert benchmark.main(["storage", f"--path={tmp_path}", "--rounds=1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["requests"] for row in rows} == {0}
    assert not [*tmp_path.iterdir()]
