"""Pretraining on text: masked tokens and sentence order, every text model of the WideNet paper.

  python -m widenet_jax.main --config=configs/text_pretrain.py:widenet_4 \
      --workdir=gs://BUCKET/run --config.data.path=gs://BUCKET/wikipedia_books --distributed

| recipe                | paper                                  | ours                          |
|-----------------------|----------------------------------------|-------------------------------|
| data                  | Wikipedia and BookCorpus (ALBERT)      | config.data.path              |
| sequences, batch      | 512 tokens, 4096                       | the same, about 50 epochs     |
| steps, warm-up        | 125,000, 3,125 (ALBERT)                | the same                      |
| optimizer             | LAMB, 0.00176, linear to 0, decay 0.01 | the same; the line falls from |
|                       |                                        | the end of warm-up, not from  |
|                       |                                        | step 0; bias correction       |
| norms, dropout        | post, 0.1 (ALBERT v1 base)             | the same, but not on          |
|                       |                                        | attention weights             |
| predictions P         | 20, 3.9% of the tokens (ALBERT)        | 20; max_predictions=0 for 15% |
| experts               | K = 2, lambda 0.01, C = 1.2            | the same; 16 sequences routed |
|                       |                                        | together, C = 2.0 in          |
|                       |                                        | evaluation                    |

Table 2 after finetuning (configs/squad.py, configs/glue.py), development sets: F1 / exact match
of SQuAD, accuracy of MNLI (matched) and SST-2, their mean. Ours: not run. Plans:
docs/log/plans_slices.md.

| variant    | params | SQuAD1.1    | SQuAD2.0    | MNLI | SST-2 | mean |
|------------|--------|-------------|-------------|------|-------|------|
| albert     | 12M    | 89.3 / 82.3 | 80.0 / 77.1 | 81.5 | 90.3  | 84.0 |
| bert       | 89M    | 89.9 / 82.8 | 80.3 / 77.3 | 83.2 | 91.5  | 85.0 |
| widenet_4  | 26M    | 89.6 / 82.7 | 80.6 / 77.4 | 82.6 | 91.1  | 84.7 |
| widenet_8  | 45M    | 90.0 / 82.7 | 80.6 / 77.7 | 83.3 | 91.9  | 85.2 |
| widenet_16 | 83M    | 90.9 / 83.8 | 81.0 / 77.9 | 84.1 | 92.2  | 85.8 |

ALBERT's and BERT's rows come from ALBERT's Table 4, all parts shared and nothing shared, after
125,000 steps. ALBERT-base then predicts 54.0% of the masked words and 86.5% of the orders (its
Table 5); an order accuracy of 99.9% would be a leak.

More options: norm_position=pre, examples_per_group=1 (cheaper dispatch), capacity_factor, selected,
routing_groups, share_norms, depth, mlp_dim.

`albert_s`, `widenet_4_s`, ...: the same models, small enough for two CPU cores: 128 tokens, batch
32, 7,300 steps, AdamW at 0.001, no dropout, 4 sequences routed together; the vocabulary is the
data's.
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.variants import TEXTS, parse


def get_config(variant: str = "albert") -> ConfigDict:
    model = parse(variant, TEXTS)
    config = defaults.get_config(model.section, task="masked_lm")
    config.task.max_predictions = 20  # P
    if model.size:
        config.update(
            batch_size=32,
            duration="7300 steps",
            log_every_steps=20,
            data={"path": "data/wikipedia_s", "max_length": 128},
            optimizer={
                "name": "adamw",
                "learning_rate": 1e-3,
                "schedule": "linear",
                "warmup": "10%",
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
