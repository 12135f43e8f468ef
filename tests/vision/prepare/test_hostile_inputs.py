"""Inputs that would block or exhaust memory: each is refused within seconds and 1 GiB.

One process with limits on time and memory runs the command on all of them.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from preparing import ROOT, error_line, make_npz, make_parquet, make_tar, photo

SPARSE_BYTES = 64 << 30
SECONDS, MEMORY_BYTES = 20, 1 << 30
RUN_LIMITED = """
import contextlib, io, json, resource, signal, sys
from preparing import prepare_data
from widenet_jax.vision.prepare import packing, parquet, preview  # before memory is limited

class TooSlow(BaseException):
    pass

def stop(*_):
    raise TooSlow

seconds, memory, commands = json.load(sys.stdin)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + memory
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
signal.signal(signal.SIGALRM, stop)
results = {}
for name, arguments in commands.items():
    stderr = io.StringIO()
    signal.alarm(seconds)
    try:
        with contextlib.redirect_stderr(stderr):
            code = prepare_data.main(arguments)
    except BaseException as error:
        code = type(error).__name__
    signal.alarm(0)
    results[name] = code, stderr.getvalue()
print(json.dumps(results))
"""


def sparse(path: Path, start: bytes = b"") -> Path:
    """Makes a sparse file of SPARSE_BYTES that takes almost no disk space."""
    path.write_bytes(start)
    os.truncate(path, SPARSE_BYTES)
    return path


def tar_header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def tar_inputs(folder: Path) -> dict[str, Path]:
    pax = tar_header("x", tarfile.XHDTYPE, 2 << 30)
    long_name = tar_header("x", tarfile.GNUTYPE_LONGNAME, 3 << 30)
    image = tar_header("cat/x.jpg", tarfile.REGTYPE, SPARSE_BYTES - 4096)
    inner = tar_header("cat.tar", tarfile.REGTYPE, 3 << 30)
    return {
        "pax header": sparse(folder / "pax.tar", pax),
        "long name": sparse(folder / "name.tar", long_name),
        "sparse image": sparse(folder / "image.tar", image),
        "pax header of an inner archive": sparse(folder / "inner.tar", inner + pax),
        "sparse archive": sparse(folder / "padding.tar"),
    }


def image_folders(folder: Path, special: dict[str, Path]) -> dict[str, Path]:
    """Makes an image folder for each special file, with a link to it in place of an image."""
    made = {}
    for name, target in special.items():
        images = folder / f"folder_{name}" / "train" / "cat"
        images.mkdir(parents=True)
        (images / "x.jpg").symlink_to(target)
        made[name] = images.parents[1]
    return made


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("hostile")
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/dev/zero")
    special = {
        "fifo": folder / "fifo",
        "device": folder / "link",
        "sparse file": sparse(folder / "sparse"),
    }
    found = {}
    for name, path in special.items():
        for command in ("tar", "npz", "parquet"):
            found[f"{command}: {name}"] = [command, f"--split=train={path}"]
        found[f"cifar10_binary: {name}"] = ["cifar10_binary", f"--input={path}"]
        flat = make_tar(folder / "flat.tar", {"x.jpg": photo(1)})
        found[f"labels: {name}"] = ["tar", f"--split=train={flat}", f"--labels={path}"]
    for name, path in image_folders(folder, special).items():
        found[f"image_folder: {name}"] = ["image_folder", f"--input={path}"]
    for name, path in tar_inputs(folder).items():
        found[f"tar: {name}"] = ["tar", f"--split=train={path}"]
    image = [{"bytes": photo(1), "path": None}]
    label = make_parquet(folder / "label.parquet", [4_000_000_000], images=image)
    found["parquet: label of 4e9"] = ["parquet", f"--split=train={label}"]
    pack = make_npz(folder / "label.npz", labels=np.array([0, 4_000_000_000]))
    found["npz: label of 4e9"] = ["npz", f"--split=train={pack}"]
    return {name: [*found[name], f"--out={folder}/out {name}"] for name in found}


@pytest.fixture(scope="module")
def results(commands: dict[str, list[str]]) -> dict[str, tuple[object, str]]:
    done = subprocess.run(
        [sys.executable, "-c", RUN_LIMITED],
        input=json.dumps([SECONDS, MEMORY_BYTES, commands]),
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_hostile_input_is_refused_in_time_and_memory(commands, results):
    assert {name: code for name, (code, _) in results.items() if code != 2} == {}
    for name, (_, stderr) in results.items():
        assert error_line(stderr)
        assert not Path(commands[name][-1].removeprefix("--out=")).exists(), name


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_the_message_says_what_the_file_is(results, kind):
    messages = {name: text for name, (_, text) in results.items() if name.endswith(f": {kind}")}
    assert len(messages) == 6
    assert all("not a regular file" in message for message in messages.values())
