"""Finetuning on texts and pairs of texts: SST-2, MNLI, STS-B, and your own.

  python -m widenet_jax.main --config=configs/glue.py:mnli --workdir=runs/mnli \
      --config.init_from=runs/albert --config.data.path=data/MNLI

The model is the one that --config.init_from names: a run, an export, or a directory with BERT or
ALBERT of Hugging Face. `mnli,model=albert_s` trains albert_s from scratch instead, with the
tokenizer of --config.data.tokenizer.

  recipe           | ALBERT's Table 14    | ours
  MNLI             | 10,000 steps, 1,000 warm-up, batch 128, 3e-5 | the same
  SST-2            | 20,935 steps, 1,256, batch 32, 1e-5 | 5,234 steps, 314, batch 128, 4e-5
  STS-B            | 3,598 steps, 214, batch 16, 2e-5 | the same
  all three        | length 512, dropout 0, before the classifier 0.1 | the same
  experts          | -                    | capacity factor 1.2, lambda 0.01 (WideNet; other
                   |                      | routers than top_k keep their losses); each
                   |                      | sequence routed alone (not stated)
  own, scores      | -                    | 3 epochs, batch 32, 3e-5, length 128 (BERT's)

Data: a directory with train.tsv and dev.tsv, or .csv, .json, .jsonl, .parquet; MNLI has two
evaluation splits, dev_matched and dev_mismatched. stsb and scores learn the labels as numbers, by
their squared error as they are, and are compared by Spearman's correlation. GLUE's, Hugging Face's
and TFDS's columns are known; others by --config.data.text_column, pair_column and label_column. A
split can be cut and joined: --config.data.train_split='train[:2000]'
--config.data.eval_split='dev+train[-5000:]'.
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.variants import finetuned_model, parse_finetuning

SCORED = ("stsb", "scores")
OWN = {
    "batch_size": 32,
    "duration": "3 epochs",
    "data": {"max_length": 128},
    "optimizer": {"learning_rate": 3e-5, "warmup": "10%"},
    "evaluation": {"every": "1 epoch"},
}
SETS = {
    "sst2": {
        "batch_size": 128,
        "duration": "5234 steps",
        "data": {"path": "data/SST-2", "label_names": "negative,positive"},
        "optimizer": {"learning_rate": 4e-5, "warmup": "6%"},
        "evaluation": {"every": "500 steps"},
    },
    "mnli": {
        "batch_size": 128,
        "duration": "10000 steps",
        "data": {
            "path": "data/MNLI",
            "eval_split": "dev_matched",
            "label_names": "entailment,neutral,contradiction",
        },
        "optimizer": {"learning_rate": 3e-5, "warmup": "10%"},
        "evaluation": {"every": "1000 steps"},
    },
    "stsb": {
        "batch_size": 16,
        "duration": "3598 steps",
        "data": {"path": "data/STS-B"},
        "optimizer": {"learning_rate": 2e-5, "warmup": "5.95%"},
        "evaluation": {"every": "500 steps"},
    },
    "own": OWN,
    "scores": OWN,
}


def get_config(variant: str = "own") -> ConfigDict:
    name, own = parse_finetuning(variant, SETS)
    model = finetuned_model(own, dropout=0.0, capacity_factor=1.2, balance=0.01)
    task = "text_regression" if name in SCORED else "text_classification"
    config = defaults.get_config(model, task=task)
    config.update(
        optimizer={"name": "adamw", "schedule": "linear", "weight_decay": 0.01},
        evaluation={"batch_size": 128},
        checkpoint={"every": "500 steps"},
    )
    config.update(SETS[name])
    if own and own.size:
        config.data.max_length = min(config.data.max_length, model["num_positions"])
    return config
