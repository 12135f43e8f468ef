"""The optimizer of `config.optimizer`: schedules, updates, layer decay, freezing, averages.

Fields of `config.optimizer`:
  name: lamb, sgd, adamw or muon.
  schedule, learning_rate, end_learning_rate: see `build_schedule` (`constant` needs no end).
  warmup: a duration, see `durations`; "0 steps" means no warm-up.
  b1, b2, eps: lamb and adamw. momentum: sgd, and muon (there usually 0.95).
  adam_rate: of muon, whose parameters other than matrices AdamW updates at this share of the
    learning rate.
  weight_decay: inside LAMB's trust ratio; an L2 loss term in SGD (it enters before the
    momentum); decoupled in AdamW and Muon. All are scaled by the learning rate.
  grad_clip_norm: the largest global norm; 0 turns clipping off.
  exclude_norm_and_bias: whether norms and biases are excluded from weight decay and, under
    LAMB, have trust ratio 1. Adapters always have ratio 1: another would keep them, which
    start at 0, near 0.
  decay_exclude: regex of whole paths that are also excluded from weight decay; '' for none.
  layer_decay: factor of the learning rate from each layer to the one below, in (0, 1]; see
    `update_factors`.
  tied_rate: "none", or the update of a parameter that g steps of the loop run is divided by its
    square root ("sqrt") or by g ("visits"), weight decay included.
  sign_rate: u of the routers' balancing biases, see `with_signs`.
  freeze: "none" or "backbone", whose parameters then stay as they are.
  ema_decay: of an average of the parameters, see `with_average`; 0 for none.
  accumulation_steps: used by the train step, ignored here.
A field that the chosen optimizer does not use has no effect.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from widenet_jax import param_names
from widenet_jax.config.durations import to_steps
from widenet_jax.config.imports import configs_module
from widenet_jax.errors import (
    BadInputError,
    check_fields,
    choose,
    nearest,
    raise_first,
    refuse_value,
)
from widenet_jax.param_names import is_balance_bias, map_with_path
from widenet_jax.specs import parts, resolve
from widenet_jax.typing import Array, PyTree

Transformation = optax.GradientTransformation
WHERE = "config.optimizer"
GUARDS = {"name": "guarded_optimizer", "schedule": "guarded_decay"}  # imported if a run needs one
NO_PLACES: Mapping[str, Sequence[int]] = MappingProxyType({})


def build_optimizer(
    optimizer: Mapping[str, Any],
    *,
    params_or_shapes: PyTree,
    depth: int,
    places: Mapping[str, Sequence[int]] = NO_PLACES,
    total_steps: int,
    batch_size: int,
    num_examples: int,
) -> tuple[Transformation, optax.Schedule]:
    """Builds the optimizer: clipping by the global norm, then LAMB, SGD, AdamW or Muon.

    Args:
      optimizer: the section `config.optimizer`, see above.
      params_or_shapes: the parameters or their shapes, whose paths are checked.
      depth: L, number of the model's blocks.
      places: at which blocks run each scope of the encoder, see `nn.loop.places_of`.
      total_steps: length of the run in updates.
      batch_size: examples per update, to convert the warm-up to steps.
      num_examples: examples per epoch, to convert the warm-up to steps.

    Returns:
      The transformation, and the learning rate as a function of the number of updates.

    Raises:
      BadInputError: a field is missing or unknown, a choice is, a user's own part fails, or
        `decay_exclude` matches no parameter.
    """
    known = configs_module("defaults").RUN["optimizer"]
    check_fields(known, optimizer, section=WHERE)
    missing = (name for name in known if name not in optimizer)
    raise_first(f"{WHERE}.{name} is missing; set it in the config" for name in missing)
    make = part_named(OPTIMIZERS, "name", optimizer["name"], params_or_shapes)
    run = {"batch_size": batch_size, "num_examples": num_examples, "total_steps": total_steps}
    schedule = build_learning_rate(optimizer, **run)
    norm = optimizer["grad_clip_norm"]
    clip = optax.clip_by_global_norm(norm) if norm else optax.identity()
    made = make(optimizer, schedule, _exclusions(optimizer, params_or_shapes))
    tx = optax.chain(clip, made)
    factors = partial(update_factors, section=optimizer, depth=depth, places=places)
    return _of_parts(optimizer, tx, factors, params_or_shapes), schedule


def part_named(table: Mapping, field: str, name: str, *guarded_with: Any) -> Callable:
    """Returns what a field of `config.optimizer` names in a table, a user's own with its guard."""
    part = choose(table, name, field=f"{WHERE}.{field}")
    if part.__module__ == __name__:
        return part
    guard = resolve(f"widenet_jax.optim.extensions:{GUARDS[field]}")
    return guard(part, f"{WHERE}.{field}={name}", *guarded_with)


