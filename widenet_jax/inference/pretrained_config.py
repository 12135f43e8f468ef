"""Replaces `config.model.name="pretrained"` by the section `config.model` of a pretrained model.

Reads JSON alone, so that a mistake is answered at once; of public vision transformers also the
weights, whose shapes are their sizes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from widenet_jax.config.fields import override
from widenet_jax.config.files import from_json
from widenet_jax.config.imports import configs_module, import_remembered
from widenet_jax.errors import BadInputError, raise_first, refuse
from widenet_jax.files import absolute, find_model, may_replace, or_shipped, read_json
from widenet_jax.specs import MODELS, model_spec, resolve, task_spec, task_specs

defaults, sizes = map(configs_module, ("defaults", "sizes"))
PLAIN = sizes.FFNS["dense"]
PRETRAINED = "pretrained"
INIT_FROM = "--config.init_from="
WIDTH = "--config.model.mlp_dim="


def set_fields(config: ConfigDict, flags: Sequence[str], *, workdir: str = "") -> ConfigDict:
    """Sets fields as `config.fields.override` does, after a pretrained model has been looked up.

    Where config.model.name is "pretrained", config.model becomes the whole section of the model
    that config.init_from names. The fields beside the name override the pretrained ones (except the
    losses of a router that does not go with WideNet's, and the capacity of experts that choose
    tokens), and flags override both. The fields of `recipe_of` are no fields of the model: other
    sections may follow them.

    Args:
      config: as its file made it.
      flags: `--config.FIELD=VALUE`.
      workdir: of the run. One that has begun keeps its section, so that it resumes without the
        model it started from.

    Raises:
      BadInputError: as `override`; there is no pretrained model, or it has no such field; or a new
        run's flag sets a width that no block has.
    """
    takes_model = config.get("model", {}).get("name") == PRETRAINED
    sets_width = any(flag.startswith(WIDTH) for flag in flags)
    begun = False
    if workdir and (takes_model or sets_width):  # printing any other config needs no gs://
        begun = config_file(workdir).exists() and not may_replace(absolute(workdir))
    if takes_model:
        override(config, [flag for flag in flags if flag.startswith(INIT_FROM)])
        beside = {name: value for name, value in config.model.to_dict().items() if name != "name"}
        source = workdir if begun else config.init_from
        place = f"{'--workdir' if begun else 'config.init_from'}={source}"
        sections = pretrained_sections(source)
        pretrained, task = completed(sections["model"], begun=begun), config.task.name
        name, needed = pretrained.get("name"), task_spec(task).model
        if needed and name != needed and name in [spec.model for spec in task_specs()]:
            raise BadInputError(
                f"{place} holds a {name}, and config.task.name={task} needs a {needed}; start "
                "from such a model, or take a config of another task"
            )
        recipe = recipe_of(sections, begun=begun)
        for name in recipe.keys() & beside.keys():
            config.model[name] = recipe[name]
            del beside[name]
        import_remembered(sections, source)
        if moe := pretrained.get("moe"):
            remove_unfit(beside.get("moe", {}), moe["router"]["name"])
        with config.unlocked():
            config.model = merged(pretrained, beside, config.init_from)
            if "imports" in sections:
                config.imports = (*config.get("imports", ()), *sections["imports"])
    override(config, flags)
    ffn = config.get("model", {}).get("ffn", PLAIN)
    if sets_width and not begun and ffn != PLAIN and config.model.ffn_blocks == "all":
        own = "mlp_dim" in config.model[ffn]
        there = f"set config.model.{ffn}.mlp_dim" if own else "leave it out"
        raise BadInputError(
            f"config.model.mlp_dim is the width of dense feed-forwards, and ffn={ffn} is in all "
            f"blocks; {there}"
        )
    return config


def remove_unfit(moe: dict[str, Any], router: str) -> None:
    """Removes fields that do not go with a router from a recipe's `config.model.moe`."""
    if not sizes.has_balance_loss(router):
        moe.pop("losses", None)
    if sizes.capacity_of_choice(router, {}):
        moe.pop("capacity_factor", None)


