"""A torch DataLoader with transformers' masking collator, as the peer of `benchmark.py text`.

It masks single tokens, and neither cuts nor swaps parts: it has less to do. Needs torch and
transformers: `benchmark.py text --peer=scripts/compare/torch_text.py ...`.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import tokenizers
import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data.contract import Source


class Sequences(torch.utils.data.Dataset):
    """Records of a text set as token lists between special tokens, as `datasets` gives them."""

    def __init__(self, source: Source, tokenizer: Tokenizer, max_length: int):
        self.source, self.max_length = source, max_length
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        example = self.source[index]
        sentences = example.get("sentences") or list(itertools.chain(*example["chunks"]))
        ids = np.concatenate(sentences)[: self.max_length - 2].tolist()
        special = [1, *([0] * len(ids)), 1]
        return {"input_ids": [self.cls_id, *ids, self.sep_id], "special_tokens_mask": special}


def batches(config: Any, source: Source, *, batch_size: int, num_workers: int) -> Iterator[Any]:
    """Yields shuffled, padded and masked batches without end."""
    ours = Tokenizer(source.info["tokenizer"])
    roles = ("cls", "sep", "mask", "pad", "unk")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(ours.json)),
        **{f"{role}_token": ours.token(getattr(ours, f"{role}_id")) for role in roles},
    )
    loader = torch.utils.data.DataLoader(
        Sequences(source, ours, config.data.max_length),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        collate_fn=DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=config.task.mask_fraction
        ),
    )
    while True:
        yield from loader
