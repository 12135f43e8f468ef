"""The plan that a launch prints first: whether the run fits the TPU, and how long it takes."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from widenet_jax.errors import BadInputError

Plan = dict[str, Any]


def plan_of(config: str, tpu: str, flags: Sequence[str]) -> Plan | str:
    """Returns the JSON object of scripts/plan.py, or the reason why it printed none.

    Callers read `fits` (bool), `hours` and `core_days` (numbers; None if the run does not fit).
    """
    command = [sys.executable, "-m", "widenet_jax.cli.plan", f"--config={config}"]
    command += [f"--topology={tpu}", "--json", *flags]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.stdout:
        return json.loads(found.stdout)
    reason = found.stderr.strip() or f"plan.py ended with exit code {found.returncode}"
    # The launcher has another name for the flag.
    return reason.splitlines()[-1].removeprefix("error: ").replace("--topology=", "--tpu=")


def plan_line(plan: Plan | str) -> str:
    """Formats a plan: "plan: fits, 13 h, 81 core-days", or "no plan: REASON"."""
    if isinstance(plan, str):
        return f"no plan: {plan}"
    if not plan["fits"]:
        return "plan: does not fit"
    return f"plan: fits, {plan['hours']:.3g} h, {plan['core_days']:.3g} core-days"


def check_plan(plan: Plan | str, tpu: str) -> None:
    """Raises BadInputError if there is no plan, or the run does not fit."""
    if isinstance(plan, str):
        raise BadInputError(f"{plan_line(plan)} (--skip_plan launches without one)")
    if not plan["fits"]:
        raise BadInputError(
            f"--tpu={tpu}: the run does not fit; scripts/plan.py prints what to change, and "
            "--skip_plan launches without this check"
        )
