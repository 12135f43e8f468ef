"""Pretraining on text: masked tokens and sentence order, every text model of the WideNet paper.

  python -m widenet_jax.main --config=configs/text_pretrain.py:widenet_4 \
      --workdir=gs://BUCKET/run --config.data.path=gs://BUCKET/wikipedia_books --distributed

Recipe (ALBERT's, whose runs Table 2's baselines are): 125,000 steps of 4096 sequences of 512
tokens, 3,125 of them warm-up, LAMB at 0.00176, linear decay to 0, weight decay 0.01, dropout 0.1,
20 predictions a sequence, which are 3.9% of its tokens. Experts: lambda 0.01, capacity factor 1.2,
16 sequences routed together.

`albert_s`, `widenet_4_s`, ...: the same models, small enough for two CPU cores (128 tokens, batch
32, 7,300 steps, vocabulary as in the data).
"""

from ml_collections import ConfigDict

from configs import defaults
from widenet_jax.models.text_sizes import parse_text_variant, text_model


def get_config(variant: str = "albert") -> ConfigDict:
    family, size, options = parse_text_variant(variant)
    config = defaults.get_config(text_model(family, size, options), task="masked_lm")
    config.task.max_predictions = 20  # P
    if size:
        config.update(
            batch_size=32,
            duration="7300 steps",
            log_every_steps=20,
            data={"path": "data/wikipedia_s", "max_length": 128},
            optimizer={
                "name": "adamw",
                "learning_rate": 1e-3,
                "schedule": "linear",
                "warmup": "730 steps",
                "b2": 0.98,
                "weight_decay": 0.01,
            },
            evaluation={"batch_size": 64, "every": "730 steps"},
            checkpoint={"every": "365 steps"},
        )
        return config
    config.update(
        batch_size=4096,  # 16 sequences for each of 256 cores
        duration="125000 steps",
        log_every_steps=50,
        data={"path": "data/wikipedia_books", "max_length": 512},
        optimizer={
            "name": "lamb",
            "learning_rate": 0.00176,
            "schedule": "linear",
            "warmup": "3125 steps",
            "weight_decay": 0.01,
        },
        evaluation={"batch_size": 4096, "every": "5000 steps"},
        checkpoint={"every": "1000 steps"},
        # Unsharded, LAMB's update would be a large part of a step: it is bound by memory.
        sharding={"fsdp": -1},
    )
    return config
