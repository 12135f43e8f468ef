"""Counts lines of code without blanks, comments and docstrings: `python tests/count_lines.py`.

Prints a line for each folder of the package, and for the package, the tests and configs/.
"""

import ast
import collections
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(text: str) -> int:
    """Returns the number of lines of a Python file that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def main() -> int:
    """Prints the counts; returns the exit code."""
    counts: collections.Counter[str] = collections.Counter()
    for root in ("widenet_jax", "tests", "configs"):
        for file in (ROOT / root).rglob("*.py"):
            number, parts = code_lines(file.read_text()), file.relative_to(ROOT).parts
            counts[root] += number
            for depth in (2, 3):
                if root == "widenet_jax" and len(parts) > depth:
                    counts["/".join(parts[:depth])] += number
    for place, number in sorted(counts.items()):
        print(f"{number:7,}  {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
