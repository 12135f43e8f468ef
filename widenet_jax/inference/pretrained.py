"""Pretrained models: what `config.init_from` names, and what commands predict with.

A model is a run, an exported directory, or public weights: Google's, timm's and Hugging Face's ViT,
and Hugging Face's BERT and ALBERT.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

from widenet_jax.config.fields import override
from widenet_jax.config.imports import configs_module
from widenet_jax.corpus.tokenizer import Tokenizer, load_tokenizer
from widenet_jax.errors import BadInputError, NoAccessError, raise_first
from widenet_jax.files import absolute, matching
from widenet_jax.inference.exported import READERS, read_arrays
from widenet_jax.inference.trained import build_for, open_trained, read_model
from widenet_jax.param_names import ADAPTERS, part_of, without_idle_routers
from widenet_jax.run.workdir import flatten, plain
from widenet_jax.specs import MODELS, SAME_CLASSES, WHERE_IT_FITS, model_spec, parts, resolve
from widenet_jax.trained import Stored, Trained
from widenet_jax.typing import PyTree

variants = configs_module("variants")
# Fields of `config.model` that change what a backbone computes and no shape of its parameters: a
# run must have the pretrained ones. Others that do, such as a router, a run may choose anew.
CHECKED = ("attention.name", "attention.num_heads", "attention.rope", "norm_epsilon", "activation")
CHECKED += ("norm", "norm_position", "moe.activation")
# Fields that do not change what a trained model computes, by the last part of their names, and
# those that the shapes of parameters decide.
WITHOUT_EFFECT = {
    *("dtype", "unroll", "remat", "dispatch", "kernel_init", "table_init", "dropout"),
    *("ffn_dropout", "output_dropout", "expert_dropout", "noise_std", "capacity_factor"),
    *("pre_logits", "num_positions", "drop_path", "train"),  # the last of loop.counts
}
# Files in a directory of Hugging Face's; large models have several.
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
TOKENIZERS = ("tokenizer.json", "vocab.txt", "*.model")
OWN_MODEL = "finetune with the config.model it was trained with"


class Pretrained(NamedTuple):
    """A model to start from.

    Attributes:
      params: host arrays under our names.
      same_classes: whether it was trained on the classes of the new run, so that its head fits.
      differing: fields of `config.model` in which the new run computes another function with the
        parameters, each as "moe.num_selected_experts=2 (4 there)".
      note: of the reader of public weights; "" for nothing.
    """

    params: dict
    same_classes: bool
    differing: list[str]
    note: str = ""


def load_pretrained(
    place: str, sharding: jax.sharding.Sharding, *, model: Mapping, info: Mapping[str, Any]
) -> Pretrained:
    """Loads parameters for a run to start from.

    Args:
      place: the workdir of a run; a directory written by `scripts/export.py`; a `.npz` of Google's
        ViT; or a directory of timm's with a ViT, or of Hugging Face's with a ViT, BERT or ALBERT,
        and its `config.json`, or its file of weights.
      sharding: over all devices of all hosts, replicated. It serves to read a run's checkpoint;
        every host reads the other kinds for itself.
      model: `config.model` of the new run.
      info: of the new run's data; its classes and, of a text model, its tokenizer are
        compared.

    Raises:
      BadInputError: there are no such weights, a file is damaged, or `model` computes another
        function with them, or the tokenizer is another.
      RunFailedError: every checkpoint of the run is damaged.
    """
    source, note = f"config.init_from={place}", ""
    if files := weight_files(absolute(place)):
        params, fields, note = read_public(files, source=source)
        directory, known = files[0].parent, {}
        if any(matching(directory, pattern) for pattern in TOKENIZERS):
            known = {"tokenizer": load_tokenizer(str(directory)).json}
        found = Stored(params, {"model": fields}, known, step=0)
        if not known and "tokenizer" in info:
            missing = "no tokenizer beside the weights: the run's is taken for theirs"
            note = "; ".join(filter(None, (note, missing)))
    else:
        found = read_model(place, sharding, flag="--config.init_from")
    there, here = flat_fields(found.config["model"]), flat_fields(model)
    raise_first(other_functions(there, here, source))
    if found.tokenizer and "tokenizer" in info:
        raise_first(other_tokens(found.tokenizer, Tokenizer(info["tokenizer"]), source))
    same_classes = bool(found.class_names) and all(
        found.info.get(name) == info.get(name) for name in ("class_names", "pairs")
    )
    return Pretrained(found.params, same_classes, differing_fields(there, here), note)


def weight_files(path: epath.Path) -> list[epath.Path]:
    """Lists the files of flat arrays that `path` is or holds."""
    if path.suffix in READERS and not path.is_dir():
        return [path]
    return next(filter(None, (matching(path, pattern) for pattern in WEIGHTS)), [])


def read_public(files: list[epath.Path], *, source: str) -> tuple[dict, dict[str, Any], str]:
    """Reads public weights, by the first reader of a `specs.ModelSpec` that knows their layout.

    Args:
      files: of one model, as `weight_files` lists them.
      source: the flag that names them and its value, for messages.

    Returns:
      Our parameter tree; the fields of `config.model` that it requires; a note for the user.

    Raises:
      BadInputError: an unknown layout, or no `config.json` beside Hugging Face's weights.
    """
    arrays = {}
    for file in files:
        found = read_arrays(file)
        raise_first(
            f"{source}: {file.name} and another file hold {name}; keep the files of one copy"
            for name in arrays.keys() & found
        )
        arrays |= found
    raise_first(
        f"{source}: {name} holds NaN or infinity; download the weights again"
        for name, array in arrays.items()
        if array.dtype.kind == "f" and not np.isfinite(array).all()
    )
    directory = files[0].parent
    for spec in map(model_spec, MODELS):
        for reader in spec.readers:
            if found := resolve(reader)(arrays, directory, source):
                params, fields, note = found
                raise_first(
                    f"{source}: {path} is of the type {array.dtype}, and parameters are "
                    "floating-point numbers; download the weights again"
                    for path, array in flax.traverse_util.flatten_dict(params, sep="/").items()
                    if array.dtype.kind != "f"
                )
                return params, {"name": spec.name, **fields}, note
    unknown = (
        "neither a ViT of Google or timm nor a ViT, BERT or ALBERT of Hugging Face; for a model of "
        "ours give the workdir of its run, or the directory that scripts/export.py wrote"
    )
    theirs = any("layernorm" in name.lower() for name in arrays)
    if theirs and not (directory / "config.json").exists():
        unknown = (
            "config.json is missing beside the weights; download it too: it names their number of "
            "heads, LayerNorm epsilon and activation"
        )
    raise BadInputError(f"{source}: {unknown}")


def other_tokens(pretrained: Tokenizer, here: Tokenizer, place: str) -> Iterator[str]:
    """Yields a line for each id of the data that is another token in the model of `place`."""
    for index in range(here.vocab_size):
        there = pretrained.token(index) if index < pretrained.vocab_size else "missing"
        if there != here.token(index):
            yield (
                f"{place} was trained with another tokenizer: token {index} is "
                f"{there!r} there and {here.token(index)!r} here; tokenize the data with the "
                "model's tokenizer"
            )


def other_functions(
    there: Mapping[str, Any], here: Mapping[str, Any], source: str
) -> Iterator[str]:
    """Yields why a run cannot take the parameters: its model computes another function.

    Args:
      there, here: `flat_fields` of the pretrained model and of the run's.
      source: the field that names the pretrained model and its value.
    """
    if there["name"] != here["name"]:
        yield f"{source} holds a {there['name']}, and this run's model is {here['name']}"
    differ, width = differing_names(there, here), "embed_dim"
    if width in differ:
        name = variant_of(there)
        fix = f"it is {name}: name that after the colon of --config, as :{name}"
        fix = fix if name else OWN_MODEL
        yield f"{source} has {width}={there[width]}, this run's model {here[width]}; {fix}"
    odd = [name for name in CHECKED if name in differ]
    if there.get("adapter.rank"):  # of each step; those of stored kernels are in these
        odd += [name for name in differ if name.startswith("adapter.")]
    if odd:
        named = ", ".join(f"{name}={here[name]}" for name in odd)
        flags = " ".join(f"--config.model.{name}={there[name]}" for name in odd)
        yield f"{source} was trained with another function than this run's {named}; add {flags}"


def differing_names(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Returns the fields that differ, of those that both have: public weights come with few."""
    return [name for name in here if name in there and there[name] != here[name]]


