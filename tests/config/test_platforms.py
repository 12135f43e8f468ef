"""The rule that keeps JAX from loading an installed libtpu on a machine without a TPU.

Without the rule, every command on such a machine prints six lines of libtpu errors.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest

from widenet_jax.config.platforms import has_tpu, skip_absent_tpu

CPU = {"JAX_PLATFORMS": "cpu"}
COMMAND = """
import sys
from widenet_jax.config.parser import exit_code_of
def run():
    import jax
    print(jax.default_backend())
sys.exit(exit_code_of(run))
"""
NOTEBOOK = """
import jax
import widenet_jax as wj
wj.load
print(jax.default_backend())
"""


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


def device(root: Path, name: str) -> None:
    path = root / "dev" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def pci_device(root: Path, vendor: str, kind: str) -> None:
    path = root / "sys" / "bus" / "pci" / "devices" / "0000:00:04.0"
    path.mkdir(parents=True)
    (path / "vendor").write_text(f"{vendor}\n")
    (path / "class").write_text(f"{kind}\n")


def test_a_machine_with_libtpu_and_no_tpu(libtpu, tmp_path):
    assert chosen({}, tmp_path) == CPU


@pytest.mark.parametrize(("before", "after"), [(None, "cpu"), ("", ""), ("tpu,cpu", "tpu,cpu")])
def test_where_jax_is_imported_already(libtpu, tmp_path, before: str | None, after: str):
    """Importing JAX has set two variables. A platform that the user chose in JAX's config stays."""
    by_jax = {"TPU_SKIP_MDS_QUERY": "1", "TPU_LIBRARY_PATH": "/libtpu.so"}
    try:
        jax.config.update("jax_platforms", before)
        device(tmp_path, "accel0")
        assert chosen(by_jax, tmp_path) == {}
        assert jax.config.jax_platforms == before
        (tmp_path / "dev" / "accel0").unlink()
        assert chosen(by_jax, tmp_path) == CPU
        assert jax.config.jax_platforms == after
    finally:
        jax.config.update("jax_platforms", "cpu")  # as conftest.py sets it


def test_without_libtpu_nothing_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)  # as if it were not installed
    assert chosen({}, tmp_path) == {}


@pytest.mark.skipif(not find_spec("libtpu"), reason="libtpu is not installed")
@pytest.mark.skipif(has_tpu({}, Path("/")), reason="this machine has a TPU")
@pytest.mark.parametrize("code", [COMMAND, NOTEBOOK], ids=["a command", "a notebook"])
def test_the_real_libtpu_prints_nothing(code: str):
    """Code that uses JAX, in a new process that has not chosen a platform."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_PLATFORM")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() in ("cpu", "gpu")


@pytest.mark.parametrize(
    ("name", "added"),
    [("accel0", {}), ("vfio/0", {}), ("vfio/vfio", CPU), ("accel/accel0", CPU)],
    ids=["v4", "v5e", "a driver alone", "another maker's"],
)
def test_a_tpu_vm_by_its_device_files(libtpu, tmp_path, name: str, added: dict[str, str]):
    device(tmp_path, name)
    assert chosen({}, tmp_path) == added


@pytest.mark.parametrize(
    ("vendor", "kind", "tpu"),
    [
        ("0x1ae0", "0x120000", True),
        ("0x1ae0", "0x020000", False),  # Google's network card
        ("0x1ae0", "0x010802", False),  # Google's disk
        ("0x8086", "0x120000", False),
    ],
)
def test_a_tpu_vm_by_its_pci_devices(libtpu, tmp_path, vendor: str, kind: str, tpu: bool):
    pci_device(tmp_path, vendor, kind)
    assert chosen({}, tmp_path) == ({} if tpu else CPU)


@pytest.mark.parametrize(
    "name", ["JAX_PLATFORMS", "JAX_PLATFORM_NAME", "TPU_WORKER_ID", "JAX_FORCE_TPU_INIT"]
)
def test_the_users_choice_stands(libtpu, tmp_path, name: str):
    assert chosen({name: ""}, tmp_path) == {}


def test_with_a_gpu_plugin_jax_still_chooses(libtpu, tmp_path, monkeypatch):
    (tmp_path / "packages" / "jax_plugins").mkdir()
    monkeypatch.delitem(sys.modules, "jax_plugins")
    assert chosen({}, tmp_path) == {
        "TPU_ACCELERATOR_TYPE": "v4-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
