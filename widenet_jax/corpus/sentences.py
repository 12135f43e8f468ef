"""Paragraphs to sentences, by a rule of this project.

Chunks and parts consist of many sentences, so a wrong boundary now and then does little harm;
the rule needs no model and no download.
"""

import re

# Words with a full stop that rarely end a sentence; compared in lower case, without the stop.
_ABBREVIATIONS = """
mr mrs ms dr prof rev hon st sr jr gen col lt capt sgt maj adm gov sen rep pres messrs mme mt ft
no nos vol pp fig figs eq sec ch art ed eds cf vs al ca approx dept univ inc ltd co corp bros
e.g i.e b.c a.d a.m p.m jan feb mar apr jun jul aug sept sep oct nov dec
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
# A stop, any closing quotes or brackets, then either space before a capital, digit or opening mark,
# or (in scripts without spaces) nothing. A search from each mark of a long run would be quadratic.
_BOUNDARY = re.compile(
    r"""(?<![.!?…])(?P<stop>[.!?…]+)[\"'”’»)\]]*(?P<space>\s+)(?=[\"'“‘«(\[¿¡]*[^\W_a-zß-öø-ÿ])"""
    r"|[。！？]+[」』”）]*"
)
_LAST_WORD = re.compile(r"[\w.]*\w$")


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences, without the space around them.

    A sentence ends at stop marks and closing quotes or brackets, if after a space a capital letter,
    a digit or an opening quote or bracket follows. It does not end at a single full stop after an
    abbreviation or an initial ("Dr. Who", "J. S. Bach").
    """
    sentences, start = [], 0
    for found in _BOUNDARY.finditer(paragraph):
        if found["stop"] == "." and _abbreviates(paragraph[start : found.start()]):
            continue
        sentences.append(paragraph[start : found.end()].strip())
        start = found.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _abbreviates(before: str) -> bool:
    """Returns whether the text before a full stop ends with an abbreviation or an initial."""
    found = _LAST_WORD.search(before[-24:])
    if not found:
        return False
    word = found[0]
    initial = len(word) == 1 and word.isalpha() and word.isupper() and word != "I"
    return initial or word.lower() in ABBREVIATIONS


def paragraphs_of(text: str) -> list[str]:
    """Splits a text at its line breaks; where it has blank lines, at those alone.

    Text with blank lines between its paragraphs may be wrapped, so its other line breaks count as
    spaces.
    """
    blank = re.split(r"\n[ \t\r]*\n", text.strip())
    parts = blank if len(blank) > 1 else text.split("\n")
    joined = (" ".join(part.split()) for part in parts)
    return [part for part in joined if part]
