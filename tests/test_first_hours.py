"""Pages of docs/start/ on images: their commands run in order, on small data."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import preparing
import pytest
from inference import reference_vit
from messy_photos import picture
from test_docs import ROOT, commands_of, lines_of

from widenet_jax.vision.data.packed import ArrayRecord

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
SPLITS = ("train", "val")
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


def run_in_shell(page: str, folder: Path) -> None:
    """Runs the page's commands that prepare files without a program of ours."""
    lines = filter(re.compile("(cp|cut|ls|for|python -m zipfile) ").match, lines_of(PAGES / page))
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=folder, env=env, check=True)


def run_page(page: str, folder: Path) -> None:
    """Runs the page's commands in the folder, ours each in a process with one device."""
    one_device = re.sub(r"(device_count)=\d+", r"\1=1", os.environ["XLA_FLAGS"])
    env = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": one_device}
    for name in ("configs", "scripts", "tests"):
        (folder / name).symlink_to(ROOT / name)
    run_in_shell(page, folder)
    for words in [*FIRST.get(page, []), *commands_of(PAGES / page)]:
        program = [sys.executable, *short(words)]
        done = subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"


def write_photos(folder: Path) -> None:
    """Writes photos of two classes, of which the hash holds some of each out, and new photos."""
    for split in SPLITS:
        preparing.make_npz(folder / f"{split}.npz", range(128))
    splits = [f"--split={split}={folder}/{split}.npz" for split in SPLITS]
    assert preparing.run("npz", *splits, f"--out={folder}/data/tiny_imagenet") == 0
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


def write_tiny_imagenet(path: Path) -> None:
    """Writes the official archive of two classes, of 64 training and 40 validation images each."""
    root, classes = path.stem, ("n01443537", "n01629819")
    files: dict[str, bytes | str] = {f"{root}/test/images/test_0.JPEG": preparing.photo(0)}
    for k, name in enumerate(classes):
        files[f"{root}/train/{name}/{name}_boxes.txt"] = f"{name}_0.JPEG\t0\t0\t62\t62\n"
        for i in range(64):
            files[f"{root}/train/{name}/images/{name}_{i}.JPEG"] = preparing.photo(2 * i + k)
    rows = [f"val_{i}.JPEG\t{classes[i % 2]}\t0\t32\t44\t62" for i in range(80)]
    files[f"{root}/val/val_annotations.txt"] = "\n".join([*rows, ""])
    files |= {f"{root}/val/images/val_{i}.JPEG": preparing.photo(128 + i) for i in range(80)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def write_cifar10(folder: Path) -> None:
    """Writes both archives, a stand-in for Google's file, and a photo."""
    write_archive(folder / "cifar-10-binary.tar.gz")
    write_tiny_imagenet(folder / "tiny-imagenet-200.zip")
    vit = reference_vit.google_names(reference_vit.random_vit())
    np.savez(folder / "ViT-B_16.npz", **vit)
    picture().save(folder / "photo.jpg")


def commands_with(page: str, part: str) -> list[list[str]]:
    """Returns the words of the page's commands that contain the part."""
    return [words for words in commands_of(PAGES / page) if part in " ".join(words)]


FILES = {
    "photos.md": (write_photos, ("grid.png", "predictions.csv", "experts.png")),
    "cifar10.md": (write_cifar10, ("runs/seeds/sweep.png", "experts.png")),
    "own_router.md": (lambda _: None, ("runs/routers/sweep.png",)),
}
# Runs that a page takes from another page.
FIRST = {"photos.md": commands_with("cifar10.md", "configs/tiny_imagenet.py")}


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


def test_tiny_imagenet_is_packed_as_the_page_says(tmp_path: Path, monkeypatch, capsys):
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200.zip")
    monkeypatch.chdir(tmp_path)
    run_in_shell("cifar10.md", tmp_path)
    ((_, *pack),) = commands_with("cifar10.md", "--labels=")
    assert preparing.run(*pack) == 0
    assert "train 128, val 80 images, 2 classes" in capsys.readouterr().out
    labels = [[x["label"] for x in ArrayRecord("data/tiny_imagenet", split)] for split in SPLITS]
    assert labels == [[0] * 64 + [1] * 64, [i % 2 for i in sorted(range(80), key=str)]]


def test_the_router_of_the_page_is_the_file_to_copy():
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / "own_router.md").read_text(), re.DOTALL)
    assert code == ROUTER.read_text()
