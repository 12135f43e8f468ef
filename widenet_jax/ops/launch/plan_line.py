"""The plan that a launch prints first: whether the run fits the TPU, and how long it takes."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from widenet_jax.errors import BadInputError

TIMEOUT_SECONDS = 1800  # compiling for a large TPU takes minutes

Plan = dict[str, Any]


def plan_of(
    config: str, tpu: str, flags: Sequence[str], *, timeout: float = TIMEOUT_SECONDS
) -> Plan | str:
    """Returns the JSON object of scripts/plan.py, or the reason why it printed none.

    Callers read `fits` (bool), `hours` and `core_days` (numbers; None if the run does not fit).
    """
    command = [sys.executable, "-m", "widenet_jax.cli.plan", f"--config={config}"]
    command += [f"--topology={tpu}", "--json", *flags]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"plan.py took more than {timeout:g} s"
    try:
        return json.loads(found.stdout)
    except ValueError:
        said = [line.strip() for line in found.stderr.splitlines() if line.strip()]
        reason = said[-1] if said else f"plan.py ended with exit code {found.returncode}"
        return reason.removeprefix("error: ").replace("--topology=", "--tpu=")  # our flag


def plan_line(plan: Plan | str) -> str:
    """Formats a plan: "plan: fits, 13 h, 81 core-days", or "no plan: REASON"."""
    if isinstance(plan, str):
        return f"no plan: {plan}"
    parts = ["fits" if plan["fits"] else "does not fit"]
    for key, unit in (("hours", "h"), ("core_days", "core-days")):
        if plan.get(key) is not None:
            parts.append(f"{plan[key]:.3g} {unit}")
    return f"plan: {', '.join(parts)}"


def check_plan(plan: Plan | str, tpu: str) -> None:
    """Raises BadInputError if there is no plan, or the run does not fit."""
    if isinstance(plan, str):
        raise BadInputError(f"{plan_line(plan)} (--skip_plan launches without one)")
    if not plan["fits"]:
        raise BadInputError(
            f"--tpu={tpu}: the run does not fit; scripts/plan.py prints what to change, and "
            "--skip_plan launches without this check"
        )
