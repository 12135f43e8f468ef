"""Text to token ids: one class for WordPiece and Unigram tokenizers from every common file.

`[CLS]` and `[SEP]` are put around texts by the code that makes instances, never by the tokenizer.
A marker such as "[SEP]" inside a text is encoded as ordinary characters: only the code that makes
instances can add special tokens.
"""

import functools
import hashlib
import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from widenet_jax.corpus import tokenizer_files
from widenet_jax.errors import BadInputError, refuse, refusing
from widenet_jax.files import TOKENIZER as FILE
from widenet_jax.files import matching, readable

# The library's own threads do not survive a fork, and our workers are processes.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A directory's tokenizer is the first of these that it holds.
FILES = (FILE, "vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
# Weights beside which the tokenizer lies.
WEIGHTS = (".safetensors", ".npz", ".bin")
# Token names of each role: BERT's and ALBERT's, then RoBERTa's and T5's.
ROLES = {
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
}
WORD_MARKS = ("▁", "Ġ")  # of sentencepiece and of byte-level BPE
_SHOWN_CONTROLS = "\n\t"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~€£')  # ALBERT's list: without "'"


class Encoded(NamedTuple):
    """A text's tokens and their places.

    Attributes:
      ids: int32 [n].
      offsets: int32 [n, 2], characters of the text: token k is text[offsets[k, 0]:offsets[k, 1]].
        The space before a word is not part of its first token.
    """

    ids: np.ndarray
    offsets: np.ndarray


class Tokenizer:
    """A tokenizer and the tables that masking needs; small to pickle.

    Attributes:
      json: the parsed tokenizer.json.
      vocab_size: V, special and added tokens included.
      cls_id, sep_id, mask_id, pad_id, unk_id: ids of the special tokens.
    """

    def __init__(self, content: Mapping[str, Any], where: str = FILE):
        """Builds the tokenizer from a parsed tokenizer.json.

        Raises:
          BadInputError: not a tokenizer, or one without the special tokens; the message names
            `where`.
        """
        self.json, self._where = content, where
        with refusing(f"{where}: not a tokenizer.json", Exception):  # the library's are plain
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(self.json))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if {*self._tokenizer.get_vocab().values()} != {*range(self.vocab_size)}:
            problem = f"its {self.vocab_size:,} tokens are not numbered from 0 on without a gap"
            raise BadInputError(f"{where}: {problem}: was it cut? download or train it again")
        ids = map(self._id_of, ROLES.values())
        self.cls_id, self.sep_id, self.mask_id, self.pad_id, self.unk_id = ids

    def __reduce__(self) -> tuple:
        return Tokenizer, (self.json, self._where)

    def _id_of(self, names: Sequence[str]) -> int:
        for name in names:
            if (found := self._tokenizer.token_to_id(name)) is not None:
                return found
        raise BadInputError(
            f"{self._where}: has no token {' or '.join(names)}; pretraining and finetuning need it"
        )

    def encode(self, text: str) -> np.ndarray:
        """Returns the ids of a text: int32 [n], without `[CLS]` and `[SEP]`."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Iterable[str]) -> list[np.ndarray]:
        """Returns the ids of each text; faster than one call for each.

        Raises:
          BadInputError: one is no str of whole characters.
        """
        encodings = self._encoded(self._tokenizer.encode_batch_fast, list(texts))
        return [self._ordinary(encoding.ids) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> Encoded:
        """Returns the ids of a text with the characters that each stands for; raises likewise."""
        encoding = self._encoded(self._tokenizer.encode, text)
        offsets = np.array(encoding.offsets, np.int32).reshape(-1, 2)
        for span, limit in zip(offsets, [*offsets[1:, 0], len(text)], strict=False):
            while span[0] < span[1] and text[span[0]].isspace():
                span[0] += 1
            # An accent that is stripped belongs to the letter before it.
            while span[0] < span[1] < limit and unicodedata.category(text[span[1]])[0] == "M":
                span[1] += 1
        return Encoded(self._ordinary(encoding.ids), offsets)

    def _encoded(self, encode: Callable[..., Any], text: Any) -> Any:
        """Calls the library; raises BadInputError in place of its error for anything but texts."""
        try:
            return encode(text, add_special_tokens=False)
        except TypeError:
            what = "not a text, or one with half a character (a surrogate without the other)"
            raise BadInputError(f"cannot be cut into tokens: {what}") from None

    def _ordinary(self, ids: Sequence[int]) -> np.ndarray:
        """Returns the ids with special tokens replaced by the unknown one.

        A Unigram model finds "<pad>" in a text as any other piece.
        """
        found = np.array(ids, np.int32)
        found[self.special[found]] = self.unk_id
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of some ids, special tokens left out."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def decode_all(self, encoded: Iterable[np.ndarray]) -> list[str]:
        """Returns the text of each array of ids; faster than one call for each."""
        lists = [ids.tolist() for ids in encoded]
        return self._tokenizer.decode_batch(lists, skip_special_tokens=True)

    def token(self, index: int) -> str:
        """Returns the piece of an id, with its marks."""
        return self._tokenizer.id_to_token(int(index)) or ""

    def id_of(self, token: str) -> int | None:
        """Returns the id of a piece or a special token; None if there is none."""
        return self._tokenizer.token_to_id(token)

    @property
    def kind(self) -> str:
        """Name of the model, such as "WordPiece"; old files leave it out, and the library knows."""
        return type(self._tokenizer.model).__name__

    @property
    def normalization(self) -> str:
        """What becomes of case and accents: "capital letters become small, accents are removed"."""
        normalizer = self._tokenizer.normalizer
        kept = unicodedata.normalize("NFC", normalizer.normalize_str("Aé") if normalizer else "Aé")
        case, accents = "A" in kept, "é" in kept
        capitals = f"capital letters {'are kept' if case else 'become small'}"
        text = f"{capitals}, accents are {'kept' if accents else 'removed'}"
        return text if case and accents else f"{text} (one trained with --cased keeps both)"

    @functools.cached_property
    def special(self) -> np.ndarray:
        """Whether an id is a special token, and so never masked nor a random replacement: [V]."""
        table = np.zeros(self.vocab_size, bool)
        added = self._tokenizer.get_added_tokens_decoder()
        table[[index for index, token in added.items() if token.special]] = True
        table[[self.cls_id, self.sep_id, self.mask_id, self.pad_id, self.unk_id]] = True
        return table

    @functools.cached_property
    def starts_word(self) -> np.ndarray:
        """Whether a piece starts a word, for masking of whole words: bool [V].

        WordPiece: it lacks the "##" of continuations. Other models, as in ALBERT's
        create_pretraining_data.py: it begins with the word mark or "<", is one punctuation mark,
        or holds a character that is neither a letter a-z nor punctuation.
        """
        pieces = [self.token(index) for index in range(self.vocab_size)]
        if self.kind == "WordPiece":
            prefix = self.json["model"].get("continuing_subword_prefix", "##")
            return np.array([not piece.startswith(prefix) for piece in pieces])
        return np.array([_starts_word(piece) for piece in pieces]) | self.special

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the content, which does not depend on the file's layout."""
        content = json.dumps(self.json, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


def _starts_word(piece: str) -> bool:
    if piece.startswith((*WORD_MARKS, "<")) or piece in _PUNCTUATION:
        return True
    return not set(piece.lower()) <= _LETTERS | _PUNCTUATION


def load_tokenizer(path: str) -> Tokenizer:
    """Loads a tokenizer.

    Args:
      path: a tokenizer.json of the `tokenizers` library, a vocab.txt (WordPiece) or a .model
        (sentencepiece Unigram), local or remote; or a directory that holds one, such as a workdir,
        an export, a prepared set or a Hugging Face model; or a weights file in such a directory.

    Raises:
      BadInputError: nothing there, or not a tokenizer.
    """
    place = readable(path).expanduser()
    if place.suffix in WEIGHTS:
        place = place.parent
    if place.is_dir():
        held = [place / name for name in FILES if (place / name).exists()]
        held = held or matching(place, "*.model")
        if not held:
            raise BadInputError(f"{path}: holds no tokenizer ({', '.join(FILES)} or *.model)")
        place = held[0]
    return Tokenizer(tokenizer_files.read(place), str(place))


def load_written_tokenizer(directory: str, sha256: str) -> Tokenizer:
    """Loads the tokenizer of a prepared set; raises BadInputError unless it has this hash."""
    tokenizer = load_tokenizer(os.path.join(directory, FILE))
    other = "not the tokenizer that the set was prepared with"
    advice = "put that one back, or prepare the set again"
    refuse(f"{directory}/{FILE}", (tokenizer.sha256 != sha256, f"{other}; {advice}"))
    return tokenizer


def printable(tokens: Sequence[int] | np.ndarray, tokenizer: Tokenizer | None) -> str:
    """Returns the text of a stream's tokens, safe to print.

    Bytes that are no UTF-8, and control characters but line breaks and tabs, are shown as \\xNN, so
    that no model can send commands to a terminal.

    Args:
      tokens: ids.
      tokenizer: None for bytes.
    """
    if tokenizer:
        text = tokenizer.decode(tokens)
    else:
        text = bytes(bytearray(map(int, tokens))).decode(errors="backslashreplace")
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or character in _SHOWN_CONTROLS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
