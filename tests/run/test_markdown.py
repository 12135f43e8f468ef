"""A table in Markdown is aligned as it stands."""

from widenet_jax.run.markdown import markdown_table


def test_columns_have_one_width():
    assert markdown_table([["a", "long name"], ["wide cell", "1"]]) == (
        "| a         | long name |\n|-----------|-----------|\n| wide cell | 1         |"
    )
