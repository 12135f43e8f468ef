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


BRANCHES = """
     0   :  { %s17 = smov.u32 0 }
   0x1 LB: > { %s20_s1 = sphi %s17, %s21_s2 /* iteration index, stage = 0 */ }
   0x2   : > { %s30_s3 = sld [smem:[#a]] /* iteration index, stage = 1 iter bound = 2 */ }
   0x3   : > { %s31_s4 = sadd.s32 4294967281, %s30_s3  ;;  %p40_p0 = scmp.ge.s32 %s20_s1, 1 }
   0x4   : > { %40 = sbr.rel (%p40_p0) target bundleno = 14 (0xe), region = 21 }
   0x5   : > { %p41_p1 = scmp.ne.s32.totalorder (!%p40_p0), %s30_s3, 0 }
   0x6   : > { %41 = sbr.rel (%p41_p1) target bundleno = 8 (0x8), region = 22 }
   0x7   :  {}
   0x8 PF: > { %p42_p2 = scmp.ne.s32.totalorder %s31_s4, 0 }
   0x9   : > { %42 = sbr.rel (%p42_p2) target bundleno = 13 (0xd), region = 23 }
   0xa   : > { %v1 = vpack.c.f32.bf16 %v2, %v3 }
   0xb   :  {}
   0xc   : > { %43 = vst [vmem:[%s22]] %v1 }
   0xd PF: > { %44 = sbr.rel (%p42_p2) target bundleno = 1 (0x1), region = 24 }
   0xe   :  {}
"""


def test_rows_that_run_at_one_index_of_the_loop():
    """Of 14 rows of the loop 1 runs in the first step along the third axis, 3 in the last of 16.

    A branch on the number of the trip skips none, and one that leads back is the loop's own.
    """
    found = count_rows(BRANCHES.splitlines())
    assert found == Schedule(once=1, per_trip=14, seldom=(0, 0, 1 + 3))


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
