"""Every command answers --help and mistakes in its flags before it imports anything slow."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each takes from a tenth of a second to several seconds to import.
SLOW = ("jax", "flax", "optax", "orbax", "grain", "tensorflow_datasets", "tensorflow", "torch")
SLOW += ("cv2", "matplotlib", "scipy", "sklearn", "tokenizers", "pyarrow", "optuna", "array_record")
DIGITS = "--config=configs/digits.py"
# Mistakes that take more than the parser to find.
MISTAKES = {
    "benchmark": [["train_step", "--config=configs/digits.py:vit_z"], ["dispatch", "--dtype=int"]],
    "launch_tpu": [[DIGITS, "--config.lr=1", "--workdir=gs://b/w", "--tpu=v3-8", "--zone=z"]],
    "plan": [[DIGITS, "--topology=v9-8"], [DIGITS, "--config.lr=1"], ["--config=none.py"]],
    "prepare_data": [["preview", DIGITS, "--config.lr=1"], ["text", "x", "--out=y"]],
    "reproduce": [["table99"], ["fig3", "--launch=x"]],
    "sweep": [[DIGITS, "--search=tpe"], [DIGITS, "--sweep=lr=1"], [DIGITS, "--launch=x"]],
}
SUBCOMMANDS = {
    "benchmark": [
        "train_step",
        "checkpoint",
        "storage",
        "dispatch",
        "feed_forward",
        "input",
        "text",
    ],
    "prepare_data": ["check", "image_folder", "text", "stream", "tokenizer", "preview"],
}
PROGRAM = """
import contextlib, importlib, io, json, sys
lines, slow = json.loads(sys.argv[1])
answers = []
for name, words in lines:
    command = importlib.import_module(f"widenet_jax.cli.{name}")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = command.main(words)
    answers.append([name, words, code, [module for module in slow if module in sys.modules]])
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers() -> list[tuple[str, list[str], int, list[str]]]:
    """The exit code of each command line and the slow modules loaded after it, in one process."""
    names = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
    lines = [(name, words) for name in names for words in (["--help"], ["--no_such_flag=1"], [])]
    lines += [(name, [one, "--help"]) for name, of in SUBCOMMANDS.items() for one in of]
    lines += [(name, words) for name, mistakes in MISTAKES.items() for words in mistakes]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([lines, SLOW])],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_help_and_mistakes_are_answered_without_slow_imports(answers):
    for name, words, _, slow in answers:
        assert not slow, f"scripts/{name}.py {' '.join(words)} imports {slow}"


def test_their_exit_codes(answers):
    for name, words, code, _ in answers:
        assert code == (0 if "--help" in words else 2), (name, words)


def test_all_commands_are_here(answers):
    assert {name for name, *_ in answers} >= {"predict", "prepare_data", "reproduce", "sweep"}
    assert set(MISTAKES) | set(SUBCOMMANDS) <= {name for name, *_ in answers}
