"""The benchmark of feed-forwards at small sizes: its rows, and the curves drawn from them."""

import json

import pytest
from ops.compiler import needs_libtpu

from widenet_jax.cli import benchmark
from widenet_jax.ops.benchmark.feed_forward import DispatchSize, LayerSize, feed_forward_row, sizes
from widenet_jax.ops.plan.topology import parse_topology

SMALL = ["--tokens=8", "--length=4", "--embed_dim=8", "--expert_dim=4", "--selected=2"]


def test_experts_fill_four_times_the_width():
    choices = {"tokens": [8], "length": [3, 4], "embed_dim": [8, 16], "expert_dim": [4, 64],
               "experts": [0, 6], "selected": [2]}  # fmt: skip
    found = [(s.length, s.embed_dim, s.expert_dim, s.experts) for s in sizes(LayerSize, **choices)]
    assert found == [(4, 8, 4, 8), (4, 8, 4, 6), (4, 8, 64, 6), (4, 16, 4, 16), (4, 16, 4, 6),
                     (4, 16, 64, 6)]  # fmt: skip


def test_sizes_keep_groups_whole_and_k_at_most_e():
    choices = {"images": [4], "tokens": [8], "examples_per_group": [1, 3, 4], "experts": [1, 4],
               "selected": [2], "embed_dim": [8], "mlp_dim": [16]}  # fmt: skip
    found = [(s.examples_per_group, s.experts) for s in sizes(DispatchSize, **choices)]
    assert found == [(1, 4), (4, 4)]


def test_the_command(capsys: pytest.CaptureFixture):
    """Eight experts of which each token sees two: a quarter of the dense layer's products."""
    argv = ["feed_forward", *SMALL, "--method", "dense", "auto", "--rounds=1", "--dtype=float32"]
    assert benchmark.main([*argv, "--json"]) == 0
    dense, experts = json.loads(capsys.readouterr().out)
    assert (dense["method"], experts["method"]) == ("dense", "auto")
    for row, used in ((dense, 8), (experts, 2)):
        assert row["experts"] == 8 and row["guessed"] is None and row["device"] == "cpu"
        flops = 3 * (8 * used * 2 * 2 * 8 * 4)  # 8 tokens, two matrices of 8 x 4 per expert
        assert row["tflops"] * 1e12 * row["ms"] / 1e3 == pytest.approx(flops)
    assert dense["memory_gib"] * 2**30 > 4 * 2 * 8 * 8 * 4  # the kernels


@needs_libtpu
@pytest.mark.slow
def test_a_layer_priced_for_a_tpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # libtpu aborts on a flag it does not know
    size = LayerSize(512, 256, embed_dim=128, expert_dim=128, experts=4, selected=2)
    row = feed_forward_row("masked", size, dtype="bfloat16", rounds=1,
                           topology=parse_topology("v3-8"))  # fmt: skip
    assert row["device"] == "v3-8" and 0 < row["ms"] < 1 and 0 <= row["guessed"] < 0.5
