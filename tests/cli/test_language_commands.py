"""The commands for language models: bits a byte of a file, a text continued, mistakes."""

import gzip
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from refusals import answered, refused
from untrained import export_untrained

from configs import language_model
from widenet_jax.cli import evaluate, predict
from widenet_jax.corpus.novel import FOLDER
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.inference import over_source
from widenet_jax.inference.exported import read_exported, write_exported

TEXT = "It was raining. Ann did not mind; she read.\n" * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, and models of bytes and of word pieces that know token frequencies only."""
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text(TEXT)
    tokenizer = load_tokenizer(str(FOLDER))
    facts = {"bytes": {"vocab_size": 256}}
    facts["pieces"] = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.json}
    for name, info in facts.items():
        config = language_model.get_config("tiny")
        config.model.loop.core, config.data.max_length = ((1, 1),), 8
        place = export_untrained(config, info, folder / f"random_{name}")
        stored = read_exported(epath.Path(place))
        output = stored.params["output"]
        output["kernel"] = np.zeros_like(output["kernel"])
        output["bias"] = log_shares(info["vocab_size"])
        write_exported(epath.Path(folder / name), stored, file_format="npz")
    return folder


def log_shares(vocab_size: int) -> np.ndarray:
    """Returns the logarithms of shares 1 : 2 : 1 : 2 : ... of the tokens."""
    shares = 1.0 + np.arange(vocab_size) % 2
    return np.log(shares / shares.sum()).astype(np.float32)


def run(command, capsys, *arguments: object) -> str:
    """Runs a command that must succeed; returns what it printed."""
    assert command.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_bits_a_byte_by_hand(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    """176 bytes make 21 windows of 8; the first byte and the last 7 are not predicted."""
    monkeypatch.setattr(over_source, "QUIET_SECONDS", 0.0)
    flags = [f"--workdir={folder / 'bytes'}", f"--file={folder / 'text.txt'}", "--json"]
    assert evaluate.main(flags) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    counts = Counter(byte % 2 for byte in TEXT.encode()[1:169])
    bits = (counts[0] * math.log2(384) + counts[1] * math.log2(192)) / 168
    assert found["bits_per_byte"] == pytest.approx(bits, rel=1e-6)
    assert found["perplexity"] == pytest.approx(2**bits, rel=1e-6) and found["sequences"] == 21
    # A model that knows other frequencies than those of the file does not reach their entropy.
    shares = np.array(list(Counter(TEXT.encode()[1:169]).values())) / 168
    entropy = -(shares * np.log2(shares)).sum()
    warning = f"warning: bits per byte {bits:.4f} is not below the unigram entropy {entropy:.4f}: "
    assert warning in printed.err
    assert re.search(r"evaluation: 100%.* 21/21 .*batch/s", printed.err), "a batch a window"


def test_bits_a_byte_of_word_pieces(folder: Path, capsys):
    """The bits of a piece, by the bytes of the file per piece; a compressed file is the same."""
    pieces = np.concatenate(load_tokenizer(str(FOLDER)).encode_all(TEXT.strip().split("\n")))
    logs = log_shares(2000)[pieces]
    predicted = logs[1 : 1 + (len(logs) - 1) // 8 * 8]
    bits = -predicted.mean() / math.log(2) * len(pieces) / len(TEXT)
    (folder / "text.gz").write_bytes(gzip.compress(TEXT.encode()))
    for name in ("text.txt", "text.gz"):
        arguments = ("--workdir", folder / "pieces", "--file", folder / name)
        found = answered(capsys, evaluate.main, *arguments)
        assert found["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    # Two capital letters of 43 characters, line ends apart.
    assert found["lost_character_share"] == 2 / 43 and found["unknown_token_share"] == 0
    rows = run(evaluate, capsys, *arguments).splitlines()
    said = [row.split("  ")[0] for row in rows if "(of the text without the 4.65% of its" in row]
    assert said == ["bits per byte", "word perplexity"]
    words = len(TEXT.split()) + TEXT.count("\n")
    nats = -predicted.mean() * len(pieces) / words
    assert found["word_perplexity"] == pytest.approx(math.exp(nats), rel=1e-4)


def test_a_text_is_continued(folder: Path, capsys):
    arguments = ("--workdir", folder / "bytes", "--continue=Ann", "--length=9")
    (drawn,) = answered(capsys, predict.main, *arguments, "--seed=3")["texts"]
    assert drawn["beginning"] == "Ann" and drawn["text"].startswith("Ann")
    greedy = run(predict, capsys, *arguments, "--temperature=0")
    assert greedy == "Ann" + "\\x01" * 9 + "\n", "the likeliest byte, shown safely"
    pieces = run(predict, capsys, "--workdir", folder / "pieces", "--continue=Ann", "--length=2")
    assert pieces.startswith("ann")


def test_mistakes_are_one_line(folder: Path, capsys, tmp_path: Path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "a.csv").write_text("id,review\n1,good\n")
    (tmp_path / "a.jsonl").write_text('{"review": "good"}\n')
    empty, data = f"--file={tmp_path}/empty.txt", "--config.data"
    stream = (f"{data}.source=token_stream", f"{data}.path={folder / 'text.txt'}")
    for command, model, flags, answer in (
        (evaluate, "bytes", [f"--file={tmp_path}/missing.txt"], "missing.txt"),
        (evaluate, "bytes", [empty, f"{data}.eval_split=test"], "and --file both say what to read"),
        (evaluate, "bytes", [empty], "empty.txt: 0 tokens, too few"),
        (evaluate, "bytes", [f"--file={tmp_path}/a.csv"], "review' (name it text)"),
        (evaluate, "bytes", [f"--file={tmp_path}/a.jsonl"], "review (name it text)"),
        (evaluate, "pieces", [*stream, f"{data}.eval_split=all"], "and the set is of bytes"),
        (predict, "bytes", ["--continue="], "--continue='' is empty: give"),
        (predict, "bytes", ["--continue=A", "--temperature=-1"], "--temperature=-1.0 must be 0 or"),
        (predict, "bytes", ["--continue=A", "--top_p=2"], "--top_p=2.0 must be above 0 and at"),
        (predict, "bytes", ["--text=A", "--top_k=3"], "--top_k goes with --continue"),
        (predict, "bytes", ["--text=A"], "of the task language_modeling, which takes --continue"),
    ):
        assert answer in refused(capsys, command.main, f"--workdir={folder / model}", *flags), flags
