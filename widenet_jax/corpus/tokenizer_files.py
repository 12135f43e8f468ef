"""Tokenizer files as the content of a tokenizer.json: vocab.txt, sentencepiece's .model."""

import json
from collections.abc import Iterable
from typing import Any

import tokenizers
from etils import epath
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from widenet_jax.data.input_files import read_input
from widenet_jax.errors import BadInputError
from widenet_jax.files import parse_json

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MARK = "▁"
# Kinds of pieces in a sentencepiece model.
_NORMAL, _USER_DEFINED = 1, 4
_NEVER = -1e6  # score of a piece that is never chosen where another segmentation exists


def read(path: epath.Path) -> dict[str, Any]:
    """Returns the content of a tokenizer.json for a tokenizer file of any kind.

    A vocabulary that holds capital letters is cased: texts keep their case and accents. Otherwise
    texts are put in lower case and lose their accents, as in BERT uncased and ALBERT.

    Raises:
      BadInputError: the file cannot be read, or is no tokenizer.
    """
    content = read_input(path)
    if path.suffix == ".model":
        return from_sentencepiece(content, str(path))
    try:
        text = content.decode()
        return from_vocabulary(text, str(path)) if path.suffix == ".txt" else parse_json(text)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInputError(
            f"{path}: not a tokenizer ({error}); give a tokenizer.json, vocab.txt or .model"
        ) from None


def from_vocabulary(text: str, where: str) -> dict[str, Any]:
    """Returns the WordPiece tokenizer of BERT's vocab.txt: one piece a line, line k has id k."""
    pieces = text.removesuffix("\n").split("\n")
    pieces = [piece.rstrip("\r") for piece in pieces]
    for name in SPECIAL:
        if name not in pieces:
            raise BadInputError(f"{where}: has no line {name}, so is not BERT's vocabulary")
    if len(set(pieces)) != len(pieces):
        raise BadInputError(f"{where}: has a piece twice; every line must be another piece")
    model = models.WordPiece({piece: k for k, piece in enumerate(pieces)}, unk_token="[UNK]")
    return with_special(bert_tokenizer(model, lowercase=not _has_capitals(pieces)), SPECIAL)


def bert_tokenizer(model: models.WordPiece, *, lowercase: bool) -> tokenizers.Tokenizer:
    """Returns BERT's tokenizer around a WordPiece model, without special tokens."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def from_sentencepiece(content: bytes, where: str) -> dict[str, Any]:
    """Returns the tokenizer of a sentencepiece .model: Unigram, normalised as ALBERT's, or BPE.

    ALBERT's tokenization.py splits a piece of digits and a comma, such as "2,", once more. Here
    such pieces of a Unigram model are never chosen, which is the same in nearly all texts. Special
    tokens that the model lacks are appended.

    Raises:
      BadInputError: the file is no sentencepiece model, or one of words or characters.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        raise BadInputError(f"{where}: damaged, or not a sentencepiece model") from None
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if not model.pieces or trainer.model_type not in (trainer.UNIGRAM, trainer.BPE):
        raise BadInputError(f"{where}: not a Unigram or BPE sentencepiece model")
    is_bpe = trainer.model_type == trainer.BPE
    ordinary = [piece.piece for piece in model.pieces if piece.type == _NORMAL]
    lower = [] if is_bpe or _has_capitals(ordinary) else _LOWER
    charsmap = normalizer.precompiled_charsmap
    tokenizer = tokenizers.Tokenizer(_bpe(model) if is_bpe else _unigram(model))
    tokenizer.normalizer = normalizers.Sequence([
        *lower,
        *([normalizers.Precompiled(charsmap)] if charsmap else []),
        normalizers.Replace(Regex(r"\s{2,}|[^\S ]"), " "),
        normalizers.Strip(),
    ])  # fmt: skip
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=MARK, prepend_scheme="always")
    known = {piece.piece for piece in model.pieces}
    control = [p.piece for p in model.pieces if p.type not in (_NORMAL, _USER_DEFINED)]
    missing = [name for name in SPECIAL if not {name, _SENTENCEPIECE.get(name, name)} & known]
    return with_special(tokenizer, control + missing)


def _unigram(model: Any) -> models.Unigram:
    pieces = [(piece.piece, _score(piece)) for piece in model.pieces]
    return models.Unigram(pieces, model.trainer_spec.unk_id, False)


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


_LOWER = (normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase())
_SENTENCEPIECE = {"[PAD]": "<pad>", "[UNK]": "<unk>"}


def _score(piece: Any) -> float:
    text = piece.piece
    if len(text) > 1 and text[-1] == "," and text[-2].isdigit():
        return _NEVER
    return piece.score


def _has_capitals(pieces: Iterable[str]) -> bool:
    ordinary = (piece for piece in pieces if not piece.startswith("["))  # not [CLS], [unused1]
    return any("A" <= character <= "Z" for piece in ordinary for character in piece)


def with_special(tokenizer: tokenizers.Tokenizer, names: Iterable[str]) -> dict[str, Any]:
    """Returns the content of a tokenizer.json, `names` being special tokens, added if missing."""
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in names])
    return json.loads(tokenizer.to_str())
