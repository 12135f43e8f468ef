"""Errors that end a run early, each reported to the user in one line (see `main`)."""

import dataclasses
import difflib
import importlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from types import ModuleType
from typing import Any

STOPPED = 143  # exit code after SIGTERM or --max_seconds: what shells report after SIGTERM
INTERRUPTED = 130  # exit code after Ctrl-C: what shells report after SIGINT
NO_ANSWER = "gs:// does not answer"  # `NoAnswerError` begins so, and launchers look for it
# How similar a name must be to be suggested, by difflib: 1 is equal. Slips are above 0.8, half a
# name about 0.7 ("moe_b" of "vit_moe_b"); names below that share little but letters.
SIMILAR = 0.65
# Flags in a message; a whole command keeps its own.
FLAGS = re.compile(
    r"(?P<command>(python -m |scripts/)\S+( \w+)?( -\S*[^\s.])*)|--import=(?P<file>[^;]+)"
    r"|--(?P<flag>checkpoint|config|extend|workdir)\b"
)


class BadInputError(ValueError):
    """A mistake in the user's input. The message names it, its place and the fix. Exit code 2."""

    def __str__(self) -> str:
        """Returns the message in one line, also where it cites input with line breaks."""
        return super().__str__().replace("\n", "\\n")


class BadArgumentError(BadInputError):
    """A wrong argument of a function; a command names its flag instead (`of_flag`).

    Args:
      name: of the argument.
      value: the user's.
      problem: what is wrong with it, and the fix.
    """

    def __init__(self, name: str, value: object, problem: str):
        super().__init__(f"{name}={value!r} {problem}")
        self.name, self.value, self.problem = name, value, problem

    def of_flag(self, name: str) -> BadInputError:
        """Returns the same mistake as one in the flag of that name."""
        return BadInputError(f"--{name}={self.value!r} {self.problem}")


class UnknownNameError(BadInputError):
    """A config names a part or a field that there is not; a file with it may be missing."""


class BadRowsError(BadInputError):
    """Mistakes in rows of one file; the message is the first and how many there are.

    Args:
      problems: a line for each, which names its place.
    """

    def __init__(self, problems: Sequence[str]):
        count = f"{len(problems):,} mistakes in it; scripts/prepare_data.py check lists them"
        super().__init__(problems[0] + (f" ({count})" if len(problems) > 1 else ""))
        self.problems = problems


class BadExampleError(BadInputError):
    """An example that cannot be read; `data.on_bad_example=skip` continues without it."""


class RunFailedError(RuntimeError):
    """A failure of the run itself: a non-finite loss, no valid checkpoint. Exit code 3."""


class NoAnswerError(RunFailedError):
    """An object store did not answer for as long as requests are sent again."""


class NoAccessError(OSError):
    """An object store refuses a request: no such bucket, no login, no permission.

    Args:
      status: HTTP's.
      reason: the store's, and the fix.
      place: the bucket.
    """

    def __init__(self, status: int, reason: str, place: str):
        super().__init__(status, reason, place)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class StoppedError(RuntimeError):
    """A requested stop, after the state is saved. Exit code 143, or 130 after Ctrl-C."""


@contextmanager
def naming_arguments(**names: str) -> Iterator[None]:
    """Decorates a function: errors name its arguments where they would name a command's flags.

    Args:
      **names: what stands for a flag; others lose their dashes, and `--import` is `imports`.
    """

    def argument(found: re.Match) -> str:
        if found["file"]:
            return f"imports=[{found['file']!r}]"
        return found["command"] or names.get(found["flag"], found["flag"])

    try:
        yield
    except (BadInputError, RunFailedError) as error:
        error.args = (FLAGS.sub(argument, str(error)),)
        raise


def choose(table: Mapping[str, Any], name: str, *, field: str, flag: str = "--") -> Any:
    """Returns `table[name]`; raises UnknownNameError with the nearest valid name if it is unknown.

    Args:
      table: the valid choices.
      name: the user's choice.
      field: the config field it came from, for the message.
      flag: what stands before the field where a user sets it.
    """
    if name in table:
        return table[name]
    known, near = ", ".join(table), nearest(str(name), table)
    raise UnknownNameError(
        f"{field}={name!r} is unknown; choose one of {known} ({flag}{field}={near}?)"
    )


def nearest(name: str, known: Collection[str]) -> str:
    """Returns the known name that is most similar: an example of a valid one, at worst.

    Capitals count as small letters. "none" where no name is known.
    """
    return similar(name, known, 0.0) or "none"


def similar(name: str, known: Collection[str], least: float = SIMILAR) -> str | None:
    """Returns the known name that a misspelt one may mean; None where none is similar."""
    small = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), small, n=1, cutoff=least)
    return small[found[0]] if found else None


def known_names(name: str, known: Collection[str], *, within: str = "") -> str:
    """Returns what to tell of an unknown name: "did you mean NEAR? there are A, B, C".

    Args:
      name: the user's.
      known: the valid ones.
      within: what stands before each of these, such as a folder.
    """
    near = similar(name, known)
    meant = f"did you mean {within}{near}? " if near else ""
    return f"{meant}there are {', '.join(within + one for one in known)}"


def raise_first(problems: Iterable[str]) -> None:
    """Raises BadInputError for the first of some problems, if there is any."""
    for problem in problems:
        raise BadInputError(problem)


