"""What the loops of a trained model do: their states, their choices of experts, and their number.

A place is a step of a group of the core, "0.2" the third one of the first group; its visits are the
blocks that run it, loop by loop. A layer that runs twice in a loop (ABA) has two places.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from etils import epath
from matplotlib.ticker import MaxNLocator
from ml_collections import ConfigDict

from widenet_jax.config.fields import override
from widenet_jax.errors import BadInputError
from widenet_jax.inference.over_source import evaluated, real_token_mask, sums_over_source
from widenet_jax.inference.trained import build_for
from widenet_jax.nn.loop_settings import LoopSettings
from widenet_jax.ops.analysis.captured import routed_blocks, states, token_routing
from widenet_jax.ops.analysis.usage import ExpertUsage
from widenet_jax.run.figures import MARKERS, PALETTE, legend_below, save, subplots
from widenet_jax.run.stopping import say
from widenet_jax.trained import Trained
from widenet_jax.typing import Array, PyTree

LOSSES = ("bits_per_byte", "cross_entropy")  # the first that a task has
NUMBERS = 8  # of loops that a loss is computed for, at least


def visits_of(loop: LoopSettings) -> dict[str, list[int]]:
    """Returns the blocks of each place that evaluation runs more than once: {"0.1": [1, 3]}."""
    places = defaultdict(list)
    for visit in loop.walk(train=False):
        if visit.group is not None:
            places[f"{visit.group}.{visit.place}"].append(visit.index)
    return {place: visits for place, visits in places.items() if len(visits) > 1}


def measure_loops(trained: Trained, usage: ExpertUsage | None) -> dict[str, Any]:
    """Measures the loops over the evaluation split that the model's config names.

    Args:
      trained: a model whose core loops.
      usage: of its experts, measured with the same config; None without experts.

    Returns:
      By place: `cosine` and `norm_ratio` of a token's states after one loop and the next. With
      experts also `load_spread`, the coefficient of variation of the experts' load in each loop,
      and `load_spread_of_all` over all loops; `first_changes`, the share of tokens whose first
      choice is another expert in the next loop, and `first_changes_by_chance`, if the loops chose
      independently; and `all_change`, of tokens that have no expert in common.
      `losses` is by number of loops, `first_routing` the loss where all loops take the experts of
      the first; `loops` is the trained number. What cannot be had has a line in `notes`.
    """
    loop = trained.model.loop
    own = usage is not None and loop.tie.experts == "none"
    usage = None if own else usage
    places = visits_of(loop)
    say("states of the loops: passes over the evaluation split: 1")
    routed = [name for name, blocks in places.items() if usage and blocks[0] in usage.blocks]
    sums = sums_over_source(trained, partial(loop_sums, trained, places, routed))
    tokens = sums.pop("tokens")
    measured: dict[str, Any] = {"loops": max(loops for _, loops in loop.core), "places": {}}
    for place, visits in places.items():
        shares = {name: sums[f"{place} {name}"] / tokens for name in ("cosine", "norm_ratio")}
        if place in routed:
            shares |= choices_of(usage, [usage.blocks.index(block) for block in visits])
            shares["all_change"] = sums[f"{place} all_change"] / tokens
        measured["places"][place] = {k: np.round(v, 6).tolist() for k, v in shares.items()}
    measured |= losses_of(trained, measured["loops"], experts=bool(routed))
    measured["notes"] += ["choices are not compared: each loop has its own experts"] if own else []
    return measured


def loop_sums(
    trained: Trained,
    places: Mapping[str, Sequence[int]],
    routed: Sequence[str],
    params: PyTree,
    batch: dict[str, Array],
) -> tuple[PyTree, dict[str, Array]]:
    """Returns the model's outputs, and sums over a batch's real tokens, one for each next loop."""
    model, inputs = trained.model, trained.task.inputs(batch)
    outputs, after = states(model, params, inputs)
    mask = real_token_mask(batch, inputs, after[0].shape[:2])
    sums = {"tokens": mask.sum()}
    for place, visits in places.items():
        x = jnp.stack([after[block] for block in visits]).astype(jnp.float32)
        norms = jnp.linalg.norm(x, axis=-1)  # [visits, B, T]
        cosines = (x[:-1] * x[1:]).sum(axis=-1) / (norms[:-1] * norms[1:])
        sums[f"{place} cosine"] = (cosines * mask).sum(axis=(1, 2))
        sums[f"{place} norm_ratio"] = (norms[1:] / norms[:-1] * mask).sum(axis=(1, 2))
    if routed:
        blocks = routed_blocks(model)
        _, routing = token_routing(model, params, inputs)
    for place in routed:
        rows = jnp.array([blocks.index(block) for block in places[place]])
        chosen = routing.expert_index[rows]
        changed = all_change(chosen[:-1], chosen[1:]) & mask
        sums[f"{place} all_change"] = changed.sum(axis=(1, 2))
    return outputs, sums


def all_change(a: Array, b: Array) -> Array:
    """Returns which tokens have no expert in common: bool [...] of two choices [..., K]."""
    return ~(a[..., :, None] == b[..., None, :]).any(axis=(-1, -2))


def choices_of(usage: ExpertUsage, rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns how the visits of a place, `rows` of the usage, choose: see `measure_loops`."""
    pairs, together = usage.pairs[list(rows)], usage.together[np.ix_(rows, rows)]
    joint = together / usage.together[0, 0].sum()  # [visits, visits, E, E]
    first = np.einsum("aaee->ae", joint)
    same = [np.trace(joint[k, k + 1]) for k in range(len(rows) - 1)]
    return {
        "load_spread": spread(pairs),
        "load_spread_of_all": spread(pairs.sum(axis=0)),
        "first_changes": 1 - np.array(same),
        "first_changes_by_chance": 1 - (first[:-1] * first[1:]).sum(axis=1),
    }


