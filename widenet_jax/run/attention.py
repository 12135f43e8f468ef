"""What `implementation: auto` of attention stands for in a run: the device is asked once.

The platform's kernel and XLA's attention run on one device, in the run's own shapes. The kernel is
taken where output and gradients agree and it is faster. The answer is kept in the user's cache.
"""

import functools
import hashlib
import json
import math
import timeit
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from widenet_jax.data.contract import DataInfo
from widenet_jax.experiment import build_task, input_spec
from widenet_jax.files import parse_json, user_cache, write_json
from widenet_jax.nn.attention import relative, relative_pallas
from widenet_jax.nn.attention.distances import distance_basis
from widenet_jax.nn.attention.implementations import attend
from widenet_jax.nn.build import build_model
from widenet_jax.run.workdir import version
from widenet_jax.typing import Array

# The largest difference, of arrays in the root mean square: several times what rounding explains,
# also where a TPU rounds the operands of float32 products to bfloat16.
TOLERANCE = 0.05
ROUNDS = 5
CALLS = 10  # in each round


class Problem(NamedTuple):
    """Attention as one device of a run computes it.

    Attributes:
      shape: [B, T, N, H].
      dtype: of queries, keys and values.
      mask, segment_ids: which of them hide keys.
      memory: M of relative attention; None: full attention.
      waves: R of relative attention, see `nn.attention.distances`.
      eval_memory: M of an evaluation.
      causal: of full attention: whether tokens see earlier ones only.
    """

    shape: tuple[int, int, int, int]
    dtype: str
    mask: bool
    segment_ids: bool
    memory: int | None = None
    waves: int = 0
    eval_memory: int = 0
    causal: bool = False

    def arrays(self) -> tuple[tuple[Array, ...], dict[str, Array]]:
        """Returns the output's gradient, queries, keys, values and terms; and what has no gradient.

        Only relative attention has terms, of the queries' places.
        """
        B, T, N, H = self.shape
        longer = (B, T + (self.memory or 0), N, H)
        keys = jax.random.split(jax.random.key(0), 4)
        shapes = (self.shape, longer, longer, self.shape)
        q, k, v, d_out = (
            jax.random.normal(key, shape).astype(self.dtype)
            for key, shape in zip(keys, shapes, strict=True)
        )
        if self.memory is not None:
            terms, waves = (
                jax.random.normal(key, (*lead, self.waves)).astype(self.dtype)
                for key, lead in zip(keys, ((B, N, T), longer[1:2]), strict=False)
            )
            empty = jnp.arange(B) % 2 * (self.memory // 2)  # half the memory of every other row
            operands = (d_out, q * H**-0.5, k, v, terms * self.waves**-0.5)
            return operands, {"at_key": waves, "first": empty}
        row = jnp.broadcast_to(jnp.arange(T), (B, T))
        seen = {"mask": row < T - T // 8} if self.mask else {}
        seen |= {"segment_ids": (row * 3) // T} if self.segment_ids else {}
        return (d_out, q * H**-0.5, k, v), seen


def chosen_by_measuring(
    config: ConfigDict, data_info: DataInfo, devices: Sequence[jax.Device], candidate: str
) -> tuple[str, str]:
    """Returns "xla" or the candidate, and a line that says why.

    It is xla for a model whose number of tokens is unknown.
    """
    problem = problem_of(config, data_info, len(devices))
    return faster(problem, candidate, jax.local_devices()[0]) if problem else ("xla", "")


def problem_of(config: ConfigDict, data_info: DataInfo, num_devices: int) -> Problem | None:
    """Returns the attention of a device's share of a batch; None for models that do not say T."""
    task = build_task(config, data_info)
    model, inputs = build_model(config.model, **task.model_fields), input_spec(task)
    if not hasattr(model, "num_tokens"):
        return None
    layer = model.build_attention()
    B = config.batch_size // num_devices // config.optimizer.accumulation_steps
    shape = (B, model.num_tokens(inputs), layer.num_heads, layer.head_size(model.embed_dim))
    if getattr(layer, "needs_memory", False):
        M = inputs["memory"].shape[2]
        waves, _ = distance_basis(M + shape[1], model.embed_dim)
        eval_memory = task.eval_carry_spec(1)["memory"].shape[2]
        numbers = (M, waves.shape[1], eval_memory)
        return Problem(shape, config.model.dtype, False, False, *numbers)
    segments = "segment_ids" in inputs
    masked = "mask" in inputs and not segments
    return Problem(shape, config.model.dtype, masked, segments, causal=model.causal)


def faster(problem: Problem, candidate: str, device: jax.Device) -> tuple[str, str]:
    """Returns "xla" or the candidate, and why; from the cache where it is known."""
    versions = [version(name) for name in ("jax", "jaxlib", "widenet_jax")]
    known = [device.device_kind, candidate, *problem, *versions]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
    place = user_cache("attention") / f"{digest}.json"
    if kept := kept_answer(place, candidate):
        return kept
    with jax.default_device(device):
        answer = compare(problem, candidate)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, answer)
    return answer


def kept_answer(place: Path, candidate: str) -> tuple[str, str] | None:
    """Returns the answer in a file of the cache; None where it is missing or damaged."""
    try:
        name, line = parse_json(place.read_bytes())
    except (OSError, ValueError, TypeError):
        return None
    return (name, line) if name in ("xla", candidate) and isinstance(line, str) else None


def compare(problem: Problem, candidate: str) -> tuple[str, str]:
    """Returns "xla" or the candidate, and a line that says why, by running both."""
    text = f"{list(problem.shape)} {problem.dtype}"
    if problem.memory is not None:
        text += f", memory {problem.memory}"
        for memory in (problem.memory, problem.eval_memory):
            if not relative_pallas.takes(problem.shape, problem.shape[1] + memory):
                return (
                    "xla",
                    f"attention: xla; {candidate} does not take a memory of {memory}, {text}",
                )
    try:
        (exact, seconds), (found, faster_seconds) = (
            measured(problem, name) for name in ("xla", candidate)
        )
    except Exception as error:  # a compiler's, in whatever class
        reason = " ".join(str(error).split())[:200]
        return "xla", f"attention: xla; {candidate} does not run here on {text}: {reason}"
    names = ("the output", "queries", "keys", "values", "queries' terms")[: len(found)]
    worst, where = max(zip(map(difference, found, exact), names, strict=True))
    if not worst < TOLERANCE:
        there = where if where == "the output" else f"the gradient of the {where}"
        return "xla", f"attention: xla; {candidate} is wrong here, by {worst:.0%} in {there}"
    ratio = seconds / faster_seconds
    if ratio <= 1:
        return "xla", f"attention: xla; {candidate} takes {1 / ratio:.2f} times as long on {text}"
    return candidate, f"attention: {candidate}, {ratio:.2f} times as fast as xla on {text}"


def measured(problem: Problem, implementation: str) -> tuple[list[Array], float]:
    """Returns output and gradients, and the seconds that they take."""
    operands, seen = problem.arrays()
    function = relative.attend
    if problem.memory is None:
        function = functools.partial(attend, causal=problem.causal)
    run = functools.partial(function, implementation=implementation)

    @jax.jit
    def both(seen: dict[str, Array], d_out: Array, *operands: Array) -> list[Array]:
        out, pull = jax.vjp(lambda *x: run(*x, **seen), *operands)
        return [out, *pull(d_out)]

    def calls() -> None:
        jax.block_until_ready([both(seen, *operands) for _ in range(CALLS)])

    result = jax.block_until_ready(both(seen, *operands))
    return result, min(timeit.repeat(calls, number=1, repeat=ROUNDS)) / CALLS


def difference(ours: Any, theirs: Any) -> float:
    """Returns the relative difference of two arrays, in the root mean square."""
    ours, theirs = (x.astype(jnp.float32).ravel() for x in (ours, theirs))
    found = float(jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs))
    return math.inf if math.isnan(found) else found
