"""Runs gcloud, sky, xpk and kubectl: prints every command and reports errors in one line."""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

from widenet_jax.errors import BadInputError, RunFailedError

LAUNCHER = "widenet_jax.cli.launch_tpu"  # scripts/launch_tpu.py, which no wheel has
INSTALL = {
    "gcloud": "install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install), then "
    "`gcloud auth login`",
    "sky": "pip install 'skypilot[gcp]', then `sky check gcp`",
    "xpk": "pip install xpk",
    "kubectl": "gcloud components install kubectl",
    **dict.fromkeys(("ssh-add", "ssh-keygen"), "install OpenSSH, which gcloud needs, too"),
}
SSH_KEY = "~/.ssh/google_compute_engine"  # the key that gcloud uses, and creates where it is absent
NOT_FOUND = re.compile(r"NOT_FOUND|was not found|not found", re.IGNORECASE)
# What gcloud says of its connections to the workers, around what the workers say.
ABOUT_CONNECTIONS = re.compile(
    r"#####|SSH:|SCP:|Retrying:|Using (ssh|scp) batch|Failed to execute command on multiple"
)
NAMES_ERROR = re.compile(r"ERROR|\berror:|\bfatal:|×")  # gcloud, pip, git and uv
LAST_LINES = 20  # of a failed command's stderr, which are printed before the one line
# Pattern in a tool's message -> exception with advice; the first match counts.
CAUSES = {
    r"(attribute|property) \[project\]": BadInputError(
        "no project; give --project=ID, or run `gcloud config set project ID`"
    ),
    r"not present in the SSH agent": BadInputError(
        "gcloud reaches several workers with a key in ssh-agent, which does not hold it; run "
        f"`ssh-add {SSH_KEY}`"
    ),
    r"no more capacity|stockout|ZONE_RESOURCE_POOL_EXHAUSTED|enough resources": RunFailedError(
        "no free {tpu} in {zone}; --backend=queued-resource waits for one"
    ),
    r"quota|RESOURCE_EXHAUSTED": RunFailedError(
        "quota for {tpu} in {zone} is used up or was never granted; ask for more at "
        "https://console.cloud.google.com/iam-admin/quotas, or name another zone or size"
    ),
    r"(unknown|invalid|unsupported|bad).{0,20}(zone|location)|(zone|location)\b.{0,80}"
    r"(not found|invalid|unknown|does not exist|doesn't exist)": BadInputError(
        "--zone={zone} does not offer {tpu}; `gcloud compute tpus accelerator-types list "
        "--zone=ZONE` lists what a zone offers"
    ),
    r"active account|UNAUTHENTICATED|reauthenticat|auth login": BadInputError(
        "gcloud is not logged in; run `gcloud auth login`"
    ),
    r"PERMISSION_DENIED|does not have permission": BadInputError(
        "permission denied; check --project, and that the Cloud TPU API is enabled there"
    ),
}


class Tools:
    """Runs external commands.

    Args:
      tpu: the TPU's name, for messages.
      zone: the zone, for messages; "" where the backend finds one.
      dry: print the commands, run none.
    """

    def __init__(self, tpu: str, zone: str, *, dry: bool = False):
        self.tpu, self.zone, self.dry = tpu, zone or "any zone", dry

    def run(self, command: Sequence[str], *, dry_answer: str = "") -> str:
        """Runs a command and returns what it printed; `dry_answer` on a dry run.

        If the command fails, prints the end of its stderr: of several hosts each may have failed.

        Raises:
          BadInputError: the program is missing, or refused the user's input.
          RunFailedError: the command failed.
        """
        found = self.attempt(command, dry_answer=dry_answer)
        if found.returncode:
            lines = found.stderr.splitlines()
            if len(lines) > 1:  # a single one is part of the error
                print(*lines[-LAST_LINES:], sep="\n", file=sys.stderr, flush=True)
            raise self.cause(command, found.stderr)
        return found.stdout.strip()

    def attempt(
        self, command: Sequence[str], *, dry_answer: str = "", captured: bool = True
    ) -> subprocess.CompletedProcess:
        """Runs a command that may fail and returns the completed process.

        Prints the command: on stdout in a dry run, whose output it is, else on stderr.

        Raises:
          BadInputError: the program is missing.
        """
        print(f"$ {shlex.join(command)}", file=sys.stdout if self.dry else sys.stderr, flush=True)
        if self.dry:
            return subprocess.CompletedProcess(command, 0, dry_answer, "")
        pipe = subprocess.PIPE if captured else None
        options = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
        options |= {"text": True, "errors": "replace"}
        try:
            process = subprocess.Popen(list(command), **options)
        except FileNotFoundError:
            tool = command[0]
            raise BadInputError(f"{tool} was not found on PATH: {INSTALL[tool]}") from None
        with process:
            try:
                out, err = process.communicate()
            except BaseException:
                # Not killed, as by subprocess.run: gcloud passes SIGTERM on to its ssh, which
                # would otherwise stay and print the log of the run on and on.
                process.terminate()
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def stream(self, command: Sequence[str]) -> None:
        """Runs a command whose output goes straight to the terminal; ignores its exit code."""
        self.attempt(command, captured=False)

    def cause(self, command: Sequence[str], message: str) -> Exception:
        """Returns an exception with the tool's message in one line, and advice where known."""
        said = one_line(message) or "no message"
        if known := known_cause(message):
            advice = str(known).format(tpu=self.tpu, zone=self.zone)
            return type(known)(f"{advice} ({said})")
        return RunFailedError(f"{shlex.join(command[:5])} ...: {said}")


def known_cause(message: str) -> Exception | None:
    """Returns the advice for a tool's message; None if its reason is none of CAUSES."""
    for pattern, known in CAUSES.items():
        if re.search(pattern, message, re.IGNORECASE | re.DOTALL):
            return known
    return None


def one_line(message: str) -> str:
    """Returns the part of a tool's stderr that names the error, in one line."""
    every = [line.strip() for line in message.splitlines() if line.strip()]
    lines = [line for line in every if not ABOUT_CONNECTIONS.match(line)] or every
    last = max(0, len(lines) - 1)
    start = next((i for i, line in enumerate(lines) if NAMES_ERROR.search(line)), last)
    text = " ".join(lines[start:])
    return text if len(text) <= 300 else f"{text[:300]}..."
