"""Fonts for the text of pictures: class names may be in any script.

matplotlib's own font has the Latin, Greek, Cyrillic and Arabic letters. Letters that it lacks come
from fonts installed here, or from a package that ships fonts (`pip install -e '.[fonts]'`).
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

OWN = "DejaVu Sans"  # ships with matplotlib
PACKAGES = ("matplotlib_fontja",)  # of fonts: Japanese
# Fonts that ship with matplotlib and have no letters, or boxes in place of all letters.
NOT_LETTERS = ("Last Resort", "STIX", "cm", "DejaVu")
REGULAR = (400, "regular", "normal", "book")  # weights
NOTED = 12  # characters in the message


@contextmanager
def lettered(figure: Figure) -> Iterator[None]:
    """Gives every text of the figure the fonts that it needs, while the figure is drawn.

    Text is drawn as it is: a dollar sign begins no formula. Characters that no font has become
    boxes, about which one line on stderr says what to install.
    """
    texts = figure.findobj(Text)
    letters = {letter for text in texts for letter in text.get_text() if letter.isprintable()}
    families, lacking = families_for("".join(sorted(letters)))
    for text in texts:
        text.set_parse_math(False)
        text.set_fontfamily(families)
    warn_of(lacking)
    # Texts that are made while drawing, such as the labels of ticks, take the defaults.
    defaults = {"font.family": families, "text.parse_math": False}
    with matplotlib.rc_context(defaults), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


@cache
def warn_of(lacking: str) -> None:
    """Says once in a process that no font has these characters."""
    if lacking:
        count = f"{len(lacking)} character{'s' if len(lacking) > 1 else ''}"
        shown = lacking if len(lacking) <= NOTED else f"{lacking[:NOTED]}..."
        print(
            f"warning: no font here draws {shown} ({count}), so that pictures "
            "have boxes instead; install a font of that script, such as Noto Sans "
            "(pip install -e '.[fonts]' brings Japanese)",
            file=sys.stderr,
        )


@cache
def families_for(letters: str) -> tuple[tuple[str, ...], str]:
    """Returns the font families to draw these characters with, and the characters none has.

    The first family is matplotlib's own. Of the others, each has the most of the characters that
    are still lacking, and of equal ones the first by name.
    """
    lacking = set(letters) - characters_of(font_manager.findfont(OWN))
    lacking = {letter for letter in lacking if not letter.isspace()}
    families = [OWN]
    if not lacking:
        return tuple(families), ""
    having = {name: lacking & characters_of(file) for name, file in sorted(installed().items())}
    while having:
        best = max(having, key=lambda name: len(having[name] & lacking))
        if not having[best] & lacking:
            break
        families.append(best)
        lacking -= having.pop(best)
    return tuple(families), "".join(sorted(lacking))


def installed() -> Mapping[str, str]:
    """Returns a file of each family of letters: of this machine and of `PACKAGES`."""
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for package in PACKAGES:
        spec = find_spec(package)  # importing it would change matplotlib's defaults
        for place in spec.submodule_search_locations or () if spec else ():
            for file in sorted({*Path(place).rglob("*.ttf"), *Path(place).rglob("*.otf")}):
                if str(file) not in known:
                    font_manager.fontManager.addfont(file)
    return {
        font.name: font.fname
        for font in reversed(font_manager.fontManager.ttflist)
        if font.style == "normal" and font.weight in REGULAR
        if not font.name.startswith(NOT_LETTERS)
    }


@cache
def characters_of(file: str) -> frozenset[str]:
    """Returns the characters that a font file has; none where it cannot be read."""
    try:
        return frozenset(map(chr, font_manager.get_font(file).get_charmap()))
    except (OSError, RuntimeError):
        return frozenset()


def line_of_text(text: str, *, height: int) -> np.ndarray:
    """Draws one line of text, black on white: uint8 [height, width, 3], as wide as the text."""
    figure = Figure(figsize=(1, 1), dpi=72)
    size = 0.65 * height  # points, here pixels: leaves room above and below
    drawn = figure.text(0, 0, text, fontsize=size)
    with lettered(figure):
        box = drawn.get_window_extent(FigureCanvasAgg(figure).get_renderer())
        width = max(1, int(np.ceil(box.width)) + 2)
        figure.set_size_inches(width / figure.dpi, height / figure.dpi)
        drawn.set(position=(1 / width, 0.25))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()
