"""Mistakes on the scripts' command lines are one line."""

import argparse
from pathlib import Path

import pytest

from widenet_jax.cli.parser import Parser, exit_code_of, positive
from widenet_jax.errors import BadInputError, RunFailedError


def raising(error: Exception):
    def run() -> int:
        raise error

    return run


def test_exit_codes(capsys):
    assert exit_code_of(lambda: 143) == 143
    assert exit_code_of(raising(BadInputError("no"))) == 2
    assert exit_code_of(raising(RunFailedError("broke"))) == 3
    assert capsys.readouterr().err == "error: no\nfailed: broke\n"
    assert exit_code_of(lambda: None) == 0


def test_a_file_that_is_not_there_is_a_mistake_other_system_errors_are_not(tmp_path, capsys):
    missing = tmp_path / "missing"
    assert exit_code_of(lambda: Path(missing).read_text() and None) == 2
    assert capsys.readouterr().err == f"error: {missing}: No such file or directory\n"
    with pytest.raises(OSError, match="of no file"):
        exit_code_of(raising(OSError("of no file")))


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", ""])
def test_positive_numbers(text):
    assert positive("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
        positive(text)


def test_a_parser_never_guesses_and_leaves_the_configs_fields():
    made = Parser("what it does")
    made.add_argument("--workdir", required=True)
    options, rest = made.parse_known_args(["--workdir=a", "--config.b=1", "--work=2"])
    assert (options.workdir, rest) == ("a", ["--config.b=1", "--work=2"])
    assert made.names() == ["h", "help", "workdir"]
    with pytest.raises(BadInputError, match="--workdir"):
        made.parse_known_args([])
