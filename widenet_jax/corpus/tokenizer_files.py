"""Tokenizer files as the content of a tokenizer.json: vocab.txt, sentencepiece's .model."""

import functools
import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from etils import epath
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from widenet_jax.data.input_files import read_input
from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.files import parse_json, read_object

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MARK = "▁"
# Kinds of pieces in a sentencepiece model.
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6
_NEVER = -1e6  # score of a piece that is never chosen where another segmentation exists
CONFIG = "tokenizer_config.json"  # of Hugging Face
# Its fields that change texts: BERT's, with the library's names of them, and ALBERT's.
_OF_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_FIELDS = (*_OF_BERT, "keep_accents")


def read(path: epath.Path) -> dict[str, Any]:
    """Returns the content of a tokenizer.json for a tokenizer file of any kind.

    A tokenizer_config.json of Hugging Face beside the file says what becomes of case and accents.
    Where it does not, a vocabulary that holds capital letters is cased: texts keep their case and
    accents. Otherwise texts are put in lower case and lose their accents, as in BERT uncased and
    ALBERT. A tokenizer.json has its own normalisation; BERT's takes the fields of the config, as in
    transformers.

    Raises:
      BadInputError: the file cannot be read, or is no tokenizer.
    """
    content, settings = read_input(path), _settings(path.parent / CONFIG)
    if path.suffix == ".model":
        return from_sentencepiece(content, str(path), settings)
    advice = "; give a tokenizer.json, vocab.txt or .model"
    with refusing(f"{path}: not a tokenizer", ValueError, advice=advice):
        text = content.decode()
        if path.suffix == ".txt":
            return from_vocabulary(text, str(path), settings)
        found = parse_json(text)
    match found:
        case {"normalizer": {"type": "BertNormalizer"} as normalizer}:
            normalizer |= _of_bert(settings)
    return found


def _settings(path: epath.Path) -> dict[str, bool]:
    """Returns the fields of a tokenizer_config.json that change texts; {} where there is none."""
    content = read_object(path) if path.exists() else {}
    found = {name: content[name] for name in _FIELDS if content.get(name) is not None}
    if odd := next((name for name, value in found.items() if not isinstance(value, bool)), None):
        raise BadInputError(f"{path}: {odd} is {found[odd]!r}; write true or false")
    return found


def _of_bert(settings: Mapping[str, bool]) -> dict[str, bool]:
    """Returns `_settings` as the fields of BERT's normalisation."""
    return {_OF_BERT[name]: settings[name] for name in settings.keys() & _OF_BERT}


