"""Many tiny runs on gs:// in bad weather: random faults, outages, kills at each request of a save.

The number in a test's name is the seed of its faults, so `-k 'outage and 7'` repeats one. A few of
each kind run with --slow. More: FAULT_RUNS=200 OUTAGE_RUNS=20 KILL_STRIDE=1 before the command.
"""

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gcs
import pytest
from image_sources import png
from small_runs import command, finish, run_here, start, start_two
from test_object_stores import assert_same_as

from widenet_jax.checkpoint.manifest import damage
from widenet_jax.checkpoint.series import steps_in
from widenet_jax.data.records import write_set
from widenet_jax.files import absolute, matching, write_bytes

pytestmark = pytest.mark.slow
FAULT_RUNS = int(os.environ.get("FAULT_RUNS", 5))
OUTAGE_RUNS = int(os.environ.get("OUTAGE_RUNS", 2))
KILL_STRIDE = int(os.environ.get("KILL_STRIDE", 10))
# Three checkpoints, and up to three that are the best so far.
TINY = {"duration": "6 steps", "evaluation.every": "2 steps", "checkpoint.every": "2 steps"}
REQUESTS = 560  # of such a run, about
Fault = int | str | None


def errors(chance: random.Random, request: str) -> Fault:
    return chance.choice((408, 429, 500, 503)) if chance.random() < 0.05 else None


def lost(chance: random.Random, request: str) -> Fault:
    """Answers to changes: the store has done what it seems not to have done."""
    return "lost" if not request.startswith("GET") and chance.random() < 0.15 else None


def resets(chance: random.Random, request: str) -> Fault:
    return chance.choice(("reset", "cut")) if chance.random() < 0.05 else None


def slow(chance: random.Random, request: str) -> Fault:
    return None


def everything(chance: random.Random, request: str) -> Fault:
    return errors(chance, request) or lost(chance, request) or resets(chance, request)


WEATHER = (errors, lost, resets, slow, everything)


@pytest.fixture(scope="module")
def way(gcs_server: str) -> Iterator[gcs.Way]:
    """A way to the store for all tests here: TensorStore keeps the first one that it is given."""
    with gcs.way(gcs_server) as way, gcs.reached(way.url):
        yield way


