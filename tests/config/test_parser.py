"""The parser that all commands share: flags, fields, mistakes, exit codes."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from widenet_jax.config import parser as flags
from widenet_jax.config.parser import Parser, exit_code_of
from widenet_jax.errors import BadInputError, RunFailedError
from widenet_jax.files import write_json

ROOT = Path(__file__).parents[2]
COMMANDS = [path.stem for path in sorted((ROOT / "scripts").glob("*.py"))]


def raising(error: BaseException):
    def run() -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "code", "line"),
    [
        (lambda: 143, 143, ""),
        (lambda: None, 0, ""),
        (raising(BadInputError("no")), 2, "error: no\n"),
        (raising(RunFailedError("broke")), 3, "failed: broke\n"),
        (raising(KeyboardInterrupt()), 130, "interrupted\n"),
        (lambda: open("/missing"), 2, "error: /missing: No such file or directory\n"),  # noqa: SIM115
        (lambda: write_json(ROOT, {}), 2, f"error: {ROOT}: Is a directory\n"),
    ],
)
def test_exit_codes(run, code: int, line: str, capsys):
    assert exit_code_of(run) == code
    assert capsys.readouterr().err == line


def test_other_system_errors_are_no_mistakes():
    with pytest.raises(OSError, match="of no file"):
        exit_code_of(raising(OSError("of no file")))


def test_names_that_are_no_utf_8_are_printed(capsysbinary, monkeypatch):
    """As they are. A notebook's stdout, which has no encoding, is left alone."""
    assert exit_code_of(lambda: print(os.fsdecode(b"caf\xe9.jpg"))) == 0
    assert capsysbinary.readouterr().out == b"caf\xe9.jpg\n"
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert exit_code_of(lambda: print("a.jpg")) == 0
    assert sys.stdout.getvalue() == "a.jpg\n"


def test_numbers_that_are_not_finite_are_null(capsys):
    """JSON has none; Python's NaN and Infinity are errors to other readers."""
    found = {"mean": np.float64("nan"), "interval": (float("-inf"), 1.0)}
    flags.show(argparse.Namespace(json=True), {"over_seeds": [found]}, "")
    assert capsys.readouterr().out == '{"over_seeds": [{"mean": null, "interval": [null, 1.0]}]}\n'


