"""Counts as the command prints them."""

import pytest

from widenet_jax.ops.plan.counts import counts_table, image_row, language_row, text_row
from widenet_jax.ops.plan.printed import FINETUNING, LANGUAGE, TEXT, Printed


def test_image_models_of_table_5():
    """The plain ViT-B, one with shared blocks, which the paper does not print, and a slip."""
    shared = Printed("vit_b,share=true", "shared")
    plain, other, slip = (
        image_row(row, 10, pre_logits=False) for row in (FINETUNING[0], shared, FINETUNING[4])
    )
    assert plain["params"] == plain["params_unrolled"] == other["params_unrolled"] == 85_806_346
    assert plain["agrees"] and "note" not in plain and other["agrees"] is None
    assert other["params"] < plain["params"] / 8
    first, second, third = list(counts_table([plain, other, slip]))[1:]
    assert first.split()[2:5] == ["85M", "85,806,346", "85,806,346"] and second.split()[1] == "-"
    assert third.endswith(
        "(a slip of the table: the setting that reproduces its other rows gives 28.3M)"
    )


@pytest.mark.slow
def test_a_text_model_is_counted_part_by_part():
    """To the nearest million, what Table 2 prints; but for BERT, which ALBERT's paper truncates."""
    row = text_row(TEXT[0])
    assert (row["variant"], row["printed"], row["agrees"]) == ("albert", 12, True)
    line = list(counts_table([row]))[1]
    for count in ("7,087,872", "11,092,992", "11,683,584", "11,813,810"):
        assert count in line
    assert not text_row(TEXT[1])["agrees"]


@pytest.mark.slow
def test_language_models():
    """To the last parameter, less the two scalars a block; product keys are not printed."""
    dense, keys = language_row(LANGUAGE[0]), language_row(LANGUAGE[-1])
    assert dense["agrees"] and dense["params"] == 47_260_136 - 32
    assert "47.2601M     47,260,104" in list(counts_table([dense]))[1]
    assert keys["printed"] is keys["agrees"] is None
    assert "62 sub-keys a half, 4 heads, solved for the experts' parameters" in keys["note"]