def completed(model: Mapping[str, Any], *, begun: bool) -> dict[str, Any]:
    """Returns a `config.model` with the fields that one of before lacks, and what a new run leaves.

    Adapters of stored kernels are read as parts of these, and loops that have grown stay as many. A
    run that has `begun` keeps all.
    """
    usual = defaults.values(defaults.ADAPTER)
    adapter = usual | dict(model.get("adapter", {}))
    kept = begun or adapter["tie"] == "none"
    found = {"drop_path": 0.0, **model, "adapter": adapter if kept else usual}
    counts = model.get("loop", {}).get("counts", {})
    if counts.get("train") == "grow" and not begun:
        found["loop"] = {**model["loop"], "counts": {**counts, "train": "fixed"}}
    return found


def recipe_of(pretrained: Mapping[str, Any], *, begun: bool) -> dict[str, Any]:
    """Returns the size of images and the learning rate with which to finetune a pretrained model.

    Args:
      pretrained: its sections.
      begun: whether it is the run itself, which keeps its own, rather than the one to start from.
    """
    if "image_size" not in pretrained.get("data", {}):
        return {}
    rate = sizes.finetuning_rate(pretrained["model"]["embed_dim"])
    rate = pretrained["optimizer"]["learning_rate"] if begun else rate
    return {"image_size": pretrained["data"]["image_size"], "learning_rate": rate}


def pretrained_sections(place: str) -> Mapping[str, Any]:
    """Reads the config of a run or an export; of public weights "model" alone, or with "data".

    Raises:
      BadInputError: `place` is empty, holds no such model, or one of its files is damaged.
    """
    needs = (
        "needs the model to start from: add --config.init_from=DIR of a run, an export or public "
        "weights, or name a model in --config=FILE:VARIANT"
    )
    if not place:
        raise BadInputError(f"config.model.name=pretrained {needs}")
    file = config_file(find_model(place)[0])
    beside = absolute(place).suffix != ".npz"  # else Google's, whose config.json is none of its own
    content = read_json(file) if beside and file.exists() else {}
    content = content if isinstance(content, Mapping) else {}
    if isinstance(content.get("model"), Mapping):
        return from_json(content)
    for spec in map(model_spec, MODELS):
        section = spec.section and resolve(spec.section)(content, source=str(file))
        if section:
            return {"model": section}
    from widenet_jax.inference.pretrained import read_public, weight_files

    source, files = f"config.init_from={place}", weight_files(absolute(place))
    lacks = (
        "no model and no weights there; give the workdir of a training run, a directory that "
        f"scripts/export.py wrote, or public weights of a ViT, BERT or ALBERT{or_shipped(place)}"
    )
    refuse(source, (not files, lacks))
    params, fields, _ = read_public(files, source=source)
    config = resolve(model_spec(fields["name"]).usable)(place, params, fields)[0]
    return config.to_dict() | {"model": config.model.to_dict() | {"dtype": "bfloat16"}}


def config_file(place: str) -> epath.Path:
    """Returns the path of the config.json in a directory, or beside a file of weights."""
    path = absolute(place)
    return (path if path.is_dir() else path.parent) / "config.json"


def merged(pretrained: Mapping[str, Any], fields: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns the pretrained fields, overridden by `fields`.

    A section of `fields`, such as moe, has no effect where the pretrained model has none.

    Raises:
      BadInputError: the pretrained model has no field of a name in `fields`.
    """
    raise_first(
        f"config.model.{name} is no field of the model in config.init_from={place}"
        for name in fields
        if name not in pretrained
    )
    result = dict(pretrained)
    for name, value in fields.items():
        if isinstance(value, Mapping):
            result[name] = pretrained[name] and merged(pretrained[name], value, place)
        elif value is not None:
            result[name] = value
    return result
