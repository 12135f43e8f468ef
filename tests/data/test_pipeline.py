"""Batches do not depend on workers, hosts or the first step; no worker process is left.

data.on_bad_example: an error that names the image, or a skip that is the same on all hosts.
"""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from batch_streams import assert_no_worker_left, assert_same, joined
from batch_streams import eval_stream as eval_stream_of
from batch_streams import train_stream as train_stream_of
from image_sources import AUGMENT, EVAL, PLAIN, TRAIN

from widenet_jax.data import blocks, pipeline, records
from widenet_jax.data.blocks import MAX_BAD_IN_A_ROW
from widenet_jax.data.contract import Source
from widenet_jax.data.sources import build_source
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.vision.data.folders import ImageFolder
from widenet_jax.vision.data.packed import ArrayRecord

NUM_IMAGES = 90
# The first, two neighbours, one in the middle, and the last, whose successor is the (bad) first.
BAD = {0: b"", 7: b"text", 8: None, 40: b"\xff\xd8\xff", 89: b"\x89PNG\r\n\x1a\n"}
STAND_INS = {0: 1, 7: 9, 8: 9, 40: 41, 89: 1}


@pytest.fixture(scope="module")
def digits() -> Source:
    return build_source({"source": "digits"}, "test")


def good(i: int) -> bytes:
    """Encodes an image whose grey level is its number."""
    return cv2.imencode(".png", np.full((8, 8, 3), i, np.uint8))[1].tobytes()


