"""The plan that a launch prints first."""

import pytest

from widenet_jax.errors import BadInputError
from widenet_jax.ops.launch.plan_line import check_plan, plan_line, plan_of


def test_format():
    plan = {"fits": True, "hours": 12.96, "core_days": 81.4, "more": 1}
    assert plan_line(plan) == "plan: fits, 13 h, 81.4 core-days"
    assert plan_line({"fits": False, "hours": None}) == "plan: does not fit"
    assert plan_line("libtpu is missing") == "no plan: libtpu is missing"


def test_a_run_without_a_plan_or_too_large_is_refused():
    check_plan({"fits": True}, "v3-8")
    with pytest.raises(BadInputError, match=r"no plan: libtpu is missing .*--skip_plan"):
        check_plan("libtpu is missing", "v3-8")
    with pytest.raises(BadInputError, match=r"--tpu=v3-8: the run does not fit"):
        check_plan({"fits": False}, "v3-8")


def test_the_reason_for_no_plan_is_one_line():
    said = plan_of("configs/no_such_file.py", "v3-8", [])
    assert isinstance(said, str)
    assert "no_such_file.py" in said and "\n" not in said
    assert plan_of("configs/digits.py", "v3-8", [], timeout=0.01) == "plan.py took more than 0.01 s"
