"""Files that register parts of their own, and those beside them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_runs import ROOT

from widenet_jax.config import imports
from widenet_jax.config.files import NO_EXPERIMENTS, load_config
from widenet_jax.errors import BadInputError
from widenet_jax.files import file_sha256
from widenet_jax.main import parse_flags
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.moe.layer import MoeLayer
from widenet_jax.nn.moe.losses import LOSSES
from widenet_jax.nn.moe.routers import ROUTERS

FILE = ROOT / "tests/extensions/cosine_router.py"
MINE = """
from widenet_jax.nn.moe.losses import LOSSES, z_loss
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.nn.moe.routers.softmax import SoftmaxRouter

class Mine(SoftmaxRouter):
    sharpness: float = 2.0

class Bare(SoftmaxRouter, kw_only=True):
    sharpness: float

ROUTERS["mine"], ROUTERS["bare"], LOSSES["mine"] = Mine, Bare, z_loss
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a file that adds routers and a loss, which are removed again."""
    for name in ("IMPORTED", "NAMED"):
        monkeypatch.setattr(imports, name, {})
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path / "mine.py"
    for table in (ROUTERS, LOSSES):
        table.pop("mine", None)
    ROUTERS.pop("bare", None)


def flags(mine: Path, config: str, *fields: str) -> list[str]:
    workdir = f"--workdir={mine.parent / 'run'}"
    return ["main", f"--import={mine}", f"--config=configs/{config}", workdir, *fields]


@pytest.mark.parametrize(
    "config", ["digits.py:widenet_tiny", "language_model.py:tiny,ffn=moe", "text_tiny.py:widenet_4"]
)
def test_a_router_and_a_loss_are_chosen_on_the_command_line(mine: Path, config: str):
    fields = ("moe.losses.mine=0.01", "moe.router.sharpness=3")
    fields = [f"--config.model.{field}" for field in fields]
    moe = parse_flags(flags(mine, f"{config},router=mine", *fields))[1].model.moe
    assert set(moe.router) == {"name", "expert_dropout", "bias_balancing", "sharpness"}
    assert moe.losses.mine == 0.01
    usual = parse_flags(flags(mine, config))[1].model.moe.losses  # of the router it replaces
    assert dict(moe.losses) == {**usual, "mine": 0.01}
    router = MoeLayer(**moe).build_router(parent=None, name=None)
    assert (type(router).__name__, router.sharpness) == ("Mine", 3.0)


@pytest.mark.parametrize(
    ("variant", "field", "message"),
    [
        ("widenet_tiny,router=mien", "seed=0", r"router='mien' is unknown; .*router=mine\?"),
        ("widenet_tiny,router=bare", "seed=0", "router=bare: give the field sharpness of its cla"),
        ("widenet_tiny", "model.moe.losses.mien=0.1", "losses.mien: the config has no such field"),
        ("widenet_tiny", "model.moe.losses.mine=x", "this field needs a number, such as 0.0"),
        ("vit_tiny", "model.moe.losses.mine=0.1", "config.model.moe is empty in this config"),
    ],
)
def test_parts_that_cannot_be_chosen(mine: Path, variant: str, field: str, message: str):
    with pytest.raises(BadInputError, match=message):
        parse_flags(flags(mine, f"digits.py:{variant}", f"--config.{field}"))


def test_this_project_s_own_experiments_do_not_count():
    found = imports.with_files_beside(ROOT / "configs/imagenet.py")
    assert list(found) == [ROOT / "configs/imagenet.py"]


def test_the_example_of_a_router_is_a_file_to_copy(mine: Path):
    """Two tokens on two experts' vectors, of which the second is colder."""
    shutil.copy(FILE, mine)
    from_elsewhere = {name.split(".")[0] for name in imports.imported_names(mine.read_text())}
    assert from_elsewhere == {"flax", "jax", "widenet_jax"}
    chosen = flags(mine, "digits.py:widenet_tiny,router=cosine", "--config.model.moe.losses.even=1")
    moe = parse_flags(chosen)[1].model.moe
    router, even = ROUTERS.pop("cosine"), LOSSES.pop("even")
    assert (moe.router.size, moe.losses.even) == (16, 1.0)
    axes, mask = np.eye(2, dtype=np.float32), np.ones((1, 2), bool)
    params = dict.fromkeys(("projection", "vectors"), axes)
    params["log_temperature"] = np.log(np.float32([1, 0.5]))
    module = router(2, 1, KernelInit(), size=2)
    routing = module.apply({"params": params}, axes[None], mask, key=None, train=True)
    assert routing.expert_index[0, :, 0].tolist() == [0, 1]
    assert np.allclose(routing.router_logits[0], [[4, 0], [0, 8]], atol=1e-4)
    assert even(routing, mask) == pytest.approx(1)  # before temperatures both are equally likely


def test_which_config_files_are_remembered():
    assert imports.registers_parts(FILE)
    experiments = {file.name for file in (ROOT / "configs").glob("*.py")} - NO_EXPERIMENTS
    for file in (ROOT / "configs" / name for name in experiments):
        assert not imports.registers_parts(file), file


def test_a_file_beside_a_config_file_counts_as_part_of_it(tmp_path: Path, monkeypatch):
    """my.py has its parts from helper.py, which has a number from numbers.py."""
    (tmp_path / "my.py").write_text(
        "from configs import digits, helper\ndef get_config():\n    return digits.get_config()\n"
    )
    helper = "from configs import numbers\nfrom widenet_jax.nn.moe.routers import ROUTERS\n"
    (tmp_path / "helper.py").write_text(helper)
    seen = []
    for number in (1, 2):
        (tmp_path / "numbers.py").write_text(f"NUMBER = {number}\n")
        config = load_config(str(tmp_path / "my.py"))
        (record,) = config.imports
        assert record.endswith(f" {tmp_path / 'my.py'}")
        seen.append(record)
    assert seen[0] != seen[1]
    # A run ends with the file that it began with, which may have been edited meanwhile.
    imports.import_remembered({"imports": [seen[0]]}, "runs/mine")
    monkeypatch.setattr(imports, "CONFIG_FILES", set())  # as in another process
    with pytest.raises(BadInputError, match="it, or a file that it imports, has changed since"):
        imports.import_remembered({"imports": [seen[0]]}, "runs/mine")
    older = f"sha256:{file_sha256(tmp_path / 'my.py')} {tmp_path / 'my.py'}"
    imports.import_remembered({"imports": [older]}, "runs/mine")  # of the file alone
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "my.py").write_text(
        "from configs import digits\ndef get_config():\n    from configs import broken\n"
    )
    with pytest.raises(BadInputError, match="SyntaxError"):
        load_config(str(tmp_path / "my.py"))
