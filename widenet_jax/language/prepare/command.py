"""The subcommand `stream` of `scripts/prepare_data.py`: text for language models."""

import re
from typing import Any

from widenet_jax.config.parser import Options, show
from widenet_jax.corpus.command import add_reading, add_writing, units_of
from widenet_jax.data.splits import PLAIN_SPLITS
from widenet_jax.errors import BadInputError

STREAM = """Prepares text for a language model: one sequence of tokens, for each split a file of
them. Without --tokenizer a token is a byte, and nothing is changed. Train on the set with
--config.data.source=token_stream --config.data.path=DIR. A plain text file needs no preparation:
give it as --config.data.path.

INPUT is a file, or a directory of files (gzip, bzip2 and xz are recognised): text, which is taken
as it is; JSON lines or Hugging Face parquet files, whose text is in a field (--text_column); or the
directory of a TFDS set that is stored as array_record. Each line is cut into word pieces by itself.

  prepare_data.py stream enwik8 --splits train=90M,valid=5M,test=5M --out enwik8_set
  prepare_data.py stream wiki.train.tokens --valid wiki.valid.tokens --test wiki.test.tokens \\
      --tokenizer bpe8000.json --out wikitext103
  prepare_data.py stream c4/*.json.gz --tokenizer bpe8000.json --separator='[SEP]' \\
      --splits train=99.5%,valid=0.5% --out c4

A preparation that was stopped continues when the same command is run again."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kMG%]?)")
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def add_commands(commands: Any) -> None:
    """Adds the subcommand."""
    what = "text for language models"
    command = commands.add_parser("stream", help=what, description=STREAM, takes_fields=False)
    command.set_defaults(work=prepare_stream)
    add = command.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="the text")
    add("--out", required=True, metavar="DIR", help="where the set goes")
    text = "word pieces: tokenizer.json, vocab.txt or .model; by default bytes"
    add("--tokenizer", metavar="FILE", help=text)
    default = ",".join(f"{name}={share}%" for name, share in PLAIN_SPLITS.items())
    text = (
        "parts of INPUT in order, in %% of the tokens or a number of them; a name may occur twice "
    )
    text += f"(default {default.replace('%', '%%')}; with --valid or --test train=100%%)"
    add("--splits", metavar="NAME=SIZE,...", help=text)
    for split in ("valid", "test"):
        add(f"--{split}", action="append", default=[], metavar="INPUT", help="its text; repeat")
    text = "after each document: a token of the tokenizer or text, \\n for the end of a line"
    add("--separator", default="", metavar="TEXT", help=text)
    add_reading(add)
    add_writing(add)


def prepare_stream(options: Options) -> None:
    """Prepares the set that `options` describe."""
    from widenet_jax.corpus.preparation import prepare
    from widenet_jax.corpus.tokenizer import load_tokenizer
    from widenet_jax.language.data.tokens import Encoder, id_type
    from widenet_jax.language.prepare.preparation import StreamPreparation

    files = {"train": options.inputs, "valid": options.valid, "test": options.test}
    cuts = cuts_of(options)
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None
    encoder = Encoder(tokenizer, options.separator.replace("\\n", "\n"))
    id_type(encoder.vocab_size)  # refuses a vocabulary that is too large
    if options.separator and not len(encoder.ending):
        raise BadInputError(
            f"--separator={options.separator}: the tokenizer makes no token of it; name one of its "
            "tokens, such as '[SEP]'"
        )
    units, splits = [], []
    for split, inputs in files.items():
        planned = units_of(inputs, options)
        units += planned
        splits += [split] * len(planned)
    preparation = StreamPreparation(units, splits, cuts, encoder, options.text_column)
    provenance = {"converter": "stream", "input": options.inputs}
    provenance |= {split: files[split] for split in ("valid", "test") if files[split]}
    manifest = prepare(
        preparation, options.out, options.workers, provenance, overwrite=options.overwrite
    )
    lines = [
        f"{options.out}: {split} {entry['tokens']:,} tokens, {entry['bytes']:,} bytes, "
        f"{entry['words']:,} words"
        for split, entry in manifest["splits"].items()
    ]
    show(options, {"path": options.out, **manifest}, "\n".join(lines))


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
    cuts = []
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        found = _SIZE.fullmatch(size.strip())
        if not (name.isidentifier() and found and float(found[1]) > 0):
            raise BadInputError(
                f"--splits={text}: {part!r} is not NAME=SIZE; write for instance "
                "train=90%,valid=5%,test=5% or train=90M,valid=5M,test=5M"
            )
        if name in own:
            raise BadInputError(
                f"--splits={text}: {name} is given by --{name}, too; leave one of them out"
            )
        number, unit = found.groups()
        size = f"{number}%" if unit == "%" else str(round(float(number) * _FACTORS[unit]))
        cuts.append((name, size))
    if "train" not in dict(cuts):
        raise BadInputError(f"--splits={text}: names no split train; add train=SIZE")
    return cuts


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
