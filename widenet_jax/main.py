"""The training command: `python -m widenet_jax.main --config=configs/X.py[:VARIANT] --workdir=DIR`.

Reads the flags, loads the config, calls `train.run` and prints its result. Exit codes: 0 done; 2 a
mistake of the user, in one line; 3 the run failed; 143 stopped by SIGTERM or --max_seconds; 130
stopped by Ctrl-C, also with everything saved. JAX is imported after the flags have been read, so
that a mistake is answered at once; or with them, where they take the model of public weights.
"""

import argparse
import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from widenet_jax.config import parser
from widenet_jax.config.fields import described, task_of, without_effect
from widenet_jax.config.files import load_config, stored_config
from widenet_jax.config.imports import remember
from widenet_jax.config.machine import keep_compiled
from widenet_jax.errors import (
    BadInputError,
    RunFailedError,
    StoppedError,
    UnknownNameError,
    check_range,
    first_line,
)
from widenet_jax.files import absolute, without_nan
from widenet_jax.inference.pretrained_config import config_file, set_fields
from widenet_jax.nn.stack_settings import check_model
from widenet_jax.run.stopping import Stop, end_process, say

EXAMPLE = "python -m widenet_jax.main --config=configs/digits.py --workdir=runs/digits"
JOIN_SECONDS = 300.0  # for all hosts to start
LATER_SECONDS = 60
GOODBYE_SECONDS = 10.0
OF_TRAINING = {  # flags, and what is told where another mode has them
    "profile": "traces training steps; --mode={} has none",
    "extend": "makes training longer; --mode={} does not train",
}
USAGE = f"""Trains or evaluates what a config describes. Run the same command again to resume.

  {EXAMPLE}

Any field of the config can be set, as in --config.optimizer.learning_rate=0.01.
"""


