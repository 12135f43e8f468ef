"""The papers' experiments: what experiments.toml says, as the rows that each compares."""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from widenet_jax.config.imports import configs_module
from widenet_jax.errors import BadInputError, choose, similar
from widenet_jax.ops.plan import printed

ENTROPY_OF = configs_module("sizes").ENTROPY_OF
model_section = configs_module("variants").model_section
PAPER_SIZES = ("b", "l", "h")
# Fields of a row of sigma-MoE that are multiples of the size's own number -> option of the model.
SHAPE = {"width": "mlp_dim", "selected": "selected", "active": "num_active"}


@dataclass(frozen=True)
class Metric:
    """The metric by which an experiment compares its rows.

    Attributes:
      name: as in metrics.jsonl; result.json has it as `test_NAME`.
      label: as tables and axes print it.
      higher_is_better: False for a loss, an error rate or a perplexity.
      scale: factor from result.json's value to the printed one.
      decimals: that the paper prints; ours have one more.
    """

    name: str
    label: str
    higher_is_better: bool = True
    scale: float = 1.0
    decimals: int = 1


def load(name: str) -> dict[str, Any]:
    """Reads a TOML file of this folder."""
    return tomllib.loads((Path(__file__).parent / name).read_text())


SECTIONS = load("experiments.toml")
# Fixed before the first run: all but the dated deviations is hashed, and results carry the hash.
CHOICES = load("claims.toml")
DEVIATIONS: list[str] = CHOICES.pop("deviations")
CHOICES_SHA256 = hashlib.sha256(json.dumps(CHOICES, sort_keys=True).encode()).hexdigest()
LANGUAGE_SIZES: dict[str, str] = SECTIONS.pop("language_sizes")
METRICS = {name: Metric(**fields) for name, fields in SECTIONS.pop("metrics").items()}
TOP_1 = METRICS["top_1"]


@dataclass(frozen=True)
class PaperRow:
    """One line of a table, or one point or curve of a figure.

    Attributes:
      label: as printed.
      variant: the model's name at the paper's size; the options of a language model.
      paper: the printed value of the experiment's metric: NaN where training diverged, text where
        the paper prints text, None where it only draws the value or gives none.
      shape: of a language model: the values of SHAPE.
      entropy: of a language model: size -> weight of the entropy loss, where it is not the size's.
      stage: a key of `scales.Scale.claims` that trains the variant as it stands; "": the
        experiment's own stage trains the variant of the scale's size.
    """

    label: str
    variant: str
    paper: float | str | None = None
    shape: Mapping[str, float] = field(default_factory=dict)
    entropy: Mapping[str, float] = field(default_factory=dict)
    stage: str = ""

    @property
    def size(self) -> str:
        """The model's size: "b", "l" or "h"; the text models have size B."""
        size = self.variant.partition(",")[0].rpartition("_")[2]
        return size if size in PAPER_SIZES else "b"


class Contrast(NamedTuple):
    """A sum of rows minus a sum of others, see `contrasts`.

    Attributes:
      label: in tables and pictures.
      plus: labels of the rows whose values are added.
      minus: labels of the rows whose values are subtracted.
      paper: the sign that a paper claims: 1 or -1; 0 where no paper has made the comparison.
    """

    label: str
    plus: Sequence[str]
    minus: Sequence[str]
    paper: int = 0


@dataclass(frozen=True)
class PaperExperiment:
    """A table or a figure of a paper, or a comparison of our own.

    Attributes:
      name: on the command line.
      title: of the table or picture.
      claim: what the paper's text concludes from it.
      rows: in the order printed.
      metric: which metric the rows compare, and in which direction.
      finetuned: rows are finetuned on CIFAR-10 from the pretrained models.
      text: a key of `scales.Scale.text` where the rows are text models, pretrained or finetuned on
        a set; "" where they are vision models.
      within_size: only rows of one size are compared, as in an ablation of each size.
      worsens: the paper claims, without numbers, that every row is worse than the row before.
      reference: label of the row that all others are compared with; "": all pairs are compared.
      language: a key of `scales.Scale.language` where the rows are language models; else "".
      statistic: what a figure shows block by block: "gamma" or "beta" of the norms, "active"
        units, the experts' "shares", or which of them are chosen "together"; "routing" of a looped
        model, see `forced_routing`; "" where `metric` is compared.
      layer: the size that a figure of single layers varies, a key of `scales.Scale.layer_sweeps`;
        such a figure has no rows.
      paper_label: label of the paper's numbers where it is not the metric's.
      contrasts: comparisons of rows, paired by seed.
      margin: within which a contrast counts as 0.
      above_0: what it means when a contrast is above 0, in a picture.
      about: our data and the differences from the paper, where they are not the scale's.
      seeds: runs of each model; 0: as many as the scale's.
      deviations: what was done otherwise than fixed before the first run, with date and reason.
    """

    name: str
    title: str
    claim: str
    rows: tuple[PaperRow, ...] = ()
    metric: Metric = TOP_1
    finetuned: bool = False
    text: str = ""
    within_size: bool = False
    worsens: bool = False
    reference: str = ""
    language: str = ""
    statistic: str = ""
    layer: str = ""
    paper_label: str = ""
    contrasts: tuple[Contrast, ...] = ()
    margin: float = 0.0
    above_0: str = ""
    about: str = ""
    seeds: int = 0
    deviations: tuple[str, ...] = ()

    def of_sizes(self, sizes: Sequence[str]) -> "PaperExperiment":
        """Returns the experiment with only the rows of these sizes."""
        return replace(self, rows=tuple(row for row in self.rows if row.size in sizes))


