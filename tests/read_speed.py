"""Measures records a second of a packed set: `python tests/gcs.py 50 tests/read_speed.py 2000`.

The records are as large as ImageNet's that have a shorter side of 256 (30 KB), and are not decoded.
"""

import json
import os
import resource
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


def rate(path: str, seconds: float, workers: int) -> tuple[float, str]:
    """Returns records a second after the first batch, and the hash of the first 4 batches."""
    source, B = build_source({"source": "array_record", "path": path}, "train"), BATCH
    how = {"batch_size": B, "positions": np.arange(B), "num_workers": workers, "prefetch": 2}
    steps = {"start_step": 0, "num_steps": 10**6}
    with train_batches(source, seed=0, transform=Sizes(), **how, **steps) as batches:
        begun = time.perf_counter()
        first = [next(batches)["ends"].tobytes() for _ in range(4)]
        print(f"first four batches {time.perf_counter() - begun:.2f} s", file=sys.stderr)
        count, begun = 0, time.perf_counter()
        while (passed := time.perf_counter() - begun) < seconds:
            next(batches)
            count += B
    return count / passed, str(hash(b"".join(first)))


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
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"local": round(local), "gs": round(remote), "peak_mib": kib // 1024}))


if __name__ == "__main__":
    os.environ["PYTHONHASHSEED"] = "0"
    main(*sys.argv[1:])
