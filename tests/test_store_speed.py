"""What gs:// costs: requests of a resumed run and of the benchmark, data read ahead."""

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import gcs
import numpy as np
import pytest

from widenet_jax.cli import benchmark
from widenet_jax.data import ranges
from widenet_jax.data.pipeline import eval_batches, train_batches
from widenet_jax.data.records import write_set
from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadExampleError, BadInputError, NoAccessError
from widenet_jax.files import absolute, write_bytes
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
    assert rows["resume after 90 evaluations"]["requests"] <= 40 + 120 + 2 * 90
    assert rows["save"]["blocking_ms"] < rows["save"]["whole_ms"]
    assert sum(row["requests"] for row in rows.values()) < len(way.requests)
    assert not absolute(bucket).exists()


@pytest.mark.slow
def test_the_benchmark_of_a_directory(tmp_path: Path, capsys):
    assert benchmark.main(["storage", f"--path={tmp_path}", "--rounds=1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["requests"] for row in rows} == {0}
    assert not [*tmp_path.iterdir()]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 60 records each, some of which lie in several blocks of 64 KiB."""
    rng, out = np.random.default_rng(0), tmp_path_factory.mktemp("packed") / "set"
    images = [(i % 2, rng.bytes(1 + 137 * (i % 60) ** 2 % 25_000)) for i in range(180)]
    size = sum(len(image) for _, image in images[:60])
    write_set(out, {"train": images}, class_names=["a", "b"], provenance={}, shard_bytes=size)
    return out


def copied(packed: Path, bucket: str) -> dict[str, str]:
    """Copies a set to a bucket; returns the fields of `config.data` that read it."""
    for file in packed.iterdir():
        write_bytes(f"{bucket}/{file.name}", file.read_bytes())
    return {"source": "array_record", "path": bucket}


class Image:
    """A picklable transform: a record's length and first bytes."""

    def __call__(self, example: Mapping, rng: np.random.Generator) -> dict[str, np.ndarray]:
        start = np.frombuffer(example["image"][:1], np.uint8)
        return {"length": np.int64(len(example["image"])), "start": start}


@pytest.mark.parametrize(
    ("tail", "split"), [(ranges.TAIL, "train[:]"), (ranges.BLOCK, "train[:7]+train[7:]")]
)
def test_batches_from_gs_are_those_of_the_disk(
    packed: Path,
    bucket: str,
    gcs_server: str,
    tail: int,
    split: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """Of two epochs, one request a record, and few for each shard; also where a footer is long."""
    monkeypatch.setattr(ranges, "TAIL", tail)
    there, here = copied(packed, bucket), {"source": "array_record", "path": str(packed)}
    how = {"batch_size": 90, "start_step": 0, "num_steps": 4, "positions": np.arange(90)}
    how |= {"transform": Image(), "num_workers": 0, "prefetch": 2, "seed": 3}
    asked: list[str] = []
    with gcs.way(gcs_server, asked.append) as way, gcs.reached(way.url):
        ours, theirs = (build_source(data, split) for data in (there, here))
        begun = len(asked)
        with train_batches(ours, **how) as some, train_batches(theirs, **how) as others:
            for batch, other in zip(some, others, strict=True):
                assert batch.keys() == other.keys()
                assert all((batch[name] == other[name]).all() for name in batch)
        read = asked[begun:]
        assert 363 <= len(read) < 420  # blocks of both epochs may ask for the same record
        eight = threading.Barrier(8, timeout=30)  # requests that are under way together

        def meet(request: str) -> None:
            with suppress(threading.BrokenBarrierError):
                eight.wait()

        way.fault = meet
        ours.ahead(np.arange(100, 156))
        assert all(ours[k]["image"] == theirs[k]["image"] for k in range(100, 156))
        assert not eight.broken
        way.fault = asked.append
        for name in ("start_step", "num_steps", "seed"):
            del how[name]
        with eval_batches(ours, **how) as some:
            lengths = np.concatenate([batch["length"] for batch in some])
        assert lengths.tolist() == [len(theirs[index]["image"]) for index in range(180)]


SHARD = "train-00001-of-00003.array_record"


def flipped(content: bytes) -> bytes:
    """Changes a byte of a record."""
    return content[:100_000] + bytes([content[100_000] ^ 0xFF]) + content[100_001:]


def with_end(end: bytes, content: bytes) -> bytes:
    """Replaces the last bytes, which name the place of the footer."""
    return content[: -len(end)] + end


# A chunk that claims to hold 2^62 bytes.
HUGE = bytes(32) + b"\x0c" + bytes(31) + b"z\0" + b"\x80" * 8 + b"\x40\0"
HUGE = HUGE.ljust(ranges.BLOCK, b"\0")


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        (flipped, BadExampleError, "): unreadable (Corrupted Riegeli/records file: "),
        (
            lambda content: content[:50],
            BadInputError,
            f"{SHARD}: shard is unreadable (ArrayRecord file should be at ",
        ),
        *(
            (partial(with_end, end), BadInputError, f"{SHARD}: shard is unreadable (")
            for end in (bytes(ranges.BLOCK), b"\xff" * ranges.BLOCK, HUGE)
        ),
        (lambda content: b"", BadInputError, f"{SHARD}: shard is empty (0 bytes)"),
        (None, BadInputError, f"{SHARD}: shard is missing; copy the shard again"),
        (403, NoAccessError, "gs://bucket: "),
    ],
)
@pytest.mark.parametrize("opened", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_shard_on_gs_that_cannot_be_read_is_named(
    packed: Path,
    bucket: str,
    gcs_server: str,
    opened: bool,
    change: Callable[[bytes], bytes] | int | None,
    kind: type[Exception],
    told: str,
):
    """Also where it was read before it was damaged; the others can be read.

    A shard's footer is read as it is opened: damage that comes later harms nothing.
    """
    harmless = opened and isinstance(change, partial)
    data, shard = copied(packed, bucket), absolute(f"{bucket}/{SHARD}")
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        source = build_source(data, "train")
        assert not opened or source[61]
        if change is None:
            shard.unlink()
        elif callable(change):
            write_bytes(shard, change(shard.read_bytes()))
        else:
            way.fault = lambda request: change
        with nullcontext() if harmless else pytest.raises(kind) as error:
            source.ahead(np.arange(60, 120))
            for record in range(60, 120):
                source[record]
        way.fault = lambda request: None
        assert source[1]["label"] == 1
    assert harmless or (told in str(error.value) and type(error.value) is kind)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [408, 429, 503, "reset", "cut", "lost"])
def test_a_record_is_asked_for_again(packed: Path, bucket: str, gcs_server: str, fault: int | str):
    """Where one of ten answers fails, in whichever way."""
    data, seen = copied(packed, bucket), itertools.count(1)
    local = build_source(data | {"path": str(packed)}, "train")
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        source = build_source(data, "train")
        way.fault = lambda request: fault if next(seen) % 10 == 0 else None
        source.ahead(np.arange(60))
        for record in range(60):
            assert source[record]["image"] == local[record]["image"]
