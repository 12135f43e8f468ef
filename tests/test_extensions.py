"""Guards of users' parts: every mistake in any part is one line, before a run begins."""

import dataclasses
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from small_runs import DIGITS, small_config

from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_task
from widenet_jax.extensions import guarded_loss, guarded_task, try_parts
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.nn.feed_forwards import FEED_FORWARDS
from widenet_jax.nn.moe.losses import LOSSES
from widenet_jax.specs import TASKS, resolve, task_spec
from widenet_jax.task import Metrics
from widenet_jax.typing import Array, FfnOutput
from widenet_jax.vision.task import Classification

AUX = {"losses": {"mine": jnp.ones(())}, "loss": jnp.ones(()), "sums": {}}


def spoiled(y: Array, fault: str, *, train: bool = True) -> Array:
    """Returns an array with a fault of its values, or fails."""
    if fault == "raises":
        return y + {}["width"]
    faults = {"shape": y[..., None], "dtype": y.astype(int), "nan": y * jnp.nan}
    return faults["nan"] if fault == "nan in training" and train else faults.get(fault, y)


class Part(nn.Module):
    """A user's attention and feed-forward, with a fault."""

    fault: str = ""

    @nn.compact
    def __call__(self, x: Array, *, train: bool, mask: Array | None = None, **others):
        y = spoiled(nn.Dense(x.shape[-1])(x), self.fault, train=train)
        if self.fault == "keeps":
            self.variable("statistics", "seen", jnp.zeros, ())
        losses = {"losses": {"mine": jnp.nan * y.sum()}} if self.fault == "nan loss" else {}
        losses |= {"loss": y.mean(axis=(1, 2))} if self.fault == "loss of each" else {}
        return self.returned(y, {} if self.fault == "no aux" else AUX | losses)


class Attention(Part):
    def returned(self, y, aux):
        return y if self.fault == "alone" else (y, {"loss": 0} if self.fault == "aux" else aux)


class FeedForward(Part):
    def returned(self, y, aux):
        return y if self.fault == "alone" else FfnOutput(y, aux)


def loss_with(fault: str, routing, mask: Array) -> Array:
    return spoiled(routing.router_probs.mean(axis=(1, 2)), fault)


def try_model(part: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Does what the start of a run does with a model that has one part of the user's."""
    model = small_config(**{"model.loop.core": ((1, 1),)}).model.to_dict()
    if part == "attention":
        monkeypatch.setitem(ATTENTIONS, "mine", Attention)
        model["attention"] = {"name": "mine", "fault": fault}
    if part == "feed-forward":
        monkeypatch.setitem(FEED_FORWARDS, "mine", FeedForward)
        model |= {"ffn": "mine", "mine": {"fault": fault}, "moe": None}
    if part == "loss":
        monkeypatch.setitem(LOSSES, "mine", partial(loss_with, fault))
        model["moe"]["losses"]["mine"] = 0.1
    image = {"image": jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")}
    with try_parts():
        parameter_shapes(build_model(model, num_classes=10), image)


WHERE = {
    "attention": "Attention of config.model.attention",
    "feed-forward": "FeedForward of config.model.mine",
    "loss": "loss mine",
}
FAILS = r"fails: \S*test_extensions\.py, line \d+: KeyError: 'width'"
AUX_WORDS = "aux must be {} or have loss, losses, sums; losses scalar"
MISTAKES = [
    *((part, "raises", f"{where} {FAILS}") for part, where in WHERE.items()),
    (
        "attention",
        "shape",
        r"Attention of config.model.attention: y is \[1, 16, 32, 1\]; must be \[B, T, D\], here \[",
    ),
    (
        "feed-forward",
        "shape",
        r"FeedForward of config.model.mine: y is \[1, 16, 32, 1\]; must be \[B, T, D\]",
    ),
    ("loss", "shape", r"loss mine: what it returns is \[1, 1\]; must be \[G\], here \[1\]"),
    ("attention", "dtype", "Attention of config.model.attention: y is int32; must be float32"),
    ("feed-forward", "dtype", "FeedForward of config.model.mine: y is int32; must be float32"),
    ("loss", "dtype", "loss mine: what it returns is int32; must be float32"),
    (
        "attention",
        "alone",
        r"Attention of config.model.attention returns an array; return \(y, aux\)",
    ),
    (
        "feed-forward",
        "alone",
        r"FeedForward of config.model.mine returns an array; return an FfnOutput",
    ),
    ("attention", "aux", f"Attention of config.model.attention: {AUX_WORDS}"),
    ("feed-forward", "loss of each", f"FeedForward of config.model.mine: {AUX_WORDS}"),
    ("attention", "keeps", "encoder/attention/seen is a variable of the collection 'statistics'"),
    ("feed-forward", "keeps", "encoder/mine/seen is a variable of the collection 'statistics'"),
    (
        "attention",
        "nan",
        "Attention of config.model.attention: y must be finite; for random tokens it is not",
    ),
    (
        "feed-forward",
        "nan in training",
        "FeedForward of config.model.mine: y must be finite; for random tokens it is not",
    ),
    ("feed-forward", "nan loss", "FeedForward of config.model.mine: the loss mine must be finite"),
    ("loss", "nan", "config.model.moe: the loss mine must be finite"),
]


@pytest.mark.parametrize(("part", "fault", "words"), MISTAKES)
def test_a_mistake_in_a_user_s_part_is_one_line(part, fault, words, monkeypatch):
    with pytest.raises(BadInputError, match=words):
        try_model(part, fault, monkeypatch)


@pytest.mark.parametrize("part", ["attention", "feed-forward", "loss"])
def test_a_user_s_part_that_is_right_is_let_through(part, monkeypatch):
    try_model(part, "", monkeypatch)
    if part != "loss":
        try_model(part, "no aux", monkeypatch)


class Mine(Classification):
    """A user's task, whose methods return what its field of the class says."""

    found = None

    def loss(self, apply, batch, rngs):
        return self.found + ()  # noqa: RUF005

    def evaluate(self, apply, batch):
        return self.found


ONE, METRICS = jnp.ones(()), Metrics({"loss": jnp.ones(())}, {})


@pytest.mark.parametrize(
    ("method", "found", "words"),
    [
        ("loss", None, r"fails: \S*test_extensions\.py, line \d+: TypeError: unsupported"),
        ("loss", (ONE,), r"must return \(loss, Metrics\), with the loss in its means"),
        ("loss", (jnp.ones(4), METRICS), r"the loss is \[4\]; must be \[\], here \[\]"),
        (
            "loss",
            (ONE, METRICS.replace(means={})),
            r"must return \(loss, Metrics\), with the loss in its means",
        ),
        ("evaluate", METRICS, "returns Metrics; return an Evaluation"),
    ],
)
def test_a_mistake_in_a_user_s_task_is_one_line(method, found, words, monkeypatch):
    monkeypatch.setattr(Mine, "found", found)
    monkeypatch.setitem(TASKS, "mine", dataclasses.replace(task_spec("classification"), task=Mine))
    config = small_config(**{"task.name": "mine"})
    task = build_task(config, DIGITS)
    with pytest.raises(BadInputError, match=f"task mine: its method {method}:? {words}"):
        getattr(task, method)(*[None] * (3 if method == "loss" else 2))


def test_parts_of_this_project_are_not_wrapped():
    assert all(guarded_loss(name, loss) is loss for name, loss in LOSSES.items())
    for name in ("classification", "masked_lm", "text_classification", "span", "language_modeling"):
        task = resolve(task_spec(name).task)
        assert guarded_task(task, name) is task
