"""Writes docs/reference/config.md: every field of every config, from the rows of configs/.

PYTHONPATH=. python tests/config_page.py > docs/reference/config.md
"""

from collections.abc import Mapping

from widenet_jax.config.fields import field_of, named
from widenet_jax.config.imports import configs_module
from widenet_jax.specs import task_spec

INTRODUCTION = """\
# The fields of a config

`--config.FIELD=VALUE` sets a field in every command that takes a config. These are the defaults; a
config file changes some. `--print_config` shows the fields of one config, or of a run:

    python -m widenet_jax.main --config=configs/imagenet.py:widenet_l --print_config
    python -m widenet_jax.main --workdir=runs/digits --print_config

A duration is a number and a unit: `"300 epochs"`, `"500 steps"`, `"1e6 examples"`; it is rounded to
whole steps. Whole numbers are at least 1 and others at least 0, unless the meaning names another
value.
"""
TASKS = {
    "classification": "Images",
    "masked_lm": "Pretraining on text",
    "text_classification": "Texts and pairs of texts",
    "span": "Questions",
    "language_modeling": "Language models",
}
NOTES = {
    "text_classification": "Also `text_regression`, without `label_names`, and with "
    "`data.source=scores`.\n"
}
MODELS = """\
`configs/sizes.py` has the values of each model; the defaults below fill the rest.
`model.activation`, `model.kernel_init` and, in language models, `model.dropout` also set the same
field of the feed-forward's section (`model.moe`, ...), unless the variant or a flag sets it,
or the model is pretrained (`glue.py`, `squad.py`, `finetune.py:pretrained`).
"""
PARTS = ("loop", "loop.tie", "loop.counts", "loop.exit", "adapter", "attention")  # of every model
KINDS = {"images": "IMAGE_MODEL", "texts": "TEXT_MODEL", "language": "LANGUAGE_MODEL"}
EXPERTS = ("model.moe", "model.moe.router", "model.moe.losses")
OTHERS = ("model.soft_moe", "model.top_k_mlp", "model.product_key")


def page() -> str:
    """Returns the page."""
    defaults = configs_module("defaults")
    parts = [INTRODUCTION, "## Every run\n", table(defaults.RUN)]
    for task, title in TASKS.items():
        parts += [f"## {title}\n", f"With `config.task.name={task}`:\n"]
        parts += [NOTES[task]] if task in NOTES else []
        parts.append(table(task_spec(task).sections))
    sections = {name: defaults.MODELS[name] for name in (f"model.{part}" for part in PARTS)}
    parts += ["## Models\n", MODELS, table({"model": set_fields(defaults.MODEL)} | sections)]
    for kind, rows in KINDS.items():
        parts += [f"### Models of {kind}\n", table({"model": set_fields(getattr(defaults, rows))})]
    for title, names in {"Mixture of experts": EXPERTS, "Other feed-forwards": OTHERS}.items():
        parts += [f"## {title}\n", "The section that `config.model.ffn` names:\n"]
        parts.append(table({name: defaults.MODELS[name] for name in names}))
    return "\n".join(parts)


def set_fields(rows: Mapping[str, tuple]) -> dict[str, tuple]:
    """Returns the rows without empty sections."""
    return {name: row for name, row in rows.items() if row[0] is not None}


def table(sections: Mapping[str, Mapping[str, tuple]]) -> str:
    """Returns a Markdown table of the fields of some sections."""
    fields = [field_of(name, row) for name, row in sorted(named(sections).items())]
    rows = [f"`{field.name}` | `{field.text}` | {field.comment}" for field in fields]
    return "\n".join(["field | default | meaning", "---|---|---", *rows, ""])


if __name__ == "__main__":
    print(page(), end="")
