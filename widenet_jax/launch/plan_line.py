"""What a launch opens with: whether the run fits on that TPU, how long it takes, what it costs."""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from widenet_jax.launch.job import ROOT

TIMEOUT_SECONDS = 1800  # compiling for a large TPU takes minutes


def plan_of(config: str, tpu: str, flags: Sequence[str]) -> dict[str, Any] | str:
    """The JSON object of scripts/plan.py, or why there is none."""
    command = [sys.executable, str(ROOT / "scripts" / "plan.py"), f"--config={config}"]
    command += [f"--topology={tpu}", "--json", *flags]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"planning took more than {TIMEOUT_SECONDS} s"
    try:
        plan = json.loads(found.stdout)
    except ValueError:
        said = [line.strip() for line in found.stderr.splitlines() if line.strip()]
        return said[-1] if said else f"plan.py ended with exit code {found.returncode}"
    return plan if isinstance(plan, dict) else "plan.py gave no JSON object"


def plan_line(plan: dict[str, Any] | str) -> str:
    """ "plan: fits, 13 h, 81 core-days"."""
    if isinstance(plan, str):
        return f"no plan: {plan}"
    parts = ["fits" if plan["fits"] else "does not fit"]
    for key, unit, digits in (("hours", "h", 3), ("core_days", "core-days", 3)):
        if plan.get(key) is not None:
            parts.append(f"{plan[key]:.{digits}g} {unit}")
    return f"plan: {', '.join(parts)}"