def differing_fields(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Returns the `Pretrained.differing` fields of two `flat_fields`."""
    return [
        f"{name}={here[name]} ({there[name]} there)"
        for name in differing_names(there, here)
        if name.rpartition(".")[2] not in WITHOUT_EFFECT and not name.startswith("moe.losses.")
    ]


def variant_of(fields: Mapping[str, Any]) -> str:
    """Returns the name of the model that is most like some fields; "" if none has their size.

    Args:
      fields: as of `flat_fields`.
    """
    kinds = (variants.IMAGES, variants.TEXTS, variants.LANGUAGE)
    names = itertools.chain.from_iterable(kind.names for kind in kinds)
    known = {name: flat_fields(variants.model_section(name)) for name in names}
    size = ("name", "embed_dim", "loop.core")
    alike = [name for name, of in known.items() if all(of[k] == fields.get(k) for k in size)]
    differing = lambda name: sum(fields.get(k) != v for k, v in known[name].items())  # noqa: E731
    return min(alike, key=differing, default="")


def flat_fields(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a section `config.model` by their names, as JSON stores the values."""
    return {name: x for name, x in flatten(plain(ConfigDict(model))).items() if x is not None}


# --- Models that commands and `wj.load` open


def open_model(
    place: str, changes: Sequence[str] = (), *, checkpoint: str | None = None
) -> Trained:
    """Opens a run, an export or public weights: `open_trained` or `open_public`.

    Raises:
      BadInputError: as these do, or a bucket cannot be reached.
      RunFailedError: as `open_trained`.
    """
    try:
        if files := weight_files(absolute(place)):
            return open_public(place, files, changes, checkpoint)
        return open_trained(place, changes, checkpoint=checkpoint)
    except NoAccessError as error:
        raise BadInputError(f"{place} cannot be read: {error}") from error


def open_public(
    place: str, files: list[epath.Path], changes: Sequence[str], checkpoint: str | None
) -> Trained:
    """Opens public weights that predict as they are, such as a ViT or a BERT that fills masks.

    Parameters that the files lack and predictions do not read are zeros.

    Args:
      place: a directory with weights, and what their reader needs, or the file of a ViT.
      files: its weights.
      changes: as of `open_trained`.
      checkpoint: None; there is nothing to choose.

    Raises:
      BadInputError: a checkpoint is chosen, a file is missing or damaged, or no task can use the
        model as it is.
    """
    source, what = f"--workdir={place}", "holds public weights"
    if checkpoint:
        raise BadInputError(
            f"{source} {what}, and only a run has checkpoints to choose from; leave the choice of "
            f"{checkpoint} out"
        )
    public, fields, note = read_public(files, source=source)
    usable = resolve(model_spec(fields["name"]).usable)
    found = usable and usable(place, public, fields)
    if not found:
        raise BadInputError(
            f"{source} {what} without a head for masked words, the only one that can be used as "
            f"it is; finetune them on your data, from --config.init_from={place}, and give the "
            "--workdir of that run"
        )
    config, info = override(found[0], changes), found[1]
    task, model, shapes = build_for(config, info, public)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    if note:
        print(f"note: {place}: {note}", file=sys.stderr)
    params, _ = finetune_params(zeros, public, model=config.model, source=place, same_classes=True)
    return Trained(params, config, info, step=0, place=place, task=task, model=model)


def finetune_params(
    fresh: PyTree,
    pretrained: PyTree,
    *,
    model: Mapping,
    source: str,
    same_classes: bool = False,
    differing: Sequence[str] = (),
    frozen: Callable[[str], bool] = lambda path: False,
    tokens: Callable[[], int] | None = None,
) -> tuple[PyTree, str]:
    """Returns `fresh` with the backbone of `pretrained`, and a line that says what was taken.

    Args:
      fresh: newly initialised parameters of the model to finetune (host arrays).
      pretrained: parameters that `config.init_from` names (host arrays).
      model: `config.model`.
      source: value of `config.init_from`, named in errors.
      same_classes: whether both models have the same classes.
      differing: fields that let this model compute another function, for the line.
      frozen: whether a parameter, by its path, is never trained.
      tokens: returns T of the model to finetune, for advice.

    Raises:
      BadInputError: the backbones differ, or a frozen parameter would be random.
    """
    pretrained = without_idle_routers(pretrained, fresh)
    new, old = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (fresh, pretrained))
    how = {"source": source, "same_classes": same_classes, "tokens": tokens}
    taken, kept = taken_from(old, new, model, **how)
    missing = sorted(new.keys() - taken.keys())
    raise_first(
        f"config.optimizer.freeze would keep {part_of(path)} random, because config.init_from="
        f"{source} has none that fits; train it, too, with --config.optimizer.freeze=none, or "
        "start from a model that has it"
        for path in missing
        if frozen(path)
    )
    notes = {
        f"taken from {source}": part_names(taken),
        "new": part_names(missing) or "nothing",
        "not used": part_names(
            sorted(k for k in old if part_of(k) not in set(map(part_of, taken)))
        ),
        "fitted": ", ".join(
            f"{k} {shape_text(old[k])} -> {shape_text(value)}"
            for k, value in taken.items()
            if value.shape != old[k].shape
        ),
        "the classes are the same": "the head is kept" if kept else "",
        "differs from the pretrained model in": ", ".join(differing),
    }
    line = "; ".join(f"{what}: {names}" for what, names in notes.items() if names)
    return flax.traverse_util.unflatten_dict(new | taken, sep="/"), line


