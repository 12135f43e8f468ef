"""The subcommands `text` and `tokenizer` of `scripts/prepare_data.py`."""

import json
import sys
from typing import Any

import tqdm

from widenet_jax.config.parser import Options, not_negative, positive, show
from widenet_jax.corpus.command import add_command, add_set_command, column_of, report, units_of
from widenet_jax.errors import BadInputError, check_range
from widenet_jax.files import check_output, write_text

LEAST_LENGTH = 8


def add_commands(commands: Any) -> None:
    """Adds the subcommands to prepare_data.py."""
    add = add_set_command(commands, "text", "text for pretraining", prepare_text)
    add("--tokenizer", required=True, metavar="FILE", help="tokenizer.json, vocab.txt or .model")
    add("--max_length", type=positive, default=512, metavar="T", help="tokens of a sequence")
    text = "validation documents among 1,000 of the training text (default 5, with --valid 0)"
    add("--valid_per_mille", type=not_negative, metavar="K", help=text)
    add("--pack", action="store_true", help="fill rows of T tokens with up to 8 chunks each")
    add("--seed", type=not_negative, default=0, help="of the chunks' target lengths")
    text = "prepare with Apache Beam, by its OPTIONS, as in --beam='--runner=DataflowRunner ...'"
    add("--beam", metavar="OPTIONS", help=text)
    add = add_command(commands, "tokenizer", "train or convert a tokenizer", make_tokenizer)
    add("inputs", nargs="*", metavar="INPUT", help="text to train on, as for the command text")
    add("--out", required=True, metavar="FILE", help="the tokenizer.json to write")
    text = "a vocab.txt (WordPiece) or .model (sentencepiece) instead of training"
    add("--convert", metavar="FILE", help=text)
    add("--kind", choices=("unigram", "wordpiece", "bpe"), default="unigram")
    add("--vocab_size", type=positive, default=30_000, metavar="V")
    text = "sentencepiece's rule; identity leaves its table of characters out of the file"
    add("--normalization", choices=("nmt_nfkc", "identity"), default="nmt_nfkc", help=text)
    text = "share of the text's characters that have pieces (1 for a small text)"
    add("--character_coverage", type=float, default=0.99995, metavar="SHARE", help=text)
    add("--cased", action="store_true", help="keep capital letters and accents (bpe always does)")
    add("--max_sentences", type=positive, default=2_000_000, metavar="N", help="of a larger text")


def make_tokenizer(options: Options) -> None:
    """Trains a tokenizer on text, or converts one to tokenizer.json.

    unigram: sentencepiece, in ALBERT's layout and normalisation; wordpiece: as BERT's; bpe: for
    language models, sentencepiece, each digit a piece, with capital letters, from the lines of the
    text as the command stream reads them.
    """
    from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
    from widenet_jax.text.prepare import tokenizers

    if bool(options.convert) == bool(options.inputs):
        raise BadInputError("give either text to train on, or --convert=FILE")
    if options.convert and options.cased:
        raise BadInputError(
            "--cased is for training; of a file to convert, a tokenizer_config.json beside it says "
            'so: {"do_lower_case": false}'
        )
    check_output(options.out, "--out", "a tokenizer", b'"added_tokens"')
    units = units_of({"train": options.inputs}, options)["train"]
    column = column_of(units, options)
    if options.convert:
        tokenizer = load_tokenizer(options.convert)
    else:
        bpe = options.kind == "bpe"
        texts = (tokenizers.lines_of if bpe else tokenizers.sentences_of)(units, column)
        bar = tqdm.tqdm(texts, unit="sentence", file=sys.stderr, mininterval=1)
        common = {name: getattr(options, name) for name in ("vocab_size", "max_sentences")}
        common["cased"] = options.cased or bpe
        if options.kind == "wordpiece":
            content = tokenizers.train_word_piece(bar, **common)
        else:
            check_range("--character_coverage", options.character_coverage, 0.5, 1.0)
            common["layout"] = tokenizers.BPE_LAYOUT if bpe else tokenizers.ALBERT_LAYOUT
            common |= {n: getattr(options, n) for n in ("normalization", "character_coverage")}
            content = tokenizers.train_sentencepiece(bar, **common)
        tokenizer = Tokenizer(content, "the trained tokenizer")
    write_text(options.out, json.dumps(tokenizer.json, ensure_ascii=False, indent=0) + "\n")
    info = {"path": options.out, "vocab_size": tokenizer.vocab_size, "kind": tokenizer.kind}
    text = f"{options.out}: {tokenizer.vocab_size:,} tokens, {tokenizer.kind}"
    show(options, info, f"{text}; {tokenizer.normalization}")


def prepare_text(options: Options) -> None:
    """Prepares text for pretraining: documents as chunks of about max_length tokens.

    Documents are split into sentences, encoded and grouped into chunks; nothing is masked yet.
    Train on the set with --config.data.source=text --config.data.path=DIR.

    INPUT is a file, or a directory of files (gzip, bzip2 and xz are recognised):
      text       plain text, a document a file; blank lines between paragraphs
      titles     documents that begin with a line "= Title =", a paragraph a line
      sentences  a sentence a line, a blank line between documents (only with --format=sentences)
      jsonl      a JSON object a line, the text in a field (--text_column)
      parquet    Hugging Face parquet files, the text in a column (--text_column)
      csv, tsv   tables with a header, the text in a column (--text_column); a row is a document
    or the directory of a TFDS set that is stored as array_record, such as wikipedia.

    Each file is one unit of work, so give at least as many files as workers. A preparation that was
    stopped continues when the same command is run again.
    """
    from widenet_jax.corpus import preparation
    from widenet_jax.corpus.chunking import MOST_TOKENS, Chunking
    from widenet_jax.corpus.tokenizer import load_tokenizer
    from widenet_jax.text.prepare import beam
    from widenet_jax.text.prepare.preparation import ChunkPreparation

    check_range("--max_length", options.max_length, LEAST_LENGTH, MOST_TOKENS)
    per_mille = options.valid_per_mille
    if per_mille is None:
        per_mille = 0 if options.valid else 5
    check_range("--valid_per_mille", per_mille, 0, 999)
    tokenizer = load_tokenizer(options.tokenizer)
    train, valid = units_of({"train": options.inputs, "valid": options.valid}, options).values()
    units = train + valid
    chunks = ChunkPreparation(
        units=units,
        column=column_of(units, options),
        tokenizer=tokenizer,
        num_train=len(train),
        chunking=Chunking(options.max_length, options.seed),
        valid_per_mille=per_mille,
        packed=options.pack,
    )
    provenance = {"converter": "text", "input": options.inputs, "valid": options.valid}
    if options.beam is None:
        manifest = preparation.prepare(chunks, options, provenance)
    else:
        manifest = beam.prepare(chunks, options, provenance)
    counts = "{count:,} records of {documents:,} documents, {tokens:,} tokens"
    entropy = manifest["unigram_entropy"]
    least = f"unigram entropy {entropy:.3f} nats (loss of word frequencies alone)"
    report(options, manifest, counts, f"tokenizer: {tokenizer.normalization}", least)
