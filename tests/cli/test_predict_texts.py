"""Predictions for texts from the command line: classes, answers, masked words, mistakes."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from refusals import answered, refused, refuses
from text_sets import write_squad, write_tokenizer
from untrained import export_texts

from configs import glue, squad, text_tiny
from widenet_jax.cli import evaluate, export, predict
from widenet_jax.files import check_output
from widenet_jax.inference.trained import open_trained
from widenet_jax.text.predict import predict_classes
from widenet_jax.trained import Trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with questions and a tokenizer."""
    folder = tmp_path_factory.mktemp("texts")
    write_squad(folder, dev=6)
    write_tokenizer(folder)
    return folder


def untrained(config, folder: Path, name: str, **facts: object) -> Path:
    """Exports an untrained model with the folder's tokenizer, unless the folder has it."""
    if (folder / name).exists():
        return folder / name
    config.data.path = str(folder)
    return export_texts(config, folder / "vocab.txt", folder / name, **facts)


@pytest.fixture(scope="module")
def filler(folder: Path) -> Path:
    return untrained(text_tiny.get_config(), folder, "filler")


def pairs(folder: Path) -> Path:
    """Exports an untrained classifier of pairs."""
    config = glue.get_config("own,model=albert_tiny")
    return untrained(config, folder, "pairs", class_names=["no", "yes"], pairs=True)


def answerer(folder: Path, head: str) -> Path:
    """Exports an untrained model that answers questions."""
    config = squad.get_config("v2,model=albert_tiny")
    fields = {"task.head": head, "data.max_question_length": 8, "data.stride": 4}
    config.update_from_flattened_dict(fields)
    return untrained(config, folder, head)


def predicted(capsys, place: Path, *flags: str) -> dict:
    return answered(capsys, predict.main, f"--workdir={place}", *flags)


def outputs_of(trained: Trained, inputs: dict) -> Any:
    apply = jax.jit(lambda x: trained.model.apply({"params": trained.params}, x, train=False)[0])
    return jax.device_get(apply(inputs))


def test_classes_of_texts(reviews_run: Path, capsys):
    """The words decide, and a text's answer does not depend on the other texts."""
    words = ["the good day", "the bad day"]
    both = predicted(capsys, reviews_run, *(f"--text={text}" for text in words))["texts"]
    assert [row["top"][0]["class"] for row in both] == ["positive", "negative"]
    assert all(row["top"][0]["probability"] > 0.65 for row in both)
    assert [row["text"] for row in both] == words
    (alone,) = predicted(capsys, reviews_run, f"--text={words[1]}")["texts"]
    for one, other in zip(alone["top"], both[1]["top"], strict=True):
        assert one == pytest.approx(other, abs=1e-6)  # programs of two sizes may round otherwise
    assert predict.main([f"--workdir={reviews_run}", "--text=good", "--top=1"]) == 0
    text, answer = capsys.readouterr().out.splitlines()
    assert text == "good" and answer.endswith("%  positive")


