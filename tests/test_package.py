"""What an installation brings: commands, configs, types."""

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from small_runs import ROOT, command, finish, start

import widenet_jax

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMMANDS = PROJECT["scripts"]
# A run of seconds.
SHORT = ("--config.duration=2 epochs", "--config.tracking.tensorboard=false")


def test_every_script_is_a_command():
    scripts = {path.stem.replace("_", "-") for path in (ROOT / "scripts").glob("*.py")}
    assert set(COMMANDS) == {f"widenet-{name}" for name in scripts | {"train"}}
    for target in COMMANDS.values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), target


def test_the_metadata_agree():
    """pyproject.toml, CITATION.cff and CHANGELOG.md name one version and one license."""
    license_text = (ROOT / PROJECT["license-files"][0]).read_text()
    assert PROJECT["license"] == "Apache-2.0" and "Apache License" in license_text
    assert (ROOT / PROJECT["readme"]).exists()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == widenet_jax.__version__
    assert citation["license"] == PROJECT["license"] and len(citation["references"]) == 2
    assert f"\n## {widenet_jax.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_an_installed_package_trains_in_another_directory(tmp_path: Path):
    """Builds and installs a wheel beside this environment, without its requirements."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / "source" / name)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]  # fetches setuptools
    place = tmp_path / "installed"
    subprocess.run([*pip, f"--target={place}", tmp_path / "source"], check=True)
    shutil.rmtree(tmp_path / "source")
    assert (place / "widenet_jax" / "py.typed").exists()

    def run(*words: str) -> str:
        env = os.environ | {"PYTHONPATH": str(place)}
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    config = ("--config=configs/digits.py", "--workdir=run", *SHORT)
    assert "test accuracy" in run(str(place / "bin" / "widenet-train"), *config)
    code = (
        "import widenet_jax as wj, numpy as np; print(wj.__file__, wj.__version__, "
        "len(wj.load('run').predict([np.zeros((8, 8), np.uint8)], top=3)[0]))"
    )
    offline = "import widenet_jax as wj; print(wj.load('widenet_tiny_digits'))"
    assert "Model('widenet_tiny_digits', " in run(sys.executable, "-c", offline)
    file, *others = run(sys.executable, "-c", code).split()
    assert Path(file).is_relative_to(place) and others == [widenet_jax.__version__, "3"]


def pip_install(python: str | Path, extra: str, *flags: str) -> None:
    """Installs an extra's packages with the package's own, or what `flags` make of this."""
    wanted = ["-r", str(ROOT / "requirements.txt"), *PROJECT["optional-dependencies"][extra]]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *flags, *wanted], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_an_extra_can_be_installed(extra: str):
    """Alone, in an empty environment: pip finds versions that go together."""
    pip_install(sys.executable, extra, "--dry-run", "--ignore-installed")


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes an environment with one extra; returns its Python. It takes gigabytes until the end."""
    place = tmp_path / "environment"

    def install(extra: str) -> Path:
        venv.create(place, with_pip=True)
        pip_install(place / "bin" / "python", extra)
        return place / "bin" / "python"

    yield install
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
def test_the_extra_prepare_begins_a_download(tmp_path: Path, installed: Callable[[str], Path]):
    """And says in one line that it cannot go on, where nothing answers."""
    program = [installed("prepare"), "scripts/prepare_data.py", "tfds", "mnist"]
    program += [f"--data-dir={tmp_path}", f"--out={tmp_path / 'out'}"]
    code = "import urllib3.util.retry as r; r.Retry.DEFAULT_BACKOFF_MAX = r.Retry.backoff_max = 0"
    (tmp_path / "sitecustomize.py").write_text(code)
    nowhere = dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), "http://127.0.0.1:9")
    env = os.environ | nowhere | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert "Downloading and preparing dataset" in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1].startswith("failed: tfds mnist: cannot be prepared: ")


@pytest.mark.slow
def test_the_extra_gcs_trains_on_a_bucket(bucket: str, installed: Callable[[str], Path]):
    program = command(bucket, duration="2 steps", **{"tracking.tensorboard": True})
    finish(start([str(installed("gcs")), *program[1:]]))


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_suite(tmp_path: Path):
    """Two of three at once, with this project's options: each dies with a line, others go on."""
    for name, code in {"a": "os.abort()", "b": "os.abort()", "c": "time.sleep(1)"}.items():
        tests = "".join(f"\ndef test_{n}():\n    {code}\n" for n in "xy")
        (tmp_path / f"test_{name}.py").write_text(f"import os\nimport time\n{tests}")
    command = [sys.executable, "-m", "pytest", f"--config-file={ROOT / 'pyproject.toml'}"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and lines[-1].startswith("2 failed, 2 passed"), done.stdout
    for name in "ab":
        assert any(f"crashed while running 'test_{name}.py::test_x'" in line for line in lines)
