"""The classification loss, computed by hand for two classes; evaluation ignores padding."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from widenet_jax.typing import Array
from widenet_jax.vision.task import Classification, mixup, to_signed_range, weigh

RNGS = {"mixup": jax.random.key(3)}


def task(**changes: float) -> Classification:
    plain = {"label_smoothing": 0.0, "mixup_alpha": 0.0, "mixup_group_size": 2}
    return Classification(num_classes=2, image_shape=(1, 1, 1), **plain | changes)


def always(logits: list, aux: dict | None = None):
    """Returns a model whose logits do not depend on the images."""
    return lambda inputs, rngs: (jnp.asarray(logits, jnp.float32), aux or {})


def pixels(*values: int) -> Array:
    return jnp.asarray(values, jnp.uint8).reshape(-1, 1, 1, 1)


def nats(*odds: float) -> list[float]:
    """Returns logits whose softmax is `odds`."""
    return [math.log(p) for p in odds]


def test_balanced_classes_weigh_the_same():
    """Three images of class 0 and one of class 1: weights 2/3 and 2."""
    assert weigh((3, 1)) == pytest.approx((2 / 3, 2.0)) and weigh(()) == ()
    assert np.dot(weigh((10, 0, 30)), (10, 0, 30)) == pytest.approx(40)
    apply = always([nats(0.75, 0.25), nats(0.1, 0.9)])
    batch = {"image": pixels(0, 0), "label": jnp.array([0, 1])}
    loss, _ = task(class_weights=weigh((3, 1))).loss(apply, batch, RNGS)
    expected = -(2 / 3 * math.log(0.75) + 2 * math.log(0.9)) / 2
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_each_label_of_a_mixed_image_has_the_weight_of_its_class():
    """Weights 2/3 and 2; the mean weight of an example would count both of its classes alike."""
    logits, targets = jnp.array([nats(0.75, 0.25)]), jnp.array([[0.2, 0.8]])
    loss = task(class_weights=(2 / 3, 2.0)).weighted_cross_entropy(logits, targets)
    expected = -(0.2 * 2 / 3 * math.log(0.75) + 0.8 * 2 * math.log(0.25))
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)
    smooth = task(label_smoothing=0.2, class_weights=(2 / 3, 2.0))
    zero, one = (-(p * math.log(0.75) + (1 - p) * math.log(0.25)) for p in (0.9, 0.1))
    loss = smooth.weighted_cross_entropy(logits, targets)
    np.testing.assert_allclose(loss, [0.2 * 2 / 3 * zero + 0.8 * 2 * one], rtol=1e-6)


@pytest.mark.parametrize(
    ("smoothing", "target"), [(0.0, (1.0, 0.0)), (0.2, (0.9, 0.1)), (0.5, (0.75, 0.25))]
)
def test_cross_entropy_by_hand(smoothing: float, target: tuple[float, float]):
    """Two images of class 0, predicted as class 0 with probabilities 3/4 and 1/10."""
    apply = always([nats(0.75, 0.25), nats(0.1, 0.9)])
    batch = {"image": pixels(0, 0), "label": jnp.array([0, 0])}
    loss, metrics = task(label_smoothing=smoothing).loss(apply, batch, RNGS)
    first = -(target[0] * math.log(0.75) + target[1] * math.log(0.25))
    second = -(target[0] * math.log(0.1) + target[1] * math.log(0.9))
    np.testing.assert_allclose(loss, (first + second) / 2, rtol=1e-6)
    np.testing.assert_allclose(metrics.means["cross_entropy"], loss)
    assert metrics.means["accuracy"] == 0.5
    assert metrics.layer_sums == {}


def test_mixup_by_hand():
    """Black is class 0, white class 1: a mixed image's brightness is its weight of class 1.

    The loss of a model that predicts class 1 with this probability is then the mixture's entropy.
    """

    def apply(inputs: dict, rngs: dict) -> tuple[Array, dict]:
        white = (inputs["image"].reshape(-1) + 1) / 2
        return jnp.log(jnp.stack([1 - white, white], axis=-1)), {}

    batch = {"image": pixels(0, 255, 0, 255), "label": jnp.array([0, 1, 0, 1])}
    loss, metrics = jax.jit(partial(task(mixup_alpha=0.8).loss, apply))(batch, RNGS)
    mix = jax.jit(partial(mixup, alpha=0.8, group_size=2))
    images, _ = mix(RNGS["mixup"], to_signed_range(batch["image"]), jnp.zeros((4, 2)))
    white = (np.asarray(images, np.float64).ravel() + 1) / 2
    assert np.ptp(white) > 0.1  # the images are mixed
    entropy = -(white * np.log(white) + (1 - white) * np.log(1 - white)).mean()
    np.testing.assert_allclose(loss, entropy, rtol=1e-4)
    assert metrics.means["accuracy"] == 1.0  # against the heavier label


def test_losses_of_all_routing_operations_are_added():
    aux = {
        "loss": jnp.array([0.25, 0.5]),
        "losses": {"load_balance": jnp.array([25.0, 50.0])},
        "sums": {"load": jnp.array([[1, 3], [2, 2]])},
    }
    batch = {"image": pixels(0), "label": jnp.array([0])}
    loss, metrics = task().loss(always([nats(0.5, 0.5)], aux), batch, RNGS)
    np.testing.assert_allclose(loss, math.log(2) + 0.75, rtol=1e-6)
    np.testing.assert_allclose(metrics.means["loss"], loss)
    np.testing.assert_allclose(metrics.means["cross_entropy"], math.log(2), rtol=1e-6)
    assert metrics.means["load_balance_loss"].tolist() == [25.0, 50.0]
    assert metrics.layer_sums.keys() == {"load"}


def test_evaluation_ignores_padding():
    """Two real images, one classified correctly; the prediction for the padding is ignored."""
    apply = always([nats(0.75, 0.25), nats(0.25, 0.75), [float("nan"), 0.0]])
    batch = {"image": pixels(0, 0, 0), "label": jnp.array([0, 0, 0])}
    batch["mask"] = jnp.array([True, True, False])
    smooth = task(label_smoothing=0.3, mixup_alpha=0.5)  # of training alone
    metrics = smooth.summarize(smooth.evaluate(apply, batch).sums, {}, source=None)
    assert metrics["images"] == 2
    assert metrics["accuracy"] == 0.5
    np.testing.assert_allclose(
        metrics["cross_entropy"], -(math.log(0.75) + math.log(0.25)) / 2, rtol=1e-6
    )
