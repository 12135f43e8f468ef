"""Writes docs/reference/config.md: every field of every config, from the rows of configs/.

PYTHONPATH=. python tests/config_page.py > docs/reference/config.md
"""

from collections.abc import Mapping

from widenet_jax.config.fields import field_of, named
from widenet_jax.config.imports import configs_module
from widenet_jax.run.tables import table_of
from widenet_jax.specs import task_spec

INTRODUCTION = """\
# The fields of a config

`--config.FIELD=VALUE` sets a field, in every command that takes a config. A config file takes the
defaults below and changes what its experiment needs. `--print_config` prints the fields of one
config, or of a run:

    python -m widenet_jax.main --config=configs/imagenet.py:widenet_l --print_config
    python -m widenet_jax.main --workdir=runs/digits --print_config

A duration is text, a number and a unit: `"300 epochs"`, `"500 steps"`, `"1e6 examples"`. A warm-up
may also be a share of the run, `"5%"`. An epoch may end inside a batch: a run ends after the
nearest step, and so does each interval of `evaluation.every` and `checkpoint.every`. Whole numbers
are at least 1 and others at least 0, unless the meaning names another value.

To change this page, change a row of `configs/defaults.py` or of a task's `spec.py`, and run
`PYTHONPATH=. python tests/config_page.py > docs/reference/config.md`.
"""
TASKS = {
    "classification": "Images",
    "masked_lm": "Pretraining on text",
    "text_classification": "Texts and pairs of texts",
    "span": "Questions",
    "language_modeling": "Language models",
}
MODELS = """\
`configs/sizes.py` has the values of each model; a default below holds where it names none.
`model.activation`, `model.kernel_init` and a language model's `model.dropout` also set the fields
of that name in the section of a feed-forward, unless the variant or a flag gives them another
value; in a pretrained model (`glue.py`, `squad.py`, `finetune.py:pretrained`) they do not.
"""


def page() -> str:
    """Returns the page."""
    defaults = configs_module("defaults")
    parts = [INTRODUCTION, "## Every run\n", table(defaults.RUN)]
    for task, title in TASKS.items():
        parts += [f"## {title}\n", f"With `config.task.name={task}`:\n"]
        parts.append(table(task_spec(task).sections))
    parts_of = (
        "model.loop",
        "model.loop.tie",
        "model.loop.counts",
        "model.loop.exit",
        "model.attention",
    )
    every = {"model": set_fields(defaults.MODEL)} | {k: defaults.MODELS[k] for k in parts_of}
    parts += ["## Models\n", MODELS, table(every)]
    kinds = {
        "images": defaults.IMAGE_MODEL,
        "texts": defaults.TEXT_MODEL,
        "language": defaults.LANGUAGE_MODEL,
    }
    for title, rows in kinds.items():
        parts += [f"## Models of {title}\n", table({"model": set_fields(rows)})]
    for section, title in FEED_FORWARDS.items():
        here = f"model.{section}."
        of_section = {k: v for k, v in defaults.MODELS.items() if f"{k}.".startswith(here)}
        parts += [f"## {title}\n", f"With `config.model.ffn={section}`:\n", table(of_section)]
    return "\n".join(parts)


def set_fields(rows: Mapping[str, tuple]) -> dict[str, tuple]:
    """Returns the rows without empty sections."""
    return {name: row for name, row in rows.items() if row[0] is not None}


# The section of a feed-forward -> the title of its table.
FEED_FORWARDS = {
    "moe": "Mixture of experts",
    "soft_moe": "Soft mixture of experts",
    "top_k_mlp": "The largest hidden units",
    "product_key": "Product keys",
}


def table(sections: Mapping[str, Mapping[str, tuple]]) -> str:
    """Returns a Markdown table of the fields of some sections."""
    columns = {
        "field": lambda field: f"`{field.name}`",
        "default": lambda field: f"`{field.text}`",
        "meaning": lambda field: field.comment,
    }
    fields = [field_of(name, row) for name, row in sorted(named(sections).items())]
    return table_of(columns, fields) + "\n"


if __name__ == "__main__":
    print(page(), end="")
