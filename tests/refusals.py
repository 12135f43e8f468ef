"""Commands that refuse what they are given."""

from collections.abc import Callable

import pytest


def refused(capsys: pytest.CaptureFixture, main: Callable, *arguments: object) -> str:
    """Runs a command, which must exit with 2 and print nothing on stdout; returns its one line."""
    assert main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1, err
    return err
