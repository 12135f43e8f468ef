"""Training of tokenizers: sentencepiece Unigram (as ALBERT's) and BPE; WordPiece as BERT's."""

import contextlib
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import models, trainers

from widenet_jax.corpus import tokenizer_files
from widenet_jax.corpus.inputs import documents, passages
from widenet_jax.corpus.readers import Input
from widenet_jax.errors import BadInputError, first_line

_SPECIAL_PIECES = {
    "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "<pad>",
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}  # fmt: skip
# google-research/albert, README: how the published model was trained.
ALBERT_LAYOUT = {
    **_SPECIAL_PIECES, "model_type": "unigram", "user_defined_symbols": list('()"-.–£€')
}  # fmt: skip
# arXiv:2310.10837: BPE of 8,000 pieces, each digit a piece; here with the special tokens.
BPE_LAYOUT = {**_SPECIAL_PIECES, "model_type": "bpe", "split_digits": True}
SEED = 0  # of the sample of sentences
# The sums of the training depend on the number of threads in their last bits.
THREADS = 4
LONGEST_SENTENCE = 16_384  # bytes; sentencepiece passes over longer ones, so they are cut


def sentences_of(units: Sequence[Sequence[Input]], column: str) -> Iterator[str]:
    """Yields the sentences of a corpus. Raises as `documents`."""
    for document in documents(itertools.chain.from_iterable(units), column):
        yield from document.sentences()


def lines_of(units: Sequence[Sequence[Input]], column: str) -> Iterator[str]:
    """Yields the lines of a corpus, as a stream has them. Raises as `passages`."""
    for passage in passages(itertools.chain.from_iterable(units), column):
        yield from filter(str.strip, passage.lines())


def train_sentencepiece(
    sentences: Iterable[str],
    *,
    vocab_size: int,
    max_sentences: int,
    layout: Mapping[str, Any] = ALBERT_LAYOUT,
    cased: bool = False,
    normalization: str = "nmt_nfkc",
    character_coverage: float = 0.99995,
) -> dict[str, Any]:
    """Trains a tokenizer; the same sentences always give the same tokenizer.

    Args:
      sentences: the text, read once.
      layout: ALBERT_LAYOUT (Unigram) or BPE_LAYOUT.
      vocab_size: V, the special tokens included.
      max_sentences: of a larger text, so many sentences are drawn.
      cased: keep case and accents.
      normalization: sentencepiece's rule. "identity" leaves its table of characters, 240 kB, out of
        the tokenizer. The whole normalisation is done here, before sentencepiece reads the text, so
        that training sees what the tokenizer makes of raw text.
      character_coverage: share of the text's characters that have pieces; the rarest have none.

    Returns:
      The content of a tokenizer.json.

    Raises:
      BadInputError: the text has too few different pieces for `vocab_size`.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    rule = sentencepiece.SentencePieceNormalizer(rule_name=normalization)
    spec = sentencepiece_model_pb2.NormalizerSpec.FromString(rule.serialized_normalizer_spec())
    charsmap = spec.precompiled_charsmap
    normalizer = tokenizer_files.trained_normalizer(cased=cased, charsmap=charsmap)
    cut = map(cut_sentence, map(normalizer.normalize_str, sentences))
    sentencepiece.set_random_generator_seed(SEED)
    model = io.BytesIO()
    with training(itertools.chain.from_iterable(cut), vocab_size) as source:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=source, model_writer=model, vocab_size=vocab_size,
            input_sentence_size=max_sentences, shuffle_input_sentence=True, num_threads=THREADS,
            max_sentence_length=LONGEST_SENTENCE, normalization_rule_name="identity",
            character_coverage=character_coverage, minloglevel=2, **layout,
        )  # fmt: skip
    trained = model.getvalue()
    return tokenizer_files.from_sentencepiece(trained, "the trained tokenizer", {}, normalizer)


def train_word_piece(
    sentences: Iterable[str], *, vocab_size: int, max_sentences: int, cased: bool = False
) -> dict[str, Any]:
    """Trains a WordPiece tokenizer on the first `max_sentences`; else as `train_sentencepiece`.

    The library breaks ties at random, so a second training gives slightly other pieces.
    """
    special = tokenizer_files.SPECIAL
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(special), show_progress=False
    )
    model = models.WordPiece(unk_token="[UNK]")
    tokenizer = tokenizer_files.bert_tokenizer(model, lowercase=not cased)
    with training(itertools.islice(sentences, max_sentences), vocab_size) as source:
        tokenizer.train_from_iterator(source, trainer)
        if (size := tokenizer.get_vocab_size()) < vocab_size:
            raise ValueError(f"only {size:,} pieces found")
    return tokenizer_files.with_special(tokenizer, special)


def cut_sentence(text: str) -> list[str]:
    """Returns a sentence, in parts if it is longer than sentencepiece reads."""
    if len(text.encode()) <= LONGEST_SENTENCE:
        return [text]
    size = LONGEST_SENTENCE // 4  # a character has at most 4 bytes
    return [text[first : first + size] for first in range(0, len(text), size)]


@contextlib.contextmanager
def training(sentences: Iterable[str], vocab_size: int) -> Iterator[Iterator[str]]:
    """Yields the sentences for a library to train on, which takes errors for the end of the text.

    Raises:
      BadInputError: reading them ended with one, or the library raised an error.
    """
    problems = []

    def read() -> Iterator[str]:
        try:
            yield from sentences
        except BadInputError as error:
            problems.append(error)

    try:
        yield read()
    except Exception as error:  # `tokenizers` raises plain Exception
        most = re.search(r"value <= (\d+)", str(error))  # of sentencepiece
        least = re.search(r"required_chars. \d+ vs (\d+)", str(error))
        what = f"the text has pieces for {most[1]} at most" if most else first_line(error)
        what += "; give more text or a smaller vocabulary"
        if least:
            what = f"the text's characters alone are {least[1]} pieces; give a larger number"
        problems.append(BadInputError(f"--vocab_size={vocab_size}: {what}"))
    if problems:
        raise problems[0] from None