def refuse(place: object, *rows: tuple[object, str]) -> None:
    """Raises BadInputError, naming the place, for the first row (wrong, problem) that is wrong."""
    raise_first(f"{place}: {problem}" for wrong, problem in rows if wrong)


def refuse_value(value: object, *rows: tuple[object, str]) -> None:
    """Raises BadInputError, "VALUE PROBLEM", as `refuse`; VALUE as in "config.seed=3"."""
    raise_first(f"{value} {problem}" for wrong, problem in rows if wrong)


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raises BadArgumentError where an argument is no whole number, or below `least`."""
    if not isinstance(value, Integral) or value < least:
        raise BadArgumentError(name, value, f"must be a whole number of at least {least}")


def between(field: str, value: float, low: float, high: float) -> tuple[bool, str]:
    """Returns whether a number is out of its range, or NaN, and the line that tells so."""
    line = f"{field}={value} must be between {low:.10g} and {high:.10g}"
    return not low <= value <= high, line


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raises BadInputError, naming the field, unless low <= value <= high; NaN always raises."""
    raise_first(line for wrong, line in [between(field, value, low, high)] if wrong)


def check_group(batch_size: int, group: int, *, field: str) -> None:
    """Checks that groups of `group` consecutive examples fill a batch exactly.

    Args:
      batch_size: examples per batch.
      group: examples per group.
      field: the config field that `group` came from, for the message.

    Raises:
      BadInputError: they do not; the message names valid group and batch sizes.
    """
    if group >= 1 and batch_size % group == 0:
        return
    fits = [size for size in range(1, batch_size + 1) if batch_size % size == 0]
    near = sorted(sorted(fits, key=lambda size: abs(size - group))[:3])
    whole = -(-batch_size // max(group, 1)) * max(group, 1)
    raise BadInputError(
        f"{field}={group} must be at least 1 and divide the batch of {batch_size} examples; "
        f"{' or '.join(map(str, near))}, or a batch of {whole}, would do"
    )


def require(package: str, *, extra: str, what: str) -> ModuleType:
    """Imports an optional package that `what` needs; raises BadInputError if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise BadInputError(
            f"{what} needs the {package} package: pip install -e '.[{extra}]'"
        ) from None


def check_format(stored: Mapping[str, Any], known: int, *, place: object) -> None:
    """Raises BadInputError, naming the place, unless the stored format version is `known`."""
    version = stored.get("format_version")
    problem = (
        f"has format_version {version!r}, and this version of widenet_jax reads {known}; use the "
        "version that wrote it"
    )
    refuse_value(place, (version != known, problem))


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; of others' errors at most 200 characters."""
    limit = None if isinstance(error, NoAccessError | RunFailedError) else 200
    silent = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    text = str(error).strip() or silent
    return text.splitlines()[0][:limit]


@contextmanager
def refusing(what: object, *kinds: type[Exception], advice: str = "") -> Iterator[None]:
    """Raises BadInputError in place of errors of some kinds: "WHAT (`reason_of`)ADVICE".

    Such as f"{path}: cannot be opened", OSError. A BadInputError stays as it is, and so do errors
    of object stores.
    """
    try:
        yield
    except (BadInputError, NoAccessError, NoAnswerError):
        raise
    except kinds as error:
        raise BadInputError(f"{what} ({reason_of(error)}){advice}") from None


def reason_of(error: BaseException) -> str:
    """Returns the first line of an error; of a system's error its reason, without the file."""
    return getattr(error, "strerror", None) or first_line(error)


def check_fields(
    known: Collection[str], fields: Mapping[str, Any], *, section: str, advice: str = ""
) -> None:
    """Checks that a section of the config holds only known fields.

    Args:
      known: the valid fields.
      fields: the section.
      section: its name in the config, for the message.
      advice: ends the message.

    Raises:
      UnknownNameError: a field is unknown.
    """
    listed = ", ".join(known) or "no fields"
    for name in fields:
        if name not in known:
            near = similar(name, known)
            meant = f"did you mean {near}? " if near else ""
            raise UnknownNameError(
                f"{section}.{name} is unknown; {meant}{section} may have {listed}{advice}"
            )


def check_section(
    kind: type,
    section: Mapping[str, Any],
    *,
    place: str,
    decided: Collection[str],
    common: Collection[str] = (),
    advice: str = "",
) -> None:
    """Checks the names in a section of the config.

    Args:
      kind: the class that takes the fields, settings or a user's Linen module.
      section: the fields.
      place: the name of the section.
      decided: fields that no config sets.
      common: fields that it has from elsewhere where the section leaves them out.
      advice: ends the message about an unknown field.

    Raises:
      BadInputError: a field is unknown, or one without a default is missing.
    """
    if not dataclasses.is_dataclass(kind):
        raise BadInputError(f"{place}: {kind!r} is not the class of a Linen module")
    fields = {field.name: field for field in fields_of(kind)}
    own = [name for name in fields if name not in {"parent", "name", *decided}]
    check_fields(own, section, section=place, advice=advice)
    given, none = {*section, *common}, dataclasses.MISSING
    for name in own:
        if name not in given and fields[name].default is fields[name].default_factory is none:
            raise BadInputError(f"{place}.{name} is missing")


def fields_of(kind: type) -> Iterator[dataclasses.Field]:
    """Yields the fields of a class, and of the settings that a module of ours holds."""
    for field in dataclasses.fields(kind):
        if field.name in ("stack", "settings") and dataclasses.is_dataclass(field.type):
            yield from dataclasses.fields(field.type)
        else:
            yield field
