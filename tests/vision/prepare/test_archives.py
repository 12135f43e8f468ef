"""A damaged or truncated archive is refused: the message names the offset, no files are left."""

import bz2
import gzip
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest
from preparing import make_tar, photo, refused, run, write

from widenet_jax.errors import BadInputError
from widenet_jax.vision.prepare import archives

COMPRESS = {"tar": bytes, "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
KINDS = ["tar", "gz", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bz2", "xz"))]
# Incompressible content, so that an offset in a compressed file is about that in the archive.
NOISE = np.random.default_rng(0).bytes(2000)
MEMBERS = {f"cat/{i:03d}.jpg": NOISE for i in range(40)}
MEMBER_BYTES = 512 + 2048  # the header and the padded content


def content_of(path: Path) -> list[tuple[str, bytes]]:
    return [(member.name, member.read()) for member in archives.read_archive(str(path))]


def refused_tar(tmp_path: Path, capsys, data: bytes) -> str:
    """Packs an archive that must be refused into a new folder; returns the message."""
    path, out = write(tmp_path / "a.tar", data), tmp_path / "new" / "out"
    message = refused(capsys, "tar", "--split", f"train={path}", "--out", out)
    assert not out.parent.exists()
    return message


@pytest.fixture
def tar(tmp_path: Path) -> bytes:
    return make_tar(tmp_path / "whole.tar", MEMBERS).read_bytes()


def test_a_damaged_header(tmp_path, capsys, tar):
    for member in (0, 39):
        data, at = bytearray(tar), member * MEMBER_BYTES
        data[at + 3] ^= 0x55
        assert f"damaged at byte {at:,} " in refused_tar(tmp_path, capsys, data)


def test_a_cut_at_a_block(tmp_path, capsys, tar):
    """After a header, between two members, and between the last member and the end blocks."""
    for blocks in (1, 5 * 15, 5 * 40):
        message = refused_tar(tmp_path, capsys, tar[: blocks * 512])
        assert f"damaged at byte {blocks * 512:,} " in message or "unexpected end" in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_compressed_archive(tmp_path, capsys, tar, kind):
    for cut in (1, 9, 40_000):
        data = COMPRESS[kind](tar.rstrip(b"\0"))[:-cut]
        assert "damaged at byte " in refused_tar(tmp_path, capsys, data)


def test_the_end_must_be_two_blocks_of_zeros_and_padding(tmp_path, capsys, tar):
    end = len(MEMBERS) * MEMBER_BYTES
    assert not any(tar[end:])
    assert "only one of the two" in refused_tar(tmp_path, capsys, tar[: end + 512])
    assert "data follow" in refused_tar(tmp_path, capsys, tar + tar)
    assert len(content_of(write(tmp_path / "two.tar", tar[: end + 1024]))) == len(MEMBERS)
    assert "no images found" in refused_tar(tmp_path, capsys, bytes(10_240))


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


@pytest.mark.parametrize("damage", ["cut in a file", "cut between files", "header"])
def test_a_damaged_inner_archive(tmp_path, capsys, tar, damage):
    inner, at = bytearray(tar), MEMBER_BYTES + (1000 if damage == "cut in a file" else 0)
    if damage == "header":
        inner[at] ^= 0x55
    else:
        del inner[at:]
    good = make_tar(tmp_path / "g.tar", {"n01_1.jpg": photo(1)}).read_bytes()
    outer = make_tar(tmp_path / "o.tar", {"n01.tar": good, "n02.tar": bytes(inner)})
    message = refused_tar(tmp_path, capsys, outer.read_bytes())
    assert f"a.tar:n02.tar: damaged at byte {at:,} " in message or "cat/001.jpg: damaged" in message


def tar_of(path: Path, name: str, kind: bytes) -> bytes:
    """Returns an archive of a member without content."""
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    return path.read_bytes()


def test_links_devices_and_sparse_files_are_refused(tmp_path, capsys):
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        data = tar_of(tmp_path / "x", "cat/x.jpg", kind)
        assert "cat/x.jpg: a link or device" in refused_tar(tmp_path, capsys, data)
    data = tar_of(tmp_path / "x", "cat/x.jpg", tarfile.GNUTYPE_SPARSE)
    assert "cat/x.jpg: a sparse file" in refused_tar(tmp_path, capsys, data)


def test_directories_and_hidden_files_are_left_out(tmp_path):
    for name, kind in (("cat", tarfile.DIRTYPE), ("cat/._x.jpg", tarfile.SYMTYPE)):
        tar_of(tmp_path / "a.tar", name, kind)
        assert content_of(tmp_path / "a.tar") == []


def test_a_failed_run_leaves_an_older_directory_as_it_was(tmp_path, tar):
    path = write(tmp_path / "a.tar", tar[: 512 * 5 * 15])
    (tmp_path / "out").mkdir()
    assert run("tar", "--split", f"train={path}", "--out", tmp_path / "out") == 2
    assert list((tmp_path / "out").iterdir()) == []
