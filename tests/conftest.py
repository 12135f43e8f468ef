"""Eight host devices for every test, quick compiling, programs shared, slow tests with --slow."""

import atexit
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of a test's time is compiling: the optimisation of machine code that runs for a moment.
FLAGS = [
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
]
if version("jaxlib").startswith("0.10."):  # later ones end at a flag they do not know
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join(FLAGS)

# Many tests run the same program, some in processes of their own: each is compiled once.
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers take over the main process's directory
    _compiled = tempfile.TemporaryDirectory(prefix="widenet_jax_compiled_")
    atexit.register(_compiled.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="takes minutes; run with --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workdir of a small finished WideNet on the digits; only to be read."""
    import jax
    from small_runs import small_config

    from widenet_jax import train

    workdir = tmp_path_factory.mktemp("digits") / "run"
    # So tight in evaluation, too, that tokens are dropped there.
    config = small_config(**{"model.moe.capacity_factor_eval": 1.0})
    train.run(config, str(workdir), devices=jax.devices()[:1])
    return workdir
