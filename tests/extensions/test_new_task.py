"""A new task in one file that is also its config: next tokens, in bits, with a memory."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from extensions.life_of_a_run import check_life, check_sweep
from small_runs import small_config

from widenet_jax.data.contract import ArraySpec
from widenet_jax.nn.block_settings import BlockSettings
from widenet_jax.nn.blocks import Blocks
from widenet_jax.specs import ModelSpec, SourceSpec, TaskSpec, register
from widenet_jax.task import Evaluation, Metrics, PrimaryMetric, Task

FIELDS = {"batch_size": 32, "evaluation.batch_size": 32, "optimizer.learning_rate": 0.01}
BLOCKS = {
    "name": "tokens",
    "loop": {"core": ((2, 1),)},
    "attention": {"name": "full", "num_heads": 4},
    "mlp_dim": 32,
}


class Counting:  # sequences that count up, modulo 8
    info, describe = {"vocab_size": 8}, lambda self, i: f"sequence {i}"
    __len__, __getitem__ = lambda self: 96, lambda self, i: {"from": i}


class TokenModel(BlockSettings, kw_only=True):
    vocab_size: int

    @nn.compact
    def __call__(self, inputs, *, train):
        x = nn.Embed(self.vocab_size, 32)(inputs["tokens"]) + inputs["memory"]
        x, aux, _ = Blocks(self.stack, name="encoder")(x, train=train)
        return (nn.Dense(self.vocab_size)(x[:, -1]), x[:, -1:]), aux


class NextToken(Task):
    primary_metric, model_fields = PrimaryMetric("bits", False), {"vocab_size": 8}
    unit = "sequences"
    build = classmethod(lambda cls, config, data_info: cls())

    def batch_spec(self, B):
        return {"tokens": jax.ShapeDtypeStruct((B, 7), "int32")}

    def carry_spec(self, B):
        return {"memory": jax.ShapeDtypeStruct((B, 1, 32), "float32")}

    def inputs(self, batch):
        return {"tokens": batch["tokens"][:, :6], "memory": batch["memory"]}

    def loss(self, apply, batch, rngs):
        (logits, memory), _ = apply(self.inputs(batch), rngs)
        right = jax.nn.log_softmax(logits)[jnp.arange(len(logits)), batch["tokens"][:, 6]]
        bits, carry = -right / jnp.log(2), {"memory": jax.lax.stop_gradient(memory)}
        return bits.mean(), Metrics({"loss": bits.mean(), "each": bits}, {}, carry)

    def evaluate(self, apply, batch):
        found = self.loss(apply, batch, None)[1]
        rows = {"bits": found.means["each"]}
        return Evaluation({"sequences": batch["mask"].sum()}, {}, rows, found.carry)

    def summarize(self, sums, rows, source):
        return {"bits": float(np.median(rows["bits"])), "sequences": len(source)}


def tokens(example, rng):
    return {"tokens": np.int32((example["from"] + np.arange(7)) % 8)}


register(ModelSpec("tokens", TokenModel))
register(
    TaskSpec(
        "next_token",
        NextToken,
        transforms=lambda config, info: (tokens, tokens),
        example=lambda config, params: {"tokens": ArraySpec((7,), "int32")},
        sources={"counting": SourceSpec(lambda data, split, info: Counting())},
    )
)


def get_config():
    config = small_config(**FIELDS | {"data.source": "counting", "duration": "40 steps"})
    with config.unlocked():
        config.task, config.model = {"name": "next_token"}, BLOCKS
    return config


@pytest.mark.slow
def test_life(tmp_path, monkeypatch):
    result = check_life(get_config, tmp_path)
    check_sweep(__file__, result, tmp_path, monkeypatch)
    assert result["test_bits"] < 2.9 and result["test_sequences"] == 96  # 3 bits by chance