@pytest.fixture
def place(way: gcs.Way, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new place, which is reached without faults before and after the test."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    yield f"gs://{gcs.BUCKET}/{name}"
    way.fault, way.seconds = gcs.Way.fault, 0.0


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns a function that gives the run on this machine's disk which TRAININGS[how] makes."""
    made: dict[str, Path] = {}

    def twin(how: str) -> Path:
        if how not in made:
            made[how] = tmp_path_factory.mktemp("twin") / "run"
            TRAININGS[how](made[how])
        return made[how]

    return twin


def train_alone(place: Path | str) -> None:
    finish(start(command(place, **TINY)))


def train_two(place: Path | str) -> None:
    for process in start_two(place, **TINY):
        finish(process)


# Each ends with other bytes: XLA adds in another order where there are more devices or processes.
TRAININGS = {"here": lambda place: run_here(place, **TINY), "alone": train_alone, "two": train_two}


@pytest.mark.parametrize("seed", range(FAULT_RUNS))
def test_random_faults(seed: int, way: gcs.Way, place: str, twins: Callable[[int], Path]):
    """A fifth of the runs has two hosts, in processes of their own."""
    weather, chance = WEATHER[seed % len(WEATHER)], random.Random(seed)
    how = "here" if (seed + seed // len(WEATHER)) % 5 else "two"
    began, first = time.monotonic(), len(way.requests)
    way.seconds = 0.2 if weather is slow else 0.0
    way.fault = lambda request: weather(chance, request)
    TRAININGS[how](place)
    seconds, count = time.monotonic() - began, len(way.requests) - first
    way.fault, way.seconds = gcs.Way.fault, 0.0
    print(f"\n{seed}: {weather.__name__}, {how}: {count} requests, {seconds:.1f} s")
    assert_same_as(place, twins(how))


@pytest.mark.parametrize("seed", range(OUTAGE_RUNS))
def test_outages(seed: int, way: gcs.Way, place: str, twins: Callable[[int], Path]):
    """Of 1 to 120 s from a random request on, where a run asks again for a minute."""
    chance, seen, lock = random.Random(seed), [], threading.Lock()
    at, seconds = chance.randrange(REQUESTS), 120 ** chance.random()
    fault = chance.choice((429, 503, "reset", "silent"))
    state: dict = {}

    def outage(request: str) -> Fault:
        with lock:
            seen.append(request)
            if len(seen) == at + 1:
                state.update(began=time.monotonic(), request=request)
        if "began" not in state:
            return None
        return fault if time.monotonic() < state["began"] + seconds else None

    changes = TINY | {"checkpoint.retry_minutes": 1.0}
    way.fault = outage
    process = start(command(place, **changes))
    _, told = process.communicate(timeout=400)
    ended, code = time.monotonic(), process.returncode
    way.fault = gcs.Way.fault
    before = [request for request in seen[:at] if commits(request, place)]
    waited = ended - state.get("began", ended)
    what = f"{seed}: {fault} for {seconds:.1f} s from {state.get('request')}"
    *_, last = told.splitlines() or [""]
    whole = len(steps_in(absolute(place) / "checkpoints"))
    print(f"\n{what}: code {code} after {waited:.1f} s, {whole} checkpoints\n{last}")
    assert "Traceback" not in told, told
    assert code in (0, 2, 3), told
    if code:
        assert last.startswith(("failed: ", "error: ")), told
        assert whole >= min(1, len(before)), told
        train_alone(place)
    assert_same_as(place, twins("alone"))


PHASES = {  # part of a request; all are after the first checkpoint, or in a second start
    "save": "name=PLACE/checkpoints/4/params/ocdbt",
    "commit": "DELETE /storage/v1/b/bucket/o/PLACE/checkpoints/4/commit_success.txt",
    "flush": "PLACE/metrics.jsonl.parts",
    "evaluation": "prefix=PLACE/config.json",
    "read": "/set/train",
    "restore": "PLACE/checkpoints/6/params/ocdbt",
}
REFUSED = (401, 403, 404, 412)


@pytest.fixture(scope="module")
def packed_set(way: gcs.Way, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes a set of more images than are read before a run."""
    local = tmp_path_factory.mktemp("set") / "set"
    images = [(index % 2, png(index % 256)) for index in range(1100)]
    splits = {"train": iter(images), "test": iter(images[:64])}
    write_set(local, splits, class_names=["a", "b"], provenance={})
    for file in local.iterdir():
        write_bytes(f"gs://{gcs.BUCKET}/set/{file.name}", file.read_bytes())
    return f"gs://{gcs.BUCKET}/set"


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", [*REFUSED, "403 rateLimitExceeded", 503, "reset", "silent"])
def test_answers(fault: int | str, phase: str, way: gcs.Way, place: str, packed_set: str):
    """All requests are answered so from one of a phase on; a run asks again for 18 s."""
    name = Path(place).name
    begins, running = PHASES[phase].replace("PLACE", name), f"{name}/checkpoints/2/manif"
    changes = TINY | {"checkpoint.retry_minutes": 0.3, "data.source": "array_record"}
    changes |= {"data.path": packed_set, "data.prefetch": 1, "evaluation.batch_size": 64}
    state: dict = {}
    if phase == "restore":
        finish(start(command(place, **changes)))
        changes["duration"], state["running"] = "8 steps", True
    if phase == "read":
        changes["duration"] = "30 steps"

    def answer(request: str) -> Fault:
        if running in request:
            state["running"] = True
        if begins in request and "running" in state:
            state.setdefault("began", time.monotonic())
        return fault if "began" in state else None

    way.fault = answer
    process = start(command(place, *["--extend"] * (phase == "restore"), **changes))
    _, told = process.communicate(timeout=1000)
    way.fault = gcs.Way.fault
    assert "began" in state, told
    seconds = time.monotonic() - state["began"]
    *_, last = told.splitlines()
    print(f"\n{phase}, {fault}: code {process.returncode} after {seconds:.1f} s: {last}")
    assert "Traceback" not in told, told
    assert process.returncode in ((2, 3) if fault == 404 else (2,) if fault in REFUSED else (3,))
    assert last.startswith(("error: ", "failed: "))
    whole = steps_in(absolute(place) / "checkpoints")
    assert whole and all(damage(absolute(place) / "checkpoints" / str(n)) is None for n in whole)


@pytest.mark.parametrize(
    "fault, code, told",
    [
        (403, 2, r"error: checkpoint 2 could not .*gs://bucket: status 403 .*; give this account"),
        ("403 rateLimitExceeded", 3, "failed: checkpoint 2 could not .*gs:// does not answer"),
    ],
)
def test_a_second_host_is_refused(fault: Fault, code: int, told: str, way: gcs.Way, place: str):
    """Of its own accord it sends no requests but TensorStore's."""
    way.fault = lambda request: fault if "ocdbt.process_1" in request else None
    first, second = start_two(place, **TINY)
    *_, last = finish(second, code).splitlines()
    first.kill()
    first.communicate()
    print(f"\n{fault}: {last}")
    assert re.match(told, last)


def commits(request: str, place: str) -> bool:
    """Returns whether a request commits one of the last checkpoints."""
    marker = f"{Path(place).name}/checkpoints/"
    return request.startswith("POST") and marker in request and "commit_success" in request


@pytest.mark.parametrize("request_number", range(0, 130, KILL_STRIDE))
def test_kills_in_a_save(
    request_number: int, way: gcs.Way, place: str, twins: Callable[[int], Path]
):
    """Before one of the requests of the first saves: of the best checkpoint and the last."""
    name, seen, lock = Path(place).name, [], threading.Lock()

    def kill(request: str) -> Fault:
        with lock:
            if f"{name}/checkpoints/2" in request or f"{name}/best/2" in request:
                seen.append(request)
            if len(seen) <= request_number:
                return None
        process.kill()
        return "reset"

    process = start(command(place, **TINY))
    way.fault = kill
    process.communicate(timeout=240)
    way.fault = gcs.Way.fault
    print(f"\n{request_number}: {process.returncode} before {seen[-1]}")
    assert process.returncode == -9 or len(seen) <= request_number
    train_alone(place)
    assert_same_as(place, twins("alone"))
    for series in ("checkpoints", "best"):
        for checkpoint in matching(absolute(place) / series, "*"):
            assert (checkpoint / "commit_success.txt").exists(), checkpoint