def test_a_reader_who_has_left():
    """`plan.py --counts --json | head -1` closes the pipe early; this used to print a traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    program = ["scripts/sweep.py", "--config=configs/digits.py", "--sweep=seed=0,1", "--dry_run"]
    done = subprocess.run(
        [sys.executable, *program], stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    os.close(writing)
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr


@pytest.mark.parametrize(
    ("convert", "good", "bad", "message"),
    [
        (flags.positive, ["12"], "0 -1 1.5 many", "'{}' must be a whole number of at least 1"),
        (
            flags.not_negative,
            ["0", "12"],
            "-1 1.5 many",
            "'{}' must be a whole number of at least 0",
        ),
        (flags.seconds, ["0", "1.5"], "-1 nan inf 1e12 soon", "'{}' must be a number of seconds"),
        (
            flags.checkpoint,
            ["last", "best", "100"],
            "first -1 1.5",
            "'{}' must be last, best or a step",
        ),
    ],
)
def test_values_of_flags(convert, good: list[str], bad: str, message: str):
    assert [convert(text) for text in good] == [type(convert(text))(text) for text in good]
    for text in ("", *bad.split()):
        with pytest.raises(argparse.ArgumentTypeError, match=f"^{message.format(text)}$"):
            convert(text)


@pytest.fixture
def parser() -> Parser:
    made = Parser("what it does")
    made.add_argument("files", nargs="*")
    made.add_argument("--workdir", required=True)
    made.add_argument("--top", type=int)
    return made


def test_flags_fields_and_files_in_any_order(parser):
    options = parser.read(
        ["--config.b=1", "x", "--workdir=a", "--config.c", "2", "y", "--top", "3", "--config.d=-1"]
    )
    assert (options.workdir, options.files, options.top) == ("a", ["x", "y"], 3)
    assert options.fields == ["--config.b=1", "--config.c=2", "--config.d=-1"]


def test_the_home_directory_after_an_equals_sign(parser, monkeypatch):
    """Shells leave it: a sweep in --workdir=~/x wrote elsewhere than its runs."""
    monkeypatch.setenv("HOME", "/me")
    options = parser.read(["--workdir=~/x", "a=~/y", "--config.b=~/z"])
    assert (options.workdir, options.files) == ("/me/x", ["a=~/y"])
    assert options.fields == ["--config.b=~/z"]  # the run replaces it
    parser.add_argument("--text", metavar="TEXT")
    options = parser.read(["--workdir=a", "--text=~/x is gone"])
    assert options.text == "~/x is gone"  # and no place


@pytest.fixture
def commands() -> Parser:
    """Makes a parser of the commands `pack`, which takes fields, and `draw`, which takes none."""
    made = Parser()
    subparsers = made.add_subparsers(dest="command")
    subparsers.add_parser("draw", takes_fields=False)
    pack = subparsers.add_parser("pack")
    pack.add_argument("--out", metavar="DIR")
    pack.add_argument("--peer", metavar="FILE", default="")
    pack.add_argument("--text")
    return made


def test_flags_of_subcommands_are_known(commands: Parser):
    options = commands.read(["pack", "--out=x", "--config.b=1", "--text=", "--peer="])
    assert (options.command, options.out, options.fields) == ("pack", "x", ["--config.b=1"])


@pytest.mark.parametrize(
    ("made", "words", "told"),
    [
        ("parser", "", "the following arguments are required: --workdir (--help lists the flags)"),
        ("parser", "--work=2", "there is no flag --work; did you mean --workdir?"),
        ("parser", "--workdir=a --bogus", "there is no flag --bogus; --help lists the flags"),
        ("parser", "--workdir=a -x", "not a flag: '-x'; flags are written --name=value"),
        ("parser", "--workdir=a --config.b", "--config.b has no value; write --config.b=VALUE"),
        ("commands", "draw --config.b=1", "--config.b=1: this command sets no field of a config"),
        ("commands", "pack --oot=x", "there is no flag --oot; did you mean --out?"),
        # Of an unset shell variable; analyze.py wrote into the current directory.
        ("commands", "pack --out=", "--out is empty; name a file or directory, or leave it out"),
    ],
)
def test_mistakes(request: pytest.FixtureRequest, made: str, words: str, told: str):
    with pytest.raises(BadInputError, match=f"^{re.escape(told)}$"):
        request.getfixturevalue(made).read(words.split())


def test_a_command_without_subcommands_refuses_fields():
    with pytest.raises(BadInputError, match=r"--config.b=1: this command sets no field"):
        Parser(takes_fields=False).read(["--config.b=1"])


@pytest.mark.parametrize(
    "words",
    [
        "a.csv --out=a.csv",
        "b.csv a.csv --out=./a.csv",
        "--convert=a.csv --out=b",
        "--out=b --f=a.csv",
        "--convert=a.csv:vit_tiny --out=a.csv",  # a config file with its variant
    ],
)
def test_an_output_replaces_no_input(tmp_path, monkeypatch, words: str):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("the only copy")
    Path("b").symlink_to("a.csv")
    made = Parser()
    made.add_argument("files", nargs="*")
    made.add_argument("--convert")
    made.add_argument("--out")
    words = words.replace("--f=", "--config.data.path=").split()
    with pytest.raises(BadInputError, match=r"^--out=\S+ would replace an input; name another"):
        made.read(words)
    assert made.read(["a.csv", "--out=c.csv"]).out == "c.csv"
    assert made.read(["c.csv", "--out=a.csv"]).out == "a.csv"  # an earlier output


def test_no_variable_of_another_program_changes_random_numbers(monkeypatch):
    """Commands start JAX as it is by itself, whatever the user's environment says."""
    odd = {"ENABLE_X64": "1", "DEFAULT_PRNG_IMPL": "rbg", "THREEFRY_PARTITIONABLE": "0"}
    odd = {f"JAX_{name}": value for name, value in (odd | {"RANDOM_SEED_OFFSET": "7"}).items()}
    for name, value in odd.items():
        monkeypatch.setenv(name, value)
    found = {}
    assert exit_code_of(lambda: found.update(os.environ)) == 0
    theirs = [jax.config.values[name.lower()] for name in odd]  # of this process, JAX's defaults
    assert [found[name] for name in odd] == ["0", "threefry2x32", "1", "0"]
    assert theirs == [False, "threefry2x32", True, 0]


# Runs scripts, each with --bogus=1 and with --help, as programs that the process starts.
PROGRAM = """
import contextlib, io, json, runpy, sys
answers = {}
for name in sys.argv[1:]:
    for flag in ("--bogus=1", "--help"):
        sys.argv[1:] = [flag]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            with contextlib.redirect_stderr(io.StringIO()) as err:
                try:
                    runpy.run_path(f"scripts/{name}.py", run_name="__main__")
                except SystemExit as end:
                    answers[f"{name} {flag}"] = [end.code, out.getvalue(), err.getvalue()]
print(json.dumps(answers))
"""


def test_every_command_refuses_a_flag_it_has_not_and_has_help():
    """The program in scripts/ answers in one line."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS], capture_output=True, text=True, cwd=ROOT
    )
    answers = json.loads(done.stdout)
    assert len(answers) == 2 * len(COMMANDS)
    for name in COMMANDS:
        told = "error: there is no flag --bogus; --help lists the flags\n"
        assert answers[f"{name} --bogus=1"] == [2, "", told], name
        code, out, err = answers[f"{name} --help"]
        assert (code, err) == (0, "") and f"scripts/{name}.py" in out
