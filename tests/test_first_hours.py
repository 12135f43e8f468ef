"""Pages of docs/start/ on images: their commands run in order, on small data."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import preparing
import pytest
from inference import reference_vit
from messy_photos import picture
from test_docs import ROOT, commands_of

PAGES = ROOT / "docs" / "start"
SHORT = {
    "duration": "2 steps",
    "evaluation.every": "2 steps",
    "checkpoint.every": "2 steps",
    "tracking.tensorboard": False,
}
# Of `reference_vit`, whose file stands in for Google's.
TINY_VIT = {
    "batch_size": 32,
    "data.image_size": 8,
    "data.num_workers": 0,
    "model.patch_size": reference_vit.P,
    "model.embed_dim": reference_vit.D,
    "model.mlp_dim": reference_vit.F,
    "model.attention.num_heads": reference_vit.N,
    "model.loop.core": ((reference_vit.L, 1),),
}
SLICES = {"data.train_split": "train[:64]", "data.eval_split": "train[64:]"}
ROUTER = ROOT / "tests" / "extensions" / "cosine_router.py"


def short(words: list[str]) -> list[str]:
    """Appends flags that make a command's runs short and small, which override the page's."""
    command, fields = " ".join(words), {}
    if "widenet_jax.main" in command or "sweep.py" in command:
        fields |= SHORT
    if ":vit_b" in command:
        fields |= TINY_VIT
    if "data.train_split" in command:
        fields |= SLICES
    return [*words, *(f"--config.{name}={value}" for name, value in fields.items())]


def run_page(page: str, folder: Path) -> None:
    """Runs the page's commands in the folder, each in a process with one device."""
    one_device = re.sub(r"(device_count)=\d+", r"\1=1", os.environ["XLA_FLAGS"])
    env = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": one_device}
    for name in ("configs", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    for words in commands_of(PAGES / page):
        program = [sys.executable, *short(words)]
        done = subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"


def write_photos(folder: Path) -> None:
    """Writes two classes of photos, of which the hash holds some of each out, and new photos."""
    for place, count in (("photos/cat", 24), ("photos/tiger", 24), ("new_photos", 2)):
        (folder / place).mkdir(parents=True)
        for i in range(count):
            picture(len(place) * 100 + i).save(folder / place / f"{i}.png")


def write_archive(path: Path) -> Path:
    """Writes CIFAR-10's binary archive with 80 training and 20 test images of ten classes."""
    rng = np.random.default_rng(0)

    def records(count: int) -> bytes:
        images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        pairs = zip(range(count), images, strict=True)
        return b"".join(preparing.cifar_record(i % 10, image) for i, image in pairs)

    batches = {f"data_batch_{k}.bin": records(20) for k in range(1, 5)}
    return preparing.make_cifar(path, batches | {"test_batch.bin": records(20)})


def write_cifar10(folder: Path) -> None:
    """Writes the archive, a stand-in for Google's file, a packed Tiny-ImageNet and a photo."""
    write_archive(folder / "cifar-10-binary.tar.gz")
    vit = reference_vit.google_names(reference_vit.random_vit())
    np.savez(folder / "ViT-B_16.npz", **vit)
    for split in ("train", "val"):
        preparing.make_npz(folder / f"{split}.npz", range(128))
    splits = [f"--split={split}={folder}/{split}.npz" for split in ("train", "val")]
    assert preparing.run("npz", *splits, f"--out={folder}/data/tiny_imagenet") == 0
    picture().save(folder / "photo.jpg")


def write_router(folder: Path) -> None:
    shutil.copy(ROUTER, folder / "my_router.py")


FILES = {
    "photos.md": (write_photos, ("grid.png", "predictions.csv", "experts.png")),
    "cifar10.md": (write_cifar10, ("runs/seeds/sweep.png", "experts.png")),
    "own_router.md": (write_router, ("runs/routers/sweep.png",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("page", FILES)
def test_every_command_of_the_page_runs(page: str, tmp_path: Path):
    write, results = FILES[page]
    write(tmp_path)
    run_page(page, tmp_path)
    for name in (*results, "analysis/expert_overlay.png", "analysis/expert_shares.png"):
        assert (tmp_path / name).stat().st_size > 0, name


def test_the_archive_is_packed_as_the_page_says(tmp_path: Path, monkeypatch, capsys):
    write_archive(tmp_path / "cifar-10-binary.tar.gz")
    monkeypatch.chdir(tmp_path)
    commands = commands_of(PAGES / "cifar10.md")
    (pack,) = [words for _, *words in commands if words[0] == "cifar10_binary"]
    assert preparing.run(*pack) == 0
    assert "train 80, test 20 images, 10 classes" in capsys.readouterr().out


def test_the_router_of_the_page_is_the_file_to_copy():
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / "own_router.md").read_text(), re.DOTALL)
    assert code == ROUTER.read_text()
