"""data.on_bad_example: an error that names the image, or a skip that is the same on all hosts."""

import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
from batch_streams import assert_no_worker_left, assert_same, joined
from batch_streams import eval_stream as eval_stream_of
from batch_streams import train_stream as train_stream_of
from image_sources import EVAL, PLAIN, TRAIN

from widenet_jax.data import blocks, records
from widenet_jax.data.blocks import MAX_BAD_IN_A_ROW
from widenet_jax.data.contract import Source
from widenet_jax.errors import BadExampleError, BadInputError
from widenet_jax.vision.data.folders import ImageFolder
from widenet_jax.vision.data.packed import ArrayRecord

NUM_IMAGES, BATCH = 90, 70  # batches of two blocks, that end within an epoch
# The first, two neighbours, one in the middle, and the last, whose successor is the (bad) first.
BAD = {0: b"", 7: b"text", 8: None, 40: b"\xff\xd8\xff", 89: b"\x89PNG\r\n\x1a\n"}
STAND_INS = {0: 1, 7: 9, 8: 9, 40: 41, 89: 1}


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


def train_stream(source, **changes):
    options = {"transform": TRAIN, "batch_size": BATCH, "num_steps": 5, "on_bad_example": "skip"}
    return train_stream_of(source, **options | changes)


def eval_stream(source, **changes):
    return eval_stream_of(source, EVAL, BATCH, **{"on_bad_example": "skip", **changes})


# --- Training -------------------------------------------------------------------------------------


def test_a_bad_image_is_replaced_by_the_next_good_one(folder):
    stream = train_stream(folder, transform=PLAIN)
    assert sum(int(batch["bad"].sum()) for batch in stream) >= 15  # five in each of 3.9 epochs
    for step, batch in enumerate(stream):
        _, expected = blocks.record_at(
            np.arange(BATCH) + BATCH * step, seed=3, num_records=NUM_IMAGES
        )
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


def test_a_resumed_run_and_two_hosts_skip_alike(folder):
    unbroken = train_stream(folder)
    assert_same(train_stream(folder, start_step=3), unbroken[3:])
    parts = [train_stream(folder, positions=half) for half in np.split(np.arange(BATCH), 2)]
    assert_same(joined(parts), unbroken)


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
    shard.write_bytes(b"")  # a damaged shard is not a bad example
    with pytest.raises(BadInputError, match="shard is empty"):
        train_stream(pickle.loads(pickle.dumps(source)), **options)  # opens the file again


# --- Evaluation -----------------------------------------------------------------------------------


def test_evaluation_masks_bad_images_out(folder):
    stream = eval_stream(folder)
    whole = {key: np.concatenate([batch[key] for batch in stream]) for key in stream[0]}
    inside = np.arange(2 * BATCH) < NUM_IMAGES
    bad = np.isin(np.arange(2 * BATCH), list(BAD))
    np.testing.assert_array_equal(whole["bad"], bad)
    np.testing.assert_array_equal(whole["mask"], inside & ~bad)
    np.testing.assert_array_equal(whole["record"][inside], np.arange(NUM_IMAGES))
    assert not whole["image"][~whole["mask"]].any() and not whole["label"][bad].any()
    for i in (1, 9, 88):
        assert (whole["image"][i] == i).all() and whole["label"][i] == i // 30


def test_evaluation_skips_alike_everywhere(folder):
    said: list[str] = []
    expected = eval_stream(folder, on_message=said.append)
    assert len(said) == len(BAD)
    parts = [eval_stream(folder, positions=half) for half in np.split(np.arange(BATCH), 2)]
    assert_same(joined(parts), expected)
    # Positions with padding and bad images only: the shape comes from the first readable record.
    alone = eval_stream(folder, positions=np.array([0, 19, 69]))
    assert_same(alone, [{key: b[key][[0, 19, 69]] for key in b} for b in expected])
