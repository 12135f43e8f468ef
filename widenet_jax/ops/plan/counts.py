"""Parameter counts: of the parts of a config's model, and of every row of the papers' tables."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from widenet_jax.config.imports import configs_module
from widenet_jax.data.contract import DataInfo
from widenet_jax.experiment import build_task, input_spec
from widenet_jax.nn.build import (
    build_model,
    count_parameters,
    count_unrolled,
    parameter_shapes,
    traced_once,
)
from widenet_jax.nn.loop import places_of
from widenet_jax.ops.plan import printed
from widenet_jax.param_names import split_block_part
from widenet_jax.run.tables import text_table
from widenet_jax.typing import Shapes

model_section = configs_module("variants").model_section
VOCABULARY = 30_000  # V of the paper's text models


def shapes(dtype: Any, **sizes: tuple[int, ...]) -> Shapes:
    """Returns inputs of one dtype by name."""
    return {name: jax.ShapeDtypeStruct(size, dtype) for name, size in sizes.items()}


INPUTS = shapes(jnp.float32, image=(1, 224, 224, 3))
TOKENS = shapes(jnp.int32, tokens=(1, 8))
TEXT_INPUTS = {
    **shapes(jnp.int32, tokens=(1, 512), token_types=(1, 512), mlm_positions=(1, 20)),
    **shapes(jnp.bool_, mask=(1, 512)),
}


def count_rows() -> Iterator[dict[str, Any]]:
    """Counts the parameters of every model in the papers' tables.

    Yields:
      One dict per model, as soon as it is counted: tables, model, variant, params,
      params_unrolled, printed and agrees. `printed` is the paper's figure in millions, None if it
      prints none. `agrees` says whether our count, truncated to millions (a text model's: rounded),
      equals it. `note` stands at the two slips of Table 5, at the text models, which also have
      the counts of `count_text`, and at the language models.
    """
    with nn.intercept_methods(traced_once()):  # models have layers in common
        yield from (image_row(of, 1000, pre_logits=True) for of in printed.PRETRAINING)
        yield from (image_row(of, 10, pre_logits=False) for of in printed.FINETUNING)
        yield from map(text_row, printed.TEXT)
        yield from map(language_row, printed.LANGUAGE)
        yield from map(looped_row, printed.LOOPED)


def part_rows(config: ConfigDict, data: DataInfo) -> list[dict[str, Any]]:
    """Counts the parameters of a config's model part by part.

    Returns:
      {part, params, blocks} for each part; `blocks` are those that run it, [] outside the blocks.

    Raises:
      BadInputError: the config contradicts itself or the data.
    """
    task = build_task(config, data)
    model = build_model(config.model, **task.model_fields)
    places = places_of(model.steps())
    found: dict[str, tuple[Any, list[int]]] = {}  # part -> its parameters and blocks
    for name, params in parameter_shapes(model, input_spec(task)).items():
        if isinstance(params, Mapping) and params.keys() & places.keys():
            found |= {
                f"{name}/{part}": (of, blocks_of(part, places)) for part, of in params.items()
            }
        else:
            found[name] = params, []
    return [
        {"part": part, "params": count_parameters(of), "blocks": blocks}
        for part, (of, blocks) in found.items()
    ]


def blocks_of(part: str, places: Mapping[str, list[int]]) -> list[int]:
    """Returns the blocks that run a part, or an array in it."""
    inside = (of for scope, of in places.items() if scope.startswith(f"{part}/"))
    return places.get(part) or sorted({block for of in inside for block in of})


def parts_table(name: str, rows: list[dict[str, Any]]) -> str:
    """Formats `part_rows` for people; parts of the same kind that blocks own are one line."""
    kinds = defaultdict(list)
    for row in rows:
        stack, _, part = row["part"].rpartition("/")
        index, kind = split_block_part(part)
        kinds[row["part"] if index is None else f"{stack}/block_*_{kind}"].append(row)
    lines = [("part", "parameters", "runs in blocks")]
    for kind, parts in kinds.items():
        blocks = " ".join(str(block) for part in parts for block in part["blocks"])
        params = f"{sum(part['params'] for part in parts):,}"
        several = ", one in each" * (len(parts) > 1)
        lines.append((kind if several else parts[0]["part"], params, blocks + several))
    total = sum(row["params"] for row in rows)
    return f"{name}: {total:,} parameters\n{text_table(lines)}"


def row_of(
    of: Any, tables: str, counts: tuple[int, int], millions: float | None, agrees: bool
) -> dict[str, Any]:
    """Returns the fields that all rows have; `agrees` counts where a figure is printed."""
    row = {"tables": tables, "model": of.model, "variant": of.variant, "params": counts[0]}
    row |= {"params_unrolled": counts[1], "printed": millions}
    return row | {"agrees": None if millions is None else agrees}


def count(model: nn.Module, inputs: Shapes) -> tuple[int, int]:
    """Counts the parameters of a model, and of the same model without sharing."""
    return count_parameters(parameter_shapes(model, inputs)), count_unrolled(model, inputs)


def image_row(of: printed.Printed, num_classes: int, *, pre_logits: bool) -> dict[str, Any]:
    """Returns the row of an image model; a slip of the table has a note."""
    section = model_section(of.variant) | {"pre_logits": pre_logits}
    counts = count(build_model(section, num_classes=num_classes), INPUTS)
    row = row_of(of, of.tables, counts, of.millions, counts[0] // 10**6 == of.millions)
    setting = "the setting that reproduces its other rows gives"
    note = {"note": f"a slip of the table: {setting} {counts[0] / 1e6:.1f}M"} if of.slip else {}
    return row | note


def text_row(of: printed.PrintedText) -> dict[str, Any]:
    """Returns the row of a model of Table 2; its `params` are the backbone's and the pooler's."""
    counts = count_text(of.variant)
    params, unrolled = counts["params"], counts.pop("unrolled")
    row = row_of(of, "2", (params, unrolled), of.millions, round(params / 1e6) == of.millions)
    note = (
        "encoder {encoder:,}, with embeddings and projection {with_embeddings:,}, with pooler "
        "{params:,}, with the heads of pretraining {with_heads:,}"
    )
    return row | counts | {"note": note.format(**counts)}


def language_row(of: printed.PrintedCount) -> dict[str, Any]:
    """Returns the row of a language model; `note` says what is solved for equal parameters."""
    fields = model_section(of.variant)
    model = build_model(fields, vocab_size=of.vocab_size)
    inputs = TOKENS | shapes(jnp.int32, memory_length=(1,))
    inputs |= shapes(jnp.float32, memory=(1, model.depth, 8, model.embed_dim))
    params = count_parameters(parameter_shapes(model, inputs))
    theirs, figure = params + 2 * model.depth, of.params or 0
    agrees = abs(theirs - figure) <= (0 if figure % 10_000 else 5000)
    row = row_of(of, "sigma-MoE", (params, params), figure / 1e6 or None, agrees)
    return row | {"note": f"{sizes_text(fields)}; the paper has 2 scalars a block more: {theirs:,}"}


def looped_row(of: printed.PrintedCount) -> dict[str, Any]:
    """Returns the row of a looped language model; the printed millions are rounded."""
    counts = count(build_model(model_section(of.variant), vocab_size=of.vocab_size), TOKENS)
    millions = of.params and of.params / 1e6
    return row_of(of, of.tables, counts, millions, round(counts[0] / 1e6) == millions)


def sizes_text(model: Mapping) -> str:
    """Describes what makes the parameters of a language model equal."""
    text = {
        "moe": "{num_experts} experts of width {mlp_dim}",
        "product_key": "{num_keys} sub-keys a half, {num_heads} heads, solved for the experts' "
        "parameters",
    }.get(model["ffn"], "width {mlp_dim}")
    return text.format(**model | model.get(model["ffn"], {}))


def count_text(variant: str) -> dict[str, int]:
    """Counts the parameters of a text model such as "widenet_4", part by part.

    Returns:
      encoder; with_embeddings and the projection; params, the pooler as well, which is what papers
      print; with_heads, the heads of pretraining as well; unrolled, without sharing.
    """
    model = build_model(model_section(variant), vocab_size=VOCABULARY, head="pretraining")
    of = {k: count_parameters(v) for k, v in parameter_shapes(model, TEXT_INPUTS).items()}
    with_embeddings = of["encoder"] + of["embeddings"] + of["projection"]
    return {
        "encoder": of["encoder"],
        "with_embeddings": with_embeddings,
        "params": with_embeddings + of["pooler"],
        "with_heads": sum(of.values()),
        "unrolled": count_unrolled(model, TEXT_INPUTS),
    }


def counts_table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yields a line for people for each of the rows of `count_rows`, after a header."""
    line = "{:<12}{:<29}{:>9}{:>15}{:>15}  {}{}"
    yield line.format("tables", "model", "printed", "ours", "unrolled", "variant", "")
    for row in rows:
        figure = "-" if row["printed"] is None else f"{row['printed']:.6g}M"
        note = f"  ({row['note']})" if "note" in row else ""
        counts = f"{row['params']:,}", f"{row['params_unrolled']:,}"
        yield line.format(row["tables"], row["model"], figure, *counts, row["variant"], note)
