"""What an experiment is: a table or figure of a paper, its rows, and the metric they compare."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from widenet_jax.papers.printed import PrintedLanguageModel

PAPER_SIZES = ("b", "l", "h")


@dataclass(frozen=True)
class Metric:
    """The metric by which an experiment compares its rows.

    Attributes:
      name: as in metrics.jsonl; result.json has it as `test_NAME`.
      higher_is_better: False for a loss, an error rate or a perplexity.
      label: as tables and axes print it.
      scale: factor from result.json's value to the printed one.
      decimals: that the paper prints; ours have one more.
    """

    name: str
    higher_is_better: bool
    label: str
    scale: float = 1.0
    decimals: int = 1


TOP_1 = Metric("accuracy", higher_is_better=True, label="top-1 %", scale=100.0)
ACCURACY = Metric("accuracy", higher_is_better=True, label="accuracy %", scale=100.0)
F1 = Metric("f1", higher_is_better=True, label="F1 %", scale=100.0)
BEST_F1 = Metric("best_f1", higher_is_better=True, label="best F1 %", scale=100.0)
MLM_LOSS = Metric("mlm_loss", higher_is_better=False, label="MLM loss, nats")
PERPLEXITY = Metric("perplexity", higher_is_better=False, label="perplexity", decimals=2)
BITS = Metric("bits_per_byte", higher_is_better=False, label="bits a byte", decimals=2)


@dataclass(frozen=True)
class PaperRow:
    """One line of a table, or one point or curve of a figure.

    Attributes:
      label: as printed.
      variant: the model's name at the paper's size; of a language model its size alone.
      paper: the printed value of the experiment's metric: NaN where training diverged, text where
        the paper prints text, None where it only draws the value or gives none.
      language: the feed-forward of a language model.
    """

    label: str
    variant: str
    paper: float | str | None = None
    language: PrintedLanguageModel | None = None

    @property
    def size(self) -> str:
        """The model's size: "b", "l" or "h"; the text models have size B."""
        size = self.variant.partition(",")[0].rpartition("_")[2]
        return size if size in PAPER_SIZES else "b"


@dataclass(frozen=True)
class PaperExperiment:
    """A table or a figure of a paper, or a comparison of our own.

    Attributes:
      name: on the command line.
      title: of the table or picture.
      rows: in the order printed.
      claim: what the paper's text concludes from it.
      metric: which metric the rows compare, and in which direction.
      finetuned: rows are finetuned on CIFAR-10 from the pretrained models.
      text: a key of `scales.Scale.text` where the rows are text models, pretrained or finetuned on
        a set; "" where they are vision models.
      within_size: only rows of one size are compared, as in an ablation of each size.
      worsens: the paper claims, without numbers, that every row is worse than the row before.
      reference: label of the row that all others are compared with; "": all pairs are compared.
      norms: the norms' vector that a figure compares, "gamma" or "beta"; "" where `metric` is
        compared.
      language: a key of `scales.Scale.language` where the rows are language models; else "".
      selection: the statistic of experts or units that a figure shows, a key of
        `selection.SELECTIONS`; "" where `metric` is compared.
      layer: the size that a figure of single layers varies, a key of `scales.Scale.layer_sweeps`;
        such a figure has no rows.
      paper_label: what the paper's numbers are where not `metric`.
    """

    name: str
    title: str
    rows: tuple[PaperRow, ...]
    claim: str
    metric: Metric = TOP_1
    finetuned: bool = False
    text: str = ""
    within_size: bool = False
    worsens: bool = False
    reference: str = ""
    norms: str = ""
    language: str = ""
    selection: str = ""
    layer: str = ""
    paper_label: str = ""

    def of_sizes(self, sizes: Sequence[str]) -> "PaperExperiment":
        """Returns the experiment with only the rows of these sizes."""
        return replace(self, rows=tuple(row for row in self.rows if row.size in sizes))