def from_vocabulary(text: str, where: str, settings: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the WordPiece tokenizer of BERT's vocab.txt: one piece a line, line k has id k.

    `settings` are fields of a tokenizer_config.json.
    """
    pieces = [piece.rstrip("\r") for piece in text.removesuffix("\n").split("\n")]
    rows = [(s not in pieces, f"has no line {s}, so is not BERT's vocabulary") for s in SPECIAL]
    twice = "has a piece twice; every line must be another piece"
    refuse(where, *rows, (len(set(pieces)) != len(pieces), twice))
    model = models.WordPiece({piece: k for k, piece in enumerate(pieces)}, unk_token="[UNK]")
    fields = {"lowercase": not _has_capitals(pieces)} | _of_bert(settings)
    return with_special(bert_tokenizer(model, **fields), SPECIAL)


def bert_tokenizer(model: models.WordPiece, **fields: bool) -> tokenizers.Tokenizer:
    """Returns BERT's tokenizer around a WordPiece model, without special tokens.

    `fields` are of its normalisation, such as `lowercase`.
    """
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(**fields)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def trained_normalizer(*, cased: bool, charsmap: bytes) -> normalizers.Normalizer:
    """Returns the normalisation of tokenizers that are trained here, for training and for encoding.

    Without `cased` texts lose what ALBERT's preprocess_text takes away: case, compatibility forms,
    and the characters that have a combining class. Marks without one, such as the vowel signs of
    Hindi, are letters. Then texts are composed again, because the library applies a table of
    sentencepiece (`charsmap`) to one character at a time, where sentencepiece also joins some.
    """
    first = [normalizers.NFC()]
    if not cased:
        combining = normalizers.Replace(Regex(_combining()), "")
        first = [normalizers.NFKD(), combining, normalizers.Lowercase(), *first]
    return _sequence(first, charsmap)


@functools.cache
def _combining() -> str:
    """Returns a regular expression of the characters that have a combining class."""
    marks = filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1)))
    return "[" + "".join(f"\\x{{{ord(mark):x}}}" for mark in marks) + "]"


def _sequence(first: list[normalizers.Normalizer], charsmap: bytes) -> normalizers.Normalizer:
    """Returns normalisations, then a table of sentencepiece (b"": none) and its white space."""
    return normalizers.Sequence([
        *first,
        *([normalizers.Precompiled(charsmap)] if charsmap else []),
        normalizers.Replace(Regex(r"\s{2,}|[^\S ]"), " "),
        normalizers.Strip(),
    ])  # fmt: skip


def from_sentencepiece(
    content: bytes,
    where: str,
    settings: Mapping[str, bool],
    normalizer: normalizers.Normalizer | None = None,
) -> dict[str, Any]:
    """Returns the tokenizer of a sentencepiece .model: Unigram, normalised as ALBERT's, or BPE.

    ALBERT's tokenization.py splits a piece of digits and a comma, such as "2,", once more. Here
    such pieces of a Unigram model are never chosen, which is the same in nearly all texts. Special
    tokens that the model lacks are appended.

    Args:
      content: of the file.
      where: its name, for messages.
      settings: fields of a tokenizer_config.json.
      normalizer: of the text that the model was trained on, where that is known.

    Raises:
      BadInputError: the file is no sentencepiece model, or one of words or characters.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    with refusing(f"{where}: damaged, or not a sentencepiece model", DecodeError):
        model.ParseFromString(content)
    trainer, spec = model.trainer_spec, model.normalizer_spec
    other = not model.pieces or trainer.model_type not in (trainer.UNIGRAM, trainer.BPE)
    spaces = trainer.treat_whitespace_as_suffix or not spec.remove_extra_whitespaces
    odd = "treat_whitespace_as_suffix=true or remove_extra_whitespaces=false"
    trained = f"was trained with {odd}, which is not read; train another"
    refuse(where, (other, "not a Unigram or BPE sentencepiece model"), (spaces, trained))
    is_bpe = trainer.model_type == trainer.BPE
    ordinary = [piece.piece for piece in model.pieces if piece.type == _NORMAL]
    lower = settings.get("do_lower_case", not (is_bpe or _has_capitals(ordinary)))
    keep = settings.get("keep_accents", not lower)
    first = [] if keep else [normalizers.NFKD(), normalizers.StripAccents()]
    first += [normalizers.Lowercase()] if lower else []
    tokenizer = tokenizers.Tokenizer(_bpe(model) if is_bpe else _unigram(model))
    tokenizer.normalizer = normalizer or _sequence(first, spec.precompiled_charsmap)
    scheme = {"prepend_scheme": "always" if spec.add_dummy_prefix else "never"}
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, **scheme)
    spaces = decoders.Metaspace(replacement=MARK, **scheme)
    fallback = [decoders.ByteFallback(), spaces, decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(fallback) if trainer.byte_fallback else spaces
    known = {piece.piece for piece in model.pieces}
    control = [p.piece for p in model.pieces if p.type not in (_NORMAL, _USER_DEFINED, _BYTE)]
    missing = [name for name in SPECIAL if not {name, _SENTENCEPIECE.get(name, name)} & known]
    return with_special(tokenizer, control + missing)


def _unigram(model: Any) -> models.Unigram:
    pieces = [(piece.piece, _score(piece)) for piece in model.pieces]
    return models.Unigram(pieces, model.trainer_spec.unk_id, model.trainer_spec.byte_fallback)


def _bpe(model: Any) -> models.BPE:
    """Returns the BPE model of sentencepiece pieces.

    sentencepiece joins the neighbours whose piece has the highest score, so the merges that make a
    piece have its score's rank.
    """
    ids = {piece.piece: index for index, piece in enumerate(model.pieces)}
    score = {piece.piece: piece.score for piece in model.pieces if piece.type == _NORMAL}
    merges = [
        (-score[piece], ids[piece[:cut]], (piece[:cut], piece[cut:]))
        for piece in score
        for cut in range(1, len(piece))
        if piece[:cut] in score and piece[cut:] in score
    ]
    unknown = model.pieces[model.trainer_spec.unk_id].piece
    pairs = [pair for *_, pair in sorted(merges)]
    return models.BPE(
        ids, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=model.trainer_spec.byte_fallback
    )


_SENTENCEPIECE = {"[PAD]": "<pad>", "[UNK]": "<unk>"}


def _score(piece: Any) -> float:
    text = piece.piece
    return _NEVER if text[-1:] == "," and text[-2:-1].isdigit() else piece.score


def _has_capitals(pieces: Iterable[str]) -> bool:
    ordinary = (piece for piece in pieces if not piece.startswith("["))  # not [CLS], [unused1]
    return any("A" <= character <= "Z" for piece in ordinary for character in piece)


def with_special(tokenizer: tokenizers.Tokenizer, names: Iterable[str]) -> dict[str, Any]:
    """Returns the content of a tokenizer.json, `names` being special tokens, added if missing."""
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in names])
    return json.loads(tokenizer.to_str())