def build_learning_rate(optimizer: Mapping[str, Any], **run: int) -> optax.Schedule:
    """Builds the learning rate as a function of the number of updates; see `build_optimizer`."""
    warmup_steps = to_steps(optimizer["warmup"], field=f"{WHERE}.warmup", **run, may_be_zero=True)
    name, peak = optimizer["schedule"], optimizer["learning_rate"]
    end = peak if name == "constant" else optimizer["end_learning_rate"]
    problem = f"is above learning_rate={peak:g}; add --{WHERE}.end_learning_rate=0"
    refuse_value(f"{WHERE}.end_learning_rate={end:g}", (end > peak, problem))
    return build_schedule(name, peak, end, warmup_steps, run["total_steps"])


def _of_parts(
    section: Mapping, tx: Transformation, factors: Callable[[PyTree], PyTree], params: PyTree
) -> Transformation:
    """Adds factors, signs, frozen parameters and the average, where there are such."""
    decay, tied = section["layer_decay"], section["tied_rate"]
    bad_decay = not 0 < decay <= 1, "must be above 0, and 1 (none) at most"
    refuse_value(f"{WHERE}.layer_decay={decay:g}", bad_decay)
    choose(TIED_RATES, tied, field=f"{WHERE}.tied_rate")
    if decay < 1 or tied != "none":
        scale = partial(jax.tree.map, lambda u, f: (u * f).astype(u.dtype))
        tx = optax.chain(tx, optax.stateless(lambda updates, _: scale(updates, factors(updates))))
    if any(map(is_balance_bias, param_names.path_names(params))):
        tx = with_signs(tx, section["sign_rate"])
    if section["freeze"] != "none":
        tx = without_frozen(tx, section["freeze"])
    return with_average(tx, section["ema_decay"]) if section["ema_decay"] else tx


def decay_mask(exclude: param_names.PathPredicate) -> Callable[[PyTree], PyTree]:
    """Returns a mask for optax: a function from parameters to booleans, True where they decay."""
    return lambda params: map_with_path(lambda path, _: not exclude(path), params)


class Exclusions(NamedTuple):
    """Predicates: the paths without weight decay, and those whose trust ratio is 1."""

    decay: param_names.PathPredicate
    trust_ratio: param_names.PathPredicate


def _lamb(section: Mapping, schedule: optax.Schedule, exclude: Exclusions) -> Transformation:
    from widenet_jax.optim.lamb import lamb  # a run with another optimizer does without

    fields = _adam_arguments(section, exclude)
    return lamb(schedule, **fields, exclude_trust_ratio=exclude.trust_ratio)


def _adamw(section: Mapping, schedule: optax.Schedule, exclude: Exclusions) -> Transformation:
    return optax.adamw(schedule, **_adam_arguments(section, exclude))


