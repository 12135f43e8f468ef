"""The rows of a schedule as the compiler writes them."""

import os
import tempfile
from pathlib import Path

import pytest

from widenet_jax.ops.plan.schedule import Schedule, count_rows, dump_directory

ROWS = """= control target key start
LH: loop header
LB: loop body
= control target key end

     0   :  { %v0 = vmov 0.0  ;;  %s17 = smov.u32 0 }
   0x1   :  {}
   0x2 LB: > { %s21 = sadd.s32 1, %s19 }
   0x3   :  { }
   0x4   : > { %p0 = scmp.ge.s32.totalorder %s21, 16 }
   0x5 LB: > > { %137 = sbr.rel (%p3) target bundleno = 1454 (0x5ae), region = 28 }
   0x6   :  {}
   0x7   :  { %s99 = smov.u32 0 }
   0x8   :  {}
"""


def test_empty_rows_belong_to_the_row_before():
    """2 rows before the loop; in it 5, 2 of them stalls and 2 in a loop within; 2 behind it."""
    assert count_rows(ROWS.splitlines()) == Schedule(once=4, per_trip=5, nested=2)


def test_what_a_killed_plan_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The directories of plans that run, which hold their lock, and new ones stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, new = (tmp_path / f"widenet_jax_schedules_{name}" for name in ("left", "new"))
    for directory in (left, new):
        directory.mkdir()
        (directory / "1-fusion-1-packed-bundles-post-ra.txt").touch()
    os.utime(left, (0, 0))
    running = dump_directory.__wrapped__()
    assert not left.exists() and new.exists()
    os.utime(running.name, (0, 0))
    with dump_directory.__wrapped__():
        assert Path(running.name).exists() and new.exists()
    running.cleanup()
