"""The site's settings: `pip install -e '.[docs]'`, `python -m sphinx -W docs build/site`."""

import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent

project = "widenet_jax"
author = project_copyright = "The widenet_jax authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # as a code host makes them
autodoc_member_order = "bysource"
html_theme = "sphinx_book_theme"
html_title = project
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
nb_execution_mode = "off"


def for_the_site(text: str, folder: Path) -> str:
    """Turns links to README into the index's, and links to what is no page into plain text."""

    def link(match: re.Match) -> str:
        words, target, part = match.groups()
        page = folder.joinpath(target).resolve()
        if page == DOCS.parent / "README.md":
            return f"[{words}](/index.md{part})"
        is_page = DOCS in page.parents and page.suffix in (".md", ".ipynb")
        return match[0] if is_page else words

    return re.sub(r"(?<!!)\[([^\]]+)\]\(((?!https?:)[^)#]+)(#[^)]*|)\)", link, text)


def as_rst(lines: list[str]) -> list[str]:
    """Makes reStructuredText of a docstring: code in backticks, indented tables as they are."""
    made: list[str] = []
    literal = False
    for line in lines:
        if line.startswith("  ") and made and not made[-1] and not literal:
            made += ["::", ""]
            literal = True
        elif line and not line.startswith("  "):
            literal = False
        if not literal:
            line = re.sub(r"([*|]|_(?!\w))", r"\\\1", line)
            line = re.sub(r"`+([^`]+)`+", lambda m: f"``{m[1]}``".replace("\\", ""), line)
        made.append(line)
    return made


def setup(app: Sphinx) -> None:
    """Reads pages, and README inside the index, by `for_the_site`, docstrings by `as_rst`."""

    def read(_: Sphinx, name: str, content: list[str]) -> None:
        content[0] = for_the_site(content[0], DOCS.joinpath(name).parent)

    def read_included(_: Sphinx, __: Path, ___: str, content: list[str]) -> None:
        content[0] = for_the_site(content[0], DOCS.parent)

    def read_docstring(_: Sphinx, *of: object) -> None:
        lines = of[-1]
        lines[:] = as_rst(lines)

    app.connect("source-read", read)
    app.connect("include-read", read_included)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)  # before napoleon
