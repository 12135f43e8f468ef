"""`prepare_data.py tokenizer`: training and conversion."""

import json
import random
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from preparing import refused, run, write

from widenet_jax.corpus import tokenizer_files
from widenet_jax.corpus.inputs import plan
from widenet_jax.corpus.novel import FOLDER, TEXT
from widenet_jax.corpus.tokenizer import load_tokenizer
from widenet_jax.text.prepare.tokenizers import (
    ALBERT_LAYOUT,
    BPE_LAYOUT,
    cut_sentence,
    lines_of,
    sentences_of,
    train_sentencepiece,
)

# A dozen words of each script, with capitals, accents, signs of vowels and of tones.
SCRIPTS = {
    "Latin": "Žlutý kůň pěl ďábelské ódy übermäßig größer déjà été garçon naïve Straße Çelik",
    "Cyrillic": "Мой ёжик ещё пьёт чай съел йод объём её Подъезд рай синий Ёлка",
    "Greek": "Ο καφές είναι ζεστός και η μέρα ωραία Άνθρωπος λόγος ήλιος προϋπόθεση ΛΌΓΟΣ",
    "Arabic": "اَلْبَيْتُ كِتَابٌ جَدِيدٌ مَدْرَسَةٌ كبيرة آسيا مؤمن سائل إلى شيء قرأ يقرأ",
    "Hebrew": "שָׁלוֹם עוֹלָם הַבַּיִת גָּדוֹל יֶלֶד קוֹרֵא סֵפֶר טוֹב ילדה הולכת",
    "Devanagari": "बच्चे स्कूल जाते हैं किताबें पढ़ते क्या लड़की हिन्दी ज्ञान मित्र संस्कृति",
    "Bengali": "আমি বাংলা ভালো ছেলেটি স্কুলে যায় বোন ক্ষুদ্র গান গায় সৌন্দর্য পড়া",
    "Tamil": "நான் தமிழ் பேசுகிறேன் கொடுத்தான் போகிறோம் பள்ளி சௌகரியம் வீடு பூக்கள் மரம்",
    "Thai": "ฉันกินข้าว น้ำร้อน เด็กผู้หญิง ไปโรงเรียน ที่บ้าน แม่น้ำ ผู้ใหญ่ ต้นไม้ คำถาม",
    "Burmese": "ကျွန်တော် မြန်မာ စာအုပ် ဦးလေး ကျောင်း သွားသည် မိန်းကလေး ပန်းပွင့် ရေနွေး",
    "Hangul": "한국어를 배우는 학생이 책을 읽는다 학교에 갔다 선생님 우리집 좋은 날씨가 맑다",
    "Japanese": "カタカナで がっこうへ いきます 学校 先生は ガラスを 中国語 私は プール で ござい",
}


def without_accents(text: str) -> str:
    """ALBERT's preprocess_text, restated for single characters, and composed again."""
    bare = [c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)]
    return unicodedata.normalize("NFC", "".join(c.lower() for c in bare))


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("layout", "cased"), [(ALBERT_LAYOUT, False), (ALBERT_LAYOUT, True), (BPE_LAYOUT, True)]
)
def test_training_sees_what_encoding_makes_of_raw_text(tmp_path: Path, script, layout, cased):
    """Of a tokenizer that was written and read, in its own text: all pieces, nothing unknown."""
    words, draw = SCRIPTS[script].split(), random.Random(0)
    lines = [" ".join(draw.choices(words, k=6)) for _ in range(40)]
    expected = [unicodedata.normalize("NFKC", line) for line in lines]
    if not cased:
        expected = [*map(without_accents, lines)]
    size = 18 + len(set("".join(expected)))
    how = {"layout": layout, "cased": cased, "character_coverage": 1.0}
    content = train_sentencepiece(lines, vocab_size=size, max_sentences=1000, **how)
    tokenizer = load_tokenizer(str(write(tmp_path / "tokenizer.json", json.dumps(content))))
    encoded = tokenizer.encode_all(lines)
    assert [*map(tokenizer.decode, encoded)] == expected
    read = {"".join(map(tokenizer.token, ids)) for ids in encoded}
    ordinary = {index for index in range(size) if not tokenizer.special[index]}
    learned = {tokenizer.token(index) for index in ordinary} - set('()"-.–£€')
    assert len(learned) >= size - 13 and all(any(p in line for line in read) for p in learned)
    if layout is ALBERT_LAYOUT:  # the others are single characters, or parts that BPE joins further
        used = {tokenizer.token(index) for ids in encoded for index in ids}
        assert {piece for piece in learned if len(piece) > 1} <= used


def test_cased_holds_where_no_piece_has_a_capital(tmp_path: Path, capsys):
    """A text in small letters: its accents are kept, and a capital letter is unknown."""
    text = write(tmp_path / "a.txt", "déjà été là. " * 9 + "où? ")
    out = tmp_path / "tokenizer.json"
    options = ("--vocab_size=23", "--character_coverage=1", "--out", out)
    for kind in ("unigram", "wordpiece", "bpe"):
        assert run("tokenizer", text, *options, "--cased", f"--kind={kind}") == 0
        assert "; capital letters are kept, accents are kept" in capsys.readouterr().out
        tokenizer = load_tokenizer(str(out))
        assert tokenizer.decode(tokenizer.encode("été")) == "été"
        assert tokenizer.unk_id in tokenizer.encode("Été")
    assert run("tokenizer", text, *options) == 0
    assert "; capital letters become small, accents are removed" in capsys.readouterr().out
    assert load_tokenizer(str(out)).decode(load_tokenizer(str(out)).encode("Été")) == "ete"
    other = ("--out", tmp_path / "other.json")
    message = refused(capsys, "tokenizer", "--convert", out, "--cased", *other)
    assert 'tokenizer_config.json beside it says so: {"do_lower_case": false}' in message


def test_the_embedded_tokenizer_comes_out_again(tmp_path: Path):
    """By the command in the folder's README; its normalisation is the one of its time."""
    out = tmp_path / "tokenizer.json"
    options = ("--vocab_size=2000", "--normalization=identity", "--character_coverage=1")
    assert run("tokenizer", TEXT, *options, "--out", out) == 0
    made, embedded = load_tokenizer(str(out)), load_tokenizer(str(FOLDER))
    assert made.json["model"] == embedded.json["model"]
    lines = TEXT.read_text().split("\n")[:200]
    pairs = zip(made.encode_all(lines), embedded.encode_all(lines), strict=True)
    assert all(a.tolist() == b.tolist() for a, b in pairs)


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

    def convert(content: bytes, *how: object) -> dict:
        models.append(content)
        return from_sentencepiece(content, *how)

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
