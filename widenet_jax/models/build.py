"""From `config.model` to a Linen module."""

import dataclasses
from collections.abc import Collection, Mapping

import flax.linen as nn

from widenet_jax.errors import BadInputError, check_fields, choose
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
    check_section(build, fields, section="config.model", decided=model_fields)
    for name, section in sections.items():
        place = "config.model" if name == PLAIN else f"config.model.{name}"
        check_section(FEED_FORWARDS[name], section, section=place, common=COMMON)
    module = build(feed_forwards=sections, **fields, **model_fields)
    module.check()
    return module


def check_section(
    module: type[nn.Module],
    given: Mapping,
    *,
    section: str,
    decided: Collection[str] = (),
    common: Collection[str] = (),
) -> None:
    """Checks that a section of the config has the fields of a module.

    Args:
      module: the class that takes the fields.
      given: the section.
      section: its name in the config, for the message.
      decided: fields of the module that no config sets.
      common: fields that it has from elsewhere where the section leaves them out.

    Raises:
      BadInputError: a field is unknown, or one without a default is missing.
    """
    others = {"parent", "name", "feed_forwards", *decided}
    own = {field.name: field for field in dataclasses.fields(module) if field.name not in others}
    check_fields(own, given, section=section)
    for name, field in own.items():
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING,) * 2
        if name not in {*given, *common} and not has_default:
            raise BadInputError(f"{section}.{name} is missing")
