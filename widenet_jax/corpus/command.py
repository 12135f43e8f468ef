"""Flags that the commands that prepare text share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from widenet_jax.config.machine import usable_cores
from widenet_jax.config.parser import Options, positive
from widenet_jax.corpus.readers import FORMATS

if TYPE_CHECKING:
    from widenet_jax.corpus.readers import Input


def add_reading(add: Any) -> None:
    """Adds the flags that say how inputs are read."""
    text = "of the files; by default from their names and beginnings"
    add("--format", choices=["auto", *FORMATS], default="auto", help=text)
    add("--text_column", default="text", metavar="NAME", help="of parquet and JSON lines")
    add("--tfds_split", default="train", metavar="NAME", help="of a TFDS set")


def add_writing(add: Any) -> None:
    """Adds the flags that say how a set is written."""
    text = "processes; by default as many as there are cores"
    add("--workers", type=positive, default=usable_cores(), metavar="N", help=text)
    add("--overwrite", action="store_true", help="replace another set that is there")
    add("--json", action="store_true", help="print the manifest as one JSON object")


def units_of(paths: Sequence[str], options: Options) -> "list[list[Input]]":
    """Returns the units of work of some inputs, as the flags say; [] of no inputs."""
    from widenet_jax.corpus.inputs import plan

    return plan(paths, options.format, options.tfds_split) if paths else []
