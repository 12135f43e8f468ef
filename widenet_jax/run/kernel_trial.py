"""Whether a kernel of attention is right on this device, and faster: measured once.

The platform's kernel and XLA's attention run on one device, in the run's own shapes. The kernel is
taken where output and gradients agree and a layer is faster with it, or where XLA's attention does
not run. The answer is kept in the user's cache.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import timeit
from collections.abc import Callable, Sequence
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
from widenet_jax.run.hosts import code_sha256
from widenet_jax.run.workdir import COMPILERS, version
from widenet_jax.step import precision_of
from widenet_jax.typing import Array

# The largest difference, of arrays in the root mean square: several times what rounding explains,
# also where a TPU rounds the operands of float32 products to bfloat16.
TOLERANCE = 0.05
# The same of a single row of the last axis, relative to the mean row: a mask that is off by one key
# changes an array little, and one of its rows by the row's own size.
ROW_TOLERANCE = 0.5
MARGIN = 1.03  # how many times as fast a kernel must be: less is noise
ROUNDS = 5
CALLS = 10  # in each round
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
PASSING = re.compile("RESOURCE_EXHAUSTED|UNAVAILABLE|DEADLINE|alloc|memory", re.IGNORECASE)


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
        place, example = jnp.arange(T), jnp.arange(B)[:, None]
        hidden = T // 8 + example % (1 + T // 8)  # another number and other borders in each example
        seen = {"mask": place < T - hidden} if self.mask else {}
        seen |= {"segment_ids": (place + hidden) * 3 // T} if self.segment_ids else {}
        return (d_out, q * H**-0.5, k, v), seen


def chosen_by_measuring(
    config: ConfigDict,
    data_info: DataInfo,
    devices: Sequence[jax.Device],
    candidate: str,
    *,
    by_time: bool = True,
) -> tuple[str, str]:
    """Returns "xla" or the candidate, and a line that says why.

    It is xla for a model whose number of tokens is unknown. Without `by_time` the candidate only
    has to be right: a resumed run keeps its kernel on another device or with other versions.
    """
    problem = problem_of(config, data_info, len(devices))
    if problem is None:
        return "xla", ""
    return faster(problem, candidate, jax.local_devices()[0], by_time=by_time)


def problem_of(config: ConfigDict, data_info: DataInfo, num_devices: int) -> Problem | None:
    """Returns the attention of a device's share of a batch; None for models that do not say T."""
    task = build_task(config, data_info)
    model, inputs = build_model(config.model, **task.model_fields), input_spec(task)
    if not hasattr(model, "num_tokens"):
        return None
    layer = model.attention
    B = config.batch_size // num_devices // config.optimizer.accumulation_steps
    shape = (B, model.num_tokens(inputs), layer.num_heads, layer.head_size(model.embed_dim))
    if layer.needs_memory:
        M = inputs["memory"].shape[2]
        waves, _ = distance_basis(M + shape[1], model.embed_dim)
        eval_memory = task.eval_carry_spec(1)["memory"].shape[2]
        numbers = (M, waves.shape[1], eval_memory)
        return Problem(shape, config.model.dtype, False, False, *numbers)
    segments = "segment_ids" in inputs
    masked = "mask" in inputs and not segments
    return Problem(shape, config.model.dtype, masked, segments, causal=model.causal)


def faster(
    problem: Problem, candidate: str, device: jax.Device, *, by_time: bool = True
) -> tuple[str, str]:
    """Returns "xla" or the candidate, and why; from the cache where it is known.

    What ran out of memory is not kept: others may have taken it. A kernel that fails otherwise may
    end the device's work, so that only the next start learns from it.
    """
    versions = [version(name) for name in COMPILERS] + [os.environ.get(name) for name in FLAGS]
    known = [device.device_kind, candidate, *problem, by_time, *versions, code_sha256()]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
    place = user_cache("attention") / f"{digest}.json"
    if kept := kept_answer(place, candidate):
        name, line = kept
        return name, f"{line}; kept in {place}"
    with jax.default_device(device):
        answer, lasting = compare(problem, candidate, by_time=by_time)
    with contextlib.suppress(OSError):  # a cache that cannot be written
        if lasting:
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


def compare(
    problem: Problem, candidate: str, *, by_time: bool = True
) -> tuple[tuple[str, str], bool]:
    """Returns "xla" or the candidate with a line that says why, and whether that will last."""
    text = f"{list(problem.shape)} {problem.dtype}"
    if problem.memory is not None:
        text += f", memory {problem.memory}"
        for memory in (problem.memory, problem.eval_memory):
            if not relative_pallas.takes(problem.shape, problem.shape[1] + memory):
                line = f"attention: xla; {candidate} does not take a memory of {memory}, {text}"
                return ("xla", line), True
    ran = {}
    for name in (candidate, "xla"):
        try:
            ran[name] = measured(problem, name)
        except Exception as error:  # a compiler's, in whatever class
            reason = " ".join(str(error).split())[:200]
            line = f"{name} does not run here on {text}: {reason}"
            if name == "xla":
                return (candidate, f"attention: {candidate}, unchecked; {line}"), False
            return ("xla", f"attention: xla; {line}"), not PASSING.search(str(error))
    return verdict(ran["xla"], ran[candidate], candidate, text, by_time=by_time), True


