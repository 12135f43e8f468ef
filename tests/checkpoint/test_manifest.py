"""Every relevant change to a file is found and named; irrelevant ones are ignored."""

from pathlib import Path

import pytest
from etils import epath

from widenet_jax.checkpoint.manifest import damage, write_manifest

FILES = {"params/d/a": b"seven b", "params/_METADATA": b"{}", "meta/metadata": b""}


@pytest.fixture
def directory(tmp_path: Path) -> epath.Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    write_manifest(epath.Path(tmp_path))
    return epath.Path(tmp_path)


def flip_a_bit(path: epath.Path, bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1 << bit
    path.write_bytes(bytes(content))


def test_each_kind_of_damage_is_named(directory: epath.Path):
    assert damage(directory) is None
    (directory / "commit_success.txt").write_text("later")  # Orbax adds these at the commit
    (directory / "_CHECKPOINT_METADATA").write_text("later")
    assert damage(directory) is None
    (directory / "params/_METADATA").unlink()
    assert damage(directory) == "params/_METADATA is missing"
    flip_a_bit(directory / "params/d/a")
    (directory / "params/_METADATA").write_bytes(FILES["params/_METADATA"])
    assert damage(directory) == "params/d/a has changed bytes"
    (directory / "params/d/a").write_bytes(b"seven")
    assert damage(directory) == "params/d/a has 5 bytes instead of 7"
    (directory / "manifest.json").unlink()
    assert damage(directory).startswith("manifest.json is missing")


def test_a_directory_in_the_place_of_a_file_of_its_size(directory: epath.Path):
    file, other = directory / "params/d/a", directory / "other"
    other.mkdir()
    file.write_bytes(b"a" * other.stat().length)
    write_manifest(directory)
    file.unlink()
    other.rename(file)
    assert damage(directory) == "params/d/a is a directory"


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"a": 1}}', "\x00"])
def test_a_garbage_manifest(directory: epath.Path, text: str):
    (directory / "manifest.json").write_text(text)
    assert damage(directory) == "manifest.json is damaged"


def test_every_bit_of_the_manifest_that_says_something(directory: epath.Path):
    """Changes to a size, a checksum or a name are found; only white space may change."""
    path = directory / "manifest.json"
    text = path.read_bytes()
    unnoticed = []
    for at in range(len(text)):
        path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        if damage(directory) is None:
            unnoticed.append(text[at : at + 1])
    assert set(unnoticed) <= {b" ", b"\n"}  # layout between the values


def test_a_file_that_the_disk_does_not_give_is_no_damage(directory: epath.Path):
    """The cause may be temporary. (A link that leads to itself is unreadable even for root.)"""
    file = Path(directory / "manifest.json")
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(OSError):
        damage(directory)
