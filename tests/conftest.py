"""Test settings: eight CPU devices, fast compilation, a shared compilation cache, --slow."""

import fcntl
import gc
import hashlib
import os
import platform
import re
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from matplotlib.figure import Figure

os.environ["JAX_PLATFORMS"] = "cpu"
# Compilation takes most of a test's time, so skip expensive optimisations of the machine code.
FLAGS = [
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
]
if version("jaxlib").startswith("0.10."):  # other releases may exit at these unknown flags
    FLAGS += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
os.environ["XLA_FLAGS"] = " ".join(FLAGS)

# Many tests run the same program, some in separate processes: the cache compiles it only once. It
# is kept for the next session, by machine and versions: a program of another processor may crash.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # workers inherit the main process's directory
    described = Path("/proc/cpuinfo")  # the first line on what the processor can do
    lines = described.read_text().splitlines() if described.exists() else []
    processor = next((line for line in lines if line.startswith("flags")), platform.machine())
    machine = [processor, *(version(name) for name in ("jax", "jaxlib", "flax", "optax"))]
    key = hashlib.sha256(" ".join(machine).encode()).hexdigest()[:16]
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
        Path(__file__).parents[1] / ".pytest_cache" / "compiled" / key
    )
# Also small ones: reading a program takes half as long as compiling it.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Full collections take 6% of the time: each walks all that JAX keeps of the programs so far.
gc.set_threshold(700, 10, 1000)

# Tests never ask Google, neither for credentials nor for kinds of buckets: nothing listens here.
# gcsfs and fsspec read some of these as they are imported.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
os.environ["FSSPEC_GCS_TOKEN"] = "anon"
os.environ["STORAGE_EMULATOR_HOST"] = "http://127.0.0.1:9"

# In a shell's background job SIGINT is ignored; the runs that tests interrupt would inherit this.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Whole runs first: at the end, one of the long files would keep one worker busy alone.
    # The profiler before them: it crashes in a process in which a plan has loaded another libtpu.
    here = Path(__file__).parent
    whole_runs = (here, here / "extensions")
    items.sort(
        key=lambda item: (item.path.name != "test_profile.py", item.path.parent not in whole_runs)
    )
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="takes minutes; run with --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable], Path]:
    """Returns a function that makes a workdir in one of the test processes, for all of them.

    Tests must not change such a workdir.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name: str, make: Callable[[Path], object]) -> Path:
        workdir = base / name / "run"
        workdir.parent.mkdir(exist_ok=True)
        with (workdir.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (workdir / "result.json").exists():
                make(workdir)
        return workdir

    return made


@pytest.fixture(scope="session")
def digits_run(once: Callable) -> Path:
    """Trains a small WideNet on the digits, `small_config()` on one device."""
    from small_runs import run_here

    return once("digits", run_here)


@pytest.fixture(scope="session")
def reviews_run(once: Callable) -> Path:
    """Trains a classifier of texts that are positive where they hold "good".

    The table and the tokenizer are beside the workdir.
    """
    from small_runs import train_here
    from text_sets import reviews_config, write_table, write_tokenizer

    def make(workdir: Path) -> None:
        write_table(workdir.parent)
        write_tokenizer(workdir.parent)
        train_here(reviews_config(workdir.parent), workdir)

    return once("reviews", make)


@pytest.fixture(scope="session")
def digits_export(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports `digits_run`; tests must not change it."""
    from widenet_jax.cli import export

    directory = tmp_path_factory.mktemp("digits") / "export"
    assert export.main([f"--workdir={digits_run}", f"--out={directory}", "--json"]) == 0
    return directory


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[str]:
    """Runs a server of Google Cloud Storage's protocol; its URL."""
    import gcs

    if not gcs.binary():
        pytest.skip("no fake-gcs-server for this machine")
    with gcs.served() as url:
        yield url


@pytest.fixture
def bucket(gcs_server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new place on gs://, which this process reaches at `gcs_server`."""
    import gcs

    name = re.sub(r"\W+", "-", request.node.name)  # of a parametrized test, too
    with gcs.reached(gcs_server):
        yield f"gs://{gcs.BUCKET}/{name}"


@pytest.fixture
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for training end within milliseconds: look at them more often than at runs."""
    from widenet_jax.ops.sweep import runner

    monkeypatch.setattr(runner, "POLL_SECONDS", 0.02)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """Lists the figures that are saved during the test, as they were drawn.

    In none of them a legend lies over a panel, or beyond the edge.
    """
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args, **options) -> None:
        save(figure, *args, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    yield figures
    for figure in figures:
        own = [axis.get_legend() for axis in figure.axes]
        for legend in filter(None, (*figure.legends, *own)):
            box = legend.get_window_extent()
            assert not any(box.overlaps(axis.get_window_extent()) for axis in figure.axes)
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
