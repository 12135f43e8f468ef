"""Guards of users' parts: every mistake in any part is one line, before a run begins."""

import dataclasses
import re
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from small_runs import DIGITS, small_config

from widenet_jax.data.contract import DataInfo
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_experiment, build_task
from widenet_jax.extensions import guarded_loss, guarded_task, try_parts
from widenet_jax.nn.attention import ATTENTIONS
from widenet_jax.nn.build import build_model, parameter_shapes
from widenet_jax.nn.feed_forwards import FEED_FORWARDS
from widenet_jax.nn.moe.losses import LOSSES
from widenet_jax.nn.moe.routers import ROUTERS
from widenet_jax.nn.moe.routers.softmax import TopKRouter
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


class Mean(Part):
    """A user's part in which each token sees the mean of all."""

    causal: bool = True

    def returned(self, y, aux):
        y += y.mean(axis=1, keepdims=True)
        return (y, {}) if self.fault == "attention" else FfnOutput(y, {})


class Causal(Mean):
    """The same of the tokens so far."""

    def returned(self, y, aux):
        y = jnp.cumsum(y, axis=1) / jnp.arange(1, y.shape[1] + 1)[:, None]
        return (y, {}) if self.fault == "attention" else FfnOutput(y, {})


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


def at(code: str) -> str:
    """Returns how a message names the first line of this file with some code."""
    lines = Path(__file__).read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if code in line)
    return rf" \(\S*test_extensions\.py, line {number}\)"


# Where the method of the class begins, or the function.
WHERE = {
    "attention": ("Attention of config.model.attention", at("@nn.compact")),
    "feed-forward": ("FeedForward of config.model.mine", at("@nn.compact")),
    "loss": ("loss mine", at("def loss_with")),
}
AUX_WORDS = ": aux must be {} or have loss, losses, sums; losses scalar"
MISTAKES = [
    ("attention", "shape", r": y is \[1, 16, 32, 1\]; must be \[B, T, D\], here \[1, 16, 32\]"),
    ("feed-forward", "shape", r": y is \[1, 16, 32, 1\]; must be \[B, T, D\]"),
    ("loss", "shape", r": what it returns is \[1, 1\]; must be \[G\], here \[1\]"),
    ("attention", "dtype", ": y is int32; must be float32"),
    ("feed-forward", "dtype", ": y is int32; must be float32"),
    ("loss", "dtype", ": what it returns is int32; must be float32"),
    ("attention", "alone", r" returns an array; return \(y, aux\)"),
    ("feed-forward", "alone", " returns an array; return an FfnOutput"),
    ("attention", "aux", AUX_WORDS),
    ("feed-forward", "loss of each", AUX_WORDS),
    ("attention", "nan", ": y must be finite; for random tokens it is not"),
    ("feed-forward", "nan in training", ": y must be finite; for random tokens it is not"),
    ("feed-forward", "nan loss", ": the loss mine must be finite"),
]


@pytest.mark.parametrize(("part", "fault", "words"), MISTAKES)
def test_a_mistake_in_what_a_user_s_part_returns_names_its_line(part, fault, words, monkeypatch):
    with pytest.raises(BadInputError, match="^" + "".join(WHERE[part]) + words):
        try_model(part, fault, monkeypatch)


FAILS = r" fails: \S*test_extensions\.py, line \d+: KeyError: 'width'"
OTHERS = [
    *((part, "raises", f"{where}{FAILS}") for part, (where, _) in WHERE.items()),
    ("attention", "keeps", "encoder/attention/seen is a variable of the collection 'statistics'"),
    ("feed-forward", "keeps", "encoder/mine/seen is a variable of the collection 'statistics'"),
    ("loss", "nan", f"config.model.moe: the loss mine{WHERE['loss'][1]} must be finite"),
]


@pytest.mark.parametrize(("part", "fault", "words"), OTHERS)
def test_a_mistake_in_a_user_s_part_is_one_line(part, fault, words, monkeypatch):
    with pytest.raises(BadInputError, match=words):
        try_model(part, fault, monkeypatch)


@pytest.mark.parametrize("part", ["attention", "feed-forward"])
def test_a_part_that_sees_later_tokens_is_refused_where_the_next_is_predicted(
    part: str, monkeypatch: pytest.MonkeyPatch
):
    table = ATTENTIONS if part == "attention" else FEED_FORWARDS
    config, info = small_config(run="language"), DataInfo(64, {}, {"vocab_size": 256})
    with config.unlocked():
        if part == "attention":
            config.model.attention = {"name": "mine", "fault": part}
        else:
            config.model.ffn, config.model.mine = "mine", {}
    monkeypatch.setitem(table, "mine", Causal)
    build_experiment(config, info, jax.devices()[:1])
    monkeypatch.setitem(table, "mine", Mean)
    words = "a token's output or routing changes with later tokens"
    with pytest.raises(BadInputError, match=at("@nn.compact") + ": " + words):
        build_experiment(config, info, jax.devices()[:1])


