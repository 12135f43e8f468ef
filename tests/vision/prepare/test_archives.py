"""What is read of an archive, and what a flipped byte changes; `test_bad_inputs` has the others."""

import bz2
import gzip
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest
from preparing import make_tar, run, write

from widenet_jax.errors import BadInputError
from widenet_jax.vision.prepare import archives

COMPRESS = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
KINDS = ["tar", "gz", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bz2", "xz"))]
NOISE = np.random.default_rng(0).bytes(2000)


def content_of(path: Path) -> list[tuple[str, bytes]]:
    return [(member.name, member.read()) for member in archives.read_archive(str(path))]


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_byte_changes_what_is_read(tmp_path, kind):
    """After any flipped byte, the archive is refused or reads the same.

    Contents of a plain tar are exempt, because they have no checksum.
    """
    small = make_tar(tmp_path / "s.tar", {"cat/1.jpg": NOISE[:40]}).read_bytes()[: 4 * 512]
    data = COMPRESS[kind](small)
    path = write(tmp_path / "flipped.tar", data)
    whole = content_of(path)
    accepted = []
    step = 5 if kind == "tar" else 1
    for at in range(0, len(data), step):
        flipped = bytearray(data)
        flipped[at] ^= 0x41
        path.write_bytes(flipped)
        try:
            if content_of(path) != whole:
                accepted.append(at)
        except BadInputError as error:
            assert "flipped.tar" in str(error) and "\n" not in str(error)
    assert accepted == (list(range(515, 552, step)) if kind == "tar" else [])


def test_directories_and_hidden_files_are_left_out(tmp_path):
    for name, kind in (("cat", tarfile.DIRTYPE), ("cat/._x.jpg", tarfile.SYMTYPE)):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        assert content_of(tmp_path / "a.tar") == []


def test_two_blocks_end_an_archive_and_a_failed_run_leaves_a_directory_as_it_was(tmp_path):
    tar = make_tar(tmp_path / "whole.tar", {f"cat/{i}.jpg": NOISE for i in range(40)}).read_bytes()
    end = 40 * (512 + 2048)
    assert not any(tar[end:])
    assert len(content_of(write(tmp_path / "two.tar", tar[: end + 1024]))) == 40
    path = write(tmp_path / "a.tar", tar[: end // 2])
    (tmp_path / "out").mkdir()
    assert run("tar", "--split", f"train={path}", "--out", tmp_path / "out") == 2
    assert list((tmp_path / "out").iterdir()) == []
