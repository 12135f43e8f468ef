"""Benchmarks at small sizes: the rows that they report, not the speed of this machine."""

import json
import time
from functools import partial
from pathlib import Path

import cv2
import jax
import numpy as np
import pytest
from etils import epath
from refusals import refused

from widenet_jax.config.files import import_file, load_config
from widenet_jax.experiment import build_experiment
from widenet_jax.ops.benchmark import pipelines
from widenet_jax.ops.benchmark.checkpoint import directory_bytes, saving_row
from widenet_jax.ops.benchmark.report import median_seconds, mfu, peak_flops
from widenet_jax.ops.benchmark.train_step import random_batch
from widenet_jax.ops.plan.planner import data_info

ROOT = Path(__file__).parents[3]


def test_median_of_rounds_without_the_first_call():
    pauses = iter([0.5, *[0.01] * 3, *[0.05] * 3, *[0.02] * 3])
    seconds = median_seconds(lambda: time.sleep(next(pauses)), rounds=3, calls=3)
    assert seconds == pytest.approx(0.02, abs=0.01)


def test_the_peak_of_a_device_and_mfu():
    kinds = {"NVIDIA H200": 989e12, "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA L40S": 362e12,
             "NVIDIA H100 PCIe": 756e12, "TPU v3": 61.5e12, "TPU v5 lite": 197e12,
             "NVIDIA RTX A1000 Laptop GPU": None, "cpu": None}  # fmt: skip
    assert {kind: peak_flops(kind) for kind in kinds} == kinds
    assert mfu(61.5e12, "TPU v3", num_devices=2) == 0.5
    assert mfu(61.5e12, "cpu", num_devices=2) is None


