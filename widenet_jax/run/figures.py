"""Learning curves of runs, and helpers that all figures share."""

import io
import itertools
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from etils import epath
from matplotlib import colormaps, font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure  # not pyplot, which opens windows and keeps figures alive
from matplotlib.text import Text
from matplotlib.ticker import (
    LogFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    ScalarFormatter,
)

from widenet_jax.files import read_json, read_object, write_bytes
from widenet_jax.run.metrics import JsonLines

# Colours that readers with colour-blindness can tell apart (Okabe and Ito 2008), without their
# yellow, which is too pale for lines.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS = "os^Dv"
STYLES = {"train": {"alpha": 0.5, "ms": 3}, "eval": {"ls": "--", "ms": 4}}
# Fields that change what the loss is measured against in training alone -> the legend's words.
TARGETS = {
    "label_smoothing": "smoothed labels",
    "class_weights": "weighted classes",
    "mixup_alpha": "mixup",
    "cutmix_alpha": "CutMix",
}
MARKS_A_CURVE = 10
MOST_STRETCH = 3  # times the curves' range: a line further away would press them together
# Figures are drawn smaller than the sizes in the code at more dots an inch, so that text is large
# enough for a slide.
SHRINK, DPI = 0.8, 150
LETTERS = 55  # of a legend that fit below a panel of learning curves
MOST_NAMES = 50  # class names that fit beside a figure
NAME_WIDTH = 24  # characters of a name over a panel, or beside a matrix
CROSS_ENTROPY, GUESSING = "cross_entropy", "guessing"
LABELS = {CROSS_ENTROPY: "cross-entropy"}


def draw_learning_curves(
    workdirs: Sequence[epath.PathLike],
    out: epath.PathLike,
    *,
    metric: str,
    names: Sequence[str] | None = None,
    splits: Sequence[str] = ("train", "eval"),
) -> None:
    """Draws the loss (left) and the primary metric (right) against steps.

    Each run has a colour and a marker; evaluation is dashed, training paler. The splits of a single
    run have a colour each. Runs of one name are one curve: their mean at the steps that all
    recorded, in a band between the extremes. A curve is left out if its split does not record the
    metric, and so is the loss if no curve is left. The legend names the splits, and how training
    changes the labels. Dotted: guessing; dash-dotted: the task's baseline; a number, where the line
    would press the curves together. Grey: where a longer duration raised the learning rate again.

    Args:
      workdirs: of runs of one task.
      out: a PNG file.
      metric: on the right: the task's primary metric.
      names: one for each run, for the legend.
      splits: "train", "eval" or both.
    """
    labels = [""] * len(workdirs) if names is None else names
    runs = [JsonLines(epath.Path(workdir) / "metrics.jsonl").read() for workdir in workdirs]
    every = [record for records in runs for record in records]
    # Cross-entropy is a loss that both splits can share.
    loss = "loss" if every and not any(CROSS_ENTROPY in one for one in every) else CROSS_ENTROPY
    has_loss = any(loss in record for record in every if record["split"] in splits)
    metrics = (loss, metric) if has_loss else (metric,)
    figure, axes = subplots(1, len(metrics), size=(5 * len(metrics), 4), squeeze=False)
    axes = axes[0]
    groups: dict[str | int, list[int]] = {}
    for index, (label, _) in enumerate(zip(labels, runs, strict=True)):
        groups.setdefault(label or index, []).append(index)
    for place, members in enumerate(groups.values()):
        label = labels[members[0]]
        for index, split in enumerate(splits):
            colour = run_colour(place, len(groups)) if len(groups) > 1 else PALETTE[index]
            name = f"{label} {split_name(workdirs[members[0]], split)}".strip()
            for axis, one in zip(axes, metrics, strict=True):
                steps, values = curve_of([runs[k] for k in members], split, one)
                style = {"marker": MARKERS[place % len(MARKERS)], "color": colour, **STYLES[split]}
                style["markevery"] = max(1, len(steps) // MARKS_A_CURVE)
                axis.plot(steps, values.mean(axis=0), label=name, **style)
                if len(members) > 1:
                    low, high = values.min(axis=0), values.max(axis=0)
                    axis.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0)
    if len(metrics) > 1 and axes[0].dataLim.ymax > 0:  # else no logarithm
        axes[0].set_yscale("log")
    draw_references(axes, metrics, workdirs[0], [step for r in runs for step in raised_steps(r)])
    for axis, one in zip(axes, metrics, strict=True):
        axis.set(xlabel="step", ylabel=LABELS.get(one, one.replace("_", " ")))
        axis.grid(alpha=0.3)
    place_legend(figure, axes, few=len(groups) <= 2)
    save(figure, out)


