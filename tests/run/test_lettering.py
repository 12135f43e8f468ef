"""Class names in any script: fonts by their letters, one line where no font has them."""

import warnings
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from widenet_jax.run import figures as lettering
from widenet_jax.run.figures import OWN, families_for, save, subplots

# Letters of an ancient script, which matplotlib's own font does not have.
ONE, OTHER, NOWHERE = "\U00012000", "\U00012001", "\U00012002"


def write_font(path: Path, family: str, letters: str) -> None:
    """Writes a font whose letters are all squares."""
    pen = TTGlyphPen(None)
    for move, point in zip("mlll", [(0, 0), (0, 700), (700, 700), (700, 0)], strict=True):
        (pen.moveTo if move == "m" else pen.lineTo)(point)
    pen.closePath()
    names = [".notdef", *(f"u{ord(letter)}" for letter in letters)]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(str(path))


@pytest.fixture
def fonts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves matplotlib's own fonts, "One", with one ancient letter, and "Two", with two."""
    own = [font for font in font_manager.fontManager.ttflist if font.name == OWN]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    for family, letters in (("One", ONE), ("Two", ONE + OTHER)):
        write_font(tmp_path / f"{family}.ttf", family, letters)
        font_manager.fontManager.addfont(tmp_path / f"{family}.ttf")
    families_for.cache_clear()
    monkeypatch.setattr(lettering, "TOLD", [])
    yield
    families_for.cache_clear()


def draw(name: str, out: Path):
    figure, axis = subplots(size=(3, 2))
    axis.set_yticks([0], [name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(figure, out)
    return axis.get_yticklabels()[0]


def test_matplotlib_itself_has_cyrillic_and_arabic_letters(tmp_path: Path, capsys):
    assert families_for(frozenset("собакаقطةñß 42\n")) == [OWN]
    draw("собака قطة", tmp_path / "a.png")
    assert capsys.readouterr().err == ""


def test_letters_come_from_the_fonts_that_have_them(fonts, tmp_path: Path, capsys):
    assert families_for(frozenset(f"a{OTHER}")) == [OWN, "Two"]
    label = draw(f"a {ONE}{OTHER}", tmp_path / "a.png")
    assert label.get_fontfamily() == [OWN, "One", "Two"]
    assert capsys.readouterr().err == ""
    # matplotlib draws missing letters as boxes; a font's own letter is another picture.
    families_for.cache_clear()
    font_manager.fontManager.ttflist[:] = font_manager.fontManager.ttflist[:-2]
    draw(f"a {ONE}{OTHER}", tmp_path / "box.png")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "box.png").read_bytes()


def test_letters_that_no_font_has_are_one_line(fonts, tmp_path: Path, capsys):
    for number in range(2):  # two pictures
        draw(f"a{NOWHERE * 3} {number}", tmp_path / "a.png")
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"no font here draws the characters {NOWHERE} (in all 1)" in err and "[fonts]" in err


def test_a_package_of_fonts_is_found_without_importing_it(fonts, tmp_path: Path, monkeypatch):
    place = tmp_path / "our_fonts" / "fonts"
    place.mkdir(parents=True)
    (tmp_path / "our_fonts" / "__init__.py").write_text("raise AssertionError")
    write_font(place / "third.ttf", "Third", NOWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lettering, "PACKAGE", "our_fonts")
    assert families_for(frozenset(NOWHERE)) == [OWN, "Third"]


def test_dollar_signs_begin_no_formula(tmp_path: Path):
    """As a formula the text would be "5and6" in italics."""
    label = draw("5$ and $6", tmp_path / "a.png")
    assert label.get_text() == "5$ and $6" and not label.get_parse_math()