def _sgd(section: Mapping, schedule: optax.Schedule, exclude: Exclusions) -> Transformation:
    """Builds SGD: v <- momentum * v + (g + weight_decay * p); p <- p - lr * v."""
    momentum = section["momentum"]
    return optax.chain(
        optax.add_decayed_weights(section["weight_decay"], mask=decay_mask(exclude.decay)),
        optax.trace(decay=momentum) if momentum else optax.identity(),
        optax.scale_by_learning_rate(schedule),
    )


def _muon(section: Mapping, schedule: optax.Schedule, exclude: Exclusions) -> Transformation:
    from widenet_jax.optim.muon import muon  # a run with another optimizer does without

    return muon(
        schedule,
        momentum=section["momentum"],
        weight_decay=section["weight_decay"],
        mask=decay_mask(exclude.decay),
        others=_adamw(section, lambda step: section["adam_rate"] * schedule(step), exclude),
    )


# Name -> f(section, schedule, exclude), an optax transformation from gradients to what is added to
# the parameters: `section` is config.optimizer, whose fields stand in configs/defaults.py; the
# learning rate as a function of the step, its sign and the weight decay (`decay_mask`) are f's. Its
# update gets gradients, state and parameters, no loss; its state is always finite, and keeps its
# dtypes; and evaluation uses the parameters themselves, or their average (`ema_decay`).
OPTIMIZERS: dict[str, Callable] = {"lamb": _lamb, "sgd": _sgd, "adamw": _adamw, "muon": _muon}


def _exclusions(section: Mapping, params: PyTree) -> Exclusions:
    # Fails here, before anything compiles, if a parameter's rank does not fit its path.
    map_with_path(lambda path, x: param_names.trust_ratio_unit_axes(path, x.ndim), params)
    regex, skip_small = section["decay_exclude"], section["exclude_norm_and_bias"]
    small = param_names.is_norm_or_bias if skip_small else param_names.matches("")
    try:
        chosen = param_names.matches(regex)
    except BadInputError as error:
        raise BadInputError(f"{WHERE}.decay_exclude: {error}") from error
    paths = param_names.path_names(params)
    excluded = frozenset(filter(chosen, paths))
    if regex and not excluded:
        near = f"matches no parameter path in full; the nearest is {nearest(regex, paths)}"
        raise BadInputError(f"{WHERE}.decay_exclude={regex!r} {near}")

    def keeps_rate(path: str) -> bool:
        return small(path) or param_names.part_of(path) == param_names.ADAPTERS

    return Exclusions(lambda path: small(path) or path in excluded, keeps_rate)


def _adam_arguments(section: Mapping, exclude: Exclusions) -> dict[str, Any]:
    numbers = {name: section[name] for name in ("b1", "b2", "eps", "weight_decay")}
    return {**numbers, "mask": decay_mask(exclude.decay)}


# The remaining share of (peak - end) after the fraction t in [0, 1] of the decay.
DECAYS: dict[str, Callable] = {
    "cosine": lambda t: 0.5 * (1.0 + jnp.cos(math.pi * t)),
    "linear": lambda t: 1.0 - t,
    "constant": lambda t: jnp.ones_like(t),
}


def build_schedule(
    name: str, learning_rate: float, end_learning_rate: float, warmup_steps: int, total_steps: int
) -> optax.Schedule:
    """Builds the learning rate as a function of the step: the number of updates before it.

      step 0                       0, or the peak if there is no warm-up
      step s < warmup_steps        learning_rate * s / warmup_steps
      step warmup_steps            learning_rate, exactly
      step total_steps and later   end_learning_rate (`constant`: learning_rate)
    The run's last update is step total_steps - 1, one step before the end rate is reached.

    Args:
      name: cosine, linear or constant.
      learning_rate: the peak.
      end_learning_rate: the rate at the end of the decay; ignored by `constant`.
      warmup_steps: length of the warm-up, 0..total_steps; 0 for none.
      total_steps: length of the run, including the warm-up.

    Raises:
      BadInputError: the name is unknown, or a user's own decay fails.
    """
    decay = part_named(DECAYS, "schedule", name)
    # The divisors are at least 1 to avoid 0 / 0; no step lies inside an empty phase.
    decay_steps = max(total_steps - warmup_steps, 1)

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        warm = learning_rate * step / max(warmup_steps, 1)
        t = jnp.clip((step - warmup_steps) / decay_steps, 0.0, 1.0)
        left = end_learning_rate + (learning_rate - end_learning_rate) * decay(t)
        return jnp.where(step < warmup_steps, warm, left)

    return schedule