def experiments_of(name: str, section: dict[str, Any]) -> Iterator[PaperExperiment]:
    """Makes the experiments of a section of experiments.toml: one, or one for each of its sizes."""
    rows, sizes = section.pop("rows", ()), section.pop("sizes", ())
    layer, entropy = section.pop("layer", {}), section.pop("entropy", {})
    whole = PaperExperiment(name, **section)
    for size, about in layer.items():
        yield replace(whole, name=f"{name}_{size}", title=f"{whole.title} {about}", layer=size)
    for size in sizes:
        changed = {"name": f"{name}_{size}", "title": f"{whole.title}; {LANGUAGE_SIZES[size]}"}
        changed["metric"] = METRICS["bits" if size == "e8" else "perplexity"]
        rows_of_size = tuple(language_rows(name, size, rows, entropy))
        yield replace(whole, **changed, rows=rows_of_size, language=size)
    if whole.text:
        rows = tuple(PaperRow(of.model, of.variant, column(of, whole.text)) for of in printed.TEXT)
        yield replace(whole, rows=rows, metric=METRICS[whole.metric])
    elif whole.language:
        rows = tuple(PaperRow(*row) for row in rows)
        contrasts = tuple(Contrast(*of) for of in whole.contrasts)
        yield replace(whole, metric=METRICS["bits"], rows=rows, contrasts=contrasts)
    elif not layer and not sizes:
        models = printed.FINETUNING if whole.finetuned else printed.PRETRAINING
        top_1 = {of.variant: of.top_1 for of in (*models, printed.OUT_OF_MEMORY)}
        rows = tuple(PaperRow(label, variant, top_1.get(variant)) for label, variant in rows)
        yield replace(whole, rows=rows)


def column(model: printed.PrintedText, text: str) -> float | None:
    """Returns what the paper prints for a text model in a column of Table 2; of SQuAD its F1."""
    value = getattr(model, text, None)
    return value[0] if isinstance(value, list) else value


def language_rows(
    name: str, size: str, rows: Sequence[Mapping[str, Any]], entropy: Mapping[str, float]
) -> Iterator[PaperRow]:
    """Makes the rows that a table of sigma-MoE has at a size."""
    for row in rows:
        source, numbers = row, SECTIONS[row.get("printed", name)]
        if "printed" in row:
            label = row.get("as", row["label"])
            source = [of for of in numbers["rows"] if of["label"].strip() == label][-1]
        paper = dict(zip(numbers["sizes"], source.get("paper", ()), strict=False)).get(size)
        if "paper" in row and paper == "":
            continue
        model = row if "preset" in row else source
        variant = f"preset={model['preset']}"
        shape = {option: model[key] for key, option in SHAPE.items() if key in model}
        weights = entropy if has_entropy_loss(variant) else {}
        yield PaperRow(row["label"], variant, paper or None, shape, weights)


def has_entropy_loss(variant: str) -> bool:
    """Tells whether a feed-forward has the entropy loss of sigma-MoE."""
    experts = model_section(f"wt_s,{variant}")["moe"]
    losses = experts["losses"] if experts else {}
    return any(losses.get(loss) for loss in ENTROPY_OF.values())


def claims_of(section: Mapping[str, Any]) -> PaperExperiment:
    """Makes the experiment of claims.toml: each row has its rate and its amount of images."""
    section = dict(section) | {"deviations": tuple(DEVIATIONS)}
    rows = tuple(
        PaperRow(label, variant, stage=f"{rate}_{amount}")
        for label, variant, rate, amount in section.pop("rows")
    )
    contrasts = tuple(Contrast(*one) for one in section.pop("contrasts"))
    return PaperExperiment("claims", rows=rows, contrasts=contrasts, **section)


EXPERIMENTS = {
    one.name: one for name, of in SECTIONS.items() for one in experiments_of(name, dict(of))
}
EXPERIMENTS["claims"] = claims_of(CHOICES["experiment"])
# Names on the command line that stand for several experiments, whose names begin with them.
GROUPS = {
    name: tuple(one for one in EXPERIMENTS if one.startswith(f"{name}_"))
    for name in ("table2", *SECTIONS, "sigma", "loops")
    if name not in EXPERIMENTS
}
OTHERS = ("sigma_", "loops_", "claims")  # how names begin of other papers' and our own
GROUPS["all"] = tuple(name for name in EXPERIMENTS if not name.startswith(OTHERS))


def chosen(names: Sequence[str], sizes: Sequence[str] = PAPER_SIZES) -> list[PaperExperiment]:
    """Returns the experiments of those names or `GROUPS`, with the rows of those sizes.

    Raises:
      BadInputError: an unknown name or size, or an experiment named without a row of those sizes.
    """
    known = EXPERIMENTS | GROUPS
    if unknown := [name for name in names if name not in known]:
        near = similar(unknown[0], known)
        meant = f"did you mean {near}? " if near else ""
        raise BadInputError(f"no experiment {unknown[0]!r}; {meant}--list prints all names")
    for size in sizes:
        choose(dict.fromkeys(PAPER_SIZES), size, field="sizes")
    wanted = {one for name in names for one in GROUPS.get(name, [name])}
    reduced = [one.of_sizes(sizes) for name, one in EXPERIMENTS.items() if name in wanted]
    empty = [one.name for one in reduced if not one.rows and not one.layer]
    for name in (name for name in empty if name in names):
        raise BadInputError(f"--sizes={','.join(sizes)}: {name} has no row of that size")
    return [one for one in reduced if one.name not in empty]
