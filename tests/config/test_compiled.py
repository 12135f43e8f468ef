"""The directory of compiled programs: whose it is, what it depends on, and that results stay."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from small_runs import ROOT, command

from widenet_jax.config.compiled import CHOSEN, CPU_INFO, keep_compiled, machine

INFO = "processor : 0\nmodel name : A\nflags : avx avx2\ncpu MHz : 2100.0\n"
DIRECTORY = "JAX_COMPILATION_CACHE_DIR"

pytestmark = pytest.mark.skipif(not CPU_INFO.exists(), reason="other systems have no cache")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_directory_that_only_the_user_can_write(home: Path):
    environment: dict[str, str] = {}
    keep_compiled(environment)
    directory = Path(environment[DIRECTORY])
    assert directory.parent == home / "widenet_jax" / "programs"
    assert environment["JAX_COMPILATION_CACHE_MAX_SIZE"] == str(2**30)  # JAX deletes the rest
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("chosen", CHOSEN)
def test_the_users_choice_stays(chosen: str, home: Path):
    environment = {chosen: "false"}
    keep_compiled(environment)
    assert environment == {chosen: "false"} and not home.exists()


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
