"""What JAX finds on this machine: its directory of compiled programs, and no TPU that is absent."""

import json
import os
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest
from small_runs import ROOT, command

from widenet_jax.config.machine import (
    CHOSEN,
    CPU_INFO,
    has_tpu,
    keep_compiled,
    machine,
    skip_absent_tpu,
)

INFO = "processor : 0\nmodel name : A\nflags : avx avx2\ncpu MHz : 2100.0\n"
CPU = {"JAX_PLATFORMS": "cpu"}
COMMAND = """
from widenet_jax.config.parser import exit_code_of
exit_code_of(lambda: print(__import__("jax").default_backend()))
"""
NOTEBOOK = "import jax, widenet_jax as wj; wj.load; print(jax.default_backend())"

needs_cpu_info = pytest.mark.skipif(not CPU_INFO.exists(), reason="other systems have no cache")


# --- Compiled programs ----------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@needs_cpu_info
def test_a_directory_that_only_the_user_can_write_unless_the_user_has_chosen(home: Path):
    for name in CHOSEN:
        environment = {name: "false"}
        keep_compiled(environment)
        assert environment == {name: "false"} and not home.exists()
    environment = {}
    keep_compiled(environment)
    directory = Path(environment["JAX_COMPILATION_CACHE_DIR"])
    assert directory.parent == home / "widenet_jax" / "programs"
    assert environment["JAX_COMPILATION_CACHE_MAX_SIZE"] == str(2**30)  # JAX deletes the rest
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_no_cache_where_it_cannot_be_written_or_the_processor_is_unknown(home: Path):
    environment: dict[str, str] = {}
    keep_compiled(environment, cpu_info=home / "missing")
    home.write_text("a file in the place of the directory")
    keep_compiled(environment)
    assert environment == {}


def test_every_kind_of_machine_has_its_own():
    """The clock of a processor changes from second to second, and does not count."""
    ours = machine(INFO, threads=2)
    assert machine(INFO.replace("2100", "800") + INFO, threads=2) == ours
    others = [machine(INFO.replace("avx2", "avx512f"), threads=2), machine(INFO, threads=1)]
    assert len({ours, machine(INFO.replace(": A", ": B"), threads=2), *others}) == 4


@needs_cpu_info
@pytest.mark.slow
def test_a_second_run_compiles_nothing_and_has_the_same_bytes(tmp_path: Path, home: Path):
    """The programs of the first are there, no new ones come, and no line names the cache."""
    env = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    env |= {"XDG_CACHE_HOME": str(home), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    results, programs = [], []
    for name in ("first", "second"):
        words = command(tmp_path / name, "--json")
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        results.append(json.loads(done.stdout)["params_sha256"])
        programs.append({p.name: p.stat().st_mtime for p in home.rglob("*-cache")})
        assert "cache" not in done.stderr
    assert results[0] == results[1]
    assert any("train_step" in name for name in programs[0]) and programs[0] == programs[1]


# --- An installed libtpu on a machine without a TPU -----------------------------------------------


@pytest.fixture
def libtpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fakes an installed libtpu package, and no plugin for a GPU."""
    (tmp_path / "packages" / "libtpu").mkdir(parents=True)
    (tmp_path / "packages" / "libtpu" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setitem(sys.modules, "jax_plugins", None)  # makes importing it fail


def chosen(environment: dict[str, str], root: Path) -> dict[str, str]:
    """Returns the variables that the rule adds to the environment."""
    after = dict(environment)
    skip_absent_tpu(after, root)
    return {name: text for name, text in after.items() if environment.get(name) != text}


def write(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(("before", "after"), [(None, "cpu"), ("tpu,cpu", "tpu,cpu")])
def test_where_jax_is_imported_already(libtpu, tmp_path, before: str | None, after: str):
    """Importing JAX has set two variables. A platform that the user chose in JAX's config stays."""
    by_jax = {"TPU_SKIP_MDS_QUERY": "1", "TPU_LIBRARY_PATH": "/libtpu.so"}
    try:
        jax.config.update("jax_platforms", before)
        assert chosen(by_jax, tmp_path) == CPU
        assert jax.config.jax_platforms == after
    finally:
        jax.config.update("jax_platforms", "cpu")  # as conftest.py sets it


@pytest.mark.skipif(not find_spec("libtpu"), reason="libtpu is not installed")
@pytest.mark.skipif(has_tpu({}, Path("/")), reason="this machine has a TPU")
@pytest.mark.parametrize("code", [COMMAND, NOTEBOOK], ids=["a command", "a notebook"])
def test_the_real_libtpu_prints_nothing(code: str):
    """Otherwise every command prints six lines of errors. Runs in a new process that uses JAX."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_PLATFORM")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() in ("cpu", "gpu")


def test_a_tpu_vm_by_its_devices(libtpu, tmp_path):
    """By the files of v4 and v5e; neither a driver alone nor another maker's device is a TPU."""
    assert chosen({}, tmp_path) == CPU
    devices = {"accel/accel0": CPU, "vfio/vfio": CPU, "vfio/0": {}, "accel0": {}}
    for place, (name, added) in enumerate(devices.items()):
        write(tmp_path / str(place), f"dev/{name}")
        assert chosen({}, tmp_path / str(place)) == added, name

    # By PCI: Google's TPU, network card and disk, and another maker's processor.
    devices = [("0x1ae0", "0x120000"), ("0x1ae0", "0x02"), ("0x1ae0", "0x01"), ("0x8086", "0x12")]
    for place, (vendor, kind) in enumerate(devices, start=10):
        folder = f"{place}/sys/bus/pci/devices/0000:00:04.0"
        write(tmp_path, f"{folder}/vendor", f"{vendor}\n")
        write(tmp_path, f"{folder}/class", f"{kind}\n")
        assert chosen({}, tmp_path / str(place)) == (CPU if place > 10 else {})
    # The user's choice stands.
    for name in ("JAX_PLATFORMS", "TPU_WORKER_ID", "JAX_FORCE_TPU_INIT"):
        assert chosen({name: ""}, tmp_path) == {}


def test_with_a_gpu_plugin_jax_still_chooses(libtpu, tmp_path, monkeypatch):
    (tmp_path / "packages" / "jax_plugins").mkdir()
    monkeypatch.delitem(sys.modules, "jax_plugins")
    added = {"TPU_ACCELERATOR_TYPE": "v4-8", "TPU_WORKER_HOSTNAMES": "localhost"}
    assert chosen({}, tmp_path) == added
