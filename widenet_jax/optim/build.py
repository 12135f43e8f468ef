"""The optimizer section of a config -> an optax transformation and its learning rate."""

import difflib
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import optax

from widenet_jax.config.durations import to_steps
from widenet_jax.errors import BadInputError, choose
from widenet_jax.optim.lamb import decay_mask, lamb
from widenet_jax.optim.schedules import DECAYS, build_schedule
from widenet_jax.param_names import (
    PathPredicate,
    is_norm_or_bias,
    map_with_path,
    matches,
    path_names,
    trust_ratio_unit_axes,
)
from widenet_jax.typing import PyTree

WHERE = "config.optimizer"


def build_optimizer(
    optimizer: Mapping[str, Any],
    *,
    params_or_shapes: PyTree,
    total_steps: int,
    batch_size: int,
    num_examples: int,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Gradients are clipped by their global norm, then go to LAMB, SGD or AdamW.

    Fields of `optimizer`:
      name: lamb, sgd or adamw.
      schedule, learning_rate, end_learning_rate: see `schedules` (`constant` needs no end).
      warmup: a duration, see `durations`; "0 steps" is none.
      b1, b2, eps: lamb and adamw. momentum: sgd.
      weight_decay: inside LAMB's trust ratio; AdamW's is decoupled; SGD's is an L2 loss term (it
        enters before the momentum). All three are scaled by the learning rate.
      grad_clip_norm: 0 is off.
      exclude_norm_and_bias: they do not decay and, under LAMB, their trust ratio is 1.
      decay_exclude: regex of whole paths that do not decay either; '' is none.
      accumulation_steps: the step reads it, nothing here does.
    A field that the chosen optimizer has no use for may be absent or present.

    Args:
      optimizer: the section.
      params_or_shapes: the parameters or their shapes, to check paths against.
      total_steps: length of the run in updates.
      batch_size: examples an update, for the warm-up.
      num_examples: examples an epoch, for the warm-up.

    Returns:
      The transformation, and the learning rate as a function of the number of updates.

    Raises:
      BadInputError: a field is missing, unknown or out of range, or `decay_exclude` matches no
        parameter.
    """
    make = choose(OPTIMIZERS, _get(optimizer, "name"), field=f"{WHERE}.name")
    _refuse_unknown_fields(optimizer)
    warmup_steps = to_steps(
        _get(optimizer, "warmup"),
        field=f"{WHERE}.warmup",
        batch_size=batch_size,
        num_examples=num_examples,
        total_steps=total_steps,
        may_be_zero=True,
    )
    schedule = _schedule(optimizer, warmup_steps=warmup_steps, total_steps=total_steps)
    no_decay, no_ratio = _exclusions(optimizer, params_or_shapes)
    clip_norm = _number(optimizer, "grad_clip_norm")
    tx = optax.chain(
        optax.clip_by_global_norm(clip_norm) if clip_norm else optax.identity(),
        make(optimizer, schedule, no_decay=no_decay, no_ratio=no_ratio),
    )
    return tx, schedule


def _lamb(
    section: Mapping, schedule: optax.Schedule, *, no_decay: PathPredicate, no_ratio: PathPredicate
) -> optax.GradientTransformation:
    return lamb(
        schedule,
        **_moments(section),
        weight_decay=_number(section, "weight_decay"),
        exclude_decay=no_decay,
        exclude_trust_ratio=no_ratio,
    )


def _adamw(
    section: Mapping, schedule: optax.Schedule, *, no_decay: PathPredicate, no_ratio: PathPredicate
) -> optax.GradientTransformation:
    del no_ratio
    return optax.adamw(
        schedule,
        **_moments(section),
        weight_decay=_number(section, "weight_decay"),
        mask=decay_mask(no_decay),
    )


def _sgd(
    section: Mapping, schedule: optax.Schedule, *, no_decay: PathPredicate, no_ratio: PathPredicate
) -> optax.GradientTransformation:
    """v <- momentum * v + (g + weight_decay * p); p <- p - lr * v."""
    del no_ratio
    momentum = _number(section, "momentum", below=1.0)
    return optax.chain(
        optax.add_decayed_weights(_number(section, "weight_decay"), mask=decay_mask(no_decay)),
        optax.trace(decay=momentum) if momentum else optax.identity(),
        optax.scale_by_learning_rate(schedule),
    )


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "lamb": _lamb,
    "sgd": _sgd,
    "adamw": _adamw,
}

FIELDS = (
    *("name", "schedule", "learning_rate", "end_learning_rate", "warmup"),
    *("b1", "b2", "eps", "momentum", "weight_decay", "grad_clip_norm"),
    *("exclude_norm_and_bias", "decay_exclude", "accumulation_steps"),
)


def _schedule(section: Mapping, *, warmup_steps: int, total_steps: int) -> optax.Schedule:
    name = _get(section, "schedule")
    choose(DECAYS, name, field=f"{WHERE}.schedule")  # before the fields that only some need
    peak = _number(section, "learning_rate")
    end = peak if name == "constant" else _number(section, "end_learning_rate")
    if end > peak:
        raise BadInputError(
            f"{WHERE}.end_learning_rate={end:g} is above learning_rate={peak:g}; "
            f"add --{WHERE}.end_learning_rate=0"
        )
    return build_schedule(
        name,
        learning_rate=peak,
        end_learning_rate=end,
        warmup_steps=warmup_steps,
        total_steps=total_steps,
    )


def _exclusions(section: Mapping, params: PyTree) -> tuple[PathPredicate, PathPredicate]:
    """Which paths do not decay, and which have no trust ratio."""
    # A path whose storage is not as promised is found here, before anything compiles.
    map_with_path(lambda path, leaf: trust_ratio_unit_axes(path, leaf.ndim), params)
    skip_small = _get(section, "exclude_norm_and_bias")
    if not isinstance(skip_small, bool):
        raise BadInputError(f"{WHERE}.exclude_norm_and_bias={skip_small!r}: give True or False")
    small = is_norm_or_bias if skip_small else matches("")
    regex = _get(section, "decay_exclude")
    if not isinstance(regex, str):
        raise BadInputError(f"{WHERE}.decay_exclude={regex!r}: give a regular expression, or ''")
    try:
        chosen = matches(regex)
    except BadInputError as error:
        raise BadInputError(f"{WHERE}.decay_exclude: {error}") from error
    paths = path_names(params)
    if regex and not any(map(chosen, paths)):
        near = difflib.get_close_matches(regex, paths, n=1, cutoff=0.0)
        raise BadInputError(
            f"{WHERE}.decay_exclude={regex!r} matches no parameter path from end to end; "
            f"the nearest is {near[0] if near else 'none'}"
        )
    return (lambda path: small(path) or chosen(path)), small


def _moments(section: Mapping) -> dict[str, float]:
    return {
        "b1": _number(section, "b1", below=1.0),
        "b2": _number(section, "b2", below=1.0),
        "eps": _number(section, "eps"),
    }


def _get(section: Mapping, name: str) -> Any:
    value = section.get(name)
    if value is None:
        raise BadInputError(f"{WHERE}.{name} is missing; set it in the config")
    return value


def _number(section: Mapping, name: str, *, below: float = math.inf) -> float:
    """A finite number in [0, below)."""
    value = _get(section, name)
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= value < below:
        upper = "" if below == math.inf else f" and below {below:g}"
        raise BadInputError(
            f"{WHERE}.{name}={value!r} is out of range; give a finite number, at least 0{upper}"
        )
    return float(value)


def _refuse_unknown_fields(section: Mapping) -> None:
    for name in section:
        if name not in FIELDS:
            near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.0)[0]
            raise BadInputError(f"{WHERE}.{name} is no field of an optimizer; did you mean {near}?")
