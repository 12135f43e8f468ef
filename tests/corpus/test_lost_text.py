"""What tokenizers lose of texts: by hand, in both kinds of sets, and beside metrics."""

import json
from pathlib import Path

import numpy as np
import pytest
from preparing import refused, run, write
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.corpus.tokenizer_files import SPECIAL, trained_normalizer, with_special
from widenet_jax.data.sources import build_source
from widenet_jax.language.data.token_streams import open_stream

TEXTS = ("The cats.", "the  cat", "a xyz cat", "Été a")
# Of each text: tokens, unknown ones, characters, lost ones.
BY_HAND = {
    # the cat ##s . | the cat | a [UNK] cat, without a space, too | [UNK] a
    "words": [(4, 0, 9, 1), (2, 0, 8, 1), (3, 1, 9, 4), (2, 1, 5, 4)],
    # Characters, with a mark before each word; one unknown token for xyz. É comes back as e.
    "uncased": [(10, 0, 9, 1), (8, 0, 8, 1), (8, 1, 9, 3), (6, 0, 5, 2)],
    # É is unknown.
    "cased": [(10, 0, 9, 0), (8, 0, 8, 1), (8, 1, 9, 3), (6, 1, 5, 1)],
}


@pytest.fixture(scope="module", params=BY_HAND)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """A tokenizer's file, and the counts of the texts by hand."""
    folder, kind = tmp_path_factory.mktemp("tokenizer"), request.param
    if kind == "words":
        pieces = [*SPECIAL, "the", "cat", "##s", ".", "a"]
        return write(folder / "vocab.txt", "\n".join(pieces)), np.array(BY_HAND[kind])
    characters = "▁acehst." + "Té" * (kind == "cased")
    pieces = [*SPECIAL, *characters]
    library = Library(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=1))
    library.normalizer = trained_normalizer(cased=kind == "cased", charsmap=b"")
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    content = json.dumps(with_special(library, SPECIAL))
    return write(folder / "tokenizer.json", content), np.array(BY_HAND[kind])


def shares(counts: np.ndarray) -> dict[str, float]:
    tokens, unknown, characters, lost = counts.sum(0)
    return {"unknown_token_share": unknown / tokens, "lost_character_share": lost / characters}


def test_counts_by_hand(made: tuple):
    tokenizer = load_tokenizer(str(made[0]))
    for text, expected in zip(TEXTS, made[1], strict=True):
        counts = lost_text.count(tokenizer, [text], tokenizer.encode_all([text]))
        assert counts.tolist() == expected.tolist(), text
        assert lost_text.shares_of(counts) == shares(expected[None])


@pytest.mark.parametrize(
    ("kind", "flag"), [("stream", "--separator=[SEP]"), ("text", "--format=sentences")]
)
def test_a_set_has_the_shares_of_each_split(kind, flag, made: tuple, tmp_path: Path, capsys):
    """Separators are no text; blank lines are lost but for their ends."""
    train, valid = (
        write(tmp_path / name, "\n".join(texts) + "\n\n")
        for name, texts in (("a.txt", TEXTS[:2]), ("b.txt", TEXTS[2:]))
    )
    out = tmp_path / "set"
    options = ("--tokenizer", made[0], "--valid", valid, "--workers=1", flag)
    assert run(kind, train, "--out", out, *options) == 0
    printed = capsys.readouterr().out
    entries = json.loads((out / "dataset.json").read_text())["splits"]
    for split, counts in (("train", made[1][:2]), ("valid", made[1][2:])):
        expected = shares(counts)
        assert {name: entries[split][name] for name in expected} == expected
        unknown, lost = (f"{share:.2%}" for share in expected.values())
        line = f"{unknown} of the tokens are unknown, {lost} of the characters do not"
        if kind == "text":
            note = build_source({"source": "text", "path": str(out)}, split).note
            assert line in note and f"{split}: {note}" in printed
            continue
        source = open_stream(str(out), split, 1)
        assert source.losses == expected and line in source.note and line in printed
        of = f"of the text without the {lost} of its characters that the tokenizer loses"
        of += f", {unknown} of the tokens unknown" * bool(expected["unknown_token_share"] > 0.01)
        assert f"; bits per byte and word perplexity are {of}" in source.note
        assert f"{split}: bits per byte and word perplexity will be {of}\n" in printed


def test_sets_and_parts_of_an_older_version(made: tuple, tmp_path: Path, capsys):
    """A set without shares opens and says so; parts without losses make such a set."""
    train, valid = write(tmp_path / "a.txt", "a cat\n"), write(tmp_path / "b.txt", b"\xff")
    for kind, key in (("stream", "marks"), ("text", "splits")):
        out = tmp_path / kind
        command = (kind, train, "--valid", valid, "--out", out, "--tokenizer", made[0])
        write(valid, b"\xff")
        assert "not UTF-8" in refused(capsys, *command, "--workers=1")
        (part,) = out.glob(".writing/.part-*.json")
        content = json.loads(part.read_text())
        if kind == "stream":
            content[key] = [row[:3] for row in content[key]]
        else:
            del content[key]["train"]["losses"]
        write(part, json.dumps(content))
        write(valid, "a cat\n")
        assert run(*command, "--workers=1") == 0
        entry = json.loads((out / "dataset.json").read_text())["splits"]["train"]
        assert entry["tokens"] and not any("share" in name for name in entry)
        assert "not come back" not in capsys.readouterr().out.split("valid")[0]
    source = open_stream(str(tmp_path / "stream"), "train", 1)
    assert source.losses == {} and "prepare it with --overwrite to see what" in source.note
    assert build_source({"source": "text", "path": str(tmp_path / "text")}, "train").note == ""


def test_a_remark_is_for_more_than_one_percent():
    of = lambda unknown, lost: lost_text.remark(lost_text.shares_of([1000, unknown, 1000, lost]))  # noqa: E731
    assert lost_text.remark({}) == of(10, 10) == lost_text.describe({}) == ""
    text = "of the text without the {} of its characters that the tokenizer loses"
    assert of(0, 11) == text.format("1.10%")
    assert of(20, 5) == text.format("0.50%") + ", 2.00% of the tokens unknown"


def test_many_texts_are_sampled(made: tuple):
    """Every fourth of 1,000, and of each the beginning."""
    tokenizer = Tokenizer(load_tokenizer(str(made[0])).json)
    texts = ["a" if index % 4 else "x" + " a" * 1000 for index in range(1000)]
    found = lost_text.describe_sample(tokenizer, texts)
    assert found.endswith("when they are decoded (in 250 texts of 1,000)")
    sample = ["x" + " a" * 511 + " "]
    counts = lost_text.count(tokenizer, sample, tokenizer.encode_all(sample))
    assert found.startswith(lost_text.describe(lost_text.shares_of(counts)))
    assert lost_text.describe_sample(tokenizer, ["a"]).endswith("are decoded")
