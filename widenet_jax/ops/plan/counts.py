"""Parameter counts of every row of the papers' tables, with the printed figures."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from widenet_jax.config.files import configs_module
from widenet_jax.nn.build import build_model
from widenet_jax.nn.counting import count_parameters, count_unrolled, parameter_shapes
from widenet_jax.ops.plan.printed import (
    FINETUNING,
    LANGUAGE_COUNTS,
    PRETRAINING,
    TEXT,
    PrintedCount,
    PrintedText,
)

model_section = configs_module("variants").model_section
INPUTS = {"image": jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)}
VOCABULARY = 30_000  # V of the paper's text models
TEXT_INPUTS = {
    **dict.fromkeys(("tokens", "token_types"), jax.ShapeDtypeStruct((1, 512), jnp.int32)),
    "mask": jax.ShapeDtypeStruct((1, 512), jnp.bool_),
    "mlm_positions": jax.ShapeDtypeStruct((1, 20), jnp.int32),
}


def count_variant(variant: str, *, num_classes: int, pre_logits: bool) -> tuple[int, int]:
    """Returns the (unique, unrolled) parameters of a variant, e.g. "widenet_b,share_norms=true"."""
    fields = model_section(variant) | {"pre_logits": pre_logits}
    model = build_model(fields, num_classes=num_classes)
    return count_parameters(parameter_shapes(model, INPUTS)), count_unrolled(model, INPUTS)


def count_rows() -> list[dict[str, Any]]:
    """Counts the parameters of every model in the papers' tables.

    Returns:
      One dict per model: tables, model, variant, params, params_unrolled, printed and agrees.
      `printed` is the paper's figure in millions, None if it prints none. `agrees` says whether our
      count, truncated to millions (a text model's: rounded), equals it. `note` stands at the two
      slips of Table 5, at the text models, which also have the counts of `count_text`, and at the
      language models.
    """
    rows = []
    for printed in (*PRETRAINING, *FINETUNING):
        finetuning = printed in FINETUNING
        counts = count_variant(
            printed.variant, num_classes=10 if finetuning else 1000, pre_logits=not finetuning
        )
        millions = printed.millions
        agrees = None if millions is None else counts[0] // 10**6 == millions
        row = row_of(printed, printed.tables, *counts, printed=millions, agrees=agrees)
        if printed.slip:
            setting = "the setting that reproduces its other rows gives"
            row["note"] = f"a slip of the table: {setting} {counts[0] / 1e6:.1f}M"
        rows.append(row)
    language = [language_row(printed) for printed in (*LANGUAGE_COUNTS, *KEYS)]
    return rows + [text_row(printed) for printed in TEXT] + language


def row_of(
    model: Any, tables: str, params: int, unrolled: int, *, printed: float | None, agrees: Any
) -> dict[str, Any]:
    """Returns the fields that all rows have."""
    return {
        **{"tables": tables, "model": model.model, "variant": model.variant},
        **{"params": params, "params_unrolled": unrolled, "printed": printed, "agrees": agrees},
    }


def text_row(printed: PrintedText) -> dict[str, Any]:
    """Returns the row of a model of Table 2; its `params` are those of backbone and pooler."""
    counts = count_text(printed.variant)
    unrolled = count_unrolled(build_text(printed.variant), TEXT_INPUTS)
    agrees = round(counts["params"] / 1e6) == printed.millions
    row = row_of(printed, "2", counts["params"], unrolled, printed=printed.millions, agrees=agrees)
    note = (
        "encoder {encoder:,}, with embeddings and projection {with_embeddings:,}, with pooler "
        "{params:,}, with the heads of pretraining {with_heads:,}"
    )
    return row | counts | {"note": note.format(**counts)}


# Product keys in the same models; their counts are not printed.
KEYS = tuple(
    PrintedCount(f"{row.variant},ffn=product_key", f"{row.model.split(',')[0]}, product keys", 0,
                 False, row.vocab_size)
    for row in LANGUAGE_COUNTS[::2]
)  # fmt: skip


def language_row(printed: PrintedCount) -> dict[str, Any]:
    """Returns the row of a language model; `note` says what is solved for equal parameters."""
    fields = model_section(printed.variant)
    inputs = {
        "tokens": jax.ShapeDtypeStruct((1, 8), jnp.int32),
        "memory": jax.ShapeDtypeStruct((1, fields["depth"], 8, fields["embed_dim"]), jnp.float32),
        "memory_length": jax.ShapeDtypeStruct((1,), jnp.int32),
    }
    model = build_model(fields, vocab_size=printed.vocab_size)
    params = count_parameters(parameter_shapes(model, inputs))
    theirs = params + 2 * fields["depth"]
    rounding = 0 if printed.exact else 5000
    agrees = abs(theirs - printed.params) <= rounding if printed.params else None
    millions = printed.params / 1e6 or None
    row = row_of(printed, "sigma-MoE", params, params, printed=millions, agrees=agrees)
    note = f"{sizes_text(fields)}; the paper has 2 scalars a block more: {theirs:,}"
    return row | {"note": note}


def sizes_text(model: Mapping) -> str:
    """Describes what makes the parameters of a language model equal."""
    if model["ffn"] == "moe":
        return "{num_experts} experts of width {mlp_dim}".format(**model["moe"])
    if model["ffn"] == "product_key":
        text = "{num_keys} sub-keys a half, {num_heads} heads, solved for the experts' parameters"
        return text.format(**model["product_key"])
    return f"width {model['mlp_dim']}"


def build_text(variant: str) -> nn.Module:
    """Builds a text model such as "widenet_4" with the heads of pretraining."""
    fields = model_section(variant)
    return build_model(fields, vocab_size=VOCABULARY, head="pretraining")


def count_text(variant: str) -> dict[str, int]:
    """Counts the parameters of a text model such as "widenet_4", part by part.

    Returns:
      encoder; with_embeddings and the projection; params, the pooler as well, which is what papers
      print; with_heads, those of pretraining as well.
    """
    model = build_text(variant)
    of = {k: count_parameters(v) for k, v in parameter_shapes(model, TEXT_INPUTS).items()}
    with_embeddings = of["encoder"] + of["embeddings"] + of["projection"]
    return {
        "encoder": of["encoder"],
        "with_embeddings": with_embeddings,
        "params": with_embeddings + of["pooler"],
        "with_heads": sum(of.values()),
    }


def counts_table(rows: list[dict[str, Any]]) -> str:
    """Formats the rows of `count_rows` for people."""
    lines = [f"{'tables':<12}{'model':<29}{'printed':>9}{'ours':>13}{'unrolled':>15}  variant"]
    for row in rows:
        printed = "-" if row["printed"] is None else f"{row['printed']:.6g}M"
        note = f"  ({row['note']})" if "note" in row else ""
        lines.append(
            f"{row['tables']:<12}{row['model']:<29}{printed:>9}{row['params']:>13,}"
            f"{row['params_unrolled']:>15,}  {row['variant']}{note}"
        )
    return "\n".join(lines)
