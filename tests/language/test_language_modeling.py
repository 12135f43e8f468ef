"""Language modelling: the loss, the units of its metrics, and what enters the memory."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import draw
from small_runs import small_config

from widenet_jax.data.contract import DataInfo, StreamInfo
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import Experiment, build_experiment, train_batch_shapes
from widenet_jax.language.task import LanguageModeling
from widenet_jax.run.summary import result_metrics
from widenet_jax.run.tables import beside
from widenet_jax.step import TrainState, make_gradients

B, T, V = 4, 8, 256
SMALL = {"batch_size": B, "data.max_length": T, "model.loop.core": ((1, 1),), "model.dropout": 0.0}
SMALL |= {"evaluation.batch_size": B}


def experiment_of(**changes: object) -> Experiment:
    config = small_config(run="language", **SMALL, **changes)
    return build_experiment(config, DataInfo(64, {}, {"vocab_size": V}), jax.devices()[:1])


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return experiment_of()


@pytest.fixture(scope="module")
def skipping() -> Experiment:
    return experiment_of(on_nonfinite="skip", max_skipped_updates=1)


def batch_of(experiment: Experiment, seed: int, *, fresh: bool = False) -> dict[str, np.ndarray]:
    shapes = train_batch_shapes(experiment)
    batch = {name: np.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}
    batch["tokens"] = np.random.default_rng(seed).integers(0, V, (B, T + 1), np.int32)
    return batch | {"fresh": np.full(B, fresh)}


def initial_state(experiment: Experiment) -> TrainState:
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), experiment.state)
    return state.replace(params=draw(experiment.state.params))


def one_step(experiment: Experiment, batch: dict, **changes) -> tuple[TrainState, dict]:
    """Returns the state after one step from the first one with some fields changed."""
    with jax.set_mesh(experiment.mesh):
        state = initial_state(experiment).replace(**changes)
        state, metrics = experiment.train_step(state, batch)
    return jax.device_get((state, metrics))


def used(seed: int = 1) -> dict[str, jax.Array]:
    """Returns a carry as later steps have it."""
    memory = jax.random.normal(jax.random.key(seed), (B, 1, T, 32))
    return {"memory": memory, "memory_length": jnp.full(B, T)}


def test_loss_is_the_mean_over_tokens_of_the_next_one():
    """Against a loop in float64; the memory of the model's outputs is the next carry."""
    stream = StreamInfo(bytes_per_token=2.0)
    task = LanguageModeling(5, 3, 3, 12, depth=1, embed_dim=2, dtype="float32", stream=stream)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 5)).astype(np.float32)
    tokens = rng.integers(0, 5, (2, 4))
    memory = {"memory": jnp.ones((2, 1, 3, 2)), "memory_length": jnp.array([3, 1])}

    def apply(inputs: dict, rngs: object) -> tuple:
        np.testing.assert_array_equal(inputs["tokens"], tokens[:, :3])
        assert inputs["memory_length"].tolist() == [3, 0]
        return {"logits": logits, **{k: v + 1 for k, v in memory.items()}}, {}

    batch = {"tokens": tokens, "fresh": jnp.array([False, True]), **memory}
    each = [
        np.log(np.exp(logits[b, t].astype(float)).sum()) - logits[b, t, tokens[b, t + 1]]
        for b, t in np.ndindex(2, 3)
    ]
    loss, metrics = task.loss(apply, batch, {})
    np.testing.assert_allclose(loss, np.mean(each), rtol=1e-6)
    np.testing.assert_allclose(metrics.means["cross_entropy"], np.mean(each), rtol=1e-6)
    np.testing.assert_allclose(metrics.means["bits_per_byte"], np.mean(each) / np.log(2) / 2, 1e-6)
    assert metrics.carry["memory_length"].tolist() == [4, 2]
    # Of the second row only zeros are left, which are no text.
    found = task.evaluate(apply, batch | {"mask": jnp.array([True, False])})
    np.testing.assert_allclose(found.sums["cross_entropy"], sum(each[:3]), rtol=1e-6)
    assert found.sums["sequences"] == 1 and found.carry["memory_length"].tolist() == [4, 2]


def test_a_model_without_memory_has_no_carry():
    """A length of a memory that it does not have is refused."""
    config = small_config(run="language", **SMALL)
    config.model.attention.name = "full"
    info = DataInfo(64, {}, {"vocab_size": V})
    task = LanguageModeling.build(config, info)
    assert task.carry_spec(B) == task.eval_carry_spec(B) == {}
    batch = {"tokens": jnp.arange(B * (T + 1)).reshape(B, -1), "fresh": jnp.ones(B, bool)}
    apply = lambda inputs, rngs: ({"logits": jnp.zeros((B, T, V))}, {})  # noqa: E731
    loss, metrics = task.loss(apply, batch, {})
    np.testing.assert_allclose(loss, np.log(V), rtol=1e-6)
    assert task.inputs(batch).keys() == {"tokens"} and metrics.carry == {}
    config.task.eval_memory_length = 8
    with pytest.raises(BadInputError, match=r"eval_memory_length=8 has no effect on .*=full"):
        LanguageModeling.build(config, info)


