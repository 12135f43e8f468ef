"""Tasks and models by name: all that the rest of the project asks about them, as plain data.

Each slice lists its own in its `spec.py`. A value that needs more than data is a dotted name
"package.module:attribute", imported when it is used, or the object itself. So a mistyped config is
answered without JAX, and a run imports its own slice alone. A file outside the package adds its
task or model by `register`; it stands first, so that it may replace one of ours.
"""

import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from widenet_jax.errors import BadInputError, choose

Named = str | Callable[..., Any]  # a dotted name, or the object


@dataclass(frozen=True)
class SourceSpec:
    """A source of examples, by `config.data.source`.

    Attributes:
      open: (config.data, split, info) -> `data.contract.Source`. `info` describes the data of the
        trained model that will read the split (its classes, its tokenizer); empty in training.
      reads: what an embedded set is; "" for a source that reads `config.data.path`.
      instead: the source that reads a user's files, for messages of an embedded set.
      reads_slices: takes a split such as "train[:90%]+dev" as it is.
      holds_out: divides a set by `config.data.eval_fraction`.
    """

    open: Named
    reads: str = ""
    instead: str = ""
    reads_slices: bool = False
    holds_out: bool = False


class Part(NamedTuple):
    """How parameters start from a pretrained model, by the first part of their path.

    Parts that no spec names are the backbone: they are taken, and both models must have them.

    Attributes:
      taken: NEVER, SAME_CLASSES or WHERE_IT_FITS: if both models have it in the same shapes.
      head: whether it learns with `config.optimizer.freeze=backbone`.
      above: whether it comes after the blocks, for `config.optimizer.layer_decay`.
    """

    taken: str
    head: bool = True
    above: bool = True


NEVER, SAME_CLASSES, WHERE_IT_FITS = "never", "same classes", "where it fits"


@dataclass(frozen=True)
class HeadSpec:
    """A head of the text encoder.

    Attributes:
      apply: see `text.heads`.
      flops: (model, input_spec) -> FLOPs of one example; None: `plan` refuses the head.
      parts: its parameters.
    """

    apply: Named
    flops: Named | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSpec:
    """A model, by `config.model.name`.

    Attributes:
      name: a value of `config.model.name`.
      module: its class.
      settings: the class of its settings, without JAX; "": its class has fields of its own.
      usual: the fields that a task decides, as `widenet_jax.build_model` sets them.
      parts: its parameters outside the backbone.
      fit: (path, pretrained array, shape here, config.model) -> the array to start from.
      families: what a model card calls it: plain, with a shared MLP, with experts, with both.
      detail: what a model card says of it; fields of `config.model` in braces.
      readers: of public weights: (arrays, directory, source) -> (params, fields of `config.model`,
        a note), or None for arrays of another model.
      section: (content of a public config.json, its path) -> `config.model`, or None.
      usable: (place, params, fields) -> the config and `info` with which public weights predict.
      layout: (exported model, place) -> its files in Hugging Face's layout.
    """

    name: str
    module: Named
    settings: Named = ""
    usual: Mapping[str, int | str] = field(default_factory=dict)
    parts: Mapping[str, Part] = field(default_factory=dict)
    fit: Named | None = None
    families: tuple[str, str, str, str] = ("Model",) * 4
    detail: str = ""
    readers: tuple[Named, ...] = ()
    section: Named | None = None
    usable: Named | None = None
    layout: Named | None = None


@dataclass(frozen=True)
class CardSpec:
    """What a model card says of a task.

    Attributes:
      purpose: as in "trained for PURPOSE".
      pipeline: huggingface.co's name of the task; "": none.
      commands: lines that use the model in `DIR`.
      inputs: what the model reads; fields of `config.data` in braces.
      arrays: what the arrays of a batch hold, for an exported classifier; fields of the config in
        braces, as {data[image_size]}.
    """

    purpose: str
    pipeline: str = ""
    commands: tuple[str, ...] = ()
    inputs: str = ""
    arrays: str = ""


class Flag(NamedTuple):
    """An option of `scripts/predict.py`.

    Attributes:
      help: what it is for.
      metavar: what stands for its value.
      kind: a key of `cli.predict.KINDS`.
    """

    help: str
    metavar: str = "TEXT"
    kind: str = "text"


@dataclass(frozen=True)
class PredictSpec:
    """How `scripts/predict.py` predicts.

    Attributes:
      form: the flags in a message, such as "--text=TEXT".
      flags: by name; the first flag is the one that must be given. Tasks may share flags. A name
        without dashes in front stands for positional words.
      instead: other flags; one of them may be given in place of the first.
      run: (options, trained) -> `trained.Predictions`.
    """

    form: str
    flags: Mapping[str, Flag]
    run: Named
    instead: tuple[str, ...] = ()

    @property
    def main_flags(self) -> tuple[str, ...]:
        return next(iter(self.flags)), *self.instead


