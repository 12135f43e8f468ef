"""The subcommands of `scripts/prepare_data.py` for text: text, tokenizer."""

import argparse
import json
import os
import sys
from typing import Any

import tqdm

from widenet_jax.cli.parser import not_negative, positive
from widenet_jax.errors import check_range

MOST_LENGTH = 65_535  # a record holds lengths in 16 bits
LEAST_LENGTH = 8

TEXT = """Prepares text for pretraining: documents are split into sentences, encoded, and grouped
into chunks of about max_length tokens; nothing is masked yet. Train on the set with
--config.data.source=text --config.data.path=DIR.

INPUT is a file, or a directory of files (gzip is recognised):
  text       plain text, a document a file; blank lines between paragraphs
  titles     documents that begin with a line "= Title =", a paragraph a line
  sentences  a sentence a line, a blank line between documents (only with --format=sentences)
  jsonl      a JSON object a line, the text in a field (--text_column)
  parquet    Hugging Face parquet files, the text in a column (--text_column)
or the directory of a TFDS set that is stored as array_record, such as wikipedia.

Each file is one unit of work, so give at least as many files as workers. A preparation that was
stopped continues when the same command is run again."""


def add_text_commands(commands: Any) -> None:
    """Adds the subcommands to those of prepare_data.py."""
    text = commands.add_parser("text", help="text for pretraining", description=TEXT)
    add = text.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="training text")
    add("--out", required=True, metavar="DIR", help="where the set goes")
    add("--tokenizer", required=True, metavar="FILE", help="tokenizer.json, vocab.txt or .model")
    add("--max_length", type=positive, default=512, metavar="T", help="tokens of a sequence")
    add("--valid", action="append", default=[], metavar="INPUT", help="validation text; repeat")
    text = "validation documents among 1,000 of the training text (default 5, with --valid 0)"
    add("--valid_per_mille", type=not_negative, metavar="K", help=text)
    text = "of the files; by default from their names and beginnings"
    formats = ("auto", "text", "titles", "sentences", "jsonl", "parquet")
    add("--format", choices=formats, default="auto", help=text)
    add("--text_column", default="text", metavar="NAME", help="of parquet and JSON lines")
    add("--tfds_split", default="train", metavar="NAME", help="of a TFDS set")
    add("--pack", action="store_true", help="fill rows of T tokens with up to 8 chunks each")
    add("--seed", type=not_negative, default=0, help="of the chunks' target lengths")
    cores = len(os.sched_getaffinity(0))
    add("--workers", type=positive, default=cores, metavar="N", help="processes; by default cores")
    add("--overwrite", action="store_true", help="replace another set that is there")
    add("--json", action="store_true", help="print the manifest as one JSON object")


def prepare_text(options: argparse.Namespace) -> None:
    """Prepares the set that `options` describe."""
    from widenet_jax.data.prepare import text_inputs, text_sets
    from widenet_jax.data.text.chunking import Chunking
    from widenet_jax.data.text.tokenizer import load_tokenizer

    check_range("--max_length", options.max_length, LEAST_LENGTH, MOST_LENGTH)
    per_mille = options.valid_per_mille
    if per_mille is None:
        per_mille = 0 if options.valid else 5
    check_range("--valid_per_mille", per_mille, 0, 999)
    tokenizer = load_tokenizer(options.tokenizer)
    reading = text_inputs.Reading(options.format, options.text_column, options.tfds_split)
    units = text_inputs.plan(options.inputs, reading)
    num_train = len(units)
    if options.valid:
        units += text_inputs.plan(options.valid, reading)
    preparation = text_sets.Preparation(
        units=units,
        num_train=num_train,
        tokenizer=tokenizer,
        rule=Chunking(options.max_length, options.seed),
        valid_per_mille=per_mille,
        packed=options.pack,
        column=options.text_column,
    )
    with tqdm.tqdm(total=len(units), unit="file", file=sys.stderr) as bar:
        manifest = text_sets.prepare(
            preparation,
            options.out,
            workers=options.workers,
            provenance={"converter": "text", "input": options.inputs, "valid": options.valid},
            overwrite=options.overwrite,
            on_unit=lambda part: bar.update(),
        )
    report(options, manifest)


def report(options: argparse.Namespace, manifest: dict[str, Any]) -> None:
    """Prints what the set holds."""
    if options.json:
        print(json.dumps({"path": options.out, **manifest}))
        return
    for split, entry in manifest["splits"].items():
        print(
            f"{options.out}: {split} {entry['count']:,} records of {entry['documents']:,} "
            f"documents, {entry['tokens']:,} tokens"
        )
    print(
        f"unigram entropy {manifest['unigram_entropy']:.3f} nats (loss of word frequencies alone)"
    )
