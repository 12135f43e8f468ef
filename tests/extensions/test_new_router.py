"""A new router with its own parameters and loss, from one file: `cosine_router.py`."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from compiled import init
from small_runs import ROOT, final_state, finish, metrics_of, start, train_here

import widenet_jax as wj
from widenet_jax.cli import export
from widenet_jax.config import imports
from widenet_jax.config.files import load_config
from widenet_jax.errors import BadInputError
from widenet_jax.main import main
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.losses import LOSSES
from widenet_jax.nn.moe.routers import ROUTERS

pytestmark = pytest.mark.slow  # test_new_text_task.py imports what a run remembers, too
FILE = Path(__file__).with_name("cosine_router.py")
CONFIG = """

from small_runs import small_config


def get_config():
    config = small_config()
    with config.unlocked():
        config.model.moe.router = {"name": "cosine", "size": 6}
        config.model.moe.losses = {"load_balance": 0.01, "even": 0.5, "over": "group"}
    return config
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yields the workdir of a run whose config, `mine.py` beside it, registers the router."""
    directory = tmp_path_factory.mktemp("cosine")
    (directory / "mine.py").write_text(FILE.read_text() + CONFIG)
    train_here(load_config(f"{directory}/mine.py"), directory / "run")
    yield directory / "run"
    del ROUTERS["cosine"], LOSSES["even"]  # for the tests after these in the same process
    imports.IMPORTED.clear()
    imports.NAMED.clear()


def test_trains_with_its_own_loss(run: Path):
    first, *_, last = metrics_of(run)
    assert len(last["even_loss"]) == 2  # both blocks route, with one shared router
    expected = first["cross_entropy"] + sum(
        0.01 * balance + 0.5 * even
        for balance, even in zip(first["load_balance_loss"], first["even_loss"], strict=True)
    )
    assert first["loss"] == pytest.approx(expected, rel=1e-5)
    assert sum(last["even_loss"]) < sum(first["even_loss"])  # the gradient reaches the parameters
    stored = [name for name in final_state(run) if "['moe']['router']" in name]
    assert sum(name.startswith("params") for name in stored) == 3
    assert np.allclose(np.sum(last["load"], axis=-1), 1)


def test_a_changed_file_is_named_when_the_run_resumes(run: Path, capsys: pytest.CaptureFixture):
    file = run.parent / "mine.py"
    before = file.read_text()
    file.write_text(before + "# changed\n")
    train_here(load_config(str(file)), run)
    assert f"changed since this run began: {file}\n" in capsys.readouterr().err
    file.write_text(before)


# A process that knows nothing of the router: RUN's file changes, then it is gone.
PROGRAM = """
import sys
from pathlib import Path

from widenet_jax.cli.evaluate import main

exported, run, file, moved = sys.argv[1:]
Path(file).write_text(Path(file).read_text() + "# changed")
assert main([f"--workdir={exported}"]) == 2
Path(file).unlink()
assert main([f"--workdir={exported}"]) == 2
assert main([f"--workdir={run}", f"--import={moved}"]) == 0
"""


def test_other_commands_import_what_the_run_remembers(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    exported, file, moved = tmp_path / "exported", run.parent / "mine.py", tmp_path / "mine.py"
    assert export.main([f"--workdir={run}", f"--out={exported}"]) == 0
    shutil.copy(file, moved)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
    paths = map(str, (exported, run, file, moved))
    lines = finish(start([sys.executable, "-c", PROGRAM, *paths])).splitlines()
    assert len(lines) == 2
    for line, problem in zip(lines, ("has changed", "is not there"), strict=True):
        assert line.startswith(f"error: {exported} needs {file}, which") and problem in line
    shutil.copy(moved, run.parent / "mine.py")
    images = np.zeros((2, 8, 8), np.uint8)
    assert len(wj.load(run).predict(images, top=1)) == 2


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = missing", "line 1: NameError: name 'missing' is not defined"),
        (None, "there is no Python file"),
    ],
)
def test_a_file_that_cannot_be_imported(
    code: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
):
    file = tmp_path / "broken.py"
    if code:
        file.write_text(code)
    flags = [f"--import={file}", "--config=configs/digits.py", f"--workdir={tmp_path / 'run'}"]
    assert main(["main", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --import={file}: ") and message in line


def test_a_field_without_a_default_must_be_given(run: Path, monkeypatch: pytest.MonkeyPatch):
    assert {"cosine", "even"} <= ROUTERS.keys() | LOSSES.keys()

    class Sized(ROUTERS["cosine"], kw_only=True):
        width: int

    monkeypatch.setitem(ROUTERS, "sized", Sized)
    layer = MoeLayer(
        mlp_dim=4,
        num_experts=2,
        num_selected_experts=1,
        capacity_factor=1.2,
        capacity_factor_eval=2.0,
        examples_per_group=2,
        router={"name": "sized"},
    )
    with pytest.raises(BadInputError, match=r"config\.model\.moe\.router\.width is missing"):
        init(layer, jnp.ones((2, 3, 5)))
