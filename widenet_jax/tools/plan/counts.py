"""Parameter counts of every row of the paper's vision tables, with the printed figures."""

from typing import Any

import jax
import jax.numpy as jnp

from widenet_jax.models.build import build_model
from widenet_jax.models.counting import count_parameters, count_unrolled, parameter_shapes
from widenet_jax.models.sizes import parse_variant, vision_model
from widenet_jax.paper import FINETUNING, PRETRAINING

INPUTS = {"image": jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)}


def count_variant(variant: str, *, num_classes: int, representation: bool) -> tuple[int, int]:
    """Returns the (unique, unrolled) parameters of a variant, e.g. "widenet_b,share_norms=true"."""
    fields = vision_model(*parse_variant(variant)) | {"representation": representation}
    model = build_model(fields, num_classes=num_classes)
    return count_parameters(parameter_shapes(model, INPUTS)), count_unrolled(model, INPUTS)


def count_rows() -> list[dict[str, Any]]:
    """Counts the parameters of every model in the paper's vision tables.

    Returns:
      One dict per model: tables, model, variant, params, params_unrolled, printed and agrees.
      `printed` is the paper's figure in millions, None if it prints none. `agrees` says whether our
      count, truncated to millions, equals it. `note` stands at the two slips of Table 5.
    """
    rows = []
    for printed in (*PRETRAINING, *FINETUNING):
        finetuning = printed in FINETUNING
        params, unrolled = count_variant(
            printed.variant, num_classes=10 if finetuning else 1000, representation=not finetuning
        )
        row = {
            "tables": printed.tables,
            "model": printed.model,
            "variant": printed.variant,
            "params": params,
            "params_unrolled": unrolled,
            "printed": printed.millions,
            "agrees": None if printed.millions is None else params // 10**6 == printed.millions,
        }
        if printed.slip:
            row["note"] = (
                "a slip of the table: the setting that reproduces its other rows gives "
                f"{params / 1e6:.1f}M"
            )
        rows.append(row)
    return rows


def counts_table(rows: list[dict[str, Any]]) -> str:
    """Formats the rows of `count_rows` for people."""
    lines = [f"{'tables':<12}{'model':<29}{'printed':>8}{'ours':>13}{'unrolled':>15}  variant"]
    for row in rows:
        printed = "-" if row["printed"] is None else f"{row['printed']}M"
        note = f"  ({row['note']})" if "note" in row else ""
        lines.append(
            f"{row['tables']:<12}{row['model']:<29}{printed:>8}{row['params']:>13,}"
            f"{row['params_unrolled']:>15,}  {row['variant']}{note}"
        )
    return "\n".join(lines)
