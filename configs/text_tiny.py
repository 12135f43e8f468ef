"""A text model on a novel that ships with the project: the default for text, for laptops.

Jane Austen's Persuasion (1818, public domain), 460 kB in 2,000 word pieces. Two of its 24
chapters are the validation split. Pretraining on masked words and sentence order, as
configs/text_pretrain.py.

  python -m widenet_jax.main --config=configs/text_tiny.py --workdir=runs/text_tiny

Cost: 130 seconds of processor time, a minute or two on 2 CPU cores. Paper: not an experiment of the
paper. Ours (seed 0), on the 107 validation sequences:

| after          | mlm loss, nats | mlm accuracy | order accuracy |
|----------------|----------------|--------------|----------------|
| word frequency | 5.88           | 6.7%         | 50%            |
| 1,500 steps    | 5.47           | 12.9%        | 67%            |

The first row is the unigram entropy: what a model reaches that ignores the context. Runs stay near
it for their first 300 steps.

Other models: configs/text_tiny.py:bert_tiny, widenet_4_tiny, widenet_8_tiny, each with options.
"""

from ml_collections import ConfigDict

from configs import defaults
from configs.variants import TEXTS, parse


def get_config(variant: str = "") -> ConfigDict:
    model = parse(variant or "albert_tiny", TEXTS)
    config = defaults.get_config(model.section, task="masked_lm")
    config.update(
        batch_size=32,
        duration="1500 steps",
        log_every_steps=20,
        data={"source": "tiny_text", "max_length": 64},
        optimizer={
            "learning_rate": 2e-3,
            "schedule": "linear",
            "warmup": "10%",
            "b2": 0.98,
            "weight_decay": 0.01,
        },
        evaluation={"batch_size": 64, "every": "150 steps"},
        checkpoint={"every": "500 steps"},
    )
    return config
