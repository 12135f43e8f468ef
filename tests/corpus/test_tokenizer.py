"""Tokenizers: files of every kind, offsets, the tables of masking, and ALBERT's own rule."""

import gzip
import io
import itertools
import json
import os
import pickle
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from widenet_jax.corpus import tokenizer_files
from widenet_jax.corpus.novel import FOLDER
from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.errors import BadInputError

DATA = os.environ.get("WIDENET_DATA_DIR")
needs_data = pytest.mark.skipif(not DATA, reason="needs WIDENET_DATA_DIR")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "able", ",", "##s", "a"]


@pytest.fixture(scope="module")
def unigram() -> Tokenizer:
    return load_tokenizer(str(FOLDER))


@pytest.fixture
def word_piece(tmp_path: Path) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return load_tokenizer(str(tmp_path))


def test_word_piece_from_a_vocabulary(word_piece: Tokenizer):
    assert word_piece.encode("Unables, xyz ÀBLE").tolist() == [5, 6, 9, 8, 1, 7]
    special = (word_piece.pad_id, word_piece.unk_id, word_piece.cls_id, word_piece.sep_id)
    assert (*special, word_piece.mask_id) == (0, 1, 2, 3, 4)
    continuing = ["##able", "##s"]
    starts = [piece not in continuing for piece in VOCABULARY]
    assert word_piece.starts_word.tolist() == starts
    assert word_piece.special.tolist() == [k < 5 for k in range(len(VOCABULARY))]
    assert word_piece.vocab_size == len(VOCABULARY)


def test_old_files_do_not_name_their_model(word_piece: Tokenizer, unigram: Tokenizer):
    for known in (word_piece, unigram):
        model = {key: value for key, value in known.json["model"].items() if key != "type"}
        old = Tokenizer({**known.json, "model": model})
        assert old.kind == known.kind
        np.testing.assert_array_equal(old.starts_word, known.starts_word)


@pytest.mark.parametrize("answer", ["cafe\u0301", "वे", "नदी", "a\u20dd"])
def test_an_answer_keeps_its_last_accent(unigram: Tokenizer, answer: str):
    """A tokenizer that strips accents takes them for no part of the token before."""
    text = f"the {answer} here"
    spans = unigram.encode_with_offsets(text).offsets
    begins, ends = text.index(answer), text.index(answer) + len(answer)
    assert {begins} <= {*spans[:, 0].tolist()} and {ends} <= {*spans[:, 1].tolist()}


def test_half_a_character_is_one_line(word_piece: Tokenizer):
    for encode in (word_piece.encode, word_piece.encode_with_offsets):
        with pytest.raises(BadInputError, match="half a character"):
            encode("un\ud83d")


def test_a_vocabulary_with_capitals_keeps_case(tmp_path: Path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*VOCABULARY, "Able"]))
    assert load_tokenizer(str(path)).encode("able Able").tolist() == [7, 11]


@pytest.mark.parametrize(
    ("settings", "text", "pieces"),
    [
        ({}, "ABLE àble 中国", "able able [UNK] [UNK]"),
        ({"do_lower_case": None}, "ABLE àble", "able able"),
        ({"do_lower_case": False}, "ABLE able àble", "[UNK] able [UNK]"),
        ({"do_lower_case": True, "strip_accents": False}, "ABLE àble", "able [UNK]"),
        ({"do_lower_case": False, "strip_accents": True}, "ABLE àble", "[UNK] able"),
        ({"tokenize_chinese_chars": False}, "中国 àble", "中国 able"),
    ],
)
def test_a_huggingface_config_says_what_becomes_of_texts(tmp_path: Path, settings, text, pieces):
    """Beside a vocab.txt, and beside a tokenizer.json in BERT's normalisation."""
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, "中国"]))
    plain = load_tokenizer(str(tmp_path / "vocab.txt"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"cls_token": "[CLS]"}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain.json))
    for name in ("vocab.txt", "tokenizer.json"):
        tokenizer = load_tokenizer(str(tmp_path / name))
        assert " ".join(map(tokenizer.token, tokenizer.encode(text))) == pieces, name
    assert Tokenizer(plain.json).encode("ABLE").tolist() == [7], (
        "a copy, as in a set, is left alone"
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "ete a"),
        ({"do_lower_case": True, "keep_accents": False}, "ete a"),
        ({"do_lower_case": True, "keep_accents": True}, "été a"),
        ({"do_lower_case": False, "keep_accents": False}, "ete "),
        ({"do_lower_case": False}, "été "),
    ],
)
def test_a_huggingface_config_beside_sentencepiece(tmp_path: Path, settings, text):
    """ALBERT's fields; no piece has a capital letter."""
    train = sentencepiece.SentencePieceTrainer.train
    with (tmp_path / "spiece.model").open("wb") as file:
        lines = iter(["été ete a"] * 20)
        train(sentence_iterator=lines, model_writer=file, vocab_size=9, minloglevel=2)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.decode(tokenizer.encode("été A")) == text


