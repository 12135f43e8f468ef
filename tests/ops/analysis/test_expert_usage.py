"""Expert usage by hand, and of a run against its own metrics and a loop over tokens."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from small_runs import metrics_of

from widenet_jax.data.blocks import read_example
from widenet_jax.inference.over_source import open_source
from widenet_jax.inference.trained import open_trained
from widenet_jax.ops.analysis import figures
from widenet_jax.ops.analysis.captured import token_routing
from widenet_jax.ops.analysis.figures import draw_co_occurrence, draw_load, plot_by_block
from widenet_jax.ops.analysis.usage import ExpertUsage, measure_usage
from widenet_jax.run.figures import subplots
from widenet_jax.vision.task import to_signed_range


def usage_of(first: np.ndarray) -> ExpertUsage:
    """Builds the usage of first choices [L, tokens]: 2 experts, K = 1, all tokens of one class."""
    L = len(first)
    one_hot = np.eye(2)[first]  # [L, tokens, E]
    sent = np.stack([one_hot.sum(axis=1), np.zeros((L, 2))], axis=1)
    return ExpertUsage(
        blocks=tuple(range(L)),
        category="class",
        names=("seen", "unseen"),
        sent=sent,
        pairs=one_hot.sum(axis=1),
        importance=one_hot.mean(axis=1),
        drop_rate=np.zeros(L),
        router_entropy=np.zeros(L),
        together=np.einsum("ane,bnf->abef", one_hot, one_hot),
        selected_together=np.einsum("lne,lnf->lef", one_hot, one_hot),
    )


BY_HAND = usage_of(
    np.array([
        [0, 0, 1, 1],
        [1, 1, 0, 0],  # always the other expert
        [0, 1, 0, 1],  # independent of the first block
        [0, 0, 0, 0],  # always the same expert
        [0, 0, 1, 0],
    ])
)  # fmt: skip


def test_bars_have_their_experts_numbers():
    """Block 3 sends nothing to expert 1, whose part there has no number."""
    _, axis = subplots(size=(3, 3))
    draw_load(axis, BY_HAND)
    assert [text.get_text() for text in axis.texts] == ["0"] * 5 + ["1", "1", "1", "", "1"]
    assert [text.get_color() for text in axis.texts[4:6]] == ["white", "black"]  # blue, orange


def test_the_label_of_the_experts_is_whole(tmp_path, drawn):
    draw_co_occurrence(BY_HAND, tmp_path / "a.png", title="runs/mine")
    drawn[0].draw_without_rendering()
    (label,) = (text for text in drawn[0].texts if text.get_text() == "expert")
    assert label.get_window_extent().x0 >= 0


def test_no_panel_for_tokens_that_are_not_dropped(monkeypatch: pytest.MonkeyPatch):
    """Without drops the load takes two of the upper three places."""
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, out: drawn.append(figure))
    for rate in (0.0, 0.02):
        figures.draw_usage(replace(BY_HAND, drop_rate=np.full(5, rate)), "not written")
    titled = [{of.get_title(): of for of in figure.axes if of.get_title()} for figure in drawn]
    places = [[of.get_subplotspec().colspan for of in panels.values()][:3] for panels in titled]
    one, two, three = (range(column, column + 1) for column in range(3))
    assert places == [[range(2), three, one], [one, two, three]]
    assert next(iter(titled[0])) == "load (numbers: experts; dotted: equal); nothing is dropped"
    assert "dropped" not in titled[0]
    assert [bar.get_height() for bar in titled[1]["dropped"].patches] == [2.0] * 5


def test_the_highest_marker_is_whole():
    """A flat curve: matplotlib's own margin, a share of its span, would be a two-thousandth."""
    _, axis = subplots(size=(3, 3))
    plot_by_block(axis, {"a": ((0, 1), np.array([1.0, 1.01]))}, ylabel="y")
    assert axis.get_ylim() == pytest.approx((0, 1.05 * 1.01))


