"""Counts as the command prints them."""

from widenet_jax.ops.plan.counts import (
    KEYS,
    count_variant,
    counts_table,
    language_row,
    text_row,
)
from widenet_jax.ops.plan.printed import LANGUAGE_COUNTS, TEXT


def test_counts_a_variant_shared_and_unrolled():
    shared, unrolled = count_variant("vit_b,share=true", num_classes=10, pre_logits=False)
    plain, same = count_variant("vit_b", num_classes=10, pre_logits=False)
    assert plain == same == unrolled == 85_806_346  # Table 5
    assert shared < plain / 8


def test_the_table_marks_what_is_not_printed_and_what_slipped():
    row = {"tables": "5", "model": "ViT-L", "variant": "vit_l", "params": 303_311_882,
           "params_unrolled": 303_311_882, "printed": 305, "note": "a slip"}  # fmt: skip
    lines = counts_table([row, row | {"printed": None}]).splitlines()
    assert lines[1].split()[2:5] == ["305M", "303,311,882", "303,311,882"]
    assert lines[1].endswith("(a slip)")
    assert lines[2].split()[2] == "-"


def test_a_text_model_is_counted_part_by_part():
    """To the nearest million, what Table 2 prints; but for BERT, which ALBERT's paper truncates."""
    row = text_row(TEXT[0])
    assert (row["variant"], row["printed"], row["agrees"]) == ("albert", 12, True)
    line = counts_table([row]).splitlines()[1]
    for count in ("7,087,872", "11,092,992", "11,683,584", "11,813,810"):
        assert count in line
    assert not text_row(TEXT[1])["agrees"]


def test_a_language_model_has_the_printed_count():
    """To the last parameter, less the two scalars a block; tests/models counts the others."""
    row = language_row(LANGUAGE_COUNTS[0])
    assert row["agrees"] and row["params"] == 47_260_136 - 32
    assert "47.2601M   47,260,104" in counts_table([row])


def test_product_keys_say_what_was_solved():
    row = language_row(KEYS[3])
    assert row["printed"] is row["agrees"] is None
    assert "62 sub-keys a half, 4 heads, solved for the experts' parameters" in row["note"]
