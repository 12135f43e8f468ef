"""Everything that `scripts/analyze.py` says of a trained model."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from widenet_jax.data.pipeline import read_image
from widenet_jax.tools.analysis import expert_usage
from widenet_jax.tools.analysis.norm_divergence import Divergence, norm_divergence, own_norms
from widenet_jax.tools.analysis.over_source import open_source
from widenet_jax.tools.analysis.routing import image_router
from widenet_jax.tools.analysis.routing_figures import draw_divergence, draw_overlay, draw_usage
from widenet_jax.weights.trained import Trained


def analyze_model(
    trained: Trained, others: Sequence[Trained], out: epath.Path, *, num_images: int
) -> dict[str, Any]:
    """Draws the pictures into the directory `out`; returns the numbers.

    Args:
      trained: the model.
      others: models whose norms are compared with its.
      out: an existing directory.
      num_images: of the data, in the overlay.

    A model whose blocks share their norms has no divergence, one without experts no usage.

    Raises:
      BadInputError: a source that does not fit.
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
    if trained.model.moe is None:
        return facts
    usage = expert_usage.measure_usage(trained)
    draw_usage(usage, out / "expert_usage.png", title=trained.place)
    overlay_of_source(trained, out / "expert_overlay.png", num_images)
    return facts | {"expert_usage": expert_usage.as_json(usage)}


def numbers(vectors: dict[str, Divergence]) -> dict[str, dict[str, list[float]]]:
    return {
        vector: {"block": found.block.tolist(), "element": found.element.tolist()}
        for vector, found in vectors.items()
    }


def overlay_of_source(trained: Trained, out: epath.Path, num_images: int) -> None:
    """Experts over images drawn from the source, the same ones for every model."""
    source, transform = open_source(trained)
    chosen = np.random.default_rng(0).permutation(len(source))[:num_images]
    examples = [read_image(source, int(record)) for record in chosen]
    pictures = [transform(image) for image, _ in examples]
    route = image_router(trained)
    draw_overlay(
        trained,
        pictures,
        [route(picture) for picture in pictures],
        out,
        titles=[trained.class_names[label] for _, label in examples],
    )