def verdict(
    exact: tuple[list[Array], float],
    found: tuple[list[Array], float],
    candidate: str,
    text: str,
    *,
    by_time: bool,
) -> tuple[str, str]:
    """Judges what `measured` returned of xla and of the candidate, on a problem in words."""
    names = ("the output", "queries", "keys", "values", "queries' terms")[: len(found[0])]
    whole = max(zip(map(difference, found[0], exact[0]), names, strict=True))
    row = max(zip(map(row_difference, found[0], exact[0]), names, strict=True))
    for (worst, where), limit, what in ((whole, TOLERANCE, ""), (row, ROW_TOLERANCE, "a row of ")):
        if not worst < limit:
            there = where if where == "the output" else f"the gradient of the {where}"
            line = f"{candidate} is wrong here, by {worst:.0%} in {what}{there}"
            return "xla", f"attention: xla; {line}"
    ratio = exact[1] / found[1]
    line = f"a layer with {candidate} takes {1 / ratio:.2f} times as long as with xla, {text}"
    chosen = "xla" if by_time and ratio < MARGIN else candidate
    return chosen, f"attention: {chosen}; {line}"


def measured(problem: Problem, implementation: str) -> tuple[list[Array], float]:
    """Returns attention's output and gradients, and the seconds of a layer with its projections.

    Projections write and read what suits an implementation. Alone, a kernel would pay for copies
    that no layer has.
    """
    operands, seen = problem.arrays()
    core = jax.jit(with_gradients(problem, core_of(problem, implementation)))
    found = jax.block_until_ready(core(seen, *operands))
    layer = jax.jit(with_gradients(problem, layer_of(problem, implementation)))
    arrays = layer_arrays(*operands)

    def calls() -> None:
        for _ in range(CALLS):
            last = layer(seen, *arrays)
        jax.block_until_ready(last)

    calls()
    return found, min(timeit.repeat(calls, number=1, repeat=ROUNDS)) / CALLS


def core_of(problem: Problem, implementation: str) -> Callable[..., Array]:
    """Returns the function of queries, keys, values and terms."""
    if problem.memory is not None:
        return functools.partial(relative.attend, implementation=implementation)
    return functools.partial(attend, causal=problem.causal, implementation=implementation)


def layer_of(problem: Problem, implementation: str) -> Callable[..., Array]:
    """Returns attention with its projections, a function of the results of `layer_arrays`."""
    attention = core_of(problem, implementation)

    def layer(kernels: Sequence[Array], x: Array, longer: Array, *terms: Array, **seen) -> Array:
        *into, out = kernels
        heads = (
            jnp.einsum("btd,dnh->btnh", y, w)
            for y, w in zip((x, longer, longer), into, strict=True)
        )
        return jnp.einsum("btnh,nhd->btd", attention(*heads, *terms, **seen), out)

    return layer


def layer_arrays(d_out: Array, query: Array, key: Array, value: Array, *terms: Array) -> tuple:
    """Returns the output's gradient, kernels that change nothing, tokens [B, T, N H], and terms."""
    del value  # of the keys' tokens
    N, H = query.shape[2:]
    one = jnp.eye(N * H, dtype=query.dtype)
    kernels = [one.reshape(N * H, N, H)] * 3 + [one.reshape(N, H, N * H)]
    d_out, x, longer = (y.reshape(*y.shape[:2], N * H) for y in (d_out, query, key))
    return d_out, kernels, x, longer, *terms


def with_gradients(problem: Problem, function: Callable[..., Array]) -> Callable[..., list]:
    """Returns a function of masks and the like, the output's gradient and the operands."""

    def both(seen: dict[str, Array], d_out: Array, *operands: Any) -> list:
        with precision_of(problem):
            out, pull = jax.vjp(lambda *x: function(*x, **seen), *operands)
            return [out, *pull(d_out)]

    return both


def row_difference(ours: Any, theirs: Any) -> float:
    """Returns the largest difference of a row of the last axis, relative to the mean row."""
    ours, theirs = (x.astype(jnp.float32).reshape(-1, x.shape[-1]) for x in (ours, theirs))
    mean = jnp.linalg.norm(theirs) / len(theirs) ** 0.5
    found = float(jnp.linalg.norm(ours - theirs, axis=-1).max() / mean)
    return math.inf if math.isnan(found) else found


def difference(ours: Any, theirs: Any) -> float:
    """Returns the relative difference of two arrays, in the root mean square."""
    return row_difference(ours.ravel(), theirs.ravel())
