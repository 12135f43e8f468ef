"""Batches do not depend on workers, hosts or the first step; no worker process is left."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from batch_streams import assert_no_worker_left, assert_same, joined
from batch_streams import eval_stream as eval_stream_of
from batch_streams import train_stream as train_stream_of
from image_sources import AUGMENT, EVAL, PLAIN, TRAIN

from widenet_jax.data import blocks, pipeline
from widenet_jax.data.contract import Source
from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadInputError


@pytest.fixture(scope="module")
def digits() -> Source:
    return build_source({"source": "digits"}, "test")


def train_stream(source, **changes):
    """Returns six batches of 100, of two blocks each."""
    options = {"transform": TRAIN, "batch_size": 100, "num_steps": 6, **changes}
    return train_stream_of(source, **options)


def eval_stream(source, batch_size, **changes):
    return eval_stream_of(source, EVAL, batch_size, **changes)


def test_batches_hold_what_the_sampler_says(digits):
    stream = train_stream(digits, transform=PLAIN)
    for step, batch in enumerate(stream):
        _, records = blocks.record_at(np.arange(100) + 100 * step, seed=3, num_records=360)
        np.testing.assert_array_equal(batch["record"], records)
        for i in (0, 63, 64, 99):
            expected = digits[int(records[i])]
            np.testing.assert_array_equal(batch["image"][i], expected["image"])
            assert batch["label"][i] == expected["label"]
    assert batch["image"].dtype == np.uint8 and batch["image"].shape == (100, 8, 8, 1)
    assert batch["label"].dtype == np.int32 and batch["record"].dtype == np.int64
    first_epoch = np.concatenate([b["record"] for b in stream])[:360]
    assert sorted(first_epoch) == list(range(360))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.array([7])}, r"x int64\[1\], y int32\[\], and for others x int64\[4\], y"),
        ({"y": np.float32(2.9)}, r"y float32\[\], and for others"),
        ({"y": float("nan")}, r"y float64\[\], and for others"),
        ({"z": 1}, r"z int64\[\], and for others"),
    ],
)
def test_arrays_of_another_form_are_refused(digits, change, words):
    """They would be broadcast, cut to whole numbers, or zeros in other examples."""
    example = {"x": np.arange(4), "y": np.int32(2)}
    rows = [(0, (0, example, [])), (1, (1, example | {"y": 3}, []))]
    assert blocks.stacked(digits, 2, rows)["y"].tolist() == [2, 3]
    rows[1] = (1, (1, example | change, []))
    with pytest.raises(BadInputError, match=f"{digits.describe(1)}: the transform gives .*{words}"):
        blocks.stacked(digits, 2, rows)


def test_augmentation_differs_by_epoch_and_not_by_neighbours(digits):
    stream = train_stream(digits, batch_size=360, positions=np.arange(360), num_steps=2)
    both = [dict(zip(b["record"].tolist(), b["image"], strict=True)) for b in stream]
    same = sum(np.array_equal(both[0][r], both[1][r]) for r in range(360))
    assert same < 40
    other = train_stream(digits, batch_size=40, positions=np.arange(40), num_steps=9)
    for batch in other:
        for record, image in zip(batch["record"].tolist(), batch["image"], strict=True):
            np.testing.assert_array_equal(image, both[0][record])


def test_resuming_equals_the_unbroken_stream(digits):
    unbroken = train_stream(digits)
    for start in (1, 3, 4, 6, 9):
        assert_same(train_stream(digits, start_step=start), unbroken[start:])


def test_hosts_together_make_the_global_batch(digits):
    whole = train_stream(digits)
    shards = np.split(np.arange(100), 4)
    assert_same(joined([train_stream(digits, positions=shard) for shard in shards]), whole)
    scattered = train_stream(digits, positions=np.array([5, 17, 99]))
    assert_same(scattered, [{k: b[k][[5, 17, 99]] for k in b} for b in whole])


def test_evaluation_sees_each_record_once_and_masks_the_rest(digits):
    stream = eval_stream(digits, 100)
    assert [int(b["mask"].sum()) for b in stream] == [100, 100, 100, 60]
    last = stream[-1]
    assert last["mask"].dtype == bool and last["mask"][:60].all()
    assert not last["image"][60:].any() and (last["record"][60:] == -1).all()
    assert (last["label"][60:] == 0).all()
    seen = np.concatenate([b["record"][b["mask"]] for b in stream])
    assert seen.tolist() == list(range(360))
    assert stream[1]["label"][7] == digits[107]["label"]


@pytest.mark.slow
def test_workers_outlast_sigterm_and_leave_at_close(digits):
    """The batches are those of one process, also after the signals."""
    whole = train_stream(digits, num_steps=30)
    batches = pipeline.train_batches(
        digits, transform=TRAIN, seed=3, batch_size=100, positions=np.arange(100), start_step=0,
        num_steps=30, num_workers=2, prefetch=1,
    )  # fmt: skip
    first = next(batches)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
    assert_same([first, *(next(batches) for _ in range(12))], whole[:13])
    batches.close()
    batches.close()
    assert_no_worker_left()
    with pytest.raises(StopIteration):
        next(batches)


ORPHANS = """
import multiprocessing, sys, time
import numpy as np
from widenet_jax.data import pipeline
from widenet_jax.data.sources import build_source
from widenet_jax.vision.data.transforms import build_transforms

def main():
    source = build_source({"source": "digits"}, "train")
    train, _ = build_transforms(AUGMENT, 8)
    batches = pipeline.train_batches(
        source, transform=train, seed=0, batch_size=64, positions=np.arange(64), start_step=0,
        num_steps=10**6, num_workers=int(sys.argv[1]), prefetch=1)
    for _ in range(int(sys.argv[1])):  # one from each worker
        next(batches)
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    if "wait" in sys.argv:
        time.sleep(60)

if __name__ == "__main__":
    main()
"""


def start_orphans(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen, list[int]]:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS.replace("AUGMENT", repr(AUGMENT)))
    root = str(Path(pipeline.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    return process, [int(pid) for pid in process.stdout.readline().split()]


def alive(pid: int) -> bool:
    """Returns whether the process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(alive, pids)):
        time.sleep(0.05)
    return [pid for pid in pids if alive(pid)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_workers_leave_when_the_run_is_killed(tmp_path):
    process, pids = start_orphans(tmp_path, "2", "wait")
    with process:
        assert len(pids) == 2 and all(map(alive, pids))
        process.kill()
    assert wait_until_gone(pids, 3.0) == []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_a_run_that_forgets_to_close_still_ends(tmp_path):
    process, pids = start_orphans(tmp_path, "1")
    with process:
        assert process.wait(timeout=30) == 0
    assert wait_until_gone(pids, 3.0) == []
