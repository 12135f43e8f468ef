"""The command line: `python -m widenet_jax.main --config=configs/X.py[:arg] --workdir=DIR`.

Flags to a config to `train.run`; a user's mistake becomes one line and exit code 2, a failed run
exit code 3. JAX is imported only once the flags are understood, so that mistakes are answered at
once.
"""

import json
import sys
import threading
from collections.abc import Sequence
from typing import Any

from absl import flags, logging
from ml_collections import ConfigDict

from widenet_jax.config.files import check_flag_names, load_config, override, stored_config
from widenet_jax.errors import BadInputError, RunFailedError, StoppedError
from widenet_jax.run.stopping import EXIT_CODE, Stop, end_process, leave

EXAMPLE = "python -m widenet_jax.main --config=configs/digits.py --workdir=runs/digits"
GOODBYE_SECONDS = 10.0
INTERRUPTED = 130  # what shells report of a process that Ctrl-C ended
USAGE = f"""Trains or evaluates what a config describes; the same command again resumes.

  {EXAMPLE}

Any field of the config can be set, as in --config.optimizer.learning_rate=0.01.
"""


def define_flags() -> flags.FlagValues:
    """Every flag but the config's fields, which are known once its file is read."""
    own = flags.FlagValues()
    own.set_gnu_getopt(True)  # a field's value may stand apart: --config.seed 1 --workdir=DIR
    define = {"flag_values": own}
    flags.DEFINE_bool("help", False, "Show this.", short_name="h", **define)
    flags.DEFINE_string(
        "config", None, "A config: configs/digits.py, configs/imagenet.py:widenet_b, ...", **define
    )
    flags.DEFINE_string("workdir", None, "Where everything goes; may be gs://.", **define)
    modes = ["train", "eval", "replay"]
    text = "Train, evaluate, or work again on the batch whose numbers were not finite."
    flags.DEFINE_enum("mode", "train", modes, text, **define)
    flags.DEFINE_float(
        "max_seconds", None, "Save and stop after so long, as SIGTERM does.", 0.0, **define
    )
    flags.DEFINE_bool("json", False, "Print one JSON object, and nothing else.", **define)
    flags.DEFINE_bool(
        "distributed", False, "Several hosts; a TPU pod needs none of the next three.", **define
    )
    flags.DEFINE_string("coordinator", None, "host:port of process 0.", **define)
    flags.DEFINE_integer("num_processes", None, "How many processes there are.", **define)
    flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.", **define)
    return own


def parse_flags(argv: Sequence[str]) -> tuple[flags.FlagValues, ConfigDict | None]:
    """The flags, and the config with the fields that `--config.FIELD=VALUE` set in it.

    The config is None where only help is asked for.

    Raises:
      BadInputError: an unknown flag, config file, variant or field, or a value of the wrong type.
    """
    own = define_flags()
    try:
        rest = own(list(argv), known_only=True)
    except flags.Error as error:
        raise BadInputError(f"{error} (--help lists the flags)") from None
    if own.help:
        return own, None
    if own.max_seconds is not None and not own.max_seconds < threading.TIMEOUT_MAX:
        raise BadInputError(f"--max_seconds={own.max_seconds} must be a number of seconds")
    check_flag_names(rest, own)
    stored = own.mode != "train" and not own.config
    for name in ("workdir",) if stored else ("config", "workdir"):
        if not own[name].value:
            raise BadInputError(f"--{name} is missing, as in {EXAMPLE}")
    config = stored_config(own.workdir) if stored else load_config(own.config)
    override(config, rest, own)
    return own, config


def report(result: dict[str, Any], workdir: str) -> str:
    """The result as a table for people."""
    if result["mode"] == "replay":
        return report_replay(result)
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


def report_replay(result: dict[str, Any]) -> str:
    """What was not finite, and the batch it happened in."""
    listed = lambda names: "\n  ".join(names) or "none"  # noqa: E731
    return (
        f"step {result['step']:,}: loss {result['loss']}, gradient norm {result['gradient_norm']}\n"
        f"parameters whose gradient is not finite:\n  {listed(result['not_finite']['gradients'])}\n"
        f"images whose logits are not finite:\n  {listed(result['not_finite']['images'])}\n"
        f"the batch:\n  {listed(result['batch'])}"
    )


def join_hosts(own: flags.FlagValues, stop: Stop) -> None:
    """Makes this process one of several, where --distributed or its details ask for it.

    Raises:
      BadInputError: the details are missing or wrong, or the other processes do not come.
    """
    details = {"coordinator": own.coordinator, "num_processes": own.num_processes,
               "process_id": own.process_id}  # fmt: skip
    given = [name for name, value in details.items() if value is not None]
    if not given and not own.distributed:
        return
    if given and len(given) < len(details):
        missing = ", ".join(f"--{name}" for name in details if name not in given)
        raise BadInputError(f"--{given[0]} also needs {missing}; on a TPU pod give none of them")
    import jax

    try:
        jax.distributed.initialize(*details.values())
    except (ValueError, RuntimeError) as error:
        raise BadInputError(
            f"--distributed: {' '.join(str(error).split())}; off a TPU pod add "
            "--coordinator=HOST0:PORT --num_processes=N --process_id=I"
        ) from None
    stop.share(hosts=jax.process_count())


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    stop = Stop()
    try:
        own, config = parse_flags(argv)
        if config is None:
            print(USAGE + own.get_help())
            return 0
        stop.listen()
        if own.max_seconds is not None:
            stop.after(own.max_seconds)
        logging.set_verbosity(logging.FATAL)  # Orbax logs tracebacks of what we say in one line
        join_hosts(own, stop)
        from widenet_jax import train  # imports JAX: seconds, so only now

        result = train.run(config, own.workdir, mode=own.mode, stop=stop)
    except BadInputError as error:
        return end(f"error: {error}", 2)
    except RunFailedError as error:
        return end(f"failed: {error}", 3)
    except StoppedError as error:
        return end(f"stopped: {error}", EXIT_CODE)
    except KeyboardInterrupt:
        return end("interrupted: the same command goes on from the last checkpoint", INTERRUPTED)
    finally:
        stop.close()
    print(json.dumps(result) if own.json else report(result, own.workdir), flush=True)
    return 0


def end(line: str, code: int) -> int:
    """Says why, and returns the exit code.

    One of several hosts, or a run that was stopped, does not return: readers may hang, and other
    hosts may be waiting for this one in the middle of a step, which leaving in order would wait
    for in turn.
    """
    distributed = "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()
    if distributed:
        goodbye = threading.Thread(target=sys.modules["jax"].distributed.shutdown, daemon=True)
        goodbye.start()
        goodbye.join(GOODBYE_SECONDS)  # hosts that all end here do so together
    if distributed or code in (EXIT_CODE, INTERRUPTED):
        end_process(line, code)
    print(line, file=sys.stderr)
    return code


if __name__ == "__main__":
    if code := main(sys.argv):
        leave(code)
