"""From `config.model` to a Linen module."""

from collections.abc import Mapping

import flax.linen as nn

from widenet_jax.errors import check_section, choose
from widenet_jax.models.feed_forwards import COMMON, FEED_FORWARDS, PLAIN
from widenet_jax.models.language_model import LanguageModel
from widenet_jax.models.text_encoder import TextEncoder
from widenet_jax.models.vit import VisionTransformer

MODELS: dict[str, type[nn.Module]] = {
    "vision_transformer": VisionTransformer,
    "text_encoder": TextEncoder,
    "language_model": LanguageModel,
}


def build_model(model: Mapping, **model_fields: int | str) -> nn.Module:
    """Builds the module of `config.model`.

    Args:
      model: `name`, a key of `MODELS`; the fields of that module; a section of fields for each
        feed-forward, by its name in `FEED_FORWARDS`, or None; and `mlp_dim`, which is the plain
        feed-forward's.
      **model_fields: the fields that the task decides, such as num_classes=10.

    Raises:
      BadInputError: a name or a value that does not exist, or a field that is unknown or missing.
    """
    fields = {k: dict(v) if isinstance(v, Mapping) else v for k, v in model.items()}
    build = choose(MODELS, fields.pop("name", ""), field="config.model.name")
    sections = {name: fields.pop(name) for name in FEED_FORWARDS if name in fields}
    sections[PLAIN] = {"mlp_dim": fields.pop("mlp_dim")} if "mlp_dim" in fields else {}
    sections = {name: section for name, section in sections.items() if section is not None}
    decided = {"feed_forwards", *model_fields}
    check_section(build, fields, section="config.model", decided=decided)
    for name, section in sections.items():
        place = "config.model" if name == PLAIN else f"config.model.{name}"
        check_section(FEED_FORWARDS[name], section, section=place, common=COMMON)
    module = build(feed_forwards=sections, **fields, **model_fields)
    module.check()
    return module
