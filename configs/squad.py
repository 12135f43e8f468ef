"""Finetuning on SQuAD: the answer to a question as a span of its context.

  python -m widenet_jax.main --config=configs/squad.py:v2 --workdir=runs/squad2 \
      --config.init_from=runs/albert --config.data.path=data/squad

The model is the one that --config.init_from names: a run, an export, or a directory with BERT or
ALBERT of Hugging Face. `v2,model=albert_s` trains albert_s from scratch instead, with the
tokenizer of --config.data.tokenizer.

  recipe    | ALBERT's Table 14                       | ours
  SQuAD1.1  | 3,649 steps, 365 warm-up, batch 48, 5e-5 | the same; length 384, dropout 0.1
  SQuAD2.0  | 8,144 steps, 814 warm-up, batch 48, 3e-5 | the same; length 512, dropout 0
  experts   | -                                       | v1: capacity factor 2.0, lambda 0;
            |                                         | v2: 1.2, 0.01 (WideNet); both: each
            |                                         | sequence routed alone (not stated)

v1 has BERT's head, v2 ALBERT's (--config.task.head=span: BERT's, too). Questions without an answer
belong to v2. Metrics are the official ones, as shares from 0 to 1; v2 is compared by
best_f1, the F1 at the threshold that is best for the evaluated questions.

Data: a directory with train-v1.1.json and dev-v1.1.json (v2.0), or .json.gz, or Hugging Face's
train-00000-of-00001.parquet and validation-00000-of-00001.parquet.
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.variants import finetuned_model, parse_finetuning

VERSIONS = {
    "v1": {
        "duration": "3649 steps",
        "task": {"head": "span", "unanswerable": False},
        "data": {"train_split": "train-v1.1", "eval_split": "dev-v1.1", "max_length": 384},
        "optimizer": {"learning_rate": 5e-5, "warmup": "10%"},
    },
    "v2": {
        "duration": "8144 steps",
        "task": {"head": "beam", "unanswerable": True},
        "data": {"train_split": "train-v2.0", "eval_split": "dev-v2.0", "max_length": 512},
        "optimizer": {"learning_rate": 3e-5, "warmup": "10%"},
    },
}
RATES = {
    "v1": {"dropout": 0.1, "capacity_factor": 2.0, "balance": 0.0},
    "v2": {"dropout": 0.0, "capacity_factor": 1.2, "balance": 0.01},
}


def get_config(variant: str = "v2") -> ConfigDict:
    name, own = parse_finetuning(variant, VERSIONS)
    model = finetuned_model(own, **RATES[name])
    config = defaults.get_config(model, task="span")
    config.update(
        batch_size=48,
        data={"path": "data/squad"},
        optimizer={"name": "adamw", "schedule": "linear", "weight_decay": 0.01},
        evaluation={"batch_size": 48, "every": "1000 steps"},
        checkpoint={"every": "500 steps"},
    )
    config.update(VERSIONS[name])
    if own and own.size:
        config.data.update(max_length=model["num_positions"], stride=48)
    return config
