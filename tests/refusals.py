"""Commands and functions that refuse what they are given; commands that answer."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from widenet_jax.errors import BadInputError


def refused(capsys: pytest.CaptureFixture, main: Callable, *arguments: object) -> str:
    """Runs a command, which must exit with 2 and print nothing on stdout; returns its one line."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1, err
    return err


def refuses(message: str, function: Callable, *arguments: object, **named: object) -> None:
    """Calls a function, which must raise BadInputError with one line that matches `message`."""
    with pytest.raises(BadInputError, match=message) as caught:
        function(*arguments, **named)
    assert "\n" not in str(caught.value)


def answered(capsys: pytest.CaptureFixture, main: Callable, *arguments: object) -> Any:
    """Runs a command, which must succeed; returns the JSON that it prints."""
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)
