"""What a stream set is made of: the tokens of each unit, and the splits that are cut from them."""

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.corpus import lost_text
from widenet_jax.corpus.inputs import passages
from widenet_jax.corpus.preparation import Preparation, written_whole
from widenet_jax.corpus.readers import Input
from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data import records
from widenet_jax.data.checks import Checked, run_checks
from widenet_jax.errors import BadInputError
from widenet_jax.files import file_sha256
from widenet_jax.language.data.token_streams import KIND, open_set, open_stream, token_file_name
from widenet_jax.language.data.tokens import Encoder, WordCount, sample_sha256, token_dtype

COPIED = 1 << 22  # tokens copied at once
# Places in a unit where a stream of word pieces may be cut: at least so many bytes of text apart,
# and at most so many.
MARK_BYTES = 1 << 10
MOST_MARKS = 1 << 12


Cut = tuple[str, str]  # a split, and its size: "5%" of the tokens, or a number of tokens
Range = tuple[int, int]  # first token, the token after the last


@dataclass(frozen=True)
class StreamPreparation(Preparation):
    """Everything that decides the bytes of a stream set.

    Attributes:
      units: the work.
      column: of parquet files, JSON lines and TFDS sets.
      encoder: makes tokens.
      splits: of each unit. The text of all units of "train" is cut as `cuts` says.
      cuts: parts in the order of the text. What they leave is left out. Parts of the same split are
        joined. Word pieces are cut at the end of a line, the next among at most 4,096 in a file.
    """

    units: Sequence[Sequence[Input]]
    column: str
    encoder: Encoder
    splits: Sequence[str]
    cuts: Sequence[Cut]

    kind = KIND

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.encoder.tokenizer

    @property
    def dtype(self) -> np.dtype:
        """Type in which a token is stored."""
        return token_dtype(self.encoder.vocab_size)

    @property
    def rule(self) -> dict[str, Any]:
        cuts, pieces = [list(cut) for cut in self.cuts], self.tokenizer is not None
        return {"separator": self.encoder.separator, "splits": cuts, "pieces": pieces}

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"unit_splits": list(self.splits)}

    def prepare_unit(self, directory: Path, unit: int) -> dict[str, Any]:
        """Writes the tokens of one unit.

        Returns:
          {"documents", "marks": [[tokens, bytes, words, *`lost_text.count`], ...]}: the counts up
          to each place where a stream of word pieces may be cut, the last of the whole unit.
        """
        counts, documents, words = np.zeros(7 if self.tokenizer else 3, int), 0, WordCount()
        marks, ending = [counts.tolist()], self.encoder.ending
        with written_whole(part_file(directory, unit)) as path, path.open("wb") as file:
            for passage in passages(self.units[unit], self.column):
                tokens, lost = self.encoder.measured(passage)
                words.add(np.frombuffer(passage.text, np.uint8))
                file.write(tokens.tobytes())
                counts[:2] += len(tokens), len(passage.text)
                counts[3:] += lost
                if passage.last:
                    file.write(ending.tobytes())
                    documents += 1
                    counts[0] += len(ending)
                    words.end_document()
                counts[2] = words.words
                if counts[1] - marks[-1][1] >= MARK_BYTES:
                    marks.append(counts.tolist())
        marks = [*marks[:: -(-len(marks) // MOST_MARKS)], counts.tolist()]
        return {"documents": documents, "marks": marks}

    def sizes(self, directory: Path, unit: int, part: Mapping[str, Any]) -> dict[Path, int]:
        """Returns the bytes of a unit's tokens."""
        return {part_file(directory, unit): part["marks"][-1][0] * self.dtype.itemsize}

    def finish(self, directory: Path, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Joins the units and writes the splits.

        Raises:
          BadInputError: a split is empty, or larger than the text.
        """
        splits: dict[str, dict[str, Any]] = {}
        # Parts that an older version made have no losses.
        columns = min(len(part["marks"][-1]) for part in parts)
        marks = [np.array(part["marks"])[:, :columns] for part in parts]
        for split in dict.fromkeys(self.splits):
            text = JoinedUnits(self, directory, split, marks)
            cuts = self.cuts if split == "train" else [(split, "100%")]
            splits |= {name: text.write(name, ranges) for name, ranges in text.cut(cuts).items()}
        documents = sum(part["documents"] for part in parts)
        return {"vocab_size": self.encoder.vocab_size, "splits": splits, "documents": documents}

    def open_split(self, directory: str, split: str) -> object:
        """Opens a split; raises as `open_set`."""
        return open_set(directory, split, 1)


def part_file(directory: Path, unit: int) -> Path:
    """Returns the file of a unit's tokens."""
    return directory / f".part-{unit:05d}.tokens"


class JoinedUnits:
    """The tokens of a split's units, one after the other; `marks` are of all units."""

    def __init__(
        self, whole: StreamPreparation, directory: Path, split: str, marks: Sequence[np.ndarray]
    ):
        self._directory, self._pieces, self._dtype = directory, bool(whole.tokenizer), whole.dtype
        units = [unit for unit, name in enumerate(whole.splits) if name == split]
        self._files = [(part_file(directory, unit), marks[unit][-1, 0]) for unit in units]
        # [tokens, bytes, words, ...] up to each place where word pieces may be cut
        before = np.cumsum([0 * marks[0][0], *(marks[unit][-1] for unit in units)], axis=0)
        self._marks = np.concatenate(
            [a + marks[unit] for a, unit in zip(before, units, strict=False)]
        )

    def cut(self, cuts: Sequence[Cut]) -> dict[str, list[Range]]:
        """Returns the ranges of tokens of each split.

        Raises:
          BadInputError: the cuts take more tokens than there are, or a split has none.
        """
        total, end, ranges = int(self._marks[-1, 0]), 0.0, {}
        for split, size in cuts:
            first = end
            end += float(size.removesuffix("%")) * (total / 100 if size.endswith("%") else 1)
            if round(end) > total:
                raise BadInputError(
                    f"--splits: {split}={size} ends at token {round(end):,}, and the text "
                    f"has {total:,}; ask for less, or give more text"
                )
            ranges.setdefault(split, []).append((self._place(first), self._place(end)))
        for split, of_split in ranges.items():
            if not sum(end - first for first, end in of_split):
                raise BadInputError(
                    f"split {split}: no text found for it among {total:,} tokens; give more text, "
                    "or a larger share"
                )
        return ranges

    def _place(self, token: float) -> int:
        """Returns the token to cut at."""
        if not self._pieces:
            return round(token)
        places = self._marks[:, 0]
        return int(places[min(np.searchsorted(places, round(token)), len(places) - 1)])

    def write(self, split: str, ranges: Sequence[Range]) -> dict[str, Any]:
        """Writes the file of a split; returns its entry of the manifest."""
        path = self._directory / token_file_name(split)
        digest, words = hashlib.sha256(), WordCount()
        with written_whole(path) as beside, beside.open("wb") as file:
            for tokens in itertools.chain.from_iterable(map(self._read, ranges)):
                content = tokens.tobytes()
                digest.update(content)
                file.write(content)
                if not self._pieces:
                    words.add(tokens)
            file.flush()
            os.fsync(file.fileno())
        size = sum(end - first for first, end in ranges)
        counts = {"bytes": size, "words": words.words}
        if self._pieces:
            ends = np.searchsorted(self._marks[:, 0], np.array(ranges), "right") - 1
            taken = (self._marks[ends[:, 1]] - self._marks[ends[:, 0]]).sum(0)
            counts = {"bytes": int(taken[1]), "words": int(taken[2])}
            counts |= lost_text.shares_of(taken[3:])
        stored = {"file_bytes": size * self._dtype.itemsize, "sha256": digest.hexdigest()}
        stored["sample_sha256"] = sample_sha256(str(path))
        return {"tokens": size, **counts, **stored}

    def _read(self, wanted: Range) -> Iterator[np.ndarray]:
        """Yields the tokens of a range, a few at a time."""
        before = 0
        for path, size in self._files:
            first, end = (min(max(place - before, 0), size) for place in wanted)
            if first < end:
                tokens = np.memmap(path, self._dtype, "r", shape=(size,))
                for place in range(first, end, COPIED):
                    yield tokens[place : min(place + COPIED, end)]
            before += size


def check_set(directory: str, splits: Sequence[str]) -> Checked:
    """Reads the file of each split, and compares its hash."""
    written = records.read_manifest(directory, KIND)["splits"]

    def check(split: str) -> None:
        open_stream(directory, split, 1)
        path = str(epath.Path(directory) / token_file_name(split))
        if file_sha256(path) != written[split]["sha256"]:
            raise BadInputError(
                f"{path}: damaged; copy it again or prepare the set with --overwrite"
            )

    checks = {f"{directory}, split {split}": [partial(check, split)] for split in splits}
    return run_checks(checks, "files of tokens")