class AverageState(NamedTuple):
    """State of `with_average`.

    Attributes:
      inner: of the optimizer.
      average: like the parameters. (In a checkpoint the two have changed places.)
      count: int32, updates so far.
    """

    inner: PyTree
    average: PyTree
    count: Array


def with_average(tx: Transformation, decay: float) -> Transformation:
    """Returns `tx`, whose state also averages the parameters after each update.

    average <- average + (1 - d) (parameters - average), d = min(decay, (1 + n) / (10 + n)) after n
    updates, as in TensorFlow, so that the first parameters of a short run are forgotten. In this
    form frozen parameters stay to the bit. A balancing bias stays as it is.
    """

    def init(params: PyTree) -> AverageState:
        return AverageState(tx.init(params), params, jnp.int32(0))

    def update(grads: PyTree, state: AverageState, params: PyTree) -> tuple[PyTree, AverageState]:
        updates, inner = tx.update(grads, state.inner, params)
        after = optax.apply_updates(params, updates)
        d = jnp.minimum(decay, (1 + state.count) / (10 + state.count)).astype(jnp.float32)

        def mean(path: str, a: Array, p: Array) -> Array:
            return p if is_balance_bias(path) else a + (1 - d) * (p - a)

        average = map_with_path(mean, state.average, after)
        return updates, AverageState(inner, average, state.count + 1)

    return Transformation(init, update)


def averaged(params: PyTree, opt_state: PyTree) -> PyTree:
    """Returns the parameters to evaluate and to export: the average, where there is one."""
    return opt_state.average if isinstance(opt_state, AverageState) else params


def swap(params: PyTree, opt_state: PyTree) -> tuple[PyTree, PyTree]:
    """Exchanges the parameters and their average, where there is one; its own inverse.

    A checkpoint stores the average as its parameters, so that all that read models get it.
    """
    if not isinstance(opt_state, AverageState):
        return params, opt_state
    return opt_state.average, opt_state._replace(average=params)


def is_of_backbone(path: str) -> bool:
    """Returns whether a parameter is of no head and of no adapter, by the part that holds it."""
    part = param_names.part_of(path)
    found = parts().get(part)
    return not found.head if found else part != param_names.ADAPTERS


# What keeps a parameter as it is.
FREEZES: dict[str, Callable[[str], bool]] = {"none": lambda path: False, "backbone": is_of_backbone}


def is_frozen(path: str, freeze: str) -> bool:
    """Returns whether `config.optimizer.freeze` keeps a parameter as it is."""
    return FREEZES[freeze](path)


def check_freeze(optimizer: Mapping[str, Any], params: PyTree, init_from: str) -> None:
    """Raises BadInputError where there is no trained model to freeze, or nothing would learn.

    `inference.pretrained` raises it where that model lacks a parameter to freeze.
    """
    freeze = optimizer["freeze"]
    frozen = choose(FREEZES, freeze, field=f"{WHERE}.freeze")
    random = "would freeze random parameters; name a trained model: --config.init_from=DIR"
    refuse_value(
        f"{WHERE}.freeze={freeze}",
        (freeze != "none" and not init_from, random),
        (all(map(frozen, param_names.path_names(params))), "leaves no parameter to train"),
    )


def count_frozen(params: PyTree, freeze: str) -> int:
    """Returns the number of parameters that `config.optimizer.freeze` keeps as they are."""
    return sum(
        leaf.size for path, leaf in param_names.named_leaves(params) if is_frozen(path, freeze)
    )