def spread(counts: np.ndarray) -> np.ndarray:
    """Returns the standard deviation over the last axis divided by the mean; 0 where all alike."""
    return counts.std(axis=-1) / counts.mean(axis=-1)


def losses_of(trained: Trained, loops: int, *, experts: bool) -> dict[str, Any]:
    """Returns the losses of `measure_loops` at other numbers of loops, and with forced routing."""
    numbers = {1, loops, *(max(1, round(2 * loops * i / NUMBERS)) for i in range(1, NUMBERS + 1))}
    notes = []
    if untied := trained.model.loop.untied():
        needs = f"{' and '.join(untied)} that the loops share (config.model.loop.tie.{untied[0]})"
        numbers, notes = {loops}, [f"losses at other numbers of loops need {needs}"]
    say(f"losses of loops: passes over the evaluation split: {len(numbers) + experts}")
    metric, loss = loss_of(trained, "counts.eval=0")
    losses = {loops: loss}
    try:
        for number in sorted(numbers - {loops}):
            losses[number] = loss_of(trained, f"counts.eval={number}")[1]
    except BadInputError as error:
        notes.append(f"no loss at {number} loops: {error}")
    measured = {"metric": metric, "losses": dict(sorted(losses.items())), "notes": notes}
    if experts:
        try:
            measured["first_routing"] = loss_of(trained, "routing=first")[1]
        except BadInputError as error:
            notes.append(f"no forced routing: {error}")
    return measured


def loss_of(trained: Trained, change: str) -> tuple[str, float]:
    """Returns the loss, or else the primary metric, of the model with a field of its loop changed.

    Args:
      trained: the model.
      change: FIELD=VALUE in `config.model.loop`.
    """
    config = ConfigDict(trained.config.to_dict())
    config = override(config, [f"--config.model.loop.{change}"])
    task, model, _ = build_for(config, trained.info, trained.params)
    changed = dataclasses.replace(trained, config=config, task=task, model=model)
    metrics, *_ = evaluated(changed)
    name = next((loss for loss in LOSSES if loss in metrics), task.primary_metric.name)
    return name, float(metrics[name])


def draw_loops(measured: Mapping[str, Any], out: epath.Path, *, title: str = "") -> None:
    """Draws what `measure_loops` returned, by loop."""
    places = measured["places"]
    routed = any("load_spread" in curves for curves in places.values())
    figure, axes = subplots(1, 4 if routed else 2, size=(20 if routed else 10, 5.5))
    figure.suptitle(title)
    for index, (place, curves) in enumerate(places.items()):
        style = {"color": PALETTE[index % len(PALETTE)], "marker": MARKERS[index % len(MARKERS)]}
        name = f"place {place}" if len(places) > 1 else None
        after = np.arange(2, len(curves["cosine"]) + 2)
        axes[0].plot(after, curves["cosine"], label=name, **style)
        if "load_spread" not in curves:
            continue
        spreads = curves["load_spread"]
        axes[2].plot(range(1, len(spreads) + 1), spreads, label=name, **style)
        axes[2].axhline(curves["load_spread_of_all"], color=style["color"], ls="--", lw=1)
        axes[3].plot(after, curves["first_changes"], label=name, **style)
        chance = style | {"marker": "_", "ms": 14}
        axes[3].plot(after, curves["first_changes_by_chance"], ls=":", **chance)
        axes[3].plot(after, curves["all_change"], ls="--", mfc="white", **style)
    axes[0].set(xlabel="loop", ylabel="cosine", title="a token's state and that a loop before")
    draw_losses(axes[1], measured)
    if routed:
        axes[2].set(xlabel="loop", ylabel="deviation / mean", title="spread of the experts' load")
        axes[2].set_ylim(bottom=0)
        axes[2].plot([], [], "--", color="grey", label="all loops together")
        axes[3].set(xlabel="loop", ylabel="share of the tokens", title="other experts than before")
        axes[3].plot([], [], "o-", color="grey", label="another first choice")
        axes[3].plot([], [], "_:", color="grey", ms=14, label="another one, by chance")
        axes[3].plot([], [], "o--", color="grey", mfc="white", label="no expert in common")
        axes[3].set_ylim(0, 1.02)
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if axis.get_legend_handles_labels()[0]:
            legend_below(axis)
    save(figure, out)


def draw_losses(axis: Any, measured: Mapping[str, Any]) -> None:
    """Draws the loss by the number of loops, and with the experts of the first loop."""
    losses, metric = measured["losses"], measured["metric"].replace("_", " ")
    axis.plot(list(losses), list(losses.values()), color=PALETTE[0], marker=MARKERS[0])
    axis.axvline(measured["loops"], color="grey", ls=":", lw=1, label="as trained")
    if forced := measured.get("first_routing"):
        axis.plot(
            [measured["loops"]], [forced], "D", color=PALETTE[5], label="experts of the first loop"
        )
    axis.set(xlabel="loops in evaluation", ylabel=metric, title="loss by the number of loops")
