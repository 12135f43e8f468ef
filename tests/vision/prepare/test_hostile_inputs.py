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
from preparing import ROOT, error_line, make_npz, make_parquet, make_tar, photo, write

SPARSE_BYTES = 64 << 30
SECONDS, MEMORY_BYTES = 20, 1 << 30
RUN_LIMITED = """
import contextlib, io, json, resource, signal, sys
import pyarrow.parquet  # before memory is limited
from preparing import prepare_data
from widenet_jax.vision.prepare import archives, arrays

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


def sparse(path: Path, *headers: tuple[str, bytes, int]) -> Path:
    """Makes a sparse file of SPARSE_BYTES, after headers of tar members: (name, type, size)."""
    content = b""
    for name, kind, size in headers:
        info = tarfile.TarInfo(name)
        info.type, info.size = kind, size
        content += info.tobuf(tarfile.GNU_FORMAT)
    os.truncate(write(path, content), SPARSE_BYTES)
    return path


def hostile_commands(folder: Path) -> dict[str, list[str]]:
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/dev/zero")
    flat = make_tar(folder / "flat.tar", {"x.jpg": photo(1)})
    found = {}
    for path in (folder / "fifo", folder / "link", sparse(folder / "sparse")):
        for command in ("tar", "npz", "parquet", "webdataset"):
            found[f"{command}: {path.name}"] = [command, f"--split=train={path}"]
        for command in ("cifar10_binary", "cifar_python"):
            found[f"{command}: {path.name}"] = [command, f"--input={path}"]
        found[f"labels: {path.name}"] = ["tar", f"--split=train={flat}", f"--labels={path}"]
        images = folder / f"folder of {path.name}" / "train" / "cat"
        images.mkdir(parents=True)
        (images / "x.jpg").symlink_to(path)
        found[f"folder: {path.name}"] = ["image_folder", f"--input={images.parents[1]}"]
    pax = "x", tarfile.XHDTYPE, 2 << 30
    for name, headers in {
        "pax header": [pax],
        "long name": [("x", tarfile.GNUTYPE_LONGNAME, 3 << 30)],
        "sparse image": [("cat/x.jpg", tarfile.REGTYPE, SPARSE_BYTES - 4096)],
        "pax header of an inner archive": [("cat.tar", tarfile.REGTYPE, 3 << 30), pax],
    }.items():
        found[name] = ["tar", f"--split=train={sparse(folder / name, *headers)}"]
    image = [{"bytes": photo(1), "path": None}]
    label = make_parquet(folder / "label.parquet", [4_000_000_000], images=image)
    found["parquet: label of 4e9"] = ["parquet", f"--split=train={label}"]
    pack = make_npz(folder / "label.npz", labels=np.array([0, 4_000_000_000]))
    found["npz: label of 4e9"] = ["npz", f"--split=train={pack}"]
    return {name: [*found[name], f"--out={folder}/out {name}"] for name in found}


def test_every_hostile_input_is_refused_in_time_and_memory(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUN_LIMITED],
        input=json.dumps([SECONDS, MEMORY_BYTES, hostile_commands(tmp_path)]),
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert {name: code for name, (code, _) in results.items() if code != 2} == {}
    for name, (_, stderr) in results.items():
        message = error_line(stderr)
        assert "not a regular file" in message or not name.endswith((": fifo", ": link"))
        assert not (tmp_path / f"out {name}").exists()