def test_agreement_by_hand():
    """Of 4 tokens blocks 0 and 1 agree on none, 0 and 2 on two, 0 and 4 on three."""
    np.testing.assert_allclose(BY_HAND.agreement[0], [1, 0, 1 / 2, 1 / 2, 3 / 4])


def test_mutual_information_by_hand():
    """Block 1 determines block 0 without ever agreeing; 2 is independent; 3 is constant.

    Blocks 0 and 4: entropies log 2 and h = H(1/4); jointly (0,0), (0,0), (1,1), (1,0), entropy
    1.5 log 2. Information log 2 + h - 1.5 log 2 = h - 0.5 log 2; the smaller entropy is h.
    """
    h = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    expected = [1, 1, 0, 0, (h - 0.5 * np.log(2)) / h]
    np.testing.assert_allclose(BY_HAND.mutual_information[0], expected, atol=1e-12)


def test_shares_by_class_and_even_tokens():
    """4 pairs over 2 experts are 2 each; a class without images has shares of 0."""
    assert BY_HAND.even_tokens == 2.0
    np.testing.assert_array_equal(BY_HAND.by_category[4], [[0.75, 0.25], [0, 0]])
    np.testing.assert_allclose(BY_HAND.load_entropy[:4], [np.log(2)] * 3 + [0])
    np.testing.assert_array_equal(BY_HAND.frequency, [1, 0])


def test_co_occurrence_by_hand():
    """Tokens choose experts {0, 1}, {0, 2} and {0, 1}; expert 3 is never chosen."""
    chosen = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]])
    usage = replace(BY_HAND, selected_together=(chosen.T @ chosen)[None])
    expected = [[0, 2 / 3, 1 / 3, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(usage.co_occurrence, [expected])
    assert not BY_HAND.co_occurrence.any()  # K = 1


@pytest.fixture(scope="module")
def trained(digits_run):
    return open_trained(str(digits_run))


@pytest.fixture(scope="module")
def usage(trained) -> ExpertUsage:
    return measure_usage(trained)


def test_equals_the_metrics_of_the_run(usage, digits_run):
    last = metrics_of(digits_run, "eval")[-1]
    np.testing.assert_allclose(usage.load, last["load"], atol=1e-6)
    np.testing.assert_allclose(usage.importance, last["importance"], atol=1e-5)
    np.testing.assert_allclose(usage.drop_rate, last["drop_rate"], atol=1e-6)
    np.testing.assert_allclose(usage.router_entropy, last["router_entropy"], atol=1e-5)
    assert usage.drop_rate.max() > 0


def test_against_a_loop_over_tokens(usage, trained):
    """T = N_I N_p K / E = 360 * 16 * 2 / 4; classes, blocks, pairs are counted token by token."""
    assert usage.even_tokens == 360 * 16 * 2 / 4
    source, transform = open_source(trained)
    examples = [read_example(source, i) for i in range(len(source))]
    images = np.stack([transform.picture(transform.image_of(example)) for example in examples])
    route = jax.jit(lambda x: token_routing(trained.model, trained.params, x)[1].expert_index)
    chosen = np.asarray(route({"image": to_signed_range(images)}))
    sent, same, both = np.zeros((2, 10, 4)), 0, np.zeros((2, 4, 4))
    for image, example in enumerate(examples):
        for token in range(16):
            for block in range(2):
                for expert in chosen[block, image, token]:
                    sent[block, example["label"], expert] += 1
                    for other in chosen[block, image, token]:
                        both[block, expert, other] += 1
            same += chosen[0, image, token, 0] == chosen[1, image, token, 0]
    np.testing.assert_array_equal(usage.sent, sent)
    np.testing.assert_array_equal(usage.selected_together, both)
    np.testing.assert_allclose(usage.co_occurrence.sum(axis=-1), 1)  # K - 1
    assert usage.agreement[0, 1] == pytest.approx(same / (360 * 16))
    facts = json.loads(json.dumps(usage.as_json()))
    assert facts["blocks"] == [0, 1] and facts["tokens_if_even"] == 2880
    assert np.sum(facts["tokens"][0]) == 360 * 16 * 2
