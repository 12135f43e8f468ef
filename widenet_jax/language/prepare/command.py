"""The subcommand `stream` of `scripts/prepare_data.py`: text for language models."""

import re
from typing import Any

from widenet_jax.config.parser import Options
from widenet_jax.corpus.command import add_set_command, column_of, report, units_of
from widenet_jax.data.splits import PLAIN_SPLITS
from widenet_jax.errors import BadInputError

_PART = re.compile(r"\s*([^\W\d]\w*)=\s*(\d+(?:\.\d+)?)([kMG%]?)\s*")  # of --splits: NAME=SIZE
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def add_commands(commands: Any) -> None:
    """Adds the subcommand."""
    add = add_set_command(commands, "stream", "text for language models", prepare_stream)
    add("--test", action="append", default=[], metavar="INPUT", help="test text; repeat")
    text = "word pieces: tokenizer.json, vocab.txt or .model; by default bytes"
    add("--tokenizer", metavar="FILE", help=text)
    default = ",".join(f"{name}={share}%%" for name, share in PLAIN_SPLITS.items())
    text = (
        "parts of INPUT in order, in %% of the tokens or a number of them; a name may occur twice"
    )
    text += f" (default {default}; with --valid or --test train=100%%)"
    add("--splits", metavar="NAME=SIZE,...", help=text)
    text = "after each document: a token of the tokenizer or text, \\n for the end of a line"
    add("--separator", default="", metavar="TEXT", help=text)


def prepare_stream(options: Options) -> None:
    """Prepares text for a language model: a sequence of tokens, and a file of them for each split.

    Without --tokenizer a token is a byte, and nothing is changed. Train on the set with
    --config.data.source=token_stream --config.data.path=DIR. A plain text file needs no
    preparation: give it as --config.data.path.

    INPUT is a file, or a directory of files (gzip, bzip2 and xz are recognised): text, which is
    taken as it is; JSON lines, Hugging Face parquet files or tables (.csv, .tsv), whose text is in
    a column (--text_column); or the directory of a TFDS set that is stored as array_record. Each
    line is cut into word pieces by itself.

      prepare_data.py stream enwik8 --splits train=90M,valid=5M,test=5M --out enwik8_set
      prepare_data.py stream wiki.train.tokens --valid wiki.valid.tokens --test wiki.test.tokens \\
          --tokenizer bpe8000.json --out wikitext103
      prepare_data.py stream c4/*.json.gz --tokenizer bpe8000.json --separator='[SEP]' \\
          --splits train=99.5%,valid=0.5% --out c4

    A preparation that was stopped continues when the same command is run again.
    """
    from widenet_jax.corpus.lost_text import remark
    from widenet_jax.corpus.preparation import prepare
    from widenet_jax.corpus.tokenizer import load_tokenizer
    from widenet_jax.language.data.tokens import Encoder, token_dtype
    from widenet_jax.language.prepare.preparation import StreamPreparation

    files = {"train": options.inputs, "valid": options.valid, "test": options.test}
    cuts = cuts_of(options)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None
    encoder = Encoder(tokenizer, options.separator.replace("\\n", "\n"))
    token_dtype(encoder.vocab_size)  # refuses a vocabulary that is too large
    if options.separator and not len(encoder.ending):
        raise BadInputError(
            f"--separator={options.separator}: the tokenizer makes no token of it; name one of its "
            "tokens, such as '[SEP]'"
        )
    work = [(unit, split) for split, of in units_of(files, options).items() for unit in of]
    units, splits = zip(*work, strict=True)
    stream = StreamPreparation(units, column_of(units, options), encoder, splits, cuts)
    provenance = {"converter": "stream", "input": options.inputs}
    provenance |= {split: files[split] for split in ("valid", "test") if files[split]}
    manifest = prepare(stream, options, provenance)
    more = [f"tokenizer: {tokenizer.normalization}"] if tokenizer else []
    if not (options.separator or tokenizer) and manifest["documents"] > sum(map(len, units)):
        more.append("documents follow each other without a mark; --separator='\\n' adds one")
    for split, entry in manifest["splits"].items():
        if text := remark(entry):
            more.append(f"{split}: bits per byte and word perplexity will be {text}")
    report(options, manifest, "{tokens:,} tokens, {bytes:,} bytes, {words:,} words", *more)


def cuts_of(options: Options) -> list[tuple[str, str]]:
    """Returns the parts of the text that the flags ask for: the split and the size of each.

    Raises:
      BadInputError: --splits is not of its form, or names a split that has its own files.
    """
    own = [split for split in ("valid", "test") if getattr(options, split)]
    text = options.splits
    if text is None:
        shares = {"train": 100} if own else PLAIN_SPLITS
        return [(split, f"{share}%") for split, share in shares.items()]
    parts = [(part, _PART.fullmatch(part)) for part in text.split(",")]
    found = [match.groups() for _, match in parts if match and float(match[2]) > 0]
    names = [name for name, *_ in found]
    odd = [
        f"{part!r} is not NAME=SIZE; write for instance train=90%,valid=5%,test=5% or "
        "train=90M,valid=5M,test=5M"
        for part, match in parts
        if not match or float(match[2]) == 0
    ]
    odd += [f"{n} is given by --{n}, too; leave one of them out" for n in names if n in own]
    odd += ["names no split train; add train=SIZE"] * ("train" not in names)
    if odd:
        raise BadInputError(f"--splits={text}: {odd[0]}")
    return [
        (name, f"{size}%" if unit == "%" else str(round(float(size) * _FACTORS[unit])))
        for name, size, unit in found
    ]


def print_windows(config: Any, options: Options) -> None:
    """Prints the first windows of a config's stream, and the token after each."""
    from widenet_jax.corpus.tokenizer import Tokenizer, printable
    from widenet_jax.data.sources import build_source

    source = build_source(config.data, config.data.train_split)
    tokenizer = Tokenizer(source.info["tokenizer"]) if "tokenizer" in source.info else None
    for index in range(min(options.num, len(source))):
        *tokens, following = source[index]["tokens"].tolist()
        shown = [printable(part, tokenizer) for part in (tokens, [following])]
        print(f"\n{source.describe(index)}\n    {shown[0]!r} then {shown[1]!r}")
