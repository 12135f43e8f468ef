"""Hosts that are about to do different things name the odd one."""

from pathlib import Path

import numpy as np
import pytest
from runs import commands_of_two, finish, start

from widenet_jax.agreement import check_agreement, code_sha256, disagreement


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ([[1, 2], [1, 2], [1, 2]], None),
        ([[1, 2], [1, 3], [1, 2]], "on seed: process 1 of 3 differs"),
        ([[1, 3], [1, 2], [1, 2]], "on seed: process 0 of 3 differs"),
        ([[1, 2], [1, 3]], "on seed: process 1 of 2 differs"),  # a tie: as process 0
        ([[4, 2], [5, 2], [5, 3], [4, 2], [4, 2]], "on depth: process 1, 2 of 5 differs"),
    ],
)
def test_the_odd_host_is_named(table: list, told: str | None):
    found = disagreement(["depth", "seed"], np.array(table, np.uint32))
    assert (found is None) if told is None else (told in found)


def test_one_host_agrees_with_itself():
    check_agreement({"depth": 3})


def test_the_code_has_one_hash():
    assert code_sha256() == code_sha256()
    assert len(code_sha256()) == 64


@pytest.mark.slow
def test_two_processes_with_different_configs(tmp_path: Path):
    first, second = commands_of_two(tmp_path / "run")
    for run in [start(first, devices=2), start([*second, "--config.seed=1"], devices=2)]:
        errors = finish(run, 2)
        assert "error: hosts do not agree on config.seed: process 1 of 2 differs" in errors
    assert not (tmp_path / "run").exists()
