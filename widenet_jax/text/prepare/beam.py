"""Preparation of a text set by Apache Beam, on as many machines as its runner has.

The shards have the same bytes as worker processes write: the documents of a shard are sorted into
their order, and written by the same code. Documents are encoded wherever the runner puts them, but
one worker holds all chunks of a shard, so that inputs should be files of at most a few gigabytes.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from widenet_jax.corpus.chunking import Chunk, Document, chunks_of
from widenet_jax.corpus.inputs import documents
from widenet_jax.corpus.tokenizer import FILE
from widenet_jax.data import records
from widenet_jax.errors import BadInputError, require
from widenet_jax.files import write_json
from widenet_jax.text.prepare.preparation import ChunkPreparation, make_manifest
from widenet_jax.text.prepare.shards import ShardCounts, ShardWriter

PARTS = "parts"  # the pipeline's counts, removed at its end

Shard = tuple[int, str]  # (unit, split)
Ordered = tuple[int, list[Chunk]]  # (place of the document in its unit, its chunks)


def prepare(
    preparation: ChunkPreparation, directory: str, *, options: str, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Prepares a set by a Beam pipeline.

    Args:
      preparation: what to make. Its inputs must be readable on every worker.
      directory: where, readable and writable on every worker; local or remote. Must be empty.
      options: of the pipeline: "--runner=DirectRunner --direct_num_workers=4".
      provenance: kept in the manifest.

    Returns:
      The manifest.

    Raises:
      BadInputError: Beam is not installed, the directory holds files, or a split is empty.
    """
    beam = require("apache_beam", extra="beam", what="--beam")
    from apache_beam.options.pipeline_options import PipelineOptions

    out = epath.Path(directory)
    if out.exists() and any(out.iterdir()):
        raise BadInputError(f"{directory}: holds files; give --out a new directory")
    (out / PARTS).mkdir(parents=True, exist_ok=True)
    write_json(out / FILE, preparation.tokenizer.json)
    units = range(len(preparation.units))
    steps = Steps(preparation, directory)
    with beam.Pipeline(options=PipelineOptions(options.split())) as pipeline:
        # Without these, a unit that has no document of a split would get no shard for it.
        empty = pipeline | "Shards" >> beam.Create(
            [((unit, split), None) for unit in units for split in preparation.shards(unit)]
        )
        encoded = (
            pipeline
            | "Units" >> beam.Create(list(units))
            | "Spread units" >> beam.Reshuffle()
            | "Read" >> beam.FlatMap(steps.read)
            | "Spread documents" >> beam.Reshuffle()
            | "Encode" >> beam.Map(steps.encode)
        )
        written = (
            (encoded, empty)
            | beam.Flatten()
            | "By shard" >> beam.GroupByKey()
            | "Write" >> beam.Map(steps.write)
            | "By unit" >> beam.GroupByKey()
        )
        written | "Count" >> beam.Map(steps.store)
    parts = [json.loads((out / PARTS / f"{unit:05d}.json").read_bytes()) for unit in units]
    manifest = {**make_manifest(parts, preparation), "provenance": dict(provenance)}
    write_json(out / records.MANIFEST, manifest)
    (out / PARTS).rmtree()
    return manifest


class Steps:
    """The functions of the pipeline; pickled to the workers.

    Attributes:
      preparation: what to make.
      directory: where.
    """

    def __init__(self, preparation: ChunkPreparation, directory: str):
        self.preparation = preparation
        self.directory = directory

    def read(self, unit: int) -> Iterator[tuple[int, int, Document]]:
        """Yields (unit, place, document) for the documents of a unit."""
        found = documents(self.preparation.units[unit], self.preparation.column)
        for place, document in enumerate(found):
            yield unit, place, document

    def encode(self, placed: tuple[int, int, Document]) -> tuple[Shard, Ordered]:
        """Returns the chunks of a document, by its shard."""
        unit, place, document = placed
        chunks = chunks_of(document, self.preparation.tokenizer, self.preparation.rule)
        return (unit, self.preparation.split_of(document, unit)), (place, chunks)

    def write(
        self, grouped: tuple[Shard, Iterable[Ordered | None]]
    ) -> tuple[int, tuple[str, ShardCounts]]:
        """Writes a shard; returns its counts, by its unit."""
        (unit, split), found = grouped
        ordered = sorted((item for item in found if item), key=lambda item: item[0])
        name = self.preparation.shards(unit)[split]
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / name
            with ShardWriter(local, self.preparation.layout) as writer:
                for _, chunks in ordered:
                    writer.add(chunks)
            epath.Path(local).copy(epath.Path(self.directory) / name, overwrite=True)
        return unit, (split, writer.written)

    def store(self, grouped: tuple[int, Iterable[tuple[str, ShardCounts]]]) -> None:
        """Stores the counts of a unit where the program that started the pipeline reads them."""
        unit, shards = grouped
        part = self.preparation.part(unit, dict(shards))
        write_json(epath.Path(self.directory) / PARTS / f"{unit:05d}.json", part)
