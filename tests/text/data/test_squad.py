"""SQuAD: windows and answers worked by hand, the rule of the most context, hostile files."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_sets import write_tokenizer

from configs import squad as config_file
from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.data.sources import open_data, overview
from widenet_jax.errors import BadInputError
from widenet_jax.text.data.squad import (
    Answer,
    Squad,
    cut,
    example_of,
    read_questions,
    seen,
    tokens_of,
)

CLS, SEP = 2, 3
# Seventeen tokens: eleven words, "##th" and five marks.
CONTEXT = "Rollo, a Viking of the 10th century, ruled (first) in Normandy."
PIECES = [
    "rollo", ",", "a", "viking", "of", "the", "10", "##th", "century", "ruled", "(", "first",
    ")", "in", "normandy", ".", "who", "where",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(str(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), PIECES)))


def asked(ident: str, question: str, *answers: str, **more) -> dict:
    found = [{"text": text, "answer_start": CONTEXT.index(text)} for text in answers]
    return {"id": ident, "question": question, "answers": found, **more}


def official(*questions: dict) -> str:
    paragraphs = [{"context": CONTEXT, "qas": list(questions)}]
    return json.dumps({"version": "v2.0", "data": [{"title": "Rollo", "paragraphs": paragraphs}]})


def squad(directory: Path, tokenizer: Tokenizer, *questions: dict, **changes) -> Squad:
    (directory / "dev-v2.0.json").write_text(official(*questions))
    data = {"path": str(directory), "max_length": 13, "max_question_length": 4, "stride": 4}
    return Squad(data | changes, "dev-v2.0", {"tokenizer": tokenizer.json})


def test_cutting():
    assert cut(5, room=8, stride=4) == [(0, 5)]
    assert cut(8, room=8, stride=4) == [(0, 8)]
    assert cut(19, room=8, stride=4) == [(0, 8), (4, 8), (8, 8), (12, 7)]
    assert cut(19, room=8, stride=20) == [(0, 8), (8, 8), (16, 3)]  # no token is left out
    assert cut(0, room=8, stride=4) == [(0, 0)]


def test_windows_by_hand(tmp_path: Path, tokenizer: Tokenizer):
    source = squad(
        tmp_path,
        tokenizer,
        asked("a", "who ruled", "Rollo"),
        asked("b", "where ?", "in Normandy", "Normandy"),
        asked("c", "who", is_impossible=True, plausible_answers=[{"text": "Rollo"}]),
    )
    # Room for 8 tokens after two of a question, for 9 after one; "?" is unknown, but a token.
    assert source.windows[:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 3
    assert source.windows[:4, 1:].tolist() == [[0, 8], [4, 8], [8, 8], [12, 5]]
    assert source.windows[8:, 1:].tolist() == [[0, 9], [4, 9], [8, 9]]
    row = source[0]
    question = tokenizer.encode("who ruled").tolist()
    context = tokenizer.encode(CONTEXT).tolist()
    assert len(context) == 17
    assert row["tokens"].tolist() == [CLS, *question, SEP, *context[:8], SEP]
    assert row["second"] == 4 and (row["start"], row["end"]) == (4, 4)
    # "in Normandy" is tokens 14 and 15 of the context: whole in windows 2 and 3, at 8 and 12.
    places = [(source[i]["start"], source[i]["end"]) for i in range(4, 8)]
    assert places == [(0, 0), (0, 0), (4 + 14 - 8, 4 + 15 - 8), (4 + 14 - 12, 4 + 15 - 12)]
    assert source.text_of(6, *places[2]) == source.text_of(7, *places[3]) == "in Normandy"
    assert source.text_of(0, 4, 11) == "Rollo, a Viking of the 10th"
    assert all(source[i]["start"] == 0 for i in range(8, 11))
    assert source.info["unanswerable"]
    assert source.describe(6) == "question b (window 6)"


def test_an_answer_starts_where_its_context_is_longest(tmp_path: Path, tokenizer: Tokenizer):
    """Every token in exactly one window; of equal ones in the first."""
    source = squad(tmp_path, tokenizer, asked("a", "who ruled", "Rollo"))
    allowed = np.zeros((4, 17), bool)
    for i, (_, first, count) in enumerate(source.windows.tolist()):
        may_start = source[i]["may_start"]
        assert not may_start[: source[i]["second"]].any() and not may_start[-1]
        allowed[i, first : first + count] = may_start[4 : 4 + count]
    scores = np.stack([seen(np.arange(17), first, count) for _, first, count in source.windows])
    assert (allowed == (np.arange(4)[:, None] == scores.argmax(axis=0))).all()
    # Token 5 has 2 tokens on its right in window 0, one on its left in window 1.
    assert allowed[:, 5].tolist() == [True, False, False, False]
    assert allowed[:, 6].tolist() == [False, True, False, False]


def test_context_seen():
    """Four tokens on the shorter side and a hundredth of ten."""
    assert seen(np.array([3, 7, 12, 13]), 3, 10).tolist() == [0.1, 4.1, 0.1, -1.0]


def test_tokens_of_an_answer():
    offsets = np.array([[0, 3], [4, 6], [6, 9], [10, 11]])  # "the 10th." and a mark
    assert tokens_of(Answer("10th", 4), offsets) == (1, 2)
    assert tokens_of(Answer("0t", 5), offsets) == (1, 2)  # parts of tokens
    assert tokens_of(Answer("e 1", 2), offsets) == (0, 1)
    assert tokens_of(Answer(" ", 3), offsets)[0] == 1


def test_questions_are_cut(tmp_path: Path, tokenizer: Tokenizer):
    source = squad(tmp_path, tokenizer, asked("a", "who " * 9, "Rollo"), stride=3)
    assert source[0]["tokens"].tolist().index(SEP) == 5
    with pytest.raises(BadInputError, match=r"config.data.max_length=7 has no room.*=4 tokens"):
        squad(tmp_path, tokenizer, asked("a", "who", "Rollo"), max_length=7)


def test_windows_that_do_not_overlap_are_told(tmp_path: Path, tokenizer: Tokenizer):
    (tmp_path / "vocab.json").write_text(json.dumps(tokenizer.json))
    (tmp_path / "dev-v2.0.json").write_text(official(asked("a", "who", "Rollo")))
    data = {"path": str(tmp_path), "max_length": 13, "max_question_length": 4}
    data["tokenizer"] = str(tmp_path / "vocab.json")
    apart = Squad(data | {"stride": 6}, "dev-v2.0", {})
    assert len(apart) == 3
    assert re.search(r"stride=6: .* do not overlap.*=13 has room for 6 .*stride=3$", apart.note)
    lost = Squad(data | {"stride": 5}, "dev-v2.0", {}).note
    assert lost == apart.note.splitlines()[0]
    capitals = sum(map(str.isupper, CONTEXT)) / len(CONTEXT)
    assert f", {capitals:.2%} of the characters do not come back" in lost


def test_one_split_may_have_all_answers(tmp_path: Path, tokenizer: Tokenizer):
    (tmp_path / "train.json").write_text(official(asked("a", "who", "Rollo")))
    (tmp_path / "dev.json").write_text(official(asked("c", "where", is_impossible=True)))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer.json))
    config = config_file.get_config("v2,model=albert_tiny")
    config.data.update(path=str(tmp_path), train_split="train", eval_split="dev")
    config.data.tokenizer = str(tmp_path / "tokenizer.json")
    opened = open_data(config)
    assert opened.data_info.info["unanswerable"]
    row = opened.train_transform({**opened.train[0], "where": ""}, None)
    spec = {name: (x.shape, str(x.dtype)) for name, x in row.items()}
    assert spec == {name: tuple(x) for name, x in example_of(config, None).items()}


def test_slices_of_a_file_that_overlap_are_counted(tmp_path: Path, tokenizer: Tokenizer):
    """Each question has several windows; the second slice begins with the last of the first."""
    squad(tmp_path, tokenizer, *(asked(f"q{k}", "who of " * k, "Rollo") for k in range(1, 5)))
    data = {"path": str(tmp_path), "max_length": 13, "max_question_length": 4, "stride": 4}
    names = [f"dev-v2.0[{part}]" for part in ("2:", ":3")]
    train, dev = (Squad(data, name, {"tokenizer": tokenizer.json}) for name in names)
    count = (dev.windows[:, 0] == 2).sum()
    line = overview([*zip(names, (train, dev), strict=True)], "windows")
    assert count > 1 and line.endswith(f" windows, {count} of them in {names[0]} too")


def test_official_json_and_parquet_have_the_same_questions(tmp_path: Path):
    questions = [asked("a", "who", "Rollo", "Viking"), asked("c", "where", is_impossible=True)]
    (tmp_path / "dev.json").write_text(official(*questions))
    (tmp_path / "dev.json.gz").write_bytes(gzip.compress(official(*questions).encode()))
    answers = [
        {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")}
        for question in questions
    ]
    columns = {
        "id": ["a", "c"], "title": ["", ""], "context": [CONTEXT] * 2,
        "question": ["who", "where"], "answers": answers,
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "dev.parquet")
    names = ("dev.json", "dev.json.gz", "dev.parquet")
    first, *others = [read_questions(tmp_path / name) for name in names]
    assert first == others[0] == others[1]
    assert [len(question.answers) for question in first] == [2, 0]
    numbered = [question | {"id": number} for number, question in enumerate(questions)]
    (tmp_path / "dev.json").write_text(official(*numbered))
    pq.write_table(pa.table(columns | {"id": [0, 1]}), tmp_path / "dev.parquet")
    for name in ("dev.json", "dev.parquet"):
        assert read_questions(tmp_path / name) == [
            question._replace(id=str(number)) for number, question in enumerate(first)
        ]


def test_flags_that_say_nothing(tmp_path: Path):
    """As merged tables have them: null, and no answers in lists by field."""
    none = {"text": [], "answer_start": []}
    questions = [
        asked("a", "who", "Rollo") | {"is_impossible": None},
        asked("b", "who") | {"is_impossible": True, "answers": none},
        {"id": "c", "question": "who", "is_impossible": True},
    ]
    (tmp_path / "dev.json").write_text(official(*questions))
    assert [len(found.answers) for found in read_questions(tmp_path / "dev.json")] == [1, 0, 0]


NO_TEXT = "not SQuAD's layout.*question 'a': a text is missing"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ({"context": None}, NO_TEXT),
        ({"question": None}, NO_TEXT),
        ({"question": " "}, "question a: its question is empty; remove it"),
        ({"question": "\u200b"}, "question a: its question is empty; remove it"),
        ({"id": True}, "question True: a text is missing"),
        ({"question": "wh\ud83d"}, NO_TEXT),  # half a character
        (
            {"answers": [{"text": "Rollo", "answer_start": 3}]},
            "question a: its context has 'lo, a' at 3, and not the answer",
        ),
        ({"answers": [{"text": "Rollo", "answer_start": "0"}]}, "answer_start is no whole number"),
        ({"answers": None}, "not SQuAD's layout.*NoneType"),
        ({"is_impossible": "false"}, "question 1, TypeError: is_impossible is 'false'; give true"),
        ({"is_impossible": True}, "is_impossible is true, and there are answers; remove one"),
        (official(*[asked("a", "who", "Rollo")] * 2), "question a: an earlier one has this id"),
        ('{"data": 3}', "not SQuAD's layout"),
        ('{"data": []}', "has no rows"),
        ("[" * 100_000, "not SQuAD's layout"),
    ],
)
def test_hostile_files_are_one_line(
    tmp_path: Path, tokenizer: Tokenizer, damage: dict | str, problem: str
):
    if isinstance(damage, dict):
        question = asked("a", "who", "Rollo") | damage
        paragraph = {"context": question.pop("context", CONTEXT), "qas": [question]}
        damage = json.dumps({"data": [{"paragraphs": [paragraph]}]})
    (tmp_path / "dev-v2.0.json").write_text(damage)
    data = {"path": str(tmp_path), "max_length": 13, "max_question_length": 4, "stride": 4}
    with pytest.raises(BadInputError, match=problem) as raised:
        Squad(data, "dev-v2.0", {"tokenizer": tokenizer.json})
    assert "\n" not in str(raised.value)
