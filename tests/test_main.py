"""The command line: mistakes are reported in one line, and programs can read the results.

`main` keeps no state between calls, so the tests run in one process.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from etils import epath
from refusals import refused
from small_runs import shared_experiment

from widenet_jax import train
from widenet_jax.config import imports
from widenet_jax.config.files import load_config
from widenet_jax.config.parser import exit_code_of
from widenet_jax.errors import BadInputError, NoAccessError, RunFailedError
from widenet_jax.main import main, parse_flags, report
from widenet_jax.run.failures import errors_in_one_line
from widenet_jax.run.stopping import Stop

ROOT = Path(__file__).parents[1]
DIGITS = "--config=configs/digits.py"
# Two steps, on eight devices.
SHORT = (
    "--config.duration=2 steps",
    "--config.optimizer.warmup=0 steps",
    "--config.batch_size=32",
    "--config.evaluation.batch_size=368",
    "--config.log_every_steps=1",
    "--config.tracking.tensorboard=false",
)
# A model that compiles fast.
SMALL_VIT = (
    "--config=configs/digits.py:vit_tiny",
    *SHORT,
    "--config.model.loop.core=((1, 1),)",
    "--config.model.embed_dim=16",
    "--config.model.patch_size=4",
)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def refusal(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    return refused(capsys, main, "main", *arguments)


# Mistakes that are reported before JAX is imported: flags, and part of the answer. The second
# list has --workdir=W and the digits.
ELSEWHERE = [
    ("", "--config is missing, as in python -m widenet_jax.main --config=configs/digits.py"),
    ("--config=configs/digits.py", "--workdir is missing, as in"),
    ("--config=configs/digits.py --wrkdir=W", "no flag --wrkdir; did you mean --workdir?"),
    ("--config=configs/nope.py --workdir=W", "no Python file 'configs/nope.py'; there are"),
    ("--config=configs/imagenet.py:widnet_b --workdir=W", "no model is named 'widnet_b'; did"),
    ("--config=configs/imagenet.py:vit_b,experts=x --workdir=W", "option experts='x' needs"),
    ("--config=configs/digits.py:vit_tiny --ffn=top_k", "--ffn; it is an option after the colon"),
    ("--config configs/language_model.py --key-heads 3", ":VARIANT,key_heads=..."),
    ("--config=configs/glue.py --ffn=top_k", "did you mean --config.model.ffn?"),
    *(
        (f"--config=configs/{name} --workdir=W --config.{field}", answer)
        for name, field, answer in (
            ("text_tiny.py", "data.max_length=4", "data.max_length=4 must be between 5 and"),
            ("text_tiny.py", "data.source=squad", "one of text, tiny_text (--config.data.source="),
            ("language_model.py", "task.name=span", "language_modeling and has no config.task.he"),
            ("squad.py:v1,model=bert", "task.name=masked_lm", "span and has no config.task.mask"),
        )
    ),
]
OF_A_RUN = [
    ("--config=configs/digits.py:vit_tiny --config.model.moe.num_experts=8", "is empty in this"),
    ("runs/x", "not a flag: 'runs/x'; flags are written --name=value"),
    ("--mode=eval --profile=3", "--profile traces training steps;"),
    ("--max_seconds=nan", "--max_seconds: 'nan' must be a number of seconds"),
    ("--process_id=1", "--process_id also needs --coordinator, --num_processes; on a TPU pod give"),
    ("--coordinator=HOST --num_processes=2 --process_id=1", "--coordinator=HOST must be HOST:PORT"),
    ("--coordinator=HOST:65536 --num_processes=2 --process_id=1", "=HOST:65536 must be HOST:PORT"),
    ("--coordinator=HOST:8476 --num_processes=0", "--num_processes: '0' must be a whole number of"),
    ("--coordinator=HOST:8476 --num_processes=2 --process_id=2", "process_id=2 must be between 0"),
    ("--config.lerning_rate=1", "did you mean --config.optimizer.learning_rate?"),
    ("--lr=1", "no flag --lr; did you mean --config.optimizer.learning"),
    ("--config.epochs=9", 'did you mean --config.duration="10 epochs"?'),
    ("--config.model.moe.num_expert=1", "did you mean --config.model.moe.num_experts?"),
    ("--config.batch_size=abc", "this field needs a whole number, such as 64"),
    ("--config.optimizer.learning_rate=fast", "this field needs a number, such as 0.003"),
    ("--config.augment.flip=up", "this field needs true or false, such as False"),
    ("--config.data=cifar10", "this is a section; set one of its fields, as in"),
    ("--config.batch_size", "--config.batch_size has no value; write --config.batch_size=VALUE"),
    ("--config.optimizer.learning_rate=nan", "learning_rate=nan must be between 0 and 1e+300"),
    ("--config.seed=-1", "--config.seed=-1 must be between 0 and 4294967295"),
    ("--config.data.max_bad_fraction=2", "max_bad_fraction=2.0 must be between 0 and 1"),
    ("--config.task.name=masked_lm", "of the task classification and has no config.task.mask_frac"),
]
EARLY = [(flags.split(), answer) for flags, answer in ELSEWHERE]
EARLY += [([DIGITS, "--workdir=W", *flags.split()], answer) for flags, answer in OF_A_RUN]


@pytest.mark.parametrize(("arguments", "answer"), EARLY)
def test_mistakes_on_the_command_line(
    capsys: pytest.CaptureFixture, arguments: list[str], answer: str
):
    assert answer in refusal(capsys, *arguments)


def test_they_are_answered_without_importing_jax():
    """Importing JAX takes seconds on a cold start; main itself takes a tenth of a second."""
    code = (
        "import json, sys\n"
        "from widenet_jax.main import main\n"
        "codes = [main(['main', *a]) for a in json.loads(sys.argv[1])]\n"
        "print(sorted(set(codes)), [m for m in ('jax', 'flax', 'orbax') if m in sys.modules])\n"
    )
    mistakes = json.dumps([arguments for arguments, _ in EARLY])
    done = subprocess.run(
        [sys.executable, "-c", code, mistakes], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "[2] []\n", done.stderr
    assert done.stderr.count("\n") == len(EARLY)


@pytest.mark.parametrize(
    ("flag", "answer"),
    [
        ("--config.optimizer.name=lam", "choose one of lamb, sgd, adamw, muon (--config"),
        (
            "--config.task.label_smoothing=2",
            "config.task.label_smoothing=2.0 must be between 0 and 0.99",
        ),
        ("--config.duration=soon", "config.duration='soon' is not a duration"),
        ("--config.data.source=array_record --config.data.path=/no/where", "/no/where"),
        ("--config.batch_size=62", "config.batch_size=62 must be a multiple of 8"),
        ("--mode=eval", "no run there"),
    ],
)
def test_mistakes_that_need_jax(
    capsys: pytest.CaptureFixture, tmp_path: Path, flag: str, answer: str
):
    """They must not leave a workdir behind either."""
    workdir = tmp_path / "run"
    assert answer in refused(
        capsys, main, "main", *SMALL_VIT, f"--workdir={workdir}", *flag.split()
    )
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def get_config():\n    return nothing\n", "line 2: NameError: name 'nothing' is not"),
        ("def get_config(:\n", "line 1: SyntaxError: invalid syntax"),
        ("def get_config():\n    return {'seed': 1}\n", "get_config() must return a ConfigDict"),
    ],
)
def test_a_config_of_ones_own_that_fails(
    capsys: pytest.CaptureFixture, tmp_path: Path, text: str, told: str
):
    path = tmp_path / "mine.py"
    path.write_text(text)
    answer = refusal(capsys, f"--config={path}", "--workdir=W")
    assert told in answer and answer.startswith(f"error: --config={path}: ")


def test_fields_are_set_with_their_types():
    words = "main --config.seed 3 --workdir=W"  # apart, and before the config
    words += " --config=configs/imagenet.py:widenet_b,experts=8"
    words += " --config.optimizer.learning_rate=1 --config.augment.flip=false"
    _, config = parse_flags([*words.split(), "--config.duration=5 epochs"])
    assert (config.seed, config.augment.flip, config.duration) == (3, False, "5 epochs")
    assert config.optimizer.learning_rate == 1.0
    assert config.model.moe.num_experts == 8
    assert config.batch_size == load_config("configs/imagenet.py").batch_size


def test_programs_have_a_directory_before_a_config_imports_jax(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # restored at the end
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    for name in ("IMPORTED", "NAMED"):  # so that later tests import nothing
        monkeypatch.setattr(imports, name, {})
    has = "import os\nassert 'JAX_COMPILATION_CACHE_DIR' in os.environ\n"
    (tmp_path / "mine.py").write_text(has + "from configs.digits import get_config")
    (tmp_path / "parts.py").write_text(has)
    files = [f"--import={tmp_path / 'parts.py'}", f"--config={tmp_path / 'mine.py'}"]
    parse_flags(["main", *files, "--workdir=W"])
    assert list((tmp_path / "widenet_jax/programs").iterdir())


def test_a_run_for_programs(capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch):
    """stdout is one JSON object; progress goes to stderr. Evaluation needs only the workdir."""
    monkeypatch.setattr(train, "build_experiment", shared_experiment)
    workdir = f"--workdir={tmp_path / 'run'}"  # with the config, in config.json
    assert main(["main", *SMALL_VIT, workdir, "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert out.count("\n") == 1
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["steps"], result["test_images"]) == (2, 360)
    assert "step 2/2 (100%)" in err and "error" not in err
    assert main(["main", "--mode=eval", workdir, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["test_accuracy"] == result["test_accuracy"]
    assert "no run there" in refusal(capsys, "--mode=eval", f"--workdir={tmp_path}")


def test_a_failed_run(capsys: pytest.CaptureFixture, tmp_path: Path):
    """Exit code 3, and the last line says what to try."""
    wild = ("--config.optimizer.learning_rate=1e30", "--config.optimizer.grad_clip_norm=0")
    assert main(["main", *SMALL_VIT, f"--workdir={tmp_path}/run", *wild, "--json"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("failed: the loss is nan at step 2, in the batch of training images")
    assert "config.optimizer.learning_rate" in last and "Traceback" not in err


def test_a_platform_that_is_not_there(tmp_path: Path):
    flags = [DIGITS, f"--workdir={tmp_path}/run"]
    env = os.environ | {"JAX_PLATFORMS": "cuda"}
    program = [sys.executable, "-m", "widenet_jax.main", *flags]
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    *_, line = done.stderr.splitlines()
    assert line.startswith("error: JAX cannot open its devices, JAX_PLATFORMS='cuda': ")
    assert "Traceback" not in done.stderr


def test_errors_of_stores_and_disks_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture):
    def asked(error: Exception) -> None:
        raise error

    refused = NoAccessError(403, "no list access; ask for it", "gs://bucket")
    for cause in (None, refused):  # as a save that fails names it
        error = RunFailedError("not written: gs://bucket: no list access; ask for it")
        error.__cause__ = cause
        kind = BadInputError if cause else RunFailedError
        with (
            pytest.raises(kind, match=r"gs://bucket: no list access; ask for it$"),
            errors_in_one_line(epath.Path(tmp_path), Stop()),
        ):
            asked(error)
    assert exit_code_of(lambda: asked(refused)) == 2
    assert capsys.readouterr().err == "error: gs://bucket: no list access; ask for it\n"
    disk = TimeoutError(errno.ETIMEDOUT, "Connection timed out", "/nfs/run")
    assert exit_code_of(lambda: asked(disk)) == 2
    assert capsys.readouterr().err == "error: /nfs/run: Connection timed out\n"


def test_a_device_that_is_out_of_memory(tmp_path: Path):
    enormous = jax.jit(lambda x: x + jnp.zeros(2**46))  # 256 TiB
    with (
        pytest.raises(RunFailedError, match=r"is out of memory \(RESOURCE_EXHAUSTED.* a smaller"),
        errors_in_one_line(epath.Path(tmp_path), Stop()),
    ):
        enormous(1.0)


RESULT = {
    "mode": "eval",
    "primary_metric": {"name": "accuracy", "higher_is_better": True},
    "unit": "images",
    "split": "test",
    "test_cross_entropy": 0.12346,
    "test_accuracy": 0.97222,
    "test_images": 360,
    "params": 53066,
    "params_unrolled": 153418,
}


def test_the_table_for_people():
    result = RESULT | {"drop_rate": 0.0123, "expert_load": [0.25, 0.75]}
    assert report(result, "W").splitlines() == [
        "test accuracy         97.22% of 360 images (95%: 94.96 to 98.48%)",
        "test cross entropy    0.1235",
        "parameters, unique    53,066",
        "parameters, unrolled  153,418",
        "token drop rate       1.23%",
        "expert load           25.0%  75.0%",
    ]


def test_the_table_of_other_runs():
    """Of another split; of perplexity, which is no percentage; of training, with its files."""
    lines = report(RESULT | {"split": "dev_matched"}, "W").splitlines()
    assert lines[:2] == [
        "dev_matched accuracy       97.22% of 360 images (95%: 94.96 to 98.48%)",
        "dev_matched cross entropy  0.1235",
    ]
    perplexity = RESULT | {"unit": "tokens", "test_tokens": 217646, "test_perplexity": 24.0}
    perplexity["primary_metric"] = {"name": "perplexity", "higher_is_better": False}
    first = report(perplexity, "W").splitlines()[0]
    assert first == "test perplexity       24.0000 of 217,646 tokens"
    assert report(RESULT | {"mode": "train"}, "runs/x").splitlines()[4:] == [
        "metrics               runs/x/metrics.jsonl",
        "learning curve        runs/x/learning_curve.png",
    ]
