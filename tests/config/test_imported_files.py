"""Files that register parts of their own, and those beside them."""

from pathlib import Path

import pytest
from small_runs import ROOT

from widenet_jax.config import imports
from widenet_jax.config.files import NO_EXPERIMENTS, load_config
from widenet_jax.errors import BadInputError
from widenet_jax.files import file_sha256

FILE = ROOT / "tests/extensions/cosine_router.py"


def test_this_project_s_own_experiments_do_not_count():
    found = imports.with_files_beside(ROOT / "configs/imagenet.py")
    assert list(found) == [ROOT / "configs/imagenet.py"]


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