def test_rows_of_files(reviews_run: Path, folder: Path, tmp_path: Path, monkeypatch, capsys):
    """Each row as by --text, with its place; rows without a text are listed."""
    monkeypatch.setattr("widenet_jax.text.predict.AT_ONCE", 2)
    monkeypatch.chdir(tmp_path)
    opened = {name: open_trained(str(place)) for name, place in
              (("reviews", reviews_run), ("pairs", pairs(folder)))}  # fmt: skip

    def found(*words: str, model: str = "reviews") -> tuple[list[dict], list[str]]:
        words = ("--workdir=run", *words)
        options = predict.parser_of(words).read(words)
        predictions = predict_classes(options, opened[model])
        return [row for row, _ in predictions.rows], predictions.unreadable

    words = ["the good day", "the bad day", "good"]
    rows = "".join(f"1,{text},bad\n" for text in words)
    Path("new.csv").write_text(f"id,review,sentence\n{rows}")
    Path("new.txt").write_text("\r\n".join(words) + "\n")
    Path("mac.txt").write_bytes("\r".join([*words, ""]).encode())
    Path("mac.tsv").write_bytes("\r".join(["sentence", *words, ""]).encode())
    Path("none.csv").write_text("id,sentence\n")
    lines = ['{"review": "good"}', '{"review": " "}', '{"review": 5}', '{"review": "bad"}']
    Path("new.jsonl").write_text("\n".join(lines))
    expected, _ = found(*(f"--text={text}" for text in words))
    lines, _ = found("new.txt", "new.csv")  # the table by the run's column, here a known one
    table, unreadable = found("new.csv", "new.jsonl", "--text_column=review")
    for file, rows in (("new.txt", lines), ("new.csv", table)):
        for number, (row, alone) in enumerate(zip(rows[:3], expected, strict=True), 1):
            assert (row["file"], row["row"], row["text"]) == (file, number, alone["text"])
            for one, other in zip(row["top"], alone["top"], strict=True):
                assert one == pytest.approx(other, abs=1e-5)
    assert [row["text"] for row in lines[3:]] == ["bad"] * 3
    assert {row["top"][0]["class"] for row in lines[3:]} == {"negative"}
    assert [(row["row"], row["text"]) for row in table[3:]] == [(1, "good"), (4, "bad")]
    assert unreadable == [
        "new.jsonl row 2: text=' ' is empty: give a text",
        "new.jsonl row 3: text=5 is no text: give a text",
    ]

    for file in ("mac.txt", "mac.tsv"):
        assert [row["text"] for row in found(file)[0]] == words

    flags = [f"--workdir={reviews_run}", "new.jsonl", "--text_column=review", "--json"]
    assert predict.main(flags) == 2
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["texts"]) == 2 and answer["unreadable"] == unreadable

    Path("both.tsv").write_text("sentence1\tsentence2\nthe day\twas good\n")
    (both,), _ = found("both.tsv", model="pairs")
    assert (both["text"], both["pair"]) == ("the day", "was good")
    for flags, message in (
        (["--text=both.tsv"], "--text=both.tsv is a file: leave out --text="),
        (["both.tsv", "--pair=a"], "--pair goes with --text=TEXT; files have a --pair_column"),
        (["new.csv", "--text_column=a"], r"'a'; .*'sentence' \(choose with --text_column"),
        (["--text=a", "--text_column=a"], "--text_column and --pair_column go with files of"),
        (["new.txt", "--text_column=a"], "new.txt has a text a line and no columns"),
        (["photo.jpg"], "photo.jpg: no file of texts; there are .tsv, .csv, .json, .jsonl, "),
        (["none.csv"], "none.csv: a table without rows"),
        (["no.csv"], "no.csv: cannot be opened .No such file"),
    ):
        refuses(message, found, *flags)
    refuses("trained on pairs of texts: give a pair for each text", found, "new.txt", model="pairs")


def test_texts_that_are_cut_are_counted(folder: Path, filler: Path, capsys, tmp_path: Path):
    """Once a call, on stderr: of 16 tokens 13 are left to a pair, and 14 to a text with a mask."""
    both = tmp_path / "both.csv"
    both.write_text(f"text,pair\n{'day ' * 9},{'day ' * 4}\n{'day ' * 9},{'day ' * 5}\nday,day\n")
    flags = ["--text_column=text", "--pair_column=pair"]
    assert predict.main([f"--workdir={pairs(folder)}", str(both), *flags]) == 0
    line = "texts are longer than config.data.max_length=16 tokens, and lose their ends\n"
    assert capsys.readouterr().err == f"1 of 3 {line}"
    fills = [f"--fill=[MASK] {'day ' * n}" for n in (13, 14, 15)]
    assert predict.main([f"--workdir={filler}", *fills]) == 0
    assert capsys.readouterr().err == f"2 of 3 {line}"