def test_words_start_as_in_alberts_code(unigram: Tokenizer):
    """_is_start_piece_sp of create_pretraining_data.py, by the kinds of pieces."""
    table = {unigram.token(k): bool(starts) for k, starts in enumerate(unigram.starts_word)}
    for piece in ("▁", "▁the", ",", ";", "(", "'", "é", "1", "<unk>", "[CLS]"):
        assert table.get(piece, True), piece
    for piece in ("s", "ing", "er"):
        assert not table[piece], piece


def test_offsets_are_places_in_the_raw_text(unigram: Tokenizer):
    text = "  The naïve\tÉlan, (fine) \u201cgood\u201d."
    encoded = unigram.encode_with_offsets(text)
    assert encoded.ids.tolist() == unigram.encode(text).tolist()
    words = "".join(text[first:last] for first, last in encoded.offsets)
    assert words == "".join(text.split())


def test_a_character_that_becomes_two_tokens_is_the_place_of_both(unigram: Tokenizer):
    encoded = unigram.encode_with_offsets("a ½")
    assert [unigram.token(k) for k in encoded.ids][-1:] in (["2"], ["<unk>"])
    assert encoded.offsets[-1].tolist() == [2, 3]


def test_markers_in_a_text_are_ordinary_characters(unigram, word_piece):
    markers = ("[MASK]", "[SEP]", "<pad>", "<unk>", "[CLS]")
    for tokenizer, marker in itertools.product((unigram, word_piece), markers):
        found = set(tokenizer.encode(f"a {marker} b").tolist())
        assert not found & set(np.flatnonzero(tokenizer.special)) - {tokenizer.unk_id}


def test_empty_texts_have_no_tokens(unigram: Tokenizer):
    assert [len(ids) for ids in unigram.encode_all(["", "  ", "\n", "\u200b"])][:3] == [0, 0, 0]
    assert unigram.encode_with_offsets("").offsets.shape == (0, 2)


def test_a_pickled_copy_and_one_made_from_the_content_are_the_same(unigram: Tokenizer):
    text = "she had been forced into prudence in her youth, she learned romance as she grew older"
    assert unigram.decode(unigram.encode(text)) == text
    from_content = Tokenizer(json.loads(json.dumps(unigram.json)))
    for copy in (pickle.loads(pickle.dumps(unigram)), from_content):
        assert copy.encode(text).tolist() == unigram.encode(text).tolist()
        assert copy.sha256 == unigram.sha256


LINES = "\n".join(VOCABULARY).encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"{", "not a tokenizer"),
        ("tokenizer.json", b"[" * 100_000, "not a tokenizer (nested too deep"),
        ("tokenizer.json", b"9" * 5_000, "not a tokenizer (Exceeds the limit"),
        ("tokenizer.json", b'{"model": {"type": "Other"}}', "not a tokenizer.json"),
        ("vocab.txt", b"[PAD]\na\nb\n", "no line [UNK]"),
        ("vocab.txt", LINES + b"\na", "a piece twice"),
        ("x.model", b"garbage", "sentencepiece model"),
        ("x.model", b"", "sentencepiece model"),
        (
            "tokenizer_config.json",
            b'{"do_lower_case": "no"}',
            "do_lower_case is 'no'; write true or",
        ),
        ("tokenizer_config.json", b"[", "tokenizer_config.json: "),
        ("", b"", "holds no tokenizer ("),
        ("absent.json", None, "No such file"),
        ("params.safetensors", None, "holds no tokenizer ("),
    ],
)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, name, content, message):
    place = tmp_path / name
    if name and content is not None:
        place.write_bytes(content)
    if name == "tokenizer_config.json":
        place = tmp_path / "vocab.txt"
        place.write_bytes(LINES)
    with pytest.raises(BadInputError) as caught:
        load_tokenizer(str(place))
    assert message in str(caught.value) and name in str(caught.value)


