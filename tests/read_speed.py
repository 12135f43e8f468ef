"""Measures records a second of a packed set: `python tests/gcs.py 50 tests/read_speed.py 2000`.

The records are as large as ImageNet's that have a shorter side of 256 (30 KB), and are not decoded.
"""

import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from widenet_jax.data.pipeline import train_batches
from widenet_jax.data.records import write_set
from widenet_jax.data.sources import build_source
from widenet_jax.files import write_bytes

BATCH = 64


class Sizes:
    """Takes a record's first and last bytes, as picklable transforms do."""

    def __call__(self, example, rng) -> dict:
        image = example["image"]
        return {"ends": np.frombuffer(image[:8] + image[-8:], np.uint8)}


def rate(path: str, seconds: float, workers: int) -> tuple[dict[str, float], str]:
    """Returns what it finds, and a hash of the first 4 batches.

    {a_second: records after these batches, cpu_ms: of this process for each, first_s: until these
    batches, more_mib: memory of this process at most, less that before}.
    """
    source, B = build_source({"source": "array_record", "path": path}, "train"), BATCH
    how = {"batch_size": B, "positions": np.arange(B), "num_workers": workers, "prefetch": 2}
    steps = {"start_step": 0, "num_steps": 10**6}
    with train_batches(source, seed=0, transform=Sizes(), **how, **steps) as batches:
        before, begun = memory(), time.perf_counter()
        first = [next(batches)["ends"].tobytes() for _ in range(4)]
        first_s = time.perf_counter() - begun
        count, most, begun, cpu = 0, 0, time.perf_counter(), time.process_time()
        while (passed := time.perf_counter() - begun) < seconds:
            next(batches)
            count, most = count + B, max(most, memory() - before)
        cpu_ms = 1e3 * (time.process_time() - cpu) / count
    found = {"a_second": count / passed, "cpu_ms": cpu_ms, "first_s": first_s, "more_mib": most}
    return {k: round(v, 3) for k, v in found.items()}, hashlib.sha256(b"".join(first)).hexdigest()


def memory() -> float:
    """Returns the MiB that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main(records: str, seconds: str = "4", workers: str = "0") -> None:
    rng = np.random.default_rng(0)
    sizes = rng.normal(30e3, 12e3, int(records)).clip(4e3).astype(int)
    with tempfile.TemporaryDirectory() as folder:
        images = [(i % 10, rng.bytes(size)) for i, size in enumerate(sizes)]
        names = [str(k) for k in range(10)]
        write_set(folder, {"train": images}, class_names=names, provenance={}, shard_bytes=8 << 20)
        for file in Path(folder).iterdir():
            write_bytes(f"gs://bucket/set/{file.name}", file.read_bytes())
        local, one = rate(folder, float(seconds), int(workers))
        remote, other = rate("gs://bucket/set", float(seconds), int(workers))
    assert one == other
    print(json.dumps({"disk": local, "gs": remote}))


if __name__ == "__main__":
    main(*sys.argv[1:])