def taken_from(
    old: Mapping,
    new: Mapping,
    model: Mapping,
    *,
    source: str,
    same_classes: bool,
    tokens: Callable[[], int] | None,
) -> tuple[dict[str, np.ndarray], bool]:
    """Returns the parameters to take, fitted to the shapes of `new`; and whether the head is one.

    Args:
      old, new: parameters by path.
      model, source, same_classes, tokens: as of `finetune_params`.

    Raises:
      BadInputError: the backbones differ.
    """
    rules = {name: found.taken for name, found in parts().items()}
    if not any(part_of(k) == ADAPTERS for k in old):
        rules[ADAPTERS] = WHERE_IT_FITS
    fit = resolve(model_spec(model["name"]).fit) or (lambda path, value, shape, model: value)
    raise_first(
        f"config.init_from={source} holds another model: {k} is in only one of the two; {OWN_MODEL}"
        for k in sorted(old.keys() ^ new.keys())
        if part_of(k) not in rules
    )
    both = sorted(new.keys() & old.keys())
    whole = {k for k in both if rules.get(part_of(k), WHERE_IT_FITS) != WHERE_IT_FITS}
    fitted = {k: old[k] if k in whole else fit(k, old[k], new[k].shape, model) for k in both}
    fits = {k: k in fitted and fitted[k].shape == new[k].shape for k in old | new}
    raise_first(
        f"config.init_from={source} holds another model: {k} is {list(x.shape)} there and "
        f"{list(new[k].shape)} here; {own_slots(k, x.shape, new[k].shape, tokens) or OWN_MODEL}"
        for k, x in fitted.items()
        if part_of(k) not in rules and not fits[k]
    )
    names = [k for k in fitted if part_of(k) not in rules]
    head = [k for k in fits if rules.get(part_of(k)) == SAME_CLASSES]
    kept = same_classes and head and all(fits[k] for k in head)
    names += head if kept else []
    for scope in [name for name, rule in rules.items() if rule == WHERE_IT_FITS]:
        inside = [k for k in new if part_of(k) == scope]
        names += inside if all(fits[k] for k in inside) else []
    return {k: fitted[k] for k in names}, bool(kept)


def own_slots(path: str, there: tuple, here: tuple, tokens: Callable[[], int] | None) -> str:
    """Returns which capacity gives soft experts, of other lengths, their slots; "" of others."""
    if not (tokens and path.endswith("soft_moe/mu") and there[:2] == here[:2]):
        return ""
    factor = there[1] * there[2] / tokens()
    return f"for as many slots add --config.model.soft_moe.capacity_factor={factor:g}"


def part_names(paths: Iterable[str]) -> str:
    """Lists the parts that hold parameters, each once."""
    return ", ".join(dict.fromkeys(map(part_of, paths)))


def shape_text(array: np.ndarray) -> str:
    """Returns an array's shape as in "16x2"."""
    return "x".join(map(str, array.shape))