def flag_parser() -> parser.Parser:
    """Returns the parser of every flag but the config's fields, which the config file defines."""
    flags = parser.Parser(USAGE)
    add = flags.add_argument
    add("--config", metavar="FILE[:VARIANT]", help="as configs/imagenet.py:widenet_b")
    parser.add_import_flag(flags)
    add("--workdir", metavar="DIR", help="of checkpoints, metrics and results; may be gs://")
    modes = {"choices": ["train", "eval", "replay"], "default": "train"}
    add("--mode", **modes, help="replay repeats the step whose loss or gradient was not finite")
    add("--extend", action="store_true", help="accept a longer config.duration, or other examples")
    add("--max_seconds", type=parser.seconds, metavar="S", help="then save and stop, as by SIGTERM")
    add("--print_config", action="store_true", help="only print every field and its meaning")
    text = "write a trace of STEPS training steps to WORKDIR/profile, for XProf and Perfetto"
    add("--profile", type=parser.positive, metavar="STEPS", help=text)
    add("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    add("--distributed", action="store_true", help="several hosts; all that a TPU pod needs")
    add("--coordinator", metavar="HOST:PORT", help="of process 0")
    add("--num_processes", type=parser.positive, metavar="N", help="how many processes there are")
    add("--process_id", type=parser.not_negative, metavar="I", help="of this process, from 0")
    return flags


def parse_flags(argv: Sequence[str]) -> tuple[argparse.Namespace, ConfigDict]:
    """Returns the flags, and the config with the fields that `--config.FIELD=VALUE` set in it.

    Args:
      argv: the program's name, then its flags.

    Raises:
      BadInputError: an unknown flag, config file, variant or field, a value of the wrong type, or
        no pretrained model where the config asks for one.
    """
    several = {"--distributed", "--coordinator"} & {word.partition("=")[0] for word in argv}
    if not several:  # of several hosts only the first one writes
        keep_compiled(os.environ)  # before a file of --import or a config imports JAX
    own = flag_parser().read(argv[1:])
    for flag, why in OF_TRAINING.items():
        if getattr(own, flag) and own.mode != "train":
            raise BadInputError(f"--{flag} {why.format(own.mode)}")
    if own.workdir and not own.print_config:
        absolute(own.workdir)  # refuses a place that it cannot reach
    stored = not own.config and (own.mode != "train" or (own.print_config and own.workdir))
    needed = ("workdir",) if stored else ("config", "workdir")
    for name in needed[:1] if own.print_config else needed:
        if not getattr(own, name):
            raise BadInputError(f"--{name} is missing, as in {EXAMPLE}")
    config = stored_config(own.workdir) if stored else load_config(own.config)
    remember(config, own.imports)
    config = set_fields(config, own.fields, workdir=own.workdir)
    for line in without_effect(config, own.fields):
        say(f"note: {line}")
    return own, config


def print_fields(config: ConfigDict, *, as_json: bool) -> int:
    """Prints every field of a config for people, or as JSON; returns the exit code."""
    from widenet_jax.run.tables import text_table

    fields = described(config)
    if as_json:
        print(json.dumps({"fields": [field._asdict() for field in fields]}))
    else:
        print(text_table([(field.name, field.text, *field[2:]) for field in fields]))
    return 0


def report(result: dict[str, Any], workdir: str) -> str:
    """Returns the result as a table for people."""
    from widenet_jax.run.tables import routing_rows, text_table  # training needs none

    if result["mode"] == "replay":
        return report_replay(result)
    rows = [
        *metric_rows(result),
        ("parameters, unique", f"{result['params']:,}"),
        ("parameters, unrolled", f"{result['params_unrolled']:,}"),
    ]
    if "best_checkpoint_step" in result:
        best = result[f"best_checkpoint_{result['primary_metric']['name']}"]
        step = result["best_checkpoint_step"]
        rows.append(("best checkpoint", f"{best:.4f} after step {step:,}"))
    rows += routing_rows(result)
    if result["mode"] == "train":
        rows.append(("metrics", f"{workdir}/metrics.jsonl"))
        rows.append(("learning curve", f"{workdir}/learning_curve.png"))
    return text_table(rows)


def metric_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns (name, value) of every metric `test_NAME` in the result, the primary metric first.

    "test" is replaced by the split's own name. How many examples were evaluated (`test_UNIT`)
    stands beside the primary metric.
    """
    from widenet_jax.run.tables import beside, number, primary_text

    first, count = (f"test_{name}" for name in (result["primary_metric"]["name"], result["unit"]))
    names = [name for name in result if name.startswith("test_") and name != count]
    rows = []
    for name in sorted(names, key=lambda name: name != first):
        metric = name.removeprefix("test_")
        text = primary_text(result) if name == first else number(result[name])
        title = f"{result['split']} {metric.replace('_', ' ')}"
        rows.append((title, text + beside(metric, result)))
    return rows


def report_replay(result: dict[str, Any]) -> str:
    """Returns what was not finite in the repeated step, and its batch."""
    lines = ["step {step:,}: loss {loss}, gradient norm {gradient_norm}".format(**result)]
    lines.append("first module whose output is not finite: {first_module}".format(**result))
    lists = {f"{kind} that are not finite": names for kind, names in result["not_finite"].items()}
    for title, names in (lists | {"the batch": result["batch"]}).items():
        lines += [f"{title}:", *(f"  {name}" for name in names or ["none"])]
    return "\n".join(lines)


def join_hosts(own: argparse.Namespace, stop: Stop) -> None:
    """Joins the other processes, if --distributed or its details ask for it.

    Ends this process with exit code 2 if not all have joined after JOIN_SECONDS.

    Raises:
      BadInputError: the details are missing, or JAX would fail on them with a traceback.
    """
    details = {name: getattr(own, name) for name in ("coordinator", "num_processes", "process_id")}
    named = [name for name, value in details.items() if value is not None]
    if not named and not own.distributed:
        return
    if named and len(named) < len(details):
        missing = ", ".join(f"--{name}" for name in details if name not in named)
        raise BadInputError(f"--{named[0]} also needs {missing}; on a TPU pod give none of them")
    if named:
        host, _, port = own.coordinator.rpartition(":")
        if not host or not (port.isdecimal() and 0 < int(port) < 65536):
            raise BadInputError(
                f"--coordinator={own.coordinator} must be HOST:PORT, as in 10.0.0.1:8476"
            )
        check_range("--process_id", own.process_id, 0, own.num_processes - 1)
    import jax

    # JAX aborts the process with a stack trace when its own timeout is over, so this one is first.
    where = "host, and check --coordinator" if named else "worker of the TPU pod"
    late = f"error: --distributed: not all processes joined within {JOIN_SECONDS:g} s; "
    late += f"start the same command on every {where}"
    timer = threading.Timer(JOIN_SECONDS, end_process, (late, 2))
    timer.daemon = True
    timer.start()
    try:
        limit = int(JOIN_SECONDS) + LATER_SECONDS
        jax.distributed.initialize(*details.values(), initialization_timeout=limit)
    except (ValueError, RuntimeError) as error:
        raise BadInputError(
            f"--distributed: {' '.join(str(error).split())}; off a TPU pod add "
            "--coordinator=HOST0:PORT --num_processes=N --process_id=I"
        ) from None
    finally:
        timer.cancel()
    stop.keep_jax_handler()


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit code."""
    stop = Stop()
    stop.listen()
    try:
        own, config = parse_flags(argv)
        if own.print_config:
            return print_fields(config, as_json=own.json)
        if own.max_seconds is not None:
            stop.after(own.max_seconds)
        alone = not (own.distributed or own.coordinator)
        if alone:  # others would wait for a host that ends before it has joined them
            check_model(config.model, task_of(config), begun=config_file(own.workdir).exists)
        logging.set_verbosity(logging.FATAL)  # Orbax logs tracebacks of errors reported below
        join_hosts(own, stop)
        import jax  # takes seconds

        from widenet_jax import train
        from widenet_jax.run.workdir import missing_imports

        try:
            hosts = jax.process_count()  # opens the devices
        except (RuntimeError, AssertionError) as error:  # the latter: a platform that is not there
            chosen = os.environ.get("JAX_PLATFORMS", "")
            raise BadInputError(
                f"JAX cannot open its devices, JAX_PLATFORMS={chosen!r}: {first_line(error)}; "
                "install what they need (GPUs: pip install -e '.[cuda13]'), or unset JAX_PLATFORMS"
            ) from error
        stop.share(hosts=hosts)
        how = {"mode": own.mode, "extend": own.extend, "profile": own.profile}
        try:
            result = train.run(config, own.workdir, stop=stop, **how)
        except UnknownNameError as error:
            raise BadInputError(f"{error}{missing_imports(own.workdir, config)}") from None
    except BadInputError as error:
        return end(f"error: {error}", 2)
    except RunFailedError as error:
        return end(f"failed: {error}", 3)
    except StoppedError as error:
        leave_hosts()
        end_process(f"stopped: {error}", stop.exit_code)  # readers may hang: run no destructors
    finally:
        stop.close()
    print(json.dumps(without_nan(result)) if own.json else report(result, own.workdir), flush=True)
    return 0


def end(line: str, code: int) -> int:
    """Prints why the run ends, waits for the devices and returns the exit code.

    One of several hosts ends at once instead: its devices may be waiting for another host in the
    middle of a step.
    """
    if leave_hosts():
        end_process(line, code)
    say(line)
    if jax := sys.modules.get("jax"):
        # Initial parameters or a step may still be computed, since JAX dispatches asynchronously.
        # Python's exit handlers should find idle devices. `line` has said why a computation fails,
        # or that there are no devices.
        with contextlib.suppress(RuntimeError, AssertionError):
            jax.block_until_ready(jax.live_arrays())
    return code


def leave_hosts() -> bool:
    """Disconnects from the other hosts; returns whether there are any.

    Hosts that all end here do so together. A host that does not answer within GOODBYE_SECONDS is
    left behind.
    """
    jax = sys.modules.get("jax")
    if not (jax and jax.distributed.is_initialized()):
        return False
    goodbye = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    goodbye.start()
    goodbye.join(GOODBYE_SECONDS)
    return True


def command() -> int:
    """Runs this process's command line; returns the exit code."""
    return parser.exit_code_of(partial(main, sys.argv))


if __name__ == "__main__":
    sys.exit(command())
