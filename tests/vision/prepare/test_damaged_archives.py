"""A damaged or truncated archive is refused: the message names the offset, no files are left."""

import bz2
import gzip
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest
from preparing import make_tar, photo, refused, run

from widenet_jax.errors import BadInputError
from widenet_jax.vision.prepare import archives, tar_files

COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
# Incompressible content, so that an offset in a compressed file is about that in the archive.
NOISE = np.random.default_rng(0).bytes(2000)
MEMBERS = {f"cat/{i:03d}.jpg": NOISE for i in range(40)}
MEMBER_BYTES = 512 + 2048  # the header and the padded content


def content_of(path: Path) -> list[tuple[str, bytes]]:
    return [(member.name, member.read()) for member in tar_files.read_archive(str(path))]


def refused_tar(tmp_path: Path, capsys, data: bytes) -> str:
    """Packs an archive that must be refused into a new folder; returns the message."""
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    out = tmp_path / "new" / "out"
    message = refused(capsys, "tar", "--split", f"train={path}", "--out", out)
    assert not out.parent.exists()
    return message


@pytest.fixture
def tar(tmp_path: Path) -> bytes:
    return make_tar(tmp_path / "whole.tar", MEMBERS).read_bytes()


@pytest.mark.parametrize("member", [0, 10, 39])
def test_a_damaged_header(tmp_path, capsys, tar, member):
    data = bytearray(tar)
    at = member * MEMBER_BYTES
    data[at + 3] ^= 0x55
    message = refused_tar(tmp_path, capsys, data)
    assert f"damaged at byte {at:,} " in message


@pytest.mark.parametrize("blocks", [1, 5 * 15, 5 * 40])
def test_a_cut_at_a_block(tmp_path, capsys, tar, blocks):
    """After a header, between two members, and between the last member and the end blocks."""
    message = refused_tar(tmp_path, capsys, tar[: blocks * 512])
    assert f"damaged at byte {blocks * 512:,} " in message or "unexpected end" in message


@pytest.mark.parametrize("kind", COMPRESS)
@pytest.mark.parametrize("cut", [1, 9, 40_000])
def test_a_cut_compressed_archive(tmp_path, capsys, tar, kind, cut):
    assert "damaged at byte " in refused_tar(tmp_path, capsys, COMPRESS[kind](tar)[:-cut])


def test_the_end_must_be_two_blocks_of_zeros_and_padding(tmp_path, capsys, tar):
    end = len(MEMBERS) * MEMBER_BYTES
    assert not any(tar[end:])
    one = refused_tar(tmp_path, capsys, tar[: end + 512])
    assert "only one of the two" in one
    assert "data follow" in refused_tar(tmp_path, capsys, tar + tar)
    (tmp_path / "two.tar").write_bytes(tar[: end + 1024])
    assert len(content_of(tmp_path / "two.tar")) == len(MEMBERS)
    assert "no images found" in refused_tar(tmp_path, capsys, bytes(10_240))


@pytest.mark.parametrize(
    "kind", ["tar", "gz", *(pytest.param(k, marks=pytest.mark.slow) for k in ("bz2", "xz"))]
)
def test_no_flipped_byte_changes_what_is_read(tmp_path, kind):
    """After any flipped byte, the archive is refused or reads the same.

    Contents of a plain tar are exempt, because they have no checksum.
    """
    small = make_tar(tmp_path / "s.tar", {"cat/1.jpg": NOISE[:40]}).read_bytes()[: 4 * 512]
    data = COMPRESS[kind](small) if kind in COMPRESS else small
    path = tmp_path / "flipped.tar"
    path.write_bytes(data)
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


# --- Archives in an archive -----------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut in a file", "cut between files", "header"])
def test_a_damaged_inner_archive(tmp_path, capsys, damage):
    inner = bytearray(make_tar(tmp_path / "i.tar", MEMBERS).read_bytes())
    if damage == "header":
        inner[MEMBER_BYTES] ^= 0x55
    else:
        del inner[MEMBER_BYTES + (1000 if damage == "cut in a file" else 0) :]
    good = make_tar(tmp_path / "g.tar", {"n01_1.jpg": photo(1)}).read_bytes()
    outer = make_tar(tmp_path / "o.tar", {"n01.tar": good, "n02.tar": bytes(inner)})
    message = refused_tar(tmp_path, capsys, outer.read_bytes())
    at = MEMBER_BYTES + (1000 if damage == "cut in a file" else 0)
    assert f"a.tar:n02.tar: damaged at byte {at:,} " in message or "cat/001.jpg: damaged" in message


def test_an_archive_in_an_inner_archive_is_refused(tmp_path, capsys):
    data = make_tar(tmp_path / "i.tar", {"x.jpg": photo(1)}).read_bytes()
    for _ in range(2):
        data = make_tar(tmp_path / "i.tar", {"n01.tar": data}).read_bytes()
    assert "an archive in an inner archive" in refused_tar(tmp_path, capsys, data)


# --- Members that tar may hold --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (tarfile.SYMTYPE, "link or device"),
        (tarfile.LNKTYPE, "link or device"),
        (tarfile.CHRTYPE, "link or device"),
        (tarfile.FIFOTYPE, "link or device"),
        (tarfile.GNUTYPE_SPARSE, "sparse file"),
    ],
)
def test_links_devices_and_sparse_files_are_refused(tmp_path, kind, named):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("cat/x.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(BadInputError, match=rf"cat/x\.jpg: a {named}"):
        archives.read_tar({"train": [str(tmp_path / "a.tar")]})


def test_directories_and_hidden_files_are_left_out(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        folder = tarfile.TarInfo("cat")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("cat/._x.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "x.jpg"
        archive.addfile(link)
    assert content_of(tmp_path / "a.tar") == []


def test_a_failed_run_leaves_an_older_directory_as_it_was(tmp_path, tar):
    (tmp_path / "a.tar").write_bytes(tar[: 512 * 5 * 15])
    (tmp_path / "out").mkdir()
    assert run("tar", "--split", f"train={tmp_path}/a.tar", "--out", tmp_path / "out") == 2
    assert list((tmp_path / "out").iterdir()) == []