@pytest.mark.parametrize("part", ["attention", "feed-forward", "loss"])
def test_a_user_s_part_that_is_right_is_let_through(part, monkeypatch):
    try_model(part, "", monkeypatch)
    if part != "loss":
        try_model(part, "no aux", monkeypatch)


@pytest.mark.parametrize("unroll", [False, True])
def test_a_user_s_part_may_compute_in_float32(unroll: bool, monkeypatch: pytest.MonkeyPatch):
    """As layers of Flax do that are not told a dtype; the stream of a model keeps its own."""
    monkeypatch.setitem(ATTENTIONS, "mine", Attention)
    monkeypatch.setitem(FEED_FORWARDS, "mine", FeedForward)
    model = small_config(**{"model.loop.core": ((1, 3),)}).model.to_dict()
    model |= {"attention": {"name": "mine"}, "ffn": "mine", "mine": {}, "moe": None}
    model |= {"dtype": "bfloat16", "unroll": unroll}
    image = {"image": jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")}
    module = build_model(model, num_classes=10)
    params = parameter_shapes(module, image)

    def states(params, image):
        _, kept = module.apply({"params": params}, image, train=True, mutable=["intermediates"])
        return kept["intermediates"]["encoder"]["state"] if unroll else ()

    found = jax.eval_shape(states, params, image)
    assert len(found) == 3 * unroll and all(x.dtype == jnp.bfloat16 for x in found)


@pytest.mark.parametrize("field", ["gate", "router_probs", "router_logits"])
def test_what_a_router_returns_is_in_float32(field: str, monkeypatch: pytest.MonkeyPatch):
    class Short(TopKRouter):
        def __call__(self, *args, **how):
            routing = super().__call__(*args, **how)
            return routing.replace(**{field: getattr(routing, field).astype(jnp.bfloat16)})

    monkeypatch.setitem(ROUTERS, "mine", Short)
    model = small_config().model.to_dict()
    model["moe"] |= {"router": {"name": "mine"}}
    image = {"image": jax.ShapeDtypeStruct((1, 8, 8, 1), "float32")}
    with pytest.raises(BadInputError, match=f"{field} is bfloat16; must be float32"):
        parameter_shapes(build_model(model, num_classes=10), image)


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
        ("loss", None, r" fails: \S*test_extensions\.py, line \d+: TypeError: unsupported"),
        (
            "loss",
            (ONE,),
            at("def loss(self") + r" must return \(loss, Metrics\), with the loss in its means",
        ),
        (
            "loss",
            (jnp.ones(4), METRICS),
            at("def loss(self") + r": the loss is \[4\]; must be \[\], here \[\]",
        ),
        (
            "loss",
            (ONE, METRICS.replace(means={})),
            at("def loss(self") + r" must return \(loss, Metrics\), with the loss in its means",
        ),
        ("evaluate", METRICS, at("def evaluate") + " returns Metrics; return an Evaluation"),
    ],
)
def test_a_mistake_in_a_user_s_task_is_one_line(method, found, words, monkeypatch):
    monkeypatch.setattr(Mine, "found", found)
    monkeypatch.setitem(TASKS, "mine", dataclasses.replace(task_spec("classification"), task=Mine))
    config = small_config(**{"task.name": "mine"})
    task = build_task(config, DIGITS)
    with pytest.raises(BadInputError, match="task mine: its method " + method + words):
        getattr(task, method)(*[None] * (3 if method == "loss" else 2))


def test_the_loss_of_the_page_is_added(monkeypatch: pytest.MonkeyPatch):
    """Logits of zeros for ten classes: a cross-entropy of log 10, and 1e-4 (log 10)^2."""
    monkeypatch.setattr("widenet_jax.specs.TASKS", dict(TASKS))
    page = Path(__file__).parents[1] / "docs" / "why" / "architecture.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(program, str(page), "exec"), {"__name__": "small_logits"})
    info = DIGITS._replace(info={"class_names": list("0123456789")})
    task = build_task(small_config(**{"augment.mixup_alpha": 0.0}), info)
    batch = {"image": jnp.zeros((3, 8, 8, 1), "uint8"), "label": jnp.zeros(3, int)}
    loss, metrics = task.loss(lambda *_: (jnp.zeros((3, 10)), {}), batch, {})
    log = float(jnp.log(10))
    assert loss == metrics.means["loss"] == pytest.approx(log + 1e-4 * log**2, rel=1e-6)
    assert metrics.means["cross_entropy"] == pytest.approx(log, rel=1e-6)
    assert metrics.means["squares"] == pytest.approx(log**2, rel=1e-6)


def test_parts_of_this_project_are_not_wrapped():
    assert all(guarded_loss(name, loss) is loss for name, loss in LOSSES.items())
    names = ("classification", "masked_lm", "text_classification", "text_regression", "span")
    for name in (*names, "language_modeling"):
        task = resolve(task_spec(name).task)
        assert guarded_task(task, name) is task
