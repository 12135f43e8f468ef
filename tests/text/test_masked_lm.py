"""The pretraining loss against loops in float64; parts of a batch; packed rows; padding."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from text_sets import nll

from widenet_jax.data.contract import ArraySpec
from widenet_jax.losses import label_cross_entropy
from widenet_jax.step import deal, make_gradients
from widenet_jax.text.masked_lm import MaskedLm

B, T, P, V, INSTANCES = 8, 6, 4, 11, 3


def task() -> MaskedLm:
    return MaskedLm(V, {"tokens": ArraySpec((T,), "int32")}, unigram_entropy=2.0)


def random_batch(packed: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    batch = {
        name: rng.integers(0, V, (B, T)).astype(np.int32) for name in ("tokens", "token_types")
    }
    batch["mlm_positions"] = rng.integers(0, T, (B, P)).astype(np.int32)
    batch["mlm_labels"] = rng.integers(0, V, (B, P)).astype(np.int32)
    batch["mlm_count"] = rng.integers(0, P + 1, B).astype(np.int32)
    if packed:
        batch["num_instances"] = rng.integers(1, INSTANCES + 1, B).astype(np.int32)
        numbers = np.sort(rng.integers(0, INSTANCES + 1, (B, T)), 1)[:, ::-1]
        batch["segment_ids"] = numbers.astype(np.int32)
        batch["positions"] = batch["token_types"]
        batch["order"] = rng.integers(0, 2, (B, INSTANCES)).astype(np.int32)
    else:
        batch["length"] = rng.integers(1, T + 1, B).astype(np.int32)
        batch["order"] = rng.integers(0, 2, B).astype(np.int32)
    return batch


def random_outputs(packed: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    order = (B, INSTANCES, 2) if packed else (B, 2)
    shapes = {"mlm_logits": (B, P, V), "order_logits": order}
    return {name: 3 * rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def expected_means(outputs: dict, batch: dict, rows: range) -> dict[str, float]:
    """Loops over all predictions and order labels of some rows, in float64."""
    losses: dict[str, list[float]] = {"mlm": [], "order": []}
    right: dict[str, list[bool]] = {"mlm": [], "order": []}

    def add(head: str, logits: np.ndarray, label: int) -> None:
        losses[head].append(nll(logits, label))
        right[head].append(int(logits.argmax()) == label)

    for row in rows:
        for place in range(batch["mlm_count"][row]):
            add("mlm", outputs["mlm_logits"][row, place], batch["mlm_labels"][row, place])
        orders = np.atleast_1d(batch["order"][row])
        logits = outputs["order_logits"][row].reshape(-1, 2)
        for number in range(batch["num_instances"][row] if "num_instances" in batch else 1):
            add("order", logits[number], orders[number])
    return {
        f"{head}_{name}": float(np.mean(values[head]))
        for name, values in (("loss", losses), ("accuracy", right))
        for head in ("mlm", "order")
    }


AUX = {
    "loss": jnp.array([0.25, 0.5]),
    "losses": {"load_balance": jnp.array([25.0, 50.0])},
    "sums": {"load": jnp.array([[1, 3], [2, 2]])},
}


@pytest.mark.parametrize("packed", [False, True])
def test_loss_equals_a_loop(packed: bool):
    outputs, batch = random_outputs(packed), random_batch(packed)
    whole = {**batch, **task().of_whole_batch(batch)}
    apply = lambda inputs, rngs: (outputs, AUX)  # noqa: E731
    loss, metrics = jax.jit(lambda batch: task().loss(apply, batch, {}))(whole)
    expected = expected_means(outputs, batch, range(B))
    for name, value in expected.items():
        np.testing.assert_allclose(metrics.means[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(
        loss, expected["mlm_loss"] + expected["order_loss"] + 0.75, rtol=1e-5
    )
    assert metrics.means["loss"] == loss and metrics.layer_sums.keys() == {"load"}


@pytest.mark.parametrize(("packed", "parts"), [(False, 4), (True, 2)])
def test_accumulation_divides_by_the_predictions_of_the_whole_batch(packed: bool, parts: int):
    """Parts have different numbers of predictions. Their mean must still be the batch's loss."""
    batch = random_batch(packed)
    counts = deal(batch["mlm_count"], parts, 1).sum(1)
    assert len(set(counts.tolist())) > 1

    def forward(variables: dict, inputs: dict, **options: object) -> tuple:
        params = variables["params"]
        scores = params["scores"][inputs["tokens"]]  # [B, T, V]
        picked = jnp.take_along_axis(scores, inputs["mlm_positions"][..., None], axis=1)
        order = scores[:, :INSTANCES, :2] if packed else scores[:, 0, :2]
        return {"mlm_logits": picked, "order_logits": order}, {}

    model = SimpleNamespace(dtype="float32", apply=forward)

    params = {"scores": jax.random.normal(jax.random.key(0), (V, V))}
    fields = {"model": model, "task": task(), "seed": 0, "group_size": 1}
    runs = [jax.jit(make_gradients(**fields, accumulation_steps=n)) for n in (1, parts)]
    (grads, metrics), (grads_of_parts, metrics_of_parts) = (run(params, batch, 0) for run in runs)
    np.testing.assert_allclose(grads_of_parts["scores"], grads["scores"], atol=1e-6)
    for name, value in metrics.means.items():
        np.testing.assert_allclose(metrics_of_parts.means[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("packed", [False, True])
def test_evaluation_ignores_padding_and_adds_up(packed: bool):
    outputs, batch = random_outputs(packed), random_batch(packed)
    batch["mask"] = np.arange(B) < 5
    outputs["mlm_logits"][5:] = np.nan
    evaluation = task().evaluate(lambda inputs, rngs: (outputs, {}), batch)
    metrics = task().summarize(evaluation.sums, {}, source=None)
    assert metrics.pop("sequences") == 5
    made = batch["mlm_count"][:5]
    assert metrics.pop("predictions") == made.sum()
    hits = outputs["mlm_logits"][:5].argmax(-1) == batch["mlm_labels"][:5]
    right = np.array([row[:count].sum() for row, count in zip(hits, made, strict=True)])
    rest = right - metrics["mlm_accuracy"] * made  # sums to 0
    error = rest.std(ddof=1) * 5**0.5 / made.sum()
    assert error > 0
    np.testing.assert_allclose(metrics.pop("mlm_accuracy_se"), error, rtol=1e-5)
    expected = expected_means(outputs, batch, range(5))
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)


def test_label_cross_entropy_and_its_gradient():
    logits = 4 * jax.random.normal(jax.random.key(0), (3, V))
    labels = jnp.array([0, 5, V - 1])
    expected = [nll(np.asarray(row), int(label)) for row, label in zip(logits, labels, strict=True)]
    np.testing.assert_allclose(label_cross_entropy(logits, labels), expected, rtol=1e-6)
    grads = jax.grad(lambda x: label_cross_entropy(x, labels).sum())(logits)
    np.testing.assert_allclose(grads, jax.nn.softmax(logits) - jax.nn.one_hot(labels, V), atol=1e-6)
