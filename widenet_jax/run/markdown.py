"""Tables with aligned columns, as Markdown and as plain text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows as a Markdown table; the first row is the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def table_of(columns: Mapping[str, Callable[[Any], str]], items: Iterable[Any]) -> str:
    """Formats a Markdown table: `columns` maps each header to the cell of an item."""
    rows = [[cell(item) for cell in columns.values()] for item in items]
    return markdown_table([list(columns), *rows])


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows as plain text; the columns are two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
