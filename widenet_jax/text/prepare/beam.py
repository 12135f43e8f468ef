"""Preparation of a text set by Apache Beam, on as many machines as its runner has.

A worker prepares whole units, by the code of the worker processes, so that the shards have the same
bytes. An input should be small enough for one machine; documents are read one after the other.
"""

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath

from widenet_jax.config.parser import Options
from widenet_jax.corpus.tokenizer import FILE
from widenet_jax.data import records
from widenet_jax.errors import BadInputError, require
from widenet_jax.files import absolute, write_json
from widenet_jax.text.prepare.preparation import ChunkPreparation

PARTS = "parts"  # the pipeline's counts, removed at its end


def prepare(
    preparation: ChunkPreparation, options: Options, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Prepares a set by a Beam pipeline; returns its manifest.

    Args:
      preparation: what to make. Its inputs must be readable on every worker.
      options: `out`, an empty directory, local or remote, that every worker can read and write; and
        `beam`, options of the pipeline: "--runner=DirectRunner --direct_num_workers=4".
      provenance: kept in the manifest.

    Raises:
      BadInputError: Beam is not installed, the directory holds files, or a split is empty.
    """
    beam = require("apache_beam", extra="beam", what="--beam")
    from apache_beam.options.pipeline_options import PipelineOptions

    out = absolute(options.out)
    if out.exists() and any(out.iterdir()):
        raise BadInputError(f"{out}: holds files; give --out a new directory")
    (out / PARTS).mkdir(parents=True, exist_ok=True)
    write_json(out / FILE, preparation.tokenizer.json)
    units = range(len(preparation.units))
    prepare_one = functools.partial(prepare_copy, preparation, options.out)
    with beam.Pipeline(options=PipelineOptions(options.beam.split())) as pipeline:
        spread = pipeline | beam.Create(list(units)) | beam.Reshuffle()
        spread | beam.Map(prepare_one)
    parts = [json.loads((out / PARTS / f"{unit:05d}.json").read_bytes()) for unit in units]
    manifest = preparation.manifest(Path(), parts, provenance)
    write_json(out / records.MANIFEST, manifest)
    (out / PARTS).rmtree()
    return manifest


def prepare_copy(preparation: ChunkPreparation, directory: str, unit: int) -> None:
    """Prepares a unit on a worker's own disk, and copies its shards to the directory.

    Its counts go where the program that started the pipeline reads them.
    """
    out = absolute(directory)
    with tempfile.TemporaryDirectory() as folder:
        part = preparation.counts_of(Path(folder), unit)
        for name in preparation.shards(unit).values():
            (epath.Path(folder) / name).copy(out / name, overwrite=True)
    write_json(out / PARTS / f"{unit:05d}.json", part)
