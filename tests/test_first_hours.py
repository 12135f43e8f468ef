"""The first hours of docs/start/: the commands of each page run in order, on small data."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import preparing
import pytest
from inference import reference_vit
from messy_photos import picture
from small_runs import ROOT

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
    "model.loop.core": ((1, reference_vit.L),),
}
SLICES = {"data.train_split": "train[:64]", "data.eval_split": "train[64:]"}
DOWNLOADS = ("curl ", "hf ")


def commands_of(page: str) -> list[str]:
    """Returns the commands of a page's indented blocks, each on one line."""
    text = re.sub(r"```python.*?```", "", (PAGES / page).read_text(), flags=re.DOTALL)
    blocks = "\n".join(re.findall(r"^    (.*)", text, re.MULTILINE))
    return re.sub(r"\\\n\s*", "", blocks).splitlines()


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
    """Runs every command of the page in the folder, on one device, but downloads."""
    one_device = re.sub(r"(device_count)=\d+", r"\1=1", os.environ["XLA_FLAGS"])
    env = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": one_device}
    for name in ("configs", "scripts", "tests"):
        (folder / name).symlink_to(ROOT / name)
    for command in commands_of(page):
        if command.startswith(DOWNLOADS):
            continue
        program, *words = shlex.split(command)
        if program == "cp":
            shutil.copy(*(folder / word for word in words))
            continue
        assert program == "python", command
        done = subprocess.run(
            [sys.executable, *short(words)], cwd=folder, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def write_photos(folder: Path) -> None:
    """Two classes of photos, of which each has some that the hash holds out; and two new ones."""
    for label, number in (("cat", 0), ("dog", 100)):
        for i in range(24):
            preparing.write(
                folder / "photos" / label / f"{i}.jpg",
                cv2.imencode(".jpg", np.asarray(picture(number + i)))[1].tobytes(),
            )
    for i in range(2):
        place = folder / "new_photos" / f"{i}.png"
        place.parent.mkdir(exist_ok=True)
        picture(200 + i).save(place)


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
    """The archive, Google's file, a packed Tiny-ImageNet and a photo."""
    write_archive(folder / "cifar-10-binary.tar.gz")
    vit = reference_vit.google_names(reference_vit.random_vit())
    np.savez(folder / "ViT-B_16.npz", **vit)
    for split in ("train", "val"):
        preparing.make_npz(folder / f"{split}.npz", range(128))
    splits = [f"--split={split}={folder}/{split}.npz" for split in ("train", "val")]
    assert preparing.run("npz", *splits, f"--out={folder}/data/tiny_imagenet") == 0
    picture().save(folder / "photo.jpg")


FILES = {
    "photos.md": (write_photos, ("grid.png", "predictions.csv", "experts.png")),
    "cifar10.md": (write_cifar10, ("runs/seeds/sweep.png", "experts.png")),
    "own_router.md": (lambda folder: None, ("runs/routers/sweep.png",)),
}  # fmt: skip


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
    (pack,) = [words for words in commands_of("cifar10.md") if " cifar10_binary " in words]
    assert preparing.run(*shlex.split(pack)[2:]) == 0
    assert "train 80, test 20 images, 10 classes" in capsys.readouterr().out


def test_the_router_of_the_page_is_the_file_to_copy():
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / "own_router.md").read_text(), re.DOTALL)
    assert code == (ROOT / "tests" / "extensions" / "cosine_router.py").read_text()