def test_units_of_the_metrics():
    """10 windows of 8 tokens with 2 nats each; a token is 4 bytes, or half a word."""
    task = LanguageModeling(V, T, T, 4 * T, depth=1, embed_dim=2, dtype="float32")
    sums = {"cross_entropy": np.float64(10 * T * 2), "sequences": np.int64(10)}
    source = SimpleNamespace(bytes_per_token=4.0, words_per_token=0.5)
    metrics = task.summarize(sums, {}, source)
    expected = {
        "bits_per_byte": 2 / np.log(2) / 4, "cross_entropy": 2, "perplexity": np.exp(2),
        "word_perplexity": np.exp(4), "sequences": 10,
    }  # fmt: skip
    assert metrics == pytest.approx(expected)
    source.losses = {"unknown_token_share": 0.0, "lost_character_share": 0.452}
    assert task.summarize(sums, {}, source) == pytest.approx(expected | source.losses)
    stream = StreamInfo(unigram_bits=3.0, losses=source.losses)
    task = dataclasses.replace(task, stream=stream)
    result = result_metrics(task.summarize(sums, {}, source), task)
    remark = "(of the text without the 45.20% of its characters that the tokenizer loses)"
    assert beside("bits_per_byte", result) == f" (unigram entropy 3.0000) {remark}"
    assert beside("word_perplexity", result) == f" {remark}" and beside("perplexity", result) == ""
    source.words_per_token = None
    del source.losses
    assert task.summarize(sums, {}, source).keys() == expected.keys() - {"word_perplexity"}


def test_the_step_carries_the_memory(experiment: Experiment):
    """The rows of the first block are the embeddings of the tokens; evaluation has four times."""
    batch = batch_of(experiment, 0)
    state, _ = one_step(experiment, batch)
    table = initial_state(experiment).params["embedding"]
    np.testing.assert_array_equal(state.carry["memory"][:, 0], table[batch["tokens"][:, :T]])
    assert state.carry["memory_length"].tolist() == [T] * B
    task = experiment.task
    assert task.carry_spec(1)["memory"].shape[2] == T
    assert task.eval_carry_spec(1)["memory"].shape[2] == 4 * T


@pytest.mark.parametrize("before", [0, 1])
def test_a_skipped_update_empties_the_memory(skipping: Experiment, before: int):
    """One may be skipped. The second ends the run, and the memory that it met is kept for a replay.

    A parameter that is not finite makes every hidden state NaN: none of them is remembered.
    """
    params = jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), skipping.state.params)
    changes = {"params": params, "carry": used(), "skipped_updates": jnp.int32(before)}
    state, metrics = one_step(skipping, batch_of(skipping, 0), **changes)
    assert np.isnan(metrics["loss"]) and state.skipped_updates == before + 1
    left = dict(used()) if before else jax.tree.map(np.zeros_like, dict(used()))
    jax.tree.map(np.testing.assert_array_equal, state.carry, left)


def test_accumulation_deals_the_rows_of_the_memory():
    """Two parts of the batch: the same loss, and each row's next memory at its own place."""
    task = LanguageModeling(V, T, T, 4 * T, depth=1, embed_dim=2, dtype="float32")
    rng = np.random.default_rng(0)
    batch = {
        "tokens": rng.integers(0, V, (B, T + 1)),
        "fresh": np.arange(B) == 1,
        "memory": rng.normal(size=(B, 1, T, 2)).astype(np.float32),
        "memory_length": np.arange(B),
    }

    table = jnp.asarray(rng.normal(size=(V, V)), jnp.float32)

    def forward(variables: dict, inputs: dict, **options: object) -> tuple:
        params = variables["params"]
        seen = inputs["memory"].sum((1, 2, 3)) * (inputs["memory_length"] > 0)
        logits = params["table"][inputs["tokens"]] * seen[:, None, None]
        carry = {"memory": inputs["memory"] * 2, "memory_length": inputs["memory_length"] + 1}
        return {"logits": logits, **carry}, {}

    model = SimpleNamespace(dtype="float32", apply=forward)

    def loss_and_carry(parts: int) -> tuple:
        gradients = jax.jit(
            make_gradients(model=model, task=task, seed=0, accumulation_steps=parts, group_size=1)
        )
        _, metrics = gradients({"table": table}, batch, jnp.int32(0))
        return metrics.means["loss"], metrics.carry

    (loss, carry), (of_parts, dealt) = loss_and_carry(1), loss_and_carry(2)
    np.testing.assert_allclose(of_parts, loss, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, dealt, carry)
    assert carry["memory_length"].tolist() == [1, 1, 3, 4]
