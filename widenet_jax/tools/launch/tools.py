"""Running gcloud, sky, xpk and kubectl: every command is printed; an error is one line."""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

from widenet_jax.errors import BadInputError, RunFailedError

INSTALL = {
    "gcloud": "install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install), then "
    "`gcloud auth login`",
    "sky": "pip install 'skypilot[gcp]', then `sky check gcp`",
    "xpk": "pip install xpk",
    "kubectl": "gcloud components install kubectl",
}
NOT_FOUND = re.compile(r"NOT_FOUND|was not found|not found", re.IGNORECASE)
# What is in a tool's message -> whose doing it is, and what to do.
CAUSES = (
    (
        r"no more capacity|stockout|ZONE_RESOURCE_POOL_EXHAUSTED|enough resources",
        RunFailedError,
        "no free {tpu} in {zone} now; --backend=queued-resource waits for one",
    ),
    (
        r"quota|RESOURCE_EXHAUSTED",
        RunFailedError,
        "quota for {tpu} in {zone} is used up or was never granted; ask for more at "
        "https://console.cloud.google.com/iam-admin/quotas, or name another zone or size",
    ),
    (
        r"(unknown|invalid|unsupported|bad).{0,20}(zone|location)|(zone|location)\b.{0,80}"
        r"(not found|invalid|unknown|does not exist|doesn't exist)",
        BadInputError,
        "--zone={zone} is no zone that has {tpu}; `gcloud compute tpus accelerator-types list "
        "--zone=ZONE` says what a zone has",
    ),
    (
        r"active account|UNAUTHENTICATED|reauthenticat|auth login",
        BadInputError,
        "gcloud is not logged in; run `gcloud auth login`",
    ),
    (
        r"PERMISSION_DENIED|does not have permission",
        BadInputError,
        "not allowed in this project; check --project, and that the Cloud TPU API is enabled",
    ),
)


class Tools:
    """Args:
    tpu: for messages.
    zone: for messages.
    dry: print commands, run none.
    """

    def __init__(self, tpu: str, zone: str, *, dry: bool = False):
        self.tpu, self.zone, self.dry = tpu, zone, dry

    def run(self, command: Sequence[str], *, dry_answer: str = "") -> str:
        """What the command printed; `dry_answer` on a dry run.

        Raises:
          BadInputError, RunFailedError: it cannot be run, or failed.
        """
        found = self.attempt(command, dry_answer=dry_answer)
        if found.returncode:
            raise self.cause(command, found.stderr)
        return found.stdout.strip()

    def attempt(
        self, command: Sequence[str], *, dry_answer: str = ""
    ) -> subprocess.CompletedProcess:
        """The same for commands that may fail."""
        self.show(command)
        if self.dry:
            return subprocess.CompletedProcess(command, 0, dry_answer, "")
        try:
            return subprocess.run(
                list(command), stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
        except FileNotFoundError:
            raise self.missing(command[0]) from None

    def stream(self, command: Sequence[str]) -> bool:
        """Lets the command print; whether it succeeded."""
        self.show(command)
        if self.dry:
            return True
        try:
            return subprocess.run(list(command), stdin=subprocess.DEVNULL).returncode == 0
        except FileNotFoundError:
            raise self.missing(command[0]) from None

    def show(self, command: Sequence[str]) -> None:
        """On a dry run the commands are the output."""
        print(f"$ {shlex.join(command)}", file=sys.stdout if self.dry else sys.stderr, flush=True)

    def missing(self, tool: str) -> BadInputError:
        return BadInputError(f"{tool} was not found on PATH: {INSTALL[tool]}")

    def cause(self, command: Sequence[str], message: str) -> Exception:
        """The tool's message as one line, with what to do where that is known."""
        said = one_line(message) or "it said nothing"
        for pattern, kind, advice in CAUSES:
            if re.search(pattern, message, re.IGNORECASE | re.DOTALL):
                return kind(f"{advice.format(tpu=self.tpu, zone=self.zone)} ({said})")
        return RunFailedError(f"{shlex.join(command[:5])} ...: {said}")


def one_line(message: str) -> str:
    """The part of a tool's stderr that says what is wrong."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if "ERROR" in line), max(0, len(lines) - 1))
    text = " ".join(lines[start:])
    return text if len(text) <= 300 else f"{text[:300]}..."