def test_classes_in_a_file(tmp_path: Path):
    tops = [{"class": "no", "probability": 0.75}], [{"class": "yes", "probability": 2 / 3}]
    pairs = zip((("a, b", "c"), ("d", "é")), tops, strict=True)
    rows = [{"text": text, "pair": pair, "top": top} for (text, pair), top in pairs]
    table, lines = tmp_path / "found.csv", tmp_path / "found.jsonl"
    for out in (table, lines):
        predict.write_predictions([{"text": "x" * 5000, "top": tops[0]}], str(out))
        check_output(str(out), "--out", "predictions", *predict.MARKS)  # of this command
        predict.write_predictions(rows, str(out))
    written = 'text,pair,class_1,probability_1\n"a, b",c,no,0.75\nd,é,yes,0.666667\n'
    assert table.read_text() == written
    tops[1][0]["probability"] = 0.666667
    assert [json.loads(line) for line in lines.read_text().splitlines()] == rows


def test_the_second_text_of_a_pair_has_its_own_token_type(folder: Path, capsys):
    """As [CLS] text [SEP] pair [SEP] by hand."""
    place = pairs(folder)
    row = predicted(capsys, place, "--text=the day", "--pair=was good")["texts"][0]
    assert (row["text"], row["pair"]) == ("the day", "was good")
    said = refused(capsys, predict.main, f"--workdir={place}", "--text=the day")
    assert "was trained on pairs of texts: give a pair for each text" in said
    trained = open_trained(str(place))
    tokens = trained.tokenizer.encode("the day was good")
    cls, sep = trained.tokenizer.cls_id, trained.tokenizer.sep_id
    inputs = {
        "tokens": np.array([[cls, *tokens[:2], sep, *tokens[2:], sep]]),
        "token_types": np.array([[0, 0, 0, 0, 1, 1, 1]]),
        "mask": np.ones((1, 7), bool),
    }
    logits = outputs_of(trained, inputs)
    expected = dict(zip(trained.class_names, jax.nn.softmax(logits[0]), strict=True))
    for one in row["top"]:
        assert one["probability"] == pytest.approx(float(expected[one["class"]]), abs=1e-4)


@pytest.mark.parametrize("head", ["beam", pytest.param("span", marks=pytest.mark.slow)])
def test_answers_are_those_of_the_evaluation(head: str, folder: Path, tmp_path: Path, capsys):
    """The contexts have several windows; each answer is also the best of the spans."""
    place = answerer(folder, head)
    printed = answered(capsys, evaluate.main, f"--workdir={place}", f"--out={tmp_path}")
    assert printed["windows"] > 6
    low, high = printed["intervals"]["exact"]
    assert low <= printed["exact"] <= high
    names = ("predictions", "null_scores")
    answers, nulls = (json.loads((tmp_path / f"{name}.json").read_text()) for name in names)
    content = json.loads((folder / "dev-v2.0.json").read_text())
    for paragraph in content["data"][0]["paragraphs"][:2]:
        (asked,) = paragraph["qas"]
        flags = f"--question={asked['question']}", f"--context={paragraph['context']}"
        (found,) = predicted(capsys, place, *flags, "--top=3")["answers"]
        assert found["answer"] == answers[asked["id"]]
        assert found["null_score"] == pytest.approx(nulls[asked["id"]], abs=1e-4)
        assert found["answer"] in ("", found["top"][0]["text"])
        assert all(one["text"] in paragraph["context"] for one in found["top"])
        shares = [one["probability"] for one in found["top"]]
        assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1 + 1e-6


