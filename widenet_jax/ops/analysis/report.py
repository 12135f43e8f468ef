"""The analysis of a trained model: figures and numbers of `scripts/analyze.py`."""

from collections.abc import Sequence
from typing import Any

from etils import epath

from widenet_jax.ops.analysis import expert_usage
from widenet_jax.ops.analysis.active_units import dense_blocks, measure_active
from widenet_jax.ops.analysis.image_overlay import draw_overlay_of_source
from widenet_jax.ops.analysis.norm_divergence import Divergence, norm_divergence, own_norms
from widenet_jax.ops.analysis.routing import MOE
from widenet_jax.ops.analysis.routing_figures import draw_divergence, draw_kinds, draw_usage
from widenet_jax.ops.analysis.selection_figures import (
    draw_active,
    draw_co_occurrence,
    draw_shares,
)
from widenet_jax.trained import Trained


def analyze_model(
    trained: Trained, others: Sequence[Trained], out: epath.Path, *, num_images: int
) -> dict[str, Any]:
    """Draws the figures into the directory `out`; returns the numbers.

    A model whose blocks share their norms has no divergence; a model without experts has no usage,
    and one without dense layers of ReLUs has no active units.

    Args:
      trained: the model.
      others: models to compare its norms with.
      out: an existing directory.
      num_images: images of the data in the overlay of experts; a text model has none.

    Raises:
      BadInputError: the source does not fit the model.
    """
    divergences = {
        model.place: norm_divergence(model.params)
        for model in (trained, *others)
        if len(own_norms(model.params)) > 1
    }
    if divergences:
        draw_divergence(divergences, out / "norm_divergence.png")
    facts: dict[str, Any] = {
        "workdir": trained.place,
        "step": trained.step,
        "norm_divergence": {name: numbers(found) for name, found in divergences.items()},
    }
    if dense_blocks(trained.model):
        active = measure_active(trained)
        draw_active({trained.place: active}, out / "active_units.png")
        facts["active_units"] = active.as_json()
    if MOE not in trained.model.ffn_names():
        return facts
    usage = expert_usage.measure_usage(trained)
    draw_usage(usage, out / "expert_usage.png", title=trained.place)
    draw_shares(usage, out / "expert_shares.png", title=trained.place)
    if usage.co_occurrence.any():  # a token chose more than one expert
        draw_co_occurrence(usage, out / "expert_co_occurrence.png", title=trained.place)
    if expert_usage.is_text(trained):
        draw_kinds(usage, out / "expert_kinds.png", title=trained.place)
    else:
        draw_overlay_of_source(trained, out / "expert_overlay.png", num_images)
    return facts | {"expert_usage": expert_usage.as_json(usage)}


def numbers(vectors: dict[str, Divergence]) -> dict[str, dict[str, list[float]]]:
    """Returns a divergence as JSON holds it."""
    return {
        vector: {"block": found.block.tolist(), "element": found.element.tolist()}
        for vector, found in vectors.items()
    }
