"""The rows of a schedule as the compiler writes them."""

from widenet_jax.ops.plan.schedule import Schedule, count_rows

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
    """Before the loop 2 rows, in it 5, of which 2 are stalls, and 2 behind it."""
    assert count_rows(ROWS.splitlines()) == Schedule(once=4, per_trip=5)