def test_a_cut_tokenizer_is_refused(word_piece: Tokenizer):
    content = json.loads(json.dumps(word_piece.json))
    del content["model"]["vocab"]["able"]
    with pytest.raises(BadInputError, match="its 10 tokens are not numbered from 0 on"):
        Tokenizer(content, "t.json")


# --- Against sentencepiece and ALBERT's code, on real text ----------------------------------------


def albert_pieces(model: sentencepiece.SentencePieceProcessor, text: str) -> list[str]:
    """google-research/albert, tokenization.py: preprocess_text and encode_pieces, restated."""
    text = unicodedata.normalize("NFKD", " ".join(text.split()))
    text = "".join(c for c in text if not unicodedata.combining(c)).lower()
    pieces: list[str] = []
    for piece in model.encode(text, out_type=str):
        if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
            again = model.encode(piece[:-1].replace("▁", ""), out_type=str)
            if piece[0] != "▁" and again[0][0] == "▁":
                again = again[1:] if len(again[0]) == 1 else [again[0][1:], *again[1:]]
            pieces += [*again, ","]
        else:
            pieces.append(piece)
    return pieces


@pytest.fixture(scope="module")
def albert() -> tuple[Tokenizer, sentencepiece.SentencePieceProcessor]:
    path = f"{DATA}/text/vocab/wiki_uncased_spm30k_albert_layout.model"
    return load_tokenizer(path), sentencepiece.SentencePieceProcessor(model_file=path)


@needs_data
def test_lines_are_encoded_as_by_alberts_code(albert):
    """At least 99.7% of 3,000 lines have the same ids."""
    tokenizer, model = albert
    text = gzip.decompress(Path(DATA, "text/wiki/wiki_valid_2MB.txt.gz").read_bytes()).decode()
    lines = [line for line in text.split("\n") if line.strip()][:3000]
    same = [
        ours.tolist() == [model.piece_to_id(piece) for piece in albert_pieces(model, line)]
        for line, ours in zip(lines, tokenizer.encode_all(lines), strict=True)
    ]
    assert len(lines) == 3000 and np.mean(same) >= 0.997, np.mean(same)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("how", [{}, {"add_dummy_prefix": False}, {"byte_fallback": True}])
def test_a_model_of_sentencepiece_keeps_its_settings(kind: str, how: dict):
    """As LLaMA's (bytes for unknown characters) and Chinese models (no mark before a text)."""
    words = ["".join(letters) for letters in itertools.product("bcdt", "aeiou", "lmnr", "aeiou")]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(words[k : k + 8]) + "." for k in range(0, len(words), 3)),
        model_writer=model, model_type=kind, minloglevel=2, vocab_size=330, pad_id=3,
        hard_vocab_limit=kind == "bpe", user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"], **how,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = Tokenizer(tokenizer_files.from_sentencepiece(model.getvalue(), "its model", {}))
    for probe in ("bala dino", "tula 日本 cere", "dona  tiri."):
        assert ours.encode(probe).tolist() == theirs.encode(probe)
    if how.get("byte_fallback"):
        assert ours.decode(ours.encode("tula 日本 cere")) == "tula 日本 cere"


@pytest.mark.parametrize("how", ["treat_whitespace_as_suffix", "remove_extra_whitespaces"])
def test_a_setting_of_sentencepiece_that_is_not_read(how: str):
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.pieces.add(piece="<unk>", score=0.0, type=2)
    if how == "treat_whitespace_as_suffix":
        model.trainer_spec.treat_whitespace_as_suffix = True
    else:
        model.normalizer_spec.remove_extra_whitespaces = False
    with pytest.raises(BadInputError, match=f"was trained with .*{how}"):
        tokenizer_files.from_sentencepiece(model.SerializeToString(), "its model", {})
