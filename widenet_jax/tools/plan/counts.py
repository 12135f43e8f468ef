"""Parameter counts of every row of the paper's vision tables, beside the printed figures."""

from typing import Any

from widenet_jax.models.sizes import (
    CIFAR10_ROWS,
    IMAGENET_ROWS,
    TABLE_5_SLIPS,
    parse_variant,
    vision_model,
)
from widenet_jax.models.vit import build_model, count_parameters, count_unrolled, parameter_shapes

IMAGE = (224, 224, 3)


def count_variant(variant: str, *, num_classes: int, representation: bool) -> tuple[int, int]:
    """(unique, unrolled) parameters of a variant such as "widenet_b,share_norms=true"."""
    fields = vision_model(*parse_variant(variant)) | {"representation": representation}
    model = build_model(fields, num_classes)
    return count_parameters(parameter_shapes(model, IMAGE)), count_unrolled(model, IMAGE)


def count_rows() -> list[dict[str, Any]]:
    """One dict a row: table, model, variant, params, params_unrolled, printed and agrees.

    `printed` is the paper's figure in millions, None where it prints none; it agrees when ours,
    truncated to millions, is the same. `note` names the two slips of Table 5.
    """
    rows = []
    for table, model, variant, printed in (*IMAGENET_ROWS, *CIFAR10_ROWS):
        finetuning = table == "Table 5"
        params, unrolled = count_variant(
            variant, num_classes=10 if finetuning else 1000, representation=not finetuning
        )
        row = {
            "table": table,
            "model": model,
            "variant": variant,
            "params": params,
            "params_unrolled": unrolled,
            "printed": printed,
            "agrees": None if printed is None else params // 10**6 == printed,
        }
        if finetuning and variant in TABLE_5_SLIPS:
            row["note"] = (
                f"a slip of the table: the setting that gives its other rows gives "
                f"{params / 1e6:.1f}M here"
            )
        rows.append(row)
    return rows


def counts_table(rows: list[dict[str, Any]]) -> str:
    """The rows for people."""
    lines = [f"{'table':<12}{'model':<29}{'printed':>8}{'ours':>13}{'unrolled':>15}  variant"]
    for row in rows:
        printed = "-" if row["printed"] is None else f"{row['printed']}M"
        note = f"  ({row['note']})" if "note" in row else ""
        lines.append(
            f"{row['table']:<12}{row['model']:<29}{printed:>8}{row['params']:>13,}"
            f"{row['params_unrolled']:>15,}  {row['variant']}{note}"
        )
    return "\n".join(lines)
