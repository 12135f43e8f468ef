"""The command line: `python -m widenet_jax.main --config=configs/X.py[:arg] --workdir=DIR`.

Flags to a config to `train.run`; a user's mistake becomes one line and exit code 2, a failed run
exit code 3. JAX is imported only once the flags are understood, so that mistakes are answered at
once.
"""

import difflib
import importlib.util
import json
import math
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from widenet_jax.errors import BadInputError, RunFailedError, StoppedError
from widenet_jax.stopping import Stop, end_process

EXAMPLE = "python -m widenet_jax.main --config=configs/digits.py --workdir=runs/digits"
USAGE = f"""Trains or evaluates what a config describes; the same command again resumes.

  {EXAMPLE}

Any field of the config can be set, as in --config.optimizer.learning_rate=0.01.
"""
# What a field's value has to look like, by the type it has in the config file.
WANTED = {int: "a whole number", float: "a number", bool: "true or false"}
# Every other whole number is a count of at least 1.
MAY_BE_ZERO = (
    "seed",
    "data.num_workers",
    "augment.pad_pixels",
    "augment.randaugment_layers",
    "model.moe.routing_groups",
    "max_skipped_updates",
    "watchdog.dump_after_seconds",
    "watchdog.exit_after_seconds",
)


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
    stored = own.mode != "train" and not own.config
    for name in ("workdir",) if stored else ("config", "workdir"):
        if not own[name].value:
            raise BadInputError(f"--{name} is missing, as in {EXAMPLE}")
    config = stored_config(own.workdir) if stored else load_config(own.config)
    override(config, rest, own)
    return own, config


def override(config: ConfigDict, argv: Sequence[str], own: Iterable[str] = ()) -> None:
    """Sets every `--config.FIELD=VALUE` of `argv` (whose first word is the program) in `config`.

    Raises:
      BadInputError: a flag that is neither a field nor in `own`, or a value that cannot be.
    """
    check_field_names(argv, config, own)
    set_fields(argv, config)
    check_numbers(config)


def load_config(text: str) -> ConfigDict:
    """The config that `FILE.py` or `FILE.py:ARGUMENT` names.

    Raises:
      BadInputError: no such file, or one that makes no config.
    """
    path, colon, argument = text.partition(":")
    if not (path.endswith(".py") and Path(path).is_file()):
        there = ", ".join(sorted(str(p) for p in Path("configs").glob("*.py")))
        raise BadInputError(
            f"--config={text}: there is no Python file {path!r}"
            + (f"; there are {there}" if there else " (paths start at the current directory)")
        )
    try:
        config = import_file(path).get_config(*([argument] if colon else []))
    except BadInputError as error:
        raise BadInputError(f"--config={text}: {error}") from None
    except Exception as error:
        raise BadInputError(f"--config={text}: {place_of(error, path)}") from error
    if not isinstance(config, ConfigDict):
        raise BadInputError(f"--config={text}: its get_config() must return a ConfigDict")
    return config


def stored_config(workdir: str) -> ConfigDict:
    """The config that the run in `workdir` was started with, from its config.json.

    Raises:
      BadInputError: there is none.
    """
    from etils import epath

    try:
        return ConfigDict(json.loads((epath.Path(workdir) / "config.json").read_text()))
    except (OSError, ValueError):
        raise BadInputError(
            f"--workdir={workdir}: no run there; give the --workdir of a training run"
        ) from None


def import_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("config", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def place_of(error: Exception, path: str) -> str:
    """ "configs/mine.py, line 12: NameError: name 'x' is not defined"."""
    line = getattr(error, "lineno", None)
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).resolve() == Path(path).resolve():
            line = frame.lineno
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"{path}, line {line}: {what}" if line else what


def check_field_names(rest: Sequence[str], config: ConfigDict, own: Iterable[str]) -> None:
    """Raises BadInputError at the first flag that names no field of the config."""
    for argument in rest[1:]:
        if not re.match("--?[A-Za-z]", argument):
            continue
        name = argument.lstrip("-").partition("=")[0]
        field = re.fullmatch(r"(?:no)?config\.(.+)", name)
        if not field:
            near = difflib.get_close_matches(name, list(own), n=1)
            hint = f"did you mean --{near[0]}?" if near else "--help lists the flags"
            raise BadInputError(f"there is no flag --{name}; {hint}")
        check_field_name(field[1], config)


