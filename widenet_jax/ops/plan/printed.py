"""Printed sizes and results of the papers' models: the rows of printed.toml."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class Printed(NamedTuple):
    """An image model of WideNet's paper and the figures printed for it.

    Attributes:
      variant: the model's name as in `--config=configs/imagenet.py:VARIANT`.
      model: the model's name in words.
      tables: numbers of the tables that list the model; "" where none does.
      millions: parameters in millions; None where they are not printed.
      top_1: test accuracy in percent, NaN where training diverged, text where the paper prints
        text, None where it prints nothing.
      core_days: cost of 300 epochs on ImageNet in TPUv3 core-days; None where it is not printed.
      slip: the printed parameter count contradicts the other rows of its table.
    """

    variant: str
    model: str
    tables: str = ""
    millions: int | None = None
    top_1: float | str | None = None
    core_days: int | None = None
    slip: bool = False


class PrintedText(NamedTuple):
    """A text model of Table 2 and the figures printed for it, in percent.

    Attributes:
      variant: the model's name as in `--config=configs/text_pretrain.py:VARIANT`.
      model: the model's name in words.
      millions: parameters of backbone and pooler in millions (BERT's is truncated, not rounded).
      squad1, squad2: [F1, exact match] on the development sets.
      mnli, sst2: accuracy on the development sets; the median of 5 runs.
      mean: (mean of squad1 + mean of squad2 + mnli + sst2) / 4, as printed.
    """

    variant: str
    model: str
    millions: int
    squad1: list[float]
    squad2: list[float]
    mnli: float
    sst2: float
    mean: float


class PrintedCount(NamedTuple):
    """A language model and the parameter count that sigma-MoE's paper prints.

    Attributes:
      variant: the model's name as in `--config=configs/language_model.py:VARIANT`.
      model: the model's name in words.
      vocab_size: V.
      params: parameters, to the last one or rounded to 10,000; None where they are not printed.
      tables: the paper, where it is another one.
    """

    variant: str
    model: str
    vocab_size: int
    params: int | None = None
    tables: str = "sigma-MoE"


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
PRETRAINING = [Printed(**row) for row in _TABLES["pretraining"]]
OUT_OF_MEMORY = Printed(**_TABLES["out_of_memory"])
FINETUNING = [Printed(**row) for row in _TABLES["finetuning"]]
TEXT = [PrintedText(**row) for row in _TABLES["text"]]
LANGUAGE = [PrintedCount(**row) for row in _TABLES["language"]]
LOOPED = [PrintedCount(**row) for row in _TABLES["looped"]]
