"""`prepare_data.py tokenizer`: training and conversion."""

import json
from pathlib import Path

import sentencepiece
from preparing import refused, run, write

from widenet_jax.corpus import tokenizer_files
from widenet_jax.corpus.inputs import plan
from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.text.prepare.tokenizers import cut_sentence, lines_of, sentences_of


def test_the_embedded_tokenizer_comes_out_again(tmp_path: Path):
    """By the command in the folder's README."""
    out = tmp_path / "tokenizer.json"
    options = ("--vocab_size=2000", "--normalization=identity", "--character_coverage=1")
    assert run("tokenizer", TEXT, *options, "--out", out) == 0
    assert out.read_bytes() == (FOLDER / "tokenizer.json").read_bytes()


def test_a_word_piece_tokenizer(tmp_path: Path, capsys):
    out = tmp_path / "tokenizer.json"
    options = ("--kind=wordpiece", "--vocab_size=500", "--json")
    assert run("tokenizer", TEXT, *options, "--out", out) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"path": str(out), "vocab_size": 500, "kind": "WordPiece"}
    tokenizer = load_tokenizer(str(out))
    assert tokenizer.vocab_size == 500 and tokenizer.pad_id == 0
    assert tokenizer.decode(tokenizer.encode("Anne Elliot")) == "anne elliot"


def test_byte_pairs_are_those_of_sentencepiece(tmp_path: Path, monkeypatch):
    """On text of the training and on new characters; a digit is a piece of its own."""
    models = []

    def convert(content: bytes, where: str) -> dict:
        models.append(content)
        return from_sentencepiece(content, where)

    from_sentencepiece = tokenizer_files.from_sentencepiece
    monkeypatch.setattr(tokenizer_files, "from_sentencepiece", convert)
    text = write(tmp_path / "a.txt", TEXT.read_text()[:60_000] + "In 1818, 2,401 copies.\n")
    out = tmp_path / "tokenizer.json"
    assert run("tokenizer", text, "--kind=bpe", "--vocab_size=400", "--out", out) == 0
    tokenizer = load_tokenizer(str(out))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=models[0])
    lines = [*text.read_text().split("\n")[:200], "In 1818  she paid 2,401 £.", "Čapek - Anne’s"]
    assert [ids.tolist() for ids in tokenizer.encode_all(lines)] == theirs.encode(lines)
    assert tokenizer.vocab_size == 400 and tokenizer.sep_id == 3
    pieces = [tokenizer.token(index) for index in tokenizer.encode("Anne 1818")]
    assert pieces[-4:] == ["1", "8", "1", "8"] and "▁A" in pieces[0]


def test_a_tokenizer_of_a_column(tmp_path: Path):
    """Of the texts alone: neither the header nor other columns have pieces."""
    rows = "review\tstars\ngood good\txyz\ndull. Bad\txyz\n"
    for name, content in (("a.csv", rows.replace("\t", ",")), ("a.tsv", rows)):
        units = plan([str(write(tmp_path / name, content))])
        assert [*sentences_of(units, "review")] == ["good good", "dull.", "Bad"]
        assert [*lines_of(units, "review")] == ["good good", "dull. Bad"]
    out = tmp_path / "tokenizer.json"
    options = ("--text_column=review", "--vocab_size=22", "--out", out)
    assert run("tokenizer", tmp_path / "a.csv", *options) == 0
    tokenizer = load_tokenizer(str(out))
    pieces = {tokenizer.token(index) for index in range(5, tokenizer.vocab_size)}
    assert not set("xyzrevw") & set("".join(pieces))


def test_a_vocabulary_is_converted(tmp_path: Path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "go", "##ing"]
    path = write(tmp_path / "vocab.txt", "\n".join(pieces))
    out = tmp_path / "made" / "tokenizer.json"  # in a folder that the command makes
    assert run("tokenizer", "--convert", path, "--out", out) == 0
    assert load_tokenizer(str(out)).encode("Going").tolist() == [5, 6]


def test_a_tokenizer_cannot_be_larger_than_its_text(tmp_path: Path, capsys):
    text = write(tmp_path / "a.txt", "One. Two.")
    bad = write(tmp_path / "b.txt", b"One.\nTwo \xff.")
    out = ("--out", tmp_path / "t.json")
    for kind in ("unigram", "wordpiece", "bpe"):
        for file, size, problem in ((text, 5000, "give more text"), (bad, 50, "b.txt line 2")):
            options = (f"--vocab_size={size}", f"--kind={kind}", *out)
            message = refused(capsys, "tokenizer", file, *options)
            assert problem in message and "INTERNAL" not in message
    message = refused(capsys, "tokenizer", text, "--vocab_size=6", *out)
    assert "the text's characters alone are 19 pieces; give a larger number" in message
    assert "either" in refused(capsys, "tokenizer", text, "--convert", text, *out)


def test_long_sentences_are_cut():
    """sentencepiece passes over sentences of more than 16,384 bytes."""
    assert cut_sentence("ä" * 8192) == ["ä" * 8192]
    parts = cut_sentence("ä" * 8193)
    assert "".join(parts) == "ä" * 8193
    assert max(len(part.encode()) for part in parts) <= 16_384
