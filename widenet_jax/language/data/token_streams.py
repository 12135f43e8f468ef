"""Streams of tokens for language models, and the source that reads them.

A stream is a text as one sequence of tokens, cut into windows of T. It is a plain file, read as
bytes, or a set that `scripts/prepare_data.py stream` wrote: a directory with a file of tokens for
each split (uint8 for up to 256 different tokens, else uint16, little-endian), a tokenizer.json for
word pieces, and a `dataset.json` of kind "stream" (see `data.records`): its splits count tokens,
bytes and words and have two hashes of their file, sha256 and sample_sha256 (of parts of it), and
`vocab_size` is V.

The rows of a batch are B places of the stream, each continued by the same row of the next batch, so
that a model can keep a memory for each row. `data.blocks.stream_at` has the rule.
"""

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.files import first_bytes
from widenet_jax.corpus.inputs import COLUMN, Passage, passages, plan
from widenet_jax.corpus.novel import FOLDER, NOVEL, TEXT
from widenet_jax.corpus.readers import CHOOSE
from widenet_jax.corpus.tokenizer import FILE, Tokenizer, load_tokenizer, load_written_tokenizer
from widenet_jax.data import records
from widenet_jax.data.contract import ArraySpec, Example, Transform
from widenet_jax.data.input_files import BZIP2, GZIP, PARQUET, XZ
from widenet_jax.data.sources import path_of
from widenet_jax.data.splits import PLAIN_SPLITS, check_split
from widenet_jax.errors import BadInputError, refuse
from widenet_jax.files import file_sha256, readable
from widenet_jax.language.data.tokens import (
    BYTE_VALUES,
    Encoder,
    Tokens,
    WordCount,
    file_size,
    sample_sha256,
    token_dtype,
)

KIND = "stream"
WHOLE = "all"  # a plain file's further split: everything


@dataclass
class TokenStream:
    """A text in windows of T tokens; window i begins at token i * T.

    `source[i]` is {"tokens": int32 [T + 1], "fresh": bool}: a window and the token after it, and
    whether it is the first.

    Attributes:
      tokens: of the text.
      counts: "bytes" of the text, and its "words"; None where they were not counted; and of word
        pieces the shares of `lost_text.shares_of`, which sets of older versions lack.
      info: "vocab_size"; "tokenizer", parsed from tokenizer.json, in a set of word pieces;
        "text_sha256" of all splits, so that a run does not resume on another text.
      max_length: T.
      text: what the text is called: a path, or "the embedded novel".
      split: which part of it; "" for a text that is not divided.

    Raises:
      BadInputError: there are fewer tokens than one window has.
    """

    tokens: Tokens
    counts: Mapping[str, Any]
    info: Mapping[str, Any]
    max_length: int
    text: str
    split: str = ""

    def __post_init__(self) -> None:
        if len(self) < 1:
            raise BadInputError(
                f"{self._where}: {self.num_tokens:,} tokens, too few for one window of "
                f"config.data.max_length={self.max_length} and the token after it; give more text, "
                "or shorter windows"
            )

    @property
    def _where(self) -> str:
        return f"{self.text}, split {self.split}" if self.split else self.text

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def bytes_per_token(self) -> float:
        return self.counts["bytes"] / self.num_tokens

    @property
    def words_per_token(self) -> float | None:
        return self.counts["words"] and self.counts["words"] / self.num_tokens

    @property
    def losses(self) -> dict[str, float]:
        names = (lost_text.UNKNOWN, lost_text.LOST)
        return {name: self.counts[name] for name in names if name in self.counts}

    @property
    def note(self) -> str:
        if "tokenizer" not in self.info:
            return ""
        again = "prepare it with --overwrite to see what the tokenizer loses"
        unknown = f"an older version prepared it; {again}"
        text = lost_text.describe(self.losses) or f"{self.text}: {unknown}"
        remark = lost_text.remark(self.losses)
        return text + (remark and f"; bits per byte and word perplexity are {remark}")

    @property
    def contents(self) -> np.ndarray:
        """A number for each window's text and place in it, int64 [n]; see `sources.common`."""
        first = self.tokens.first // self.max_length
        return np.arange(len(self)) + hash(self.tokens.path or self._where) + first

    def __len__(self) -> int:
        return max(0, self.num_tokens - 1) // self.max_length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": self.read_windows(np.array([index]))[0], "fresh": np.bool_(index == 0)}

    def read_windows(self, indices: np.ndarray) -> np.ndarray:
        """Returns some windows, each with the token after it: int32 [n, T + 1]."""
        return self.tokens.read(indices * self.max_length, self.max_length + 1)

    def describe(self, index: int) -> str:
        first = index * self.max_length
        return f"{self._where}, tokens {first:,} to {first + self.max_length:,}"


