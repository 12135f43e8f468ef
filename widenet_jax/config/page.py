"""Writes docs/CONFIG.md: every field of every config, from the comments beside the fields.

python -m widenet_jax.config.page > docs/CONFIG.md
"""

from collections.abc import Iterable, Mapping

from ml_collections import ConfigDict

from widenet_jax.config.comments import EMPTY, Field, described
from widenet_jax.config.files import CONFIGS, configs_module, import_file
from widenet_jax.run.markdown import table_of

SIZES = configs_module("sizes")
TEXT_SIZES = configs_module("text_sizes")
LANGUAGE_SIZES = configs_module("language_sizes")
INTRODUCTION = """\
# The fields of a config

`--config.FIELD=VALUE` sets a field, in every command that takes a config:

    python -m widenet_jax.main --config=configs/digits.py --workdir=runs/digits \\
        --config.optimizer.learning_rate=1e-3 --config.duration="20 epochs"

A config file takes the values below, which are those of `configs/defaults.py`, and changes what its
experiment needs. `--print_config` prints the fields of one config, or of a run:

    python -m widenet_jax.main --config=configs/imagenet.py:widenet_l --print_config
    python -m widenet_jax.main --workdir=runs/digits --print_config

A duration is text, a number and a unit: `"300 epochs"`, `"500 steps"`, `"1e6 examples"`. A warm-up
may also be a share of the run, `"5%"`. An epoch may end inside a batch: a run ends after the
nearest step, and so does each interval of `evaluation.every` and `checkpoint.every`. Whole numbers
are at least 1 and others at least 0, unless the meaning names another value.

`python -m widenet_jax.config.page > docs/CONFIG.md` makes this page from the comments in
`configs/defaults.py` and `*sizes.py`, and a test compares them. To change the page, change a
comment and run the command.
"""
TASKS = {
    "classification": "Images",
    "masked_lm": "Pretraining on text",
    "text_classification": "Texts and pairs of texts",
    "span": "Questions",
    "language_modeling": "Language models",
}
MODELS = """\
The values are those of `widenet_b` for images, `widenet_4` for texts and `wt_s` for language
models. Where a cell is empty, such models do not have the field. `model.activation`,
`model.kernel_init` and a language model's `model.dropout` also set what the section of a
feed-forward has of them, unless the variant gives that another value, or a flag sets it. Those of a
pretrained model (`glue.py`, `squad.py`, `finetune.py:pretrained`) are set one by one.
"""
# The section of a feed-forward -> the title of its table.
FEED_FORWARDS = {
    "moe": "Mixture of experts",
    "top_k_mlp": "The largest hidden units",
    "product_key": "Product keys",
}


# Sections of the table of models.
MODEL_SECTIONS = ("model", "model.attention")


def page() -> str:
    """Returns the page."""
    defaults = import_file(str(CONFIGS / "defaults.py"))
    configs = {task: defaults.get_config({}, task) for task in TASKS}
    fields = {task: described(config) for task, config in configs.items()}
    common = [field for field in fields["span"] if all(field in of for of in fields.values())]
    parts = [INTRODUCTION, "## Every run\n", table(common)]
    for task, title in TASKS.items():
        parts += [f"## {title}\n", f"With `config.task.name={task}`:\n"]
        parts.append(table(field for field in fields[task] if field not in common))
    models = [vision(), text(), language()]
    parts += ["## Models\n", MODELS, table_of_models(models)]
    for section, title in FEED_FORWARDS.items():
        parts += [f"## {title}\n", f"With `config.model.ffn={section}`:\n"]
        parts.append(table(feed_forward_fields(section)))
    return "\n".join(parts)


def vision(options: str = "") -> ConfigDict:
    """Returns `config.model` of a vision model in a config."""
    return ConfigDict({"model": SIZES.vision_model(*SIZES.parse_variant(f"widenet_b{options}"))})


def text() -> ConfigDict:
    """Returns `config.model` of a text model in a config."""
    return ConfigDict({"model": TEXT_SIZES.text_model(*TEXT_SIZES.parse_text_variant("widenet_4"))})


def language(options: str = "") -> ConfigDict:
    """Returns `config.model` of a language model in a config."""
    parsed = LANGUAGE_SIZES.parse_language_variant(f"wt_s{options}")
    return ConfigDict({"model": LANGUAGE_SIZES.language_model(*parsed)})


def table_of_models(models: Iterable[ConfigDict]) -> str:
    """Returns the fields of models outside the sections of their feed-forwards."""
    found: list[Mapping[str, Field]] = [
        {field.name: field for field in described(model) if section_of(field) in MODEL_SECTIONS}
        for model in models
    ]
    fields = {name: field for of_model in reversed(found) for name, field in of_model.items()}
    values = [{name: field.text for name, field in of_model.items()} for of_model in found]
    columns = {
        f"{kind}": lambda field, of=of: code(of.get(field.name, ""))
        for kind, of in zip(("images", "texts", "language"), values, strict=True)
    }
    chosen = [field for name, field in sorted(fields.items()) if field.type != EMPTY]
    return table(chosen, columns)


def feed_forward_fields(section: str) -> list[Field]:
    """Returns the fields of a feed-forward's section, of whichever model and router has them."""
    (ffn,) = (ffn for ffn, name in SIZES.FFNS.items() if name == section)
    models = [vision(f",ffn={ffn}"), language(f",ffn={ffn}")]
    if section == "moe":
        models += [vision(f",router={router}") for router in SIZES.ROUTERS]
    found: dict[str, Field] = {}
    for model in models:
        for field in described(model):
            if field.name.startswith(f"model.{section}."):
                found.setdefault(field.name, field)
    return [field for _, field in sorted(found.items())]


def section_of(field: Field) -> str:
    """Returns the section of a field, such as "model.moe"."""
    return field.name.rpartition(".")[0]


def table(fields: Iterable[Field], values: Mapping | None = None) -> str:
    """Returns a Markdown table of fields; `values` replaces the column of their values."""
    columns = {"field": lambda field: code(field.name)}
    columns |= values or {"value": lambda field: code(field.text)}
    columns |= {"type": lambda field: field.type, "meaning": lambda field: field.comment}
    return table_of(columns, fields) + "\n"


def code(text: str) -> str:
    """Returns text in Markdown's marks for code; "" as it is."""
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    print(page(), end="")
