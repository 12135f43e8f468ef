"""Benchmarks of reading text: masked, beside transformers and torch if installed; and streams."""

import importlib.util
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from widenet_jax.data.sources import build_source, build_transforms
from widenet_jax.ops.benchmark.turns import our_turns, summarize, take_turns

PEER = "transformers"


def text_rows(
    config: Any, *, batch_size: int, workers: Sequence[int], rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Times this project's pretraining batches and those of transformers' collator.

    Both read the same records. The peer masks single tokens, and neither cuts nor swaps segments:
    it has less to do.

    Args:
      config: of a run; its set, its lengths and its masking.
      batch_size: sequences per batch.
      workers: numbers of worker processes to measure; 0 stands for threads. The peer runs with the
        last of these numbers.
      rounds: every pipeline has one turn per round.
      seconds: length of a turn.

    Returns:
      [{pipeline, sequences_per_second, cpu_ms, of_peer}], see `turns.summarize`.

    Raises:
      BadInputError: the set cannot be read.
    """
    source = build_source(config.data, config.data.train_split)
    transform, _ = build_transforms(config, source.info)
    turns = our_turns(source, transform, batch_size, workers)
    if all(map(importlib.util.find_spec, ("torch", "transformers"))):
        from widenet_jax.ops.benchmark import torch_pipeline

        turns[PEER] = lambda: nullcontext(
            torch_pipeline.batches(
                source,
                num_workers=workers[-1],
                batch_size=batch_size,
                max_length=config.data.max_length,
                mask_fraction=config.task.mask_fraction,
            )
        )
    found = take_turns(turns, batch_size, rounds=rounds, seconds=seconds)
    return summarize(found, unit="sequences", peer=PEER)


def stream_rows(
    config: Any, *, batch_size: int, workers: Sequence[int], rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Times the training batches of a stream; arguments as `text_rows`.

    Returns:
      [{pipeline, tokens_per_second, cpu_ms, of_peer}]; cpu_ms is per token, and there is no peer.
    """
    source = build_source(config.data, config.data.train_split)
    transform, _ = build_transforms(config, source.info)
    turns = our_turns(source, transform, batch_size, workers)
    tokens = batch_size * config.data.max_length
    return summarize(take_turns(turns, tokens, rounds=rounds, seconds=seconds), unit="tokens")