def open_stream(path: str, split: str, max_length: int) -> TokenStream:
    """Opens a split of a stream.

    Args:
      path: of a prepared set, or of a plain file: its first 90% of bytes are the split "train", 5%
        "valid", the last 5% "test", and "all" is the whole file.
      split: its name.
      max_length: T.

    Raises:
      BadInputError: nothing readable there, or the split is shorter than a window.
    """
    place = readable(path)
    if not place.exists():
        raise BadInputError(f"config.data.path={path}: there is no such file or directory")
    return (open_set if place.is_dir() else open_plain)(path, split, max_length)


def open_set(directory: str, split: str, max_length: int) -> TokenStream:
    """Opens a split of a prepared set; arguments and errors as of `open_stream`."""
    manifest = records.read_manifest(directory, KIND)
    check_split(split, tuple(manifest["splits"]), f"config.data.path={directory}")
    entry, vocab_size = manifest["splits"][split], manifest["vocab_size"]
    path = str(epath.Path(directory) / token_file_name(split))
    written, size = entry["file_bytes"], file_size(path)
    # Runs compare the manifest's hashes, which must be true of the file.
    changed = sample_sha256(path) != entry["sample_sha256"]
    if size != written or changed:
        odd = f"not what was written, by its sample_sha256 in {records.MANIFEST}"
        odd = odd if size == written else f"{size:,} bytes, {written:,} were written"
        raise BadInputError(f"{path}: {odd}; copy it again or prepare the set again")
    info = {"vocab_size": vocab_size, "text_sha256": splits_sha256(manifest["splits"])}
    if "tokenizer_sha256" in manifest:
        tokenizer = load_written_tokenizer(directory, manifest["tokenizer_sha256"])
        info["tokenizer"] = tokenizer.json
    tokens = Tokens(vocab_size, entry["tokens"], path=path)
    return TokenStream(tokens, entry, info, max_length, directory, split)


def open_plain(path: str, split: str, max_length: int, text: str = "") -> TokenStream:
    """Opens a split of a plain file, as bytes; arguments and errors as of `open_stream`."""
    check_split(split, (*PLAIN_SPLITS, WHOLE), path)
    size = file_size(path)
    refuse(path, (not first_bytes(path), "an empty file; give one with text"))
    with epath.Path(path).open("rb") as file:
        beginning = file.read(8)
    advice = "prepare it with scripts/prepare_data.py stream"
    refuse(
        path,
        (beginning.startswith((GZIP, BZIP2, XZ)), f"compressed; unpack it, or {advice}"),
        (beginning.startswith(PARQUET), f"a parquet file; {advice}"),
    )
    ends = np.cumsum([0, *PLAIN_SPLITS.values()]) * size // 100
    bounds = dict(zip(PLAIN_SPLITS, itertools.pairwise(ends), strict=True))
    first, end = bounds.get(split, (0, size))
    tokens = Tokens(BYTE_VALUES, int(end - first), path=path, first=int(first))
    counts = {"bytes": len(tokens), "words": None}
    info = {"vocab_size": BYTE_VALUES, "text_sha256": file_sha256(path)}
    return TokenStream(tokens, counts, info, max_length, text or path, split)