def stop_frozen(params: PyTree, freeze: str) -> PyTree:
    """Returns the parameters without gradients of the frozen ones, which are then not computed."""
    stop = jax.lax.stop_gradient
    return map_with_path(lambda path, x: stop(x) if is_frozen(path, freeze) else x, params)


def by_path(name_of: Callable[[str], str], **optimizers: Transformation) -> Transformation:
    """Returns an optimizer that updates each parameter by the one that its path names."""
    labels = partial(map_with_path, lambda path, _: name_of(path))
    return optax.multi_transform(optimizers, labels)


def without_frozen(tx: Transformation, freeze: str) -> Transformation:
    """Returns `tx` for the other parameters alone; the frozen ones have no update and no state."""
    name_of = lambda path: "frozen" if is_frozen(path, freeze) else "trained"  # noqa: E731
    return by_path(name_of, frozen=optax.set_to_zero(), trained=tx)


def with_signs(tx: Transformation, rate: float) -> Transformation:
    """Returns `tx` for all but the routers' balancing biases b, for which b <- b - rate sign(g).

    Their gradient counts tokens (`nn.moe.losses.balance_bias_loss`): no schedule, moment or decay
    acts on it, and it is no part of the norm that clips the others.
    """
    signs = optax.stateless(lambda updates, _: jax.tree.map(lambda g: -rate * jnp.sign(g), updates))
    return by_path(lambda path: "sign" if is_balance_bias(path) else "other", sign=signs, other=tx)


def gradient_norm(gradients: PyTree) -> Array:
    """Returns the global norm of the loss's gradients, without the routers' balancing biases."""
    named = param_names.named_leaves(gradients)
    return optax.tree.norm([g for path, g in named if not is_balance_bias(path)])


# How often steps run a parameter -> the divisor of its update.
TIED_RATES: dict[str, Callable[[int], float]] = {
    "none": lambda visits: 1.0,
    "sqrt": math.sqrt,
    "visits": float,
}


def places_in(places: Mapping[str, Sequence[int]], path: str) -> Sequence[int]:
    """Returns the places at which blocks run a parameter; () outside of them."""
    first, *scopes = path.split("/")
    inner = "/".join(scopes[:2])
    found = places.get(inner, places.get(scopes[0], ())) if scopes else ()
    return found if first == param_names.ENCODER else ()


def update_factors(
    params: PyTree, section: Mapping, *, depth: int, places: Mapping[str, Sequence[int]] = NO_PLACES
) -> PyTree:
    """Returns the factor of each parameter's update: layer-wise decay as in BEiT, over `tied_rate`.

    decay^(L + 1 - l): l = 0 for embeddings, i + 1 for block i, L + 1 for the rest (the last norm
    and the heads). Parameters that several blocks share have the mean exponent of these blocks; of
    all where `places` lacks them.

    Args:
      params: whose paths decide.
      section: `config.optimizer`; its `layer_decay` is in (0, 1].
      depth: L, number of blocks; names tell it only where blocks own something.
      places: see `build_optimizer`.
    """
    decay, divisor = section["layer_decay"], TIED_RATES[section["tied_rate"]]
    above = {name for name, found in parts().items() if found.above} | {param_names.ENCODER}

    def factor(path: str, _: Any) -> float:
        path = path.replace(param_names.ADAPTERS, param_names.ENCODER, 1)  # as the kernel's
        first, second = (*path.split("/"), "")[:2]
        run = places_in(places, path)
        visits = len(run) or 1
        if first == param_names.ENCODER and second != param_names.NORM_OUT:
            block, _ = param_names.split_block_part(second)
            run = run or (range(depth) if block is None else [block])
            layer = sum(run) / len(run) + 1
        else:
            layer = depth + 1 if first in above else 0
        return decay ** (depth + 1 - layer) / divisor(visits)

    return map_with_path(factor, params)