@dataclass(frozen=True)
class TaskSpec:
    """A task, by `config.task.name`.

    Attributes:
      name: a value of `config.task.name`.
      task: its class, a `task.Task`.
      model: the `config.model.name` that a model to start from must have; "": any.
      sections: its sections of a config, such as `task` and `data`, and their fields by name. A
        field is (default, meaning[, least[, most]]), as in configs/defaults.py.
      transforms: (config, info) -> the transforms of training and of evaluation.
      example: (config, params or None) -> the arrays of one example, without any data.
      sources: by `config.data.source`.
      info: the keys that the `info` of each source has.
      sizes: the numbers that describe a set, the number of examples or tokens first.
      sets: the `sizes` of known sets, by name, to plan without data.
      usual: defaults of `sizes` where neither the set nor a flag has them.
      stream: whether the source is a `Stream`.
      last_layer: of a classifier, the layer that turns features into logits; "" of other tasks. A
        classifier is measured by its accuracy, by class, and its confusions.
      heads: of the text encoder, by name.
      predict: None: no command predicts with it.
      methods: what a model offers in Python (`inference.api`), by the name of the method.
      card: its part of the model card.
      splits_of: (training object, evaluation object, config, config.data with its tokenizer) ->
        both `Source`s of the objects given to `widenet_jax.train`; None: it gives sources.
      open_file: (path, config.data.max_length, info) -> source and transform of `--file`.
      answers: (task, rows, source) -> {file name: JSON} that an evaluation writes.
      preview: (config, options) -> None, shows training examples.
    """

    name: str
    task: Named
    transforms: Named
    example: Named
    model: str = ""
    sections: Mapping[str, Mapping[str, tuple]] = field(default_factory=dict)
    sources: Mapping[str, SourceSpec] = field(default_factory=dict)
    info: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ("num_examples",)
    sets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    usual: Mapping[str, int] = field(default_factory=dict)
    stream: bool = False
    last_layer: str = ""
    heads: Mapping[str, HeadSpec] = field(default_factory=dict)
    predict: PredictSpec | None = None
    methods: Mapping[str, Named] = field(default_factory=dict)
    card: CardSpec = field(default_factory=lambda: CardSpec("its task"))
    splits_of: Named | None = None
    open_file: Named | None = None
    answers: Named | None = None
    preview: Named | None = None


PYTHON = "python"  # `config.data.source` where Python code hands over the examples
# The specs by name, or where they are.
TASKS: dict[str, str | TaskSpec] = {
    "classification": "widenet_jax.vision.spec:CLASSIFICATION",
    "masked_lm": "widenet_jax.text.spec:MASKED_LM",
    "text_classification": "widenet_jax.text.spec:TEXT_CLASSIFICATION",
    "text_regression": "widenet_jax.text.spec:TEXT_REGRESSION",
    "span": "widenet_jax.text.spec:SPAN",
    "language_modeling": "widenet_jax.language.spec:LANGUAGE_MODELING",
}
MODELS: dict[str, str | ModelSpec] = {
    "vision_transformer": "widenet_jax.vision.spec:VISION_TRANSFORMER",
    "text_encoder": "widenet_jax.text.spec:TEXT_ENCODER",
    "language_model": "widenet_jax.language.spec:LANGUAGE_MODEL",
}


def register(spec: TaskSpec | ModelSpec) -> None:
    """Adds a task or a model, in place of one of the same name."""
    table = TASKS if isinstance(spec, TaskSpec) else MODELS
    others = {name: one for name, one in table.items() if name != spec.name}
    table.clear()
    table.update({spec.name: spec} | others)


def resolve(name: Any) -> Any:
    """Imports what a dotted name "package.module:attribute" says; returns all else as it is."""
    if not isinstance(name, str):
        return name
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def added(module: str, table: str, known: Collection[str] = ()) -> dict[str, Any]:
    """Returns what files have added to a table of parts.

    Args:
      module: has the table. It is not imported, as it takes JAX: a file that adds to it did so.
      table: its name there.
      known: the names of this project's parts.
    """
    parts = getattr(sys.modules.get(module), table, {})
    return {name: part for name, part in parts.items() if name not in known}


def own_fields(part: Any, *, place: str, decided: Collection[str]) -> dict[str, Any]:
    """Returns the fields of an added part that a config can hold, with their defaults.

    Args:
      part: a class of a Linen module, or its dotted name.
      place: begins messages.
      decided: fields that no config sets.

    Raises:
      BadInputError: a field has no default.
    """
    part, found = resolve(part), {}
    others = {"parent", "name", *decided}
    for one in (f for f in fields(part) if f.name not in others) if is_dataclass(part) else ():
        if one.default is MISSING and one.default_factory is MISSING:
            raise BadInputError(f"{place}: give the field {one.name} of its class a default")
        if isinstance(one.default, bool | int | float | str | tuple):
            found[one.name] = one.default
    return found


def task_spec(name: str) -> TaskSpec:
    """Returns the spec of the task `config.task.name`; BadInputError if there is none."""
    return resolve(choose(TASKS, name, field="config.task.name"))


def model_spec(name: str) -> ModelSpec:
    """Returns the spec of the model `config.model.name`; BadInputError if there is none."""
    return resolve(choose(MODELS, name, field="config.model.name"))


def task_specs() -> Iterator[TaskSpec]:
    """Yields the specs of all tasks, each imported when it is asked for."""
    return map(resolve, TASKS.values())


def source_spec(name: str) -> SourceSpec:
    """Returns the source `config.data.source`; raises BadInputError if no task has it."""
    known: dict[str, SourceSpec] = {}
    for spec in task_specs():
        known |= spec.sources
        if name in spec.sources:
            break
    return choose(known, name, field="config.data.source")


def head_spec(name: str) -> HeadSpec:
    """Returns a head of the text encoder; raises BadInputError if no task has it."""
    known = {head: spec.heads[head] for spec in task_specs() for head in spec.heads}
    return choose(known, name, field="head", flag="")


def parts() -> dict[str, Part]:
    """Returns how the parameters of all models and heads start, by the first part of their path."""
    heads = [head for spec in task_specs() for head in spec.heads.values()]
    found: dict[str, Part] = {}
    for spec in [*heads, *map(resolve, MODELS.values())]:
        found = {**spec.parts, **found}
    return found