@cache  # a run opens both splits
def novel_pieces() -> dict[str, tuple[Tokens, dict, dict]]:
    """Returns tokens, counts and info of each split of the novel as word pieces, line by line."""
    tokenizer = load_tokenizer(str(FOLDER / FILE))
    lines = TEXT.read_text().splitlines(keepends=True)
    ends = np.cumsum([0, *(len(line.encode()) for line in lines)])
    info = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.json}
    encoder, splits, first = Encoder(tokenizer), {}, 0
    for split, share in zip(PLAIN_SPLITS, np.cumsum([*PLAIN_SPLITS.values()]), strict=True):
        end = int(np.searchsorted(ends, ends[-1] * share // 100))  # whole lines
        text = "".join(lines[first:end]).encode()
        splits[split] = *in_memory(encoder, [Passage(text, NOVEL, None, True)]), info
        first = end
    return splits


def in_memory(encoder: Encoder, text: Iterable[Passage]) -> tuple[Tokens, dict[str, Any]]:
    """Returns the tokens of a text, and the counts that `TokenStream` needs."""
    words, size, parts, losses = WordCount(), 0, [], []
    for passage in text:
        tokens, lost = encoder.measured(passage)
        parts.append(tokens)
        losses.append(lost)
        words.add(np.frombuffer(passage.text, np.uint8))
        if passage.last:
            words.end_document()
        size += len(passage.text)
    held = np.concatenate([*parts, np.zeros(0, token_dtype(encoder.vocab_size))])
    counts = {"bytes": size, "words": words.words}
    counts |= lost_text.shares_of(np.sum(losses, axis=0) if losses else [])
    return Tokens(encoder.vocab_size, len(held), held), counts


def open_file(path: str, max_length: int, info: Mapping[str, Any]) -> tuple[TokenStream, Transform]:
    """Opens a whole file in a model's tokens, and the transform of its windows.

    Args:
      path: of a text, or the column `text` of a table, JSON lines or parquet, perhaps compressed;
        read into memory.
      max_length: T.
      info: of the stream that the model was trained on.

    Raises:
      BadInputError: it cannot be read, or is shorter than a window.
    """
    tokenizer = Tokenizer(info["tokenizer"]) if "tokenizer" in info else None
    try:
        text = passages(itertools.chain.from_iterable(plan([path])), COLUMN)
        tokens, counts = in_memory(Encoder(tokenizer), text)
    except BadInputError as error:  # `--file` has no flag beside it for the column
        raise BadInputError(str(error).replace(CHOOSE, f"name it {COLUMN}")) from None
    return TokenStream(tokens, counts, info, max_length, path), window_transform


def splits_sha256(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns one hash of the splits of a set, from those in its manifest."""
    hashes = "".join(f"{name} {splits[name]['sha256']}\n" for name in sorted(splits))
    return hashlib.sha256(hashes.encode()).hexdigest()


def token_file_name(split: str) -> str:
    """Returns the name of a split's file of tokens."""
    return f"{split}.tokens"


def window_transforms(*_: Any) -> tuple[Transform, Transform]:
    """Returns the transform of training and of evaluation, the same for all configs."""
    return window_transform, window_transform


def window_transform(example: Example, _: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns the arrays of one window; draws nothing."""
    return {name: np.asarray(example[name]) for name in ("tokens", "fresh")}


def open_token_stream(data: Mapping[str, Any], split: str, _: Mapping[str, Any]) -> TokenStream:
    """Opens a split of a stream, or of the embedded novel as bytes; see `specs.SourceSpec`."""
    if data.get("path"):
        return open_stream(path_of(data), split, data["max_length"])
    return open_plain(str(TEXT), split, data["max_length"], NOVEL)


def open_tiny_pieces(data: Mapping[str, Any], split: str, _: Mapping[str, Any]) -> TokenStream:
    """Opens a split of the novel as word pieces; see `specs.SourceSpec`."""
    check_split(split, tuple(PLAIN_SPLITS), "the embedded text")
    tokens, counts, info = novel_pieces()[split]
    return TokenStream(tokens, counts, info, data["max_length"], NOVEL, split)


def example_of(config: Any, _: Any) -> dict[str, ArraySpec]:
    """Returns the arrays of one example; see `specs.TaskSpec`."""
    tokens = ArraySpec((config.data.max_length + 1,), "int32")
    return {"tokens": tokens, "fresh": ArraySpec((), "bool")}