def place_legend(figure: Figure, axes: Sequence[Axes], *, few: bool) -> None:
    """Draws the legend of learning curves: of few runs below them, of more beside them."""
    if few:
        # Below the axes: short curves fill them, and a legend within would cover points.
        entries = {}  # label -> line; the panels have most of them in common
        for axis in axes:
            lines, texts = axis.get_legend_handles_labels()
            entries |= zip(texts, lines, strict=True)
        longest = max(map(len, entries), default=0)
        columns = min(4, max(1, LETTERS * len(axes) // (longest + 8)))
        place = {"loc": "outside lower center", "ncols": columns}
        figure.legend(entries.values(), entries.keys(), **place)
    else:
        handles, texts = axes[-1].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside right upper", fontsize=8)
        height = max(4, 0.5 + 0.25 * len(texts))
        figure.set_size_inches(SHRINK * (4 + 5 * len(axes)), SHRINK * height)


def legend_below(axis: Axes) -> None:
    """Draws the legend of a panel below its label, where it covers no data."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 5}
    axis.legend(fontsize=8, ncols=2, **place)


def curve_of(
    runs: Sequence[Sequence[Mapping]], split: str, metric: str
) -> tuple[list[int], np.ndarray]:
    """Returns the n steps at which every run has a split's metric, and its values [runs, n]."""
    found = [
        {r["step"]: r[metric] for r in of if r.get("split") == split and r.get(metric) is not None}
        for of in runs
    ]
    steps = sorted(set(found[0]).intersection(*found))
    return steps, np.array([[of[step] for step in steps] for of in found], float)


def raised_steps(records: Sequence[Mapping]) -> list[int]:
    """Returns the steps at which the learning rate rises after it fell, as after --extend."""
    rows = [r for r in records if r["split"] == "train" and "learning_rate" in r]
    found, fallen = [], False
    for before, after in itertools.pairwise(rows):
        change = after["learning_rate"] - before["learning_rate"]
        if fallen and change > 0:
            found.append(after["step"])
        fallen = change < 0 or (fallen and change == 0)
    return found


def draw_references(
    axes: Sequence[Axes], metrics: Sequence[str], workdir: epath.PathLike, raised: Sequence[int]
) -> None:
    """Draws what guessing gives, and vertical lines at the steps `raised`."""
    for axis, metric in zip(axes, metrics, strict=True):
        if reference := reference_of(workdir, metric):
            draw_reference(axis, *reference)
        for index, step in enumerate(sorted(set(raised))):
            label = "_" if index else "learning rate raised"  # named once
            axis.axvline(step, color="grey", lw=1, label=label)


def draw_reference(axis: Axes, name: str, value: float) -> None:
    """Draws a line, or writes its value where it would take most of the axis."""
    scale = np.log if axis.get_yscale() == "log" else float
    low, high = (scale(end) for end in axis.get_ylim())
    span = max(high, scale(value)) - min(low, scale(value))
    if not axis.has_data() or span <= MOST_STRETCH * (high - low):
        axis.axhline(value, color="black", ls=":" if name == GUESSING else "-.", lw=1, label=name)
        return
    above = scale(value) > high
    place, side = (0.97, "top") if above else (0.03, "bottom")
    text = f"{name}: {value:.4g}, {'above' if above else 'below'}"
    axis.text(0.5, place, text, transform=axis.transAxes, ha="center", va=side, fontsize=8)


def reference_of(workdir: epath.PathLike, metric: str) -> tuple[str, float] | None:
    """Returns name and value of guessing among V equal classes, or of the task's baseline."""
    result, names = (epath.Path(workdir) / name for name in ("result.json", "class_names.json"))
    baseline = (read_object(result) if result.exists() else {}).get("baseline", {})
    if baseline.get("metric") == metric:
        return baseline["name"], baseline["value"]
    V = len(read_json(names)) if names.exists() else 0
    values = {"accuracy": 1 / V, CROSS_ENTROPY: float(np.log(V))} if V else {}
    values["order_accuracy"] = 0.5  # two segments, in order or swapped
    return (GUESSING, values[metric]) if metric in values else None


def run_colour(index: int, count: int) -> Any:
    """Returns the colour of run `index` of `count`; a continuous range beyond PALETTE."""
    return PALETTE[index] if count <= len(PALETTE) else colormaps["viridis"](index / count)


def split_name(workdir: epath.PathLike, split: str) -> str:
    """Returns the data's name of "train" or "eval", such as "val"; `split` before a run begins.

    Of training with the changes of its labels: "train (smoothed labels)".
    """
    if not (file := epath.Path(workdir) / "config.json").exists():
        return split
    config = read_object(file)  # not its parts, whose files may have moved
    fields = {**config["task"], **config.get("augment", {})} if split == "train" else {}
    changes = [text for name, text in TARGETS.items() if fields.get(name, 0) not in (0, "none")]
    return config["data"][f"{split}_split"] + f" ({', '.join(changes)})" * bool(changes)


def write_decimals(axis: Axis) -> None:
    """Labels an axis in plain decimals, where matplotlib would write powers of ten or an offset.

    Labels that are no numbers stay as they are.
    """
    formatter = axis.get_major_formatter()
    if isinstance(formatter, ScalarFormatter):
        formatter.set_scientific(False)
        formatter.set_useOffset(False)
    elif isinstance(formatter, LogFormatter):
        low, high = axis.get_view_interval()
        axis.set_major_formatter(decimals)
        found = isinstance(axis.get_major_locator(), LogLocator)  # else the code set the ticks
        if found and high < 3 * low:  # too few ticks of the scale's own
            axis.set_major_locator(MaxNLocator(6))
            axis.set_minor_locator(NullLocator())
        # Over larger spans the labels of all minor ticks would run into each other. Labels side by
        # side need more room than labels above each other.
        crowded = high >= (2 if isinstance(axis, XAxis) else 10) * low
        axis.set_minor_formatter(NullFormatter() if crowded else decimals)
        if found and crowded and 3 * low <= high < 100 * low:
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # of one decade alone, one number


def decimals(value: float, _: int = 0) -> str:
    """Writes a number, such as the label of a tick, without an exponent."""
    return f"{value:.10f}".rstrip("0").rstrip(".")


def subplots(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float], **options: Any
) -> tuple[Figure, Any]:
    """Returns a new figure and its axes as `Figure.subplots` makes them.

    `size` is in inches of 120 dots; SHRINK makes text larger in proportion.
    """
    figure = Figure(figsize=(SHRINK * size[0], SHRINK * size[1]), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def block_panels(
    blocks: Sequence[int],
    *,
    columns: int,
    panel: tuple[float, float],
    edge: tuple[float, float],
    **options: Any,
) -> tuple[Figure, Sequence[Any]]:
    """Returns a new figure with a titled panel for each block, and the axes of the panels.

    Args:
      blocks: their numbers.
      columns: the most panels in a row.
      panel: size of a panel in inches.
      edge: inches around all panels.
      options: of `Figure.subplots`.
    """
    columns = min(len(blocks), columns)
    rows = -(-len(blocks) // columns)
    size = (edge[0] + panel[0] * columns, edge[1] + panel[1] * rows)
    figure, axes = subplots(rows, columns, size=size, squeeze=False, **options)
    for axis in axes.flat[len(blocks) :]:
        axis.axis("off")
    for block, axis in zip(blocks, axes.flat, strict=False):
        axis.set_title(f"block {block}")
    return figure, axes.flat[: len(blocks)]


def shortened(line: str) -> str:
    """Leaves out the middle of a long name, and keeps its end, such as a file's suffix."""
    half = NAME_WIDTH // 2
    return line if len(line) <= NAME_WIDTH else f"{line[: half - 1]}…{line[-half:]}"


def write_in_cells(axis: Axes, texts: np.ndarray, bright: np.ndarray, fontsize: int = 7) -> None:
    """Writes into the cells of a matrix that `imshow` drew, in black where they are bright."""
    for i, j in np.argwhere(texts != ""):
        colour = "black" if bright[i, j] else "white"
        axis.text(j, i, texts[i, j], ha="center", va="center", color=colour, fontsize=fontsize)


def save(figure: Figure, out: epath.PathLike) -> None:
    """Writes a figure as PNG, whole or not at all.

    Axes get plain decimals, titles lines within the figure, and text the fonts that its letters
    need.
    """
    for title in (*figure.texts, *(axes.title for axes in figure.axes)):
        title.set_wrap(not title.get_rotation())  # the layout has no room for wrapped labels
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            write_decimals(axis)
    data = io.BytesIO()
    with lettered(figure):
        figure.savefig(data, format="png", dpi=DPI)
    write_bytes(out, data.getvalue())


OWN = "DejaVu Sans"  # ships with matplotlib
PACKAGE = "matplotlib_fontja"  # of Japanese fonts; importing it would change matplotlib's defaults
# Fonts that ship with matplotlib and have no letters, or boxes in place of all letters.
NOT_LETTERS = ("Last Resort", "STIX", "cm", "DejaVu")

TOLD: list[frozenset[str]] = []  # what the warning named


@contextmanager
def lettered(figure: Figure) -> Iterator[None]:
    """Gives every text of the figure the fonts that it needs, while the figure is drawn.

    Text is drawn as it is: a dollar sign begins no formula. Characters that no font has become
    boxes, about which one line on stderr says what to install.
    """
    texts = figure.findobj(Text)
    families = families_for(frozenset("".join(text.get_text() for text in texts)))
    for text in texts:
        text.set(parse_math=False, fontfamily=families)
    # Texts that are made while drawing, such as the labels of ticks, have the defaults.
    defaults = {"font.family": families, "text.parse_math": False}
    with matplotlib.rc_context(defaults), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


@cache
def families_for(letters: frozenset[str]) -> list[str]:
    """Returns the font families to draw these characters with, matplotlib's own first.

    Warns once of characters that no family has.
    """
    lacking = {letter for letter in letters if letter.isprintable() and not letter.isspace()}
    lacking -= characters_of(OWN)
    others = {name: characters_of(name) & lacking for name in (installed() if lacking else ())}
    lacking = lacking.difference(*others.values())
    if lacking and not TOLD:
        TOLD.append(lacking)
        print(
            f"warning: no font here draws the characters {' '.join(sorted(lacking)[:12])} (in all "
            f"{len(lacking)}), so that pictures have boxes instead; install a font of that script, "
            "such as Noto Sans (pip install -e '.[fonts]' brings Japanese)",
            file=sys.stderr,
        )
    return [OWN, *(name for name, letters in others.items() if letters)]


def installed() -> list[str]:
    """Returns the families of letters of this machine and of `PACKAGE`."""
    if spec := find_spec(PACKAGE):
        for file in sorted(Path(spec.origin).parent.rglob("*.[ot]tf")):
            font_manager.fontManager.addfont(file)
    names = {font.name for font in font_manager.fontManager.ttflist}
    return sorted(name for name in names if not name.startswith(NOT_LETTERS))


def characters_of(family: str) -> frozenset[str]:
    """Returns the characters that a font has."""
    font = font_manager.get_font(font_manager.findfont(family))
    return frozenset(map(chr, font.get_charmap()))
