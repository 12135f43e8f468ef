"""The analysis of a trained model: figures and numbers of `scripts/analyze.py`."""

from collections.abc import Sequence
from typing import Any

from etils import epath

from widenet_jax.ops.analysis import figures, loops, usage
from widenet_jax.ops.analysis.captured import MOE, dense_blocks
from widenet_jax.ops.analysis.image_overlay import draw_overlay_of_source
from widenet_jax.ops.analysis.norm_divergence import norm_divergence, own_norms
from widenet_jax.run.stopping import say
from widenet_jax.trained import Trained


def analyze_model(
    trained: Trained, others: Sequence[Trained], out: epath.Path, *, num_images: int
) -> dict[str, Any]:
    """Draws the figures into the directory `out`; returns the numbers. Names each part on stderr.

    A model whose blocks share their norms has no divergence; a model without experts has no usage,
    one without dense layers of ReLUs has no active units, and one whose core does not loop has no
    loops.

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
        figures.draw_divergence(divergences, out / "norm_divergence.png")
    numbers = {
        name: {k: {"block": y.block.tolist(), "element": y.element.tolist()} for k, y in of.items()}
        for name, of in divergences.items()
    }
    result = {"workdir": trained.place, "step": trained.step, "norm_divergence": numbers}
    if dense_blocks(trained.model):
        say("active units: passes over the evaluation split: 1")
        active = usage.measure_active(trained)
        figures.draw_active({trained.place: active}, out / "active_units.png")
        result["active_units"] = active.as_json()
    of_experts = None
    if MOE in trained.model.ffn_names():
        say("experts: passes over the evaluation split: 1")
        of_experts = usage.measure_usage(trained)
        draw_experts(trained, of_experts, out, num_images=num_images)
        result["expert_usage"] = of_experts.as_json()
    if loops.visits_of(trained.model.loop):
        result["loops"] = loops.measure_loops(trained, of_experts)
        loops.draw_loops(result["loops"], out / "loops.png", title=trained.place)
    return result


def draw_experts(
    trained: Trained, of_experts: usage.ExpertUsage, out: epath.Path, *, num_images: int
) -> None:
    """Draws the figures of the experts into the directory `out`."""
    pictures = {"usage": figures.draw_usage, "shares": figures.draw_shares}
    if of_experts.co_occurrence.any():  # a token chose more than one expert
        pictures["co_occurrence"] = figures.draw_co_occurrence
    if usage.is_text(trained):
        pictures["kinds"] = figures.draw_kinds
    else:
        say(f"experts of single patches: images: {num_images}")
        draw_overlay_of_source(trained, out / "expert_overlay.png", num_images)
    for name, draw in pictures.items():
        draw(of_experts, out / f"expert_{name}.png", title=trained.place)
