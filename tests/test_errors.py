"""Choosing by name: what is there, and the nearest to what is not."""

import pytest

from widenet_jax.errors import BadInputError, choose

TABLE = {"lamb": 1, "sgd": 2, "adamw": 3}


def test_a_known_name():
    assert choose(TABLE, "sgd", field="config.optimizer.name") == 2


@pytest.mark.parametrize(("name", "near"), [("adam", "adamw"), ("LAMB2b", "lamb"), ("sdg", "sgd")])
def test_an_unknown_name_is_answered_with_the_nearest(name: str, near: str):
    with pytest.raises(BadInputError) as caught:
        choose(TABLE, name, field="config.optimizer.name")
    assert str(caught.value) == (
        f"config.optimizer.name={name!r} is unknown; choose one of lamb, sgd, adamw "
        f"(--config.optimizer.name={near}?)"
    )


@pytest.mark.parametrize("name", ["", "qqq", 7, None])
def test_even_a_name_like_no_other_is_answered(name: object):
    with pytest.raises(BadInputError, match="choose one of lamb, sgd, adamw"):
        choose(TABLE, name, field="x")