def test_random_batches_are_valid_for_every_task():
    """Pixels, tokens below 7, real numbers, a mask of real examples, and no example marked bad."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shaped = partial(jax.ShapeDtypeStruct, (8, 100), sharding=sharding)
    dtypes = {"image": "uint8", "tokens": "int32", "x": "float32", "mask": "bool", "bad": "bool"}
    batch = random_batch({k: shaped(v) for k, v in dtypes.items()}, below={"a": 7, "head": "span"})
    assert {name: str(array.dtype) for name, array in batch.items()} == dtypes
    assert set(np.unique(batch["tokens"])) == set(range(7))
    assert batch["image"].max() > 200 and batch["x"].min() < 0
    assert batch["mask"].all() and not batch["bad"].any()


@pytest.mark.slow
def test_a_checkpoint_is_measured(tmp_path: Path):
    """53,066 parameters and two moments of 4 bytes; noise hardly compresses."""
    config = load_config("configs/digits.py:widenet_tiny")
    experiment = build_experiment(config, data_info(config), jax.devices()[:1])
    row = saving_row("d", experiment, workdir=epath.Path(tmp_path), rounds=2)
    assert row["state_mb"] == pytest.approx(3 * 4 * 53_066 / 1e6, rel=1e-3)
    assert row["disk_mb"] == directory_bytes(epath.Path(tmp_path / "checkpoints" / "2")) / 1e6
    assert 0.8 < row["disk_mb"] / row["state_mb"] < 1.2
    assert 0 < row["blocking_ms"] / 1e3 < row["save_s"]
    assert 0 < row["verify_s"] < row["restore_s"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "train" / "noise"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(4):
        picture = cv2.resize(rng.integers(0, 255, (8, 10, 3), np.uint8), (50, 40))
        cv2.imwrite(str(folder / f"{i}.jpg"), picture)
    return tmp_path


def test_the_input_command_beside_a_peer(photos: Path, capsys):
    peer = photos / "peer.py"
    peer.write_text("def batches(config, source, *, batch_size, num_workers):\n"
                    "    while True:\n        yield [source[0]] * batch_size\n")  # fmt: skip
    argv = ["input", f"--path={photos}", "--image_size=16", "--batch_size=2", "--seconds=0.01"]
    argv += ["--rounds=1", "--workers", "0", f"--peer={peer}"]
    assert command()([*argv, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["operations"], row["pipeline"]) for row in rows] == [
        (operations, pipeline)
        for operations in ("decode, crop, flip", "and RandAugment")
        for pipeline in ("ours, threads", "peer")
    ]
    assert all(row["images_per_second"] > 0 and row["of_peer"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("config", "rate"),
    [("text_tiny.py", "sequences_per_second"), ("language_model.py:tiny", "tokens_per_second")],
)
def test_the_text_command(config: str, rate: str, capsys):
    argv = ["text", f"--config={ROOT}/configs/{config}", "--seconds=0.01", "--rounds=1"]
    assert command()([*argv, "--workers", "0", "--batch_size=16", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["pipeline"] == "ours, threads" and row["of_peer"] is None
    assert row[rate] > (1e4 if rate.startswith("tokens") else 0) and row["cpu_ms"] > 0


def test_quotients_are_taken_within_a_round():
    """Rounds (ours, theirs): (10, 20), (90, 100), (80, 200), with quotients 0.5, 0.9 and 0.4.

    The median of the quotients is 0.5; the quotient of the medians would be 80 / 100.
    """
    ours, theirs = (
        [(10.0, 1.0), (90.0, 2.0), (80.0, 3.0)],
        [(20.0, 4.0), (100.0, 4.0), (200.0, 4.0)],
    )
    rows = pipelines.summarize({"ours": ours, "peer": theirs}, unit="images")
    assert rows[0] == {"pipeline": "ours", "images_per_second": 80.0, "cpu_ms": 2.0, "of_peer": 0.5}
    assert rows[1]["images_per_second"] == 100.0 and rows[1]["of_peer"] == 1.0


def command():
    return import_file(str(ROOT / "scripts/benchmark.py")).main


@pytest.mark.parametrize(
    ("config", "params"),
    [
        ("digits.py:vit_tiny", 27_466),
        # Its fields of the model are not all numbers.
        pytest.param("text_tiny.py:albert_tiny", 0, marks=pytest.mark.slow),
    ],
)
def test_the_train_step_command(config: str, params: int, capsys: pytest.CaptureFixture):
    argv = ["train_step", "--config", str(ROOT / f"configs/{config},depth=1")]
    argv += ["--rounds=1", "--steps=1", "--json"]
    assert command()([*argv, "--config.batch_size=32"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["batch_size"] == 32 and row["devices"] == len(jax.devices())
    assert row["examples_per_second"] == pytest.approx(32 / (1e-3 * row["step_ms"]))
    assert row["mfu"] is None and row["compile_seconds"] > 0  # the peak of a CPU is unknown
    assert row["memory_gib"] * 2**30 > 3 * 4 * params  # and two moments


def test_the_dispatch_command(capsys: pytest.CaptureFixture):
    """2 images of 4 tokens, 2 experts each, two matrices of 8 x 8; backward counts twice."""
    argv = ["dispatch", "--images", "2", "--tokens", "4", "--examples_per_group", "1", "2"]
    argv += ["--embed_dim", "8", "--mlp_dim", "8", "--rounds", "1", "--dtype", "float32"]
    assert command()([*argv, "--method", "einsum", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        assert row["method"] == "einsum"
        flops = 3 * (8 * 2 * 2 * 2 * 8 * 8)
        assert row["tflops"] * 1e12 * row["ms"] / 1e3 == pytest.approx(flops)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["text", f"--config={ROOT}/configs/digits.py"], "digits.py does not pretrain on text"),
        (["input", "--path=/nowhere"], "/nowhere: no such directory"),
        (["dispatch", "--images", "3", "--examples_per_group", "2"], "must divide --images"),
        (["dispatch", "--examples_per_group", "0"], "'0' must be a whole number of at least 1"),
        (["dispatch", "--method", "einsun", "--images", "1"], "method='einsun' is unknown"),
        (["dispatch", "--method", "dense", "--images", "1"], "method='dense' is unknown"),
        (["train_step", "--config", "configs/none.py"], "no Python file"),
        (["feed_forward", "--length=3"], "--length must divide --tokens"),
        (["feed_forward", "--topology=v9-8"], "v9-8 is no TPU"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(capsys, argv: list[str], says: str):
    assert says in refused(capsys, command(), *argv)
