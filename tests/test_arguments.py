"""Mistakes on the scripts' command lines are one line."""

import pytest

from widenet_jax.arguments import Parser, exit_code_of
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


def test_a_parser_never_guesses_and_leaves_the_configs_fields():
    made = Parser("what it does")
    made.add_argument("--workdir", required=True)
    options, rest = made.parse_known_args(["--workdir=a", "--config.b=1", "--work=2"])
    assert (options.workdir, rest) == ("a", ["--config.b=1", "--work=2"])
    assert made.names() == ["h", "help", "workdir"]
    with pytest.raises(BadInputError, match="--workdir"):
        made.parse_known_args([])
