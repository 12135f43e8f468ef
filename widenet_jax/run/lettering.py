"""Fonts for the text of pictures: class names may be in any script.

matplotlib's own font has the Latin, Greek, Cyrillic and Arabic letters. Letters that it lacks come
from fonts installed here, or from a package that ships fonts (`pip install -e '.[fonts]'`).
"""

import sys
import warnings
from collections.abc import Iterator
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
PACKAGE = "matplotlib_fontja"  # of Japanese fonts; importing it would change matplotlib's defaults
# Fonts that ship with matplotlib and have no letters, or boxes in place of all letters.
NOT_LETTERS = ("Last Resort", "STIX", "cm", "DejaVu")


@contextmanager
def lettered(figure: Figure) -> Iterator[None]:
    """Gives every text of the figure the fonts that it needs, while the figure is drawn.

    Text is drawn as it is: a dollar sign begins no formula. Characters that no font has become
    boxes, about which one line on stderr says what to install.
    """
    texts = figure.findobj(Text)
    families = families_for(frozenset("".join(text.get_text() for text in texts)))
    for text in texts:
        text.set(parse_math=False, fontfamily=families)
    # Texts that are made while drawing, such as the labels of ticks, have the defaults.
    defaults = {"font.family": families, "text.parse_math": False}
    with matplotlib.rc_context(defaults), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


@cache
def families_for(letters: frozenset[str]) -> list[str]:
    """Returns the font families to draw these characters with, matplotlib's own first.

    Warns of characters that no family has.
    """
    lacking = {letter for letter in letters if letter.isprintable() and not letter.isspace()}
    lacking -= characters_of(OWN)
    others = {name: characters_of(name) & lacking for name in (installed() if lacking else ())}
    if lacking := lacking.difference(*others.values()):
        print(
            f"warning: no font here draws {''.join(sorted(lacking))[:12]} (characters: "
            f"{len(lacking)}), so that pictures have boxes instead; install a font of that script, "
            "such as Noto Sans (pip install -e '.[fonts]' brings Japanese)",
            file=sys.stderr,
        )
    return [OWN, *(name for name, letters in others.items() if letters)]


def installed() -> list[str]:
    """Returns the families of letters of this machine and of `PACKAGE`."""
    if spec := find_spec(PACKAGE):
        for file in sorted(Path(spec.origin).parent.rglob("*.[ot]tf")):
            font_manager.fontManager.addfont(file)
    names = {font.name for font in font_manager.fontManager.ttflist}
    return sorted(name for name in names if not name.startswith(NOT_LETTERS))


def characters_of(family: str) -> frozenset[str]:
    """Returns the characters that a font has."""
    font = font_manager.get_font(font_manager.findfont(family))
    return frozenset(map(chr, font.get_charmap()))


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
