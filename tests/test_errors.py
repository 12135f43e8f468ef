"""Shared checks: choices by name, with the nearest valid one, and sizes of groups."""

import pytest

from widenet_jax.errors import BadInputError, check_group, choose, known_names

TABLE = {"lamb": 1, "sgd": 2, "adamw": 3}


def test_a_choice_by_name():
    assert choose(TABLE, "sgd", field="config.optimizer.name") == 2
    for name, near in (("adam", "adamw"), ("LAMB2b", "lamb"), ("sdg", "sgd")):
        with pytest.raises(BadInputError) as caught:
            choose(TABLE, name, field="config.optimizer.name")
        assert str(caught.value) == (
            f"config.optimizer.name={name!r} is unknown; choose one of lamb, sgd, adamw "
            f"(--config.optimizer.name={near}?)"
        )
    for name in ("", "qqq", 7, None):  # like no other
        with pytest.raises(BadInputError, match="choose one of lamb, sgd, adamw"):
            choose(TABLE, name, field="x")


@pytest.mark.parametrize(
    ("name", "near"),
    [("vit_moe", "vit_moe_b"), ("moe_b", "vit_moe_b"), ("VIT-B", "vit_b"), ("gpt2", None)],
)
def test_a_slip_or_half_a_name_is_answered_with_the_whole_one(name: str, near: str | None):
    meant = f"did you mean a/{near}? " if near else ""
    expected = f"{meant}there are a/vit_b, a/vit_moe_b"
    assert known_names(name, ("vit_b", "vit_moe_b"), within="a/") == expected


@pytest.mark.parametrize(
    ("batch", "group", "sizes"),
    [(12, 5, "3 or 4 or 6, or a batch of 15,"), (12, 0, "1 or 2 or 3, or a batch of 12,")],
)
def test_groups_that_do_not_fill_a_batch(batch: int, group: int, sizes: str):
    """The message suggests valid sizes."""
    check_group(12, 2, field="config.group")
    with pytest.raises(BadInputError) as caught:
        check_group(batch, group, field="config.group")
    assert str(caught.value) == (
        f"config.group={group} must be at least 1 and divide the batch of {batch} "
        f"examples; {sizes} would do"
    )


def test_a_message_is_one_line():
    """Also where it cites a name with a line break."""
    assert str(BadInputError("a\nb: no such file")) == "a\\nb: no such file"