def check_field_name(field: str, config: ConfigDict) -> None:
    """Raises BadInputError unless `field` ("model.depth") is in the config and not None."""
    fields = dict(fields_of(config))
    for name, value in fields.items():
        if value is None and f"{field}.".startswith(f"{name}."):
            raise BadInputError(
                f"--config.{field}: config.{name} is empty in this config; set it in the config "
                "file, or choose a variant that has it"
            )
    if field not in fields:
        near = difflib.get_close_matches(field, fields, n=1, cutoff=0.0)[0]
        raise BadInputError(
            f"--config.{field}: the config has no such field; did you mean --config.{near}?"
        )


def fields_of(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("seed", 0), ("model", ...), ("model.depth", 6), ..."""
    for key, value in config.items():
        yield prefix + key, value
        if isinstance(value, ConfigDict):
            yield from fields_of(value, f"{prefix}{key}.")


def set_fields(rest: Sequence[str], config: ConfigDict) -> None:
    """Sets `--config.FIELD=VALUE` in `config`.

    Raises:
      BadInputError: a value of the wrong type, or an argument that is no flag.
    """
    fields = flags.FlagValues()
    fields.set_gnu_getopt(True)
    try:
        config_flags.DEFINE_config_dict("config", config, flag_values=fields, sys_argv=list(rest))
        positional = fields(list(rest))[1:]
    except flags.IllegalFlagValueError as error:
        raise BadInputError(wrong_value(str(error), config)) from None
    except flags.Error as error:
        raise BadInputError(" ".join(str(error).split())) from None
    if positional:
        raise BadInputError(f"not a flag: {positional[0]!r}; flags are written --name=value")


def wrong_value(message: str, config: ConfigDict) -> str:
    """absl's "flag --config.batch_size=abc: invalid literal ..." in words about the field."""
    field, value = re.match(r"flag --config\.([\w.]+)=(.*?): ", message, re.DOTALL).groups()
    current = dict(fields_of(config))[field]
    if isinstance(current, ConfigDict):
        return (
            f"--config.{field}={value}: this is a section; set one of its fields, as in "
            f"--config.{field}.{next(iter(current))}=..."
        )
    wanted = WANTED.get(type(current), type(current).__name__)
    return f"--config.{field}={value}: this field wants {wanted}, such as {current}"


def check_numbers(config: ConfigDict) -> None:
    """Raises BadInputError at a field that is nan or infinite, or a count that is too small."""
    for name, value in fields_of(config):
        if isinstance(value, float) and not 0 <= value < math.inf:
            raise BadInputError(f"--config.{name}={value} must be a finite number, 0 or more")
        least = 0 if name in MAY_BE_ZERO else 1
        if name == "seed" and not 0 <= value < 2**32:
            raise BadInputError(f"--config.seed={value} must be between 0 and {2**32 - 1}")
        if type(value) is int and value < least:
            raise BadInputError(f"--config.{name}={value} is too small; give at least {least}")


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
    if jax.process_count() > 1:
        stop.share()


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
        logging.set_verbosity(logging.ERROR)
        join_hosts(own, stop)
        from widenet_jax import train  # imports JAX: seconds, so only now

        result = train.run(config, own.workdir, mode=own.mode, stop=stop)
    except BadInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailedError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 3
    except StoppedError as error:
        return leave(error)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    finally:
        stop.close()
    print(json.dumps(result) if own.json else report(result, own.workdir))
    return 0


def leave(stopped: StoppedError) -> NoReturn:
    """Ends the process with exit code 143, without waiting for readers that may hang."""
    import jax

    if jax.process_count() > 1:
        jax.distributed.shutdown()  # hosts leave together: one that is missed is an error
    end_process(f"stopped: {stopped}")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
