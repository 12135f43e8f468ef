"""The command line: `python -m widenet_jax.main --config=configs/X.py[:arg] --workdir=DIR`.

Flags to a config to `train.run`; a user's mistake becomes one line and exit code 2, a failed run
exit code 3. JAX is imported only once the flags are understood, so that mistakes are answered at
once.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging
from ml_collections import config_flags

from widenet_jax.errors import BadInputError, RunFailedError

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A config: configs/digits.py, configs/imagenet.py:widenet_b, ..."
)
WORKDIR = flags.DEFINE_string("workdir", None, "Where everything of this run goes; may be gs://.")
MODE = flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train, or evaluate.")
JSON = flags.DEFINE_bool("json", False, "Print the result as one JSON object, and nothing else.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "Several hosts; on a TPU pod the three flags below are not needed."
)
COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0.")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many processes there are.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")

# How absl and ml_collections report a mistake on the command line or in a config file.
FLAG_ERRORS = (
    flags.Error,
    AttributeError,
    KeyError,
    OSError,
    TypeError,
    ValueError,
)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Flags into `flags.FLAGS`; a mistake becomes one line.

    Raises:
      BadInputError: an unknown flag, config file, field, option or a value of the wrong type.
    """
    try:
        rest = flags.FLAGS(list(argv), known_only=False)
    except BadInputError:
        raise
    except FLAG_ERRORS as error:
        text = " ".join(str(error).split())
        raise BadInputError(f"{text} (--help lists the flags)") from None
    if len(rest) > 1:
        raise BadInputError(f"not a flag: {rest[1]!r}; flags are written --name=value")
    for flag in (CONFIG, WORKDIR):
        if flag.value is None:
            raise BadInputError(f"--{flag.name} is missing, as in {EXAMPLE}")
    return rest


EXAMPLE = "python -m widenet_jax.main --config=configs/digits.py --workdir=runs/digits"


def report(result: dict[str, Any], workdir: str) -> str:
    """The result as a table for people."""
    rows = [
        ("test accuracy", f"{result['test_accuracy']:.2%} of {result['test_images']:,} images"),
        ("parameters, unique", f"{result['params']:,}"),
        ("parameters, unrolled", f"{result['params_unrolled']:,}"),
    ]
    if "drop_rate" in result:
        load = "  ".join(f"{share:.1%}" for share in result["expert_load"])
        rows += [("token drop rate", f"{result['drop_rate']:.2%}"), ("expert load", load)]
    if result["mode"] == "train":
        rows += [
            ("metrics", f"{workdir}/metrics.jsonl"),
            ("learning curve", f"{workdir}/learning_curve.png"),
        ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        parse_flags(argv)
        logging.set_verbosity(logging.ERROR)
        from widenet_jax import train  # imports JAX: seconds, so only now

        if DISTRIBUTED.value:
            import jax

            jax.distributed.initialize(COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value)
        result = train.run(CONFIG.value, WORKDIR.value, mode=MODE.value)
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailedError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 3
    print(json.dumps(result) if JSON.value else report(result, WORKDIR.value))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
