"""Checks the ssh key with which gcloud reaches several workers, before a TPU costs money.

`gcloud compute tpus tpu-vm ssh` and `scp` connect to all workers at once, so that ssh cannot ask
for a passphrase. What gcloud (528.0.0) does with its key where there are several workers:

  ssh-agent holds the key                          connects
  ssh-agent holds keys, but not this one           refuses
  ssh-agent is empty or absent, no passphrase      warns and connects
  ssh-agent is empty or absent, a passphrase       stalls

It creates a key that is absent, without a passphrase since the launcher calls it with --quiet.
"""

from pathlib import Path

from widenet_jax.errors import BadInputError
from widenet_jax.ops.launch.tools import SSH_KEY, Tools


def check_ssh_key(tools: Tools) -> None:
    """Raises BadInputError where gcloud would refuse its key, or wait for a passphrase."""
    key = Path(SSH_KEY).expanduser()
    held = tools.attempt(["ssh-add", "-l"])
    why = f"gcloud reaches the workers of {tools.tpu} all at once, with the key {SSH_KEY}"
    if tools.dry:
        return
    if held.returncode == 0:
        if not key.exists():
            raise BadInputError(
                f"{why}, which does not exist, and refuses to while ssh-agent holds other keys "
                f"only; run `ssh-keygen -t rsa -f {SSH_KEY} && ssh-add {SSH_KEY}`"
            )
        # "3072 SHA256:... user@host (RSA)"
        words = tools.attempt(["ssh-keygen", "-lf", str(key)]).stdout.split()
        if len(words) > 1 and words[1] not in held.stdout:
            raise BadInputError(
                f"{why}, and refuses to while ssh-agent holds other keys only; run "
                f"`ssh-add {SSH_KEY}`"
            )
    elif key.exists() and tools.attempt(["ssh-keygen", "-y", "-P", "", "-f", str(key)]).returncode:
        raise BadInputError(
            f"{why}, and cannot ask for its passphrase; run `eval $(ssh-agent); ssh-add {SSH_KEY}`"
        )
