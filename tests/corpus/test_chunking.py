"""Documents to chunks: the target length, overshoot, long sentences, the validation split."""

import numpy as np

from widenet_jax.corpus.chunking import Chunking, Document

RULE = Chunking(max_length=13, seed=0)  # T' = 10


def lengths(sentences: list[int], target: int) -> list[list[int]]:
    """Chunks sentences of these lengths; returns the lengths in each chunk."""
    ids = [np.full(length, k, np.int32) for k, length in enumerate(sentences)]
    return [[len(part) for part in chunk] for chunk in RULE.chunks(ids, target)]


def test_sentences_are_added_until_the_target_is_reached():
    # 4 + 4 is below 10; the third sentence overshoots and belongs to the chunk. The fourth reaches
    # 10 by itself, and the document ends before the last chunk does.
    assert lengths([4, 4, 7, 10, 3, 2], target=10) == [[4, 4, 7], [10], [3, 2]]
    assert lengths([4, 4, 7, 10, 3, 2], target=4) == [[4], [4], [7], [10], [3, 2]]


def test_a_sentence_longer_than_a_sequence_counts_as_several():
    assert lengths([25], target=10) == [[10], [10], [5]]
    assert lengths([3, 25], target=10) == [[3, 10], [10], [5]]


def test_a_chunk_has_at_least_two_tokens():
    for sentences in ([], [0], [1], [0, 1]):
        assert lengths(sentences, target=10) == []


def test_nine_documents_in_ten_aim_at_the_full_length():
    rule = Chunking(max_length=128, seed=3)
    targets = np.array([rule.target(Document("a", index, ())) for index in range(20_000)])
    short = targets[targets != rule.room]
    # A tenth is uniform in 2..125: 99.2% of them differ from 125.
    assert abs(len(short) / 20_000 - 0.1 * 123 / 124) < 4 * (0.09 / 20_000) ** 0.5
    assert short.min() == 2 and short.max() == rule.room - 1
    assert abs(short.mean() - 63) < 4 * 35.5 / len(short) ** 0.5


def test_targets_depend_on_seed_source_and_document_alone():
    rule, places = Chunking(512, 0), [("a", 0), ("a", 1), ("b", 0)]
    one = [rule.target(Document(source, index, ("x",))) for source, index in places * 99]
    assert one == [rule.target(Document(source, index, ("y",))) for source, index in places * 99]
    drawn = {
        tuple(Chunking(512, seed).target(Document(source, k, ())) for k in range(200))
        for seed in (0, 1)
        for source in ("a", "b")
    }
    assert len(drawn) == 4


def test_the_validation_split_is_chosen_by_the_text():
    documents = [Document("a", index, (f"text {index}",)) for index in range(5000)]
    chosen = [document.validates(50) for document in documents]
    assert abs(sum(chosen) / 5000 - 0.05) < 4 * (0.05 * 0.95 / 5000) ** 0.5
    moved = [Document("b", 9, document.paragraphs).validates(50) for document in documents]
    assert moved == chosen
    assert not any(document.validates(0) for document in documents)
    # A larger share keeps those of the smaller one.
    assert all(document.validates(200) for document in documents if document.validates(50))
