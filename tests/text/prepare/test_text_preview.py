"""`prepare_data.py preview` of text: printed instances are those of the run."""

import re

from preparing import ROOT, refused, run

PREVIEW = ("preview", f"--config={ROOT}/configs/text_pretrain.py:albert_s", "--num=2")


def printed(capsys, *options: object) -> str:
    assert run(*PREVIEW, *options) == 0
    return capsys.readouterr().out


def unmasked(line: str) -> str:
    """Returns the true text of an instance: what braces hold stands for the word before them."""
    return re.sub(r"\S*\{(\S*?)\}", r"\1", line).replace(" ", "")


def test_the_masked_words_are_in_braces(capsys):
    """With the braces' content in place, both epochs show the novel's first page."""
    fields = {"source": "tiny_text", "path": "", "max_length": 1024}
    source = [f"--config.data.{name}={value}" for name, value in fields.items()]
    lines = printed(capsys, *source).splitlines()
    heads = [line for line in lines if "predicted" in line and "epoch" in line]
    texts = [line for line in lines if "[CLS]" in line]
    assert len(heads) == len(texts) == 4
    for head, text in zip(heads, texts, strict=True):
        assert int(re.search(r"(\d+) predicted", head)[1]) == text.count("{")
    assert all("contemplatingthelimitedremnant" in unmasked(text) for text in texts[:2])
    assert printed(capsys, *source).splitlines() == lines
    assert printed(capsys, *source, "--seed=1").splitlines() != lines


def test_what_has_no_preview_is_one_line(capsys):
    for config, problem in (("digits.py", "--out=PNG"), ("glue.py:sst2", "no preview")):
        assert problem in refused(capsys, "preview", f"--config={ROOT}/configs/{config}")
