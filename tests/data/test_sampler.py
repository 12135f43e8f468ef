"""The order of records: each once per epoch, a function of the seed and the position only."""

import itertools

import numpy as np
import pytest

from widenet_jax.data import blocks


def stream(first: int, last: int, *, seed: int = 0, n: int = 10) -> list[tuple[int, int]]:
    epochs, records = blocks.record_at(np.arange(first, last), seed=seed, num_records=n)
    return list(zip(epochs.tolist(), records.tolist(), strict=True))


def test_every_epoch_holds_every_record_once():
    seen = stream(0, 40)
    orders = [seen[10 * epoch : 10 * epoch + 10] for epoch in range(4)]
    for epoch, order in enumerate(orders):
        assert sorted(order) == [(epoch, record) for record in range(10)]
    assert len({tuple(record for _, record in order) for order in orders}) == 4


def test_the_seed_matters_and_nothing_else():
    assert stream(0, 30, seed=1) != stream(0, 30, seed=2)
    before = stream(0, 30, seed=1)
    blocks.permutation.cache_clear()
    np.random.seed(7)
    assert stream(0, 30, seed=1) == before


def test_augmentation_streams_are_distinct():
    draws = {
        blocks.augmentation_rng(seed=s, epoch=e, record=r).integers(2**63)
        for s, e, r in itertools.product(range(3), repeat=3)
    }
    assert len(draws) == 27
    # It also differs from the permutation's stream, although NumPy pads [seed, epoch] with zeros.
    rng = np.random.default_rng([blocks.PERMUTATION_STREAM, 0, 0])
    assert rng.integers(2**63) not in draws


@pytest.mark.parametrize("hosts", [32, 256, 1024])
def test_many_hosts_read_what_one_reads(hosts: int):
    """Each step's records are those of one host, however its 4,096 places are dealt out.

    5,000 records: an epoch ends inside a batch. A host of 32 reads two blocks a step.
    """
    B, N, steps = 4096, 5000, 3
    dealt = np.sort(np.random.default_rng(0).permutation(B).reshape(hosts, -1))
    together, alone = np.full((2, steps, B), -1)
    for positions, found in [(host, together) for host in dealt] + [(np.arange(B), alone)]:
        how = {"batch_size": B, "start_step": 0, "num_steps": steps, "skip": False, "seed": 3}
        ours = blocks.TrainBlocks(range(N), positions, transform=None, **how)
        at = np.concatenate([ours.global_positions(index) for index in range(len(ours))])
        assert (found.flat[at] == -1).all()  # no other host has this place
        found.flat[at] = blocks.record_at(at, seed=3, num_records=N)[1]
    np.testing.assert_array_equal(together, alone)
    epochs = together.ravel()[: 2 * N].reshape(2, N)
    np.testing.assert_array_equal(np.sort(epochs), np.broadcast_to(np.arange(N), (2, N)))
