"""Mixup: partners within the group, and one lambda per example."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from widenet_jax.vision.task import cutmix, mixup, mixup_or_cutmix

B, G = 12, 4


@pytest.fixture(scope="module")
def mixed() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mixes images of random pixels, and one-hot targets of each image's position: [B, B]."""
    images = jax.random.normal(jax.random.key(1), (B, 3, 2, 3))
    run = jax.jit(functools.partial(mixup, alpha=0.5, group_size=G))
    out_images, out_targets = run(jax.random.key(0), images, jnp.eye(B))
    return np.asarray(images), np.asarray(out_images), np.asarray(out_targets)


def partner(i: int) -> int:
    return i + 1 if (i + 1) % G else i + 1 - G


def test_partner_is_the_next_of_the_group(mixed: tuple):
    targets = mixed[2]
    for i in range(B):
        others = set(np.nonzero(targets[i])[0]) - {i}
        assert others <= {partner(i)}
    assert (targets[np.arange(B), [partner(i) for i in range(B)]] > 0).sum() > B // 2


def test_images_mix_as_their_targets_say(mixed: tuple):
    images, out_images, targets = mixed
    assert len(np.unique(np.diag(targets))) == B  # every example has its own lambda
    np.testing.assert_allclose(targets.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(
        out_images, np.einsum("ij,jhwc->ihwc", targets, images), rtol=1e-5, atol=1e-6
    )


def test_half_half_is_the_arcsine_law():
    n = 4000
    targets = jnp.tile(jnp.eye(2), (n // 2, 1))  # so that target[i, i % 2] is lambda
    run = jax.jit(functools.partial(mixup, alpha=0.5, group_size=2))
    _, out = run(jax.random.key(3), jnp.zeros((n, 1, 1, 1)), targets)
    drawn = np.asarray(out)[np.arange(n), np.arange(n) % 2]
    assert abs(drawn.mean() - 0.5) < 0.03
    assert abs(drawn.var() - 1 / 8) < 0.01
    # P(lambda < x) = 2/pi asin(sqrt x): 1/3 of the draws lie below 1/4, 1/5 in the middle 0.3.
    assert abs((drawn < 0.25).mean() - 1 / 3) < 0.03
    assert abs(((drawn > 0.35) & (drawn < 0.65)).mean() - 0.194) < 0.03


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_no_pixel_crosses_devices():
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())
    mix, shardings = functools.partial(mixup, alpha=0.5, group_size=4), (whole, split, split)
    run = jax.jit(mix, in_shardings=shardings, out_shardings=shardings[1:])
    text = run.lower(jax.random.key(0), jnp.ones((8, 5, 5, 3)), jnp.eye(8)).compile().as_text()
    moves = ("all-gather", "all-to-all", "collective-permute", "all-reduce")
    crossing = [line for line in text.splitlines() if any(f" {move}" in line for move in moves)]
    assert not [line for line in crossing if "5,5,3" in line]


# --- CutMix ---------------------------------------------------------------------------------------


def test_cutmix_pastes_a_box_of_the_partner_and_mixes_targets_by_area():
    images = jnp.broadcast_to(jnp.arange(1.0, B + 1)[:, None, None, None], (B, 12, 16, 3))
    run = jax.jit(functools.partial(cutmix, alpha=1.0, group_size=G))
    cut, targets = map(np.asarray, run(jax.random.key(0), images, jnp.eye(B)))
    shares = []
    for i in range(B):
        pasted = cut[i, ..., 0] == partner(i) + 1
        assert (pasted | (cut[i, ..., 0] == i + 1)).all()  # nothing is blended
        rows, columns = np.nonzero(pasted.any(1))[0], np.nonzero(pasted.any(0))[0]
        assert pasted.sum() == len(rows) * len(columns)  # a box
        assert len(rows) in (0, np.ptp(rows) + 1 if len(rows) else 0)
        np.testing.assert_allclose(targets[i, partner(i)], pasted.mean(), atol=1e-6)
        np.testing.assert_allclose(targets[i, i], 1 - pasted.mean(), atol=1e-6)
        shares.append(pasted.mean())
    assert len({*shares}) > B // 2 and 0.05 < np.mean(shares) < 0.6


@pytest.mark.slow
def test_of_both_each_example_has_one():
    images = jax.random.normal(jax.random.key(1), (400, 8, 8, 1))
    run = lambda mix, **how: jax.jit(functools.partial(mix, **how))(  # noqa: E731
        jax.random.key(0), images, jnp.eye(400)
    )
    mixed, targets = run(mixup_or_cutmix, mixup_alpha=1.0, cutmix_alpha=1.0, group_size=2)
    kept = np.asarray(mixed == images).mean((1, 2, 3))  # CutMix leaves pixels, mixup does not
    assert 0.35 < (kept > 0).mean() < 0.6
    np.testing.assert_allclose(np.asarray(targets).sum(-1), 1, atol=1e-6)
    alone, _ = run(mixup_or_cutmix, mixup_alpha=0.0, cutmix_alpha=1.0, group_size=2)
    expected, _ = run(cutmix, alpha=1.0, group_size=2)
    np.testing.assert_array_equal(alone, expected)