def test_words_for_masks(filler: Path, capsys):
    """Probabilities over the vocabulary are those of the head by hand, one list for each mask."""
    text = "[MASK] lives in [MASK]."
    (row,) = predicted(capsys, filler, f"--fill={text}", "--top=1000")["fills"]
    trained = open_trained(str(filler))
    tokenizer = trained.tokenizer
    words = tokenizer.encode("lives in .")
    tokens = [tokenizer.cls_id, tokenizer.mask_id, *words[:2], tokenizer.mask_id, words[2]]
    tokens = np.array([[*tokens, tokenizer.sep_id]])
    inputs = {
        "tokens": tokens,
        "token_types": np.zeros_like(tokens),
        "mask": np.ones(tokens.shape, bool),
        "mlm_positions": np.array([[1, 4]]),
    }
    outputs = outputs_of(trained, inputs)
    expected = np.asarray(jax.nn.softmax(outputs["mlm_logits"][0]))
    assert len(row["masks"]) == 2
    for found, probs in zip(row["masks"], expected, strict=True):
        order = np.argsort(-probs, kind="stable")
        assert [one["word"] for one in found] == [tokenizer.token(k) for k in order]
        np.testing.assert_allclose([one["probability"] for one in found], -np.sort(-probs), 1e-4)


def test_files_of_scores(tmp_path: Path):
    """A column without probabilities, with 6 decimals."""
    rows = [{"file": "a.csv", "row": 1, "text": "a, b", "score": 3.14159265}]
    for name, content in (
        ("out.csv", 'file,row,text,score\na.csv,1,"a, b",3.14159\n'),
        ("out.jsonl", '{"file": "a.csv", "row": 1, "text": "a, b", "score": 3.14159}\n'),
    ):
        predict.write_predictions(rows, str(tmp_path / name))
        assert (tmp_path / name).read_text() == content


REFUSED = [  # model, flags, part of the one line
    ("gone", [], "and one of these only"),
    ("gone", ["--text=a", "--fill=[MASK]"], "and one of these only"),
    ("gone", ["x.jpg", "--overlay=o.jpg"], "'o.jpg' must be a file name that ends in .png"),
    ("gone", ["--fill=[MASK]", "--pair=b"], "--pair goes with --text=TEXT or files of texts"),
    ("gone", ["--text=a", "--overlay=o.png"], "--overlay goes with image files"),
    ("reviews", ["--fill=a [MASK]"], 'for --fill="A [MASK] word" give the --workdir of a model of'),
    ("filler", ["x.jpg"], 'of the task masked_lm, which takes --fill="A [MASK] word"; '),
    ("reviews", ["x.csv", "--overlay=o.png"], "--overlay goes with image files"),
    ("filler", ["x.csv"], "classification or text_classification or text_regression"),
    ("reviews", ["--text=the day", "--pair=was good"], "was trained on single texts: leave"),
    ("reviews", ["--text=a", "--text=b", "--pair=c"], "2 texts and 1 pairs: give a pair"),
    ("reviews", ["--text="], "error: --text='' is empty: give a text"),
    ("reviews", ["--text=the day", "--text=  "], "error: --text='  ' is empty"),
    ("reviews", ["--text=the day", "--text= "], "give a text (index 1)"),
    ("pairs", ["--text=a", "--pair= "], "error: --pair=' ' is empty"),
    ("span", ["--question=", "--context=a day"], "error: --question='' is empty: give"),
    ("span", ["--question=who?"], "--question needs --context"),
    ("filler", ["--fill=the day"], "has no [MASK] for the model to fill"),
    ("filler", [f"--fill={'the day ' * 10}[MASK]"], "error: the text has 21 tokens, "),
]


def test_mistakes_are_one_line(reviews_run: Path, filler: Path, folder: Path, capsys):
    """Flags of different tasks are refused before the model is read."""
    places = {"gone": "gone", "reviews": reviews_run, "filler": filler}
    places |= {"pairs": pairs(folder), "span": answerer(folder, "span")}
    for model, flags, answer in REFUSED:
        flags = [f"--workdir={places[model]}", *flags]
        assert answer in refused(capsys, predict.main, *flags), flags
    program = [f"--workdir={filler}", "--out=program", "--format=stablehlo"]
    assert refused(capsys, export.main, *program).endswith("classifiers of images and texts\n")
