"""The rule that splits paragraphs into sentences."""

from widenet_jax.corpus.sentences import paragraphs_of, split_sentences

CASES = [
    ("One. Two. Three.", ["One.", "Two.", "Three."]),
    ("No stop at the end", ["No stop at the end"]),
    ("", []),
    ("Dr. Who met Mr. Bean. They left.", ["Dr. Who met Mr. Bean.", "They left."]),
    ("J. S. Bach wrote it. It was I. So?", ["J. S. Bach wrote it.", "It was I.", "So?"]),
    ("He cost 3.50 pounds. 4 came.", ["He cost 3.50 pounds.", "4 came."]),
    ("Really?! Yes... No.", ["Really?!", "Yes...", "No."]),
    ('He said "Go." Then he went.', ['He said "Go."', "Then he went."]),
    ("(It rained.) We stayed.", ["(It rained.)", "We stayed."]),
    ('It ended. "Why?" she asked.', ["It ended.", '"Why?" she asked.']),
    ("It ended.\u201d \u201cWhy?", ["It ended.\u201d", "\u201cWhy?"]),
    ("Well ... he said so.", ["Well ... he said so."]),
    ("e.g. Berlin and i.e. Paris.", ["e.g. Berlin and i.e. Paris."]),
    ("See vol. 2 and pp. 3. Then no. 7.", ["See vol. 2 and pp. 3.", "Then no. 7."]),
    ("Éric came. Émile too. ça va.", ["Éric came.", "Émile too. ça va."]),
    ("他来了。她走了！", ["他来了。", "她走了！"]),
]


def test_sentences():
    assert [(paragraph, split_sentences(paragraph)) for paragraph, _ in CASES] == CASES
    text = " ".join(paragraph for paragraph, _ in CASES)  # nothing is lost
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_line_breaks_count_as_spaces_where_blank_lines_separate_paragraphs():
    assert paragraphs_of("a\nb\n\n c\td \r\n\r\ne") == ["a b", "c d", "e"]
    assert paragraphs_of("a\nb\n") == ["a", "b"]
    assert paragraphs_of(" \n ") == []


def test_long_runs_of_stops_take_no_time():
    # Each of n marks would start a search through the rest: 5e9 steps.
    paragraph = "Name" + "." * 100_000 + "x. Next!" + "!" * 100_000 + " End"
    first, second, third = split_sentences(paragraph)
    assert first.endswith("x.") and second.startswith("Next!") and third == "End"