def folder_with(path: Path, bad: dict[int, bytes | None]) -> Source:
    """Writes NUM_IMAGES images of three classes; `bad` maps some to bytes or None (a dead link)."""
    for i in range(NUM_IMAGES):
        file = path / "train" / str(i // 30) / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        if bad.get(i, b"") is None:
            file.symlink_to("nowhere.png")
        else:
            file.write_bytes(bad.get(i, good(i)))
    return ImageFolder(str(path), "train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Source:
    return folder_with(tmp_path_factory.mktemp("folder"), BAD)


@pytest.fixture(params=["digits", "folder"])
def source(request) -> Source:
    return request.getfixturevalue(request.param)


def train_stream(source, **changes):
    """Returns six batches of 100, of two blocks each."""
    options = {"transform": TRAIN, "batch_size": 100, "num_steps": 6, "on_bad_example": "skip"}
    return train_stream_of(source, **options | changes)


def eval_stream(source, **changes):
    return eval_stream_of(source, EVAL, 100, **{"on_bad_example": "skip", **changes})


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


def test_resuming_equals_the_unbroken_stream(source):
    unbroken = train_stream(source)
    for start in (1, 3, 4, 6, 9):
        assert_same(train_stream(source, start_step=start), unbroken[start:])


@pytest.mark.parametrize("stream", [train_stream, eval_stream])
def test_hosts_together_make_the_global_batch(source, stream):
    read = partial(stream, source)
    whole = read()
    shards = np.split(np.arange(100), 4)
    assert_same(joined([read(positions=shard) for shard in shards]), whole)
    # In evaluation of the folder: a bad image, and padding.
    scattered = read(positions=np.array([0, 5, 17, 99]))
    assert_same(scattered, [{k: b[k][[0, 5, 17, 99]] for k in b} for b in whole])


def test_evaluation_sees_each_record_once_and_masks_the_rest(digits):
    stream = eval_stream(digits)
    assert [int(b["mask"].sum()) for b in stream] == [100, 100, 100, 60]
    last = stream[-1]
    assert last["mask"].dtype == bool and last["mask"][:60].all()
    assert not last["image"][60:].any() and (last["record"][60:] == -1).all()
    assert (last["label"][60:] == 0).all()
    seen = np.concatenate([b["record"][b["mask"]] for b in stream])
    assert seen.tolist() == list(range(360))
    assert stream[1]["label"][7] == digits[107]["label"]


# --- The order of records -------------------------------------------------------------------------


def places(first: int, last: int, *, seed: int = 0, n: int = 10) -> list[tuple[int, int]]:
    epochs, records = blocks.record_at(np.arange(first, last), seed=seed, num_records=n)
    return list(zip(epochs.tolist(), records.tolist(), strict=True))


def test_every_epoch_holds_every_record_once():
    seen = places(0, 40)
    orders = [seen[10 * epoch : 10 * epoch + 10] for epoch in range(4)]
    for epoch, order in enumerate(orders):
        assert sorted(order) == [(epoch, record) for record in range(10)]
    assert len({tuple(record for _, record in order) for order in orders}) == 4


def test_the_seed_matters_and_nothing_else():
    assert places(0, 30, seed=1) != places(0, 30, seed=2)
    before = places(0, 30, seed=1)
    blocks.permutation.cache_clear()
    np.random.seed(7)
    assert places(0, 30, seed=1) == before


def test_augmentation_streams_are_distinct():
    draws = {
        blocks.augmentation_rng(seed=s, epoch=e, record=r).integers(2**63)
        for s, e, r in itertools.product(range(3), repeat=3)
    }
    assert len(draws) == 27
    # It also differs from the permutation's stream, although NumPy pads [seed, epoch] with zeros.
    rng = np.random.default_rng([blocks.PERMUTATION_STREAM, 0, 0])
    assert rng.integers(2**63) not in draws


@pytest.mark.parametrize("hosts", [32, 256, 1024])
def test_many_hosts_read_what_one_reads(hosts: int):
    """Each step's records are those of one host, however its 4,096 places are dealt out.

    5,000 records: an epoch ends inside a batch. A host of 32 reads two blocks a step.
    """
    B, N, steps = 4096, 5000, 3
    dealt = np.sort(np.random.default_rng(0).permutation(B).reshape(hosts, -1))
    together, alone = np.full((2, steps, B), -1)
    for positions, found in [(host, together) for host in dealt] + [(np.arange(B), alone)]:
        how = {"batch_size": B, "start_step": 0, "num_steps": steps, "skip": False, "seed": 3}
        ours = blocks.TrainBlocks(range(N), positions, transform=None, **how)
        at = np.concatenate([ours.global_positions(index) for index in range(len(ours))])
        assert (found.flat[at] == -1).all()  # no other host has this place
        found.flat[at] = blocks.record_at(at, seed=3, num_records=N)[1]
    np.testing.assert_array_equal(together, alone)
    epochs = together.ravel()[: 2 * N].reshape(2, N)
    np.testing.assert_array_equal(np.sort(epochs), np.broadcast_to(np.arange(N), (2, N)))


# --- Examples that cannot be read -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [blocks.TrainBlocks, blocks.EvalBlocks])
def test_a_source_that_raises_stop_iteration_leaves_no_row_empty(kind: type[blocks.Blocks]):
    class Ends(list):
        def describe(self, index: int) -> str:
            return next(iter(()))

    how = {"batch_size": 4, "start_step": 0, "num_steps": 1, "skip": False, "transform": dict}
    how |= {"seed": 0} if kind is blocks.TrainBlocks else {}
    with pytest.raises(RuntimeError, match="StopIteration"):
        kind(Ends([{}] * 4), np.arange(4), **how)[0]


def test_a_bad_image_is_replaced_by_the_next_good_one(folder):
    stream = train_stream(folder, transform=PLAIN)
    assert sum(int(batch["bad"].sum()) for batch in stream) >= 30  # five in each of 6.7 epochs
    for step, batch in enumerate(stream):
        places = np.arange(100) + 100 * step
        _, expected = blocks.record_at(places, seed=3, num_records=NUM_IMAGES)
        np.testing.assert_array_equal(batch["record"], expected)
        shown = [STAND_INS.get(record, record) for record in expected.tolist()]
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], shown)
        np.testing.assert_array_equal(batch["label"], np.array(shown) // 30)
        np.testing.assert_array_equal(batch["bad"], np.isin(expected, list(BAD)))
        assert batch["bad"].dtype == bool


@pytest.mark.slow
def test_processes_skip_alike_and_name_each_bad_record_once(folder):
    said: list[str] = []
    stream = train_stream(folder, num_workers=2, on_message=said.append)
    assert_same(stream, train_stream(folder))
    assert_no_worker_left()
    said.sort()
    problems = ["empty file", "no JPEG, PNG", "link to a file", "truncated JPEG", "truncated PNG"]
    for i, message, problem in zip(BAD, said, problems, strict=True):
        assert f"/train/{i // 30}/{i:02}.png: {problem}" in message
        assert "\n" not in message


def test_too_many_bad_ones_in_a_row_end_the_run(tmp_path):
    rows = range(20, 20 + MAX_BAD_IN_A_ROW)
    few = folder_with(tmp_path / "few", dict.fromkeys(rows[:-1], b""))
    assert sum(int(batch["bad"].sum()) for batch in train_stream(few)) > 0
    many = folder_with(tmp_path / "many", dict.fromkeys(rows, b""))
    message = r"^16 examples in a row cannot be read.*35\.png"
    with pytest.raises(BadInputError, match=message) as error:
        train_stream(many)
    assert not isinstance(error.value, BadExampleError) and "\n" not in str(error.value)


def test_error_is_the_default_and_names_the_image(folder):
    for stream in (train_stream, eval_stream):
        with pytest.raises(BadExampleError, match=r"\d\d\.png: ") as error:
            stream(folder, on_bad_example="error")
        assert "\n" not in str(error.value)
        with pytest.raises(BadInputError, match=r"config\.data\.on_bad_example='skp' is unknown"):
            stream(folder, on_bad_example="skp")


def test_a_corrupt_record_of_a_packed_set_is_skipped(tmp_path):
    examples = [(i % 2, good(i)) for i in range(10)]
    records.write_set(tmp_path, {"train": examples}, class_names=["a", "b"], provenance={})
    shard = tmp_path / "train-00000-of-00001.array_record"
    content = bytearray(shard.read_bytes())
    content[content.index(good(4)) + 20] ^= 0xFF
    shard.write_bytes(content)
    source = ArrayRecord(str(tmp_path), "train")
    said: list[str] = []
    options = {"transform": PLAIN, "batch_size": 10, "positions": np.arange(10), "num_steps": 2}
    stream = train_stream(source, **options, on_message=said.append)
    for batch in stream:
        (i,) = np.flatnonzero(batch["bad"])
        assert batch["record"][i] == 4 and batch["image"][i, 0, 0, 0] == 5
        assert batch["label"][i] == 1
    assert len(said) == 1 and "record 4 (image 4): unreadable" in said[0]


def test_evaluation_masks_bad_images_out(folder):
    said: list[str] = []
    [batch] = eval_stream(folder, on_message=said.append)
    assert len(said) == len(BAD)
    inside, bad = np.arange(100) < NUM_IMAGES, np.isin(np.arange(100), list(BAD))
    np.testing.assert_array_equal(batch["bad"], bad)
    np.testing.assert_array_equal(batch["mask"], inside & ~bad)
    np.testing.assert_array_equal(batch["record"][inside], np.arange(NUM_IMAGES))
    assert not batch["image"][~batch["mask"]].any() and not batch["label"][bad].any()
    for i in (1, 9, 88):
        assert (batch["image"][i] == i).all() and batch["label"][i] == i // 30
    # Without a readable one on this host, the shape is that of the first readable record.
    alone = eval_stream(folder, positions=np.array([0, 89, 99]))
    assert_same(alone, [{key: batch[key][[0, 89, 99]] for key in batch}])


# --- Processes ------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("killed", [True, False])
def test_no_worker_outlasts_a_run(tmp_path, killed: bool):
    """Neither one that is killed, nor one that forgets to close its batches and ends."""
    process, pids = start_orphans(tmp_path, *(("2", "wait") if killed else ("1",)))
    with process:
        if killed:
            assert len(pids) == 2 and all(map(alive, pids))
            process.kill()
        else:
            assert process.wait(timeout=30) == 0
    assert wait_until_gone(pids, 3.0) == []
