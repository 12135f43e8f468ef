"""A function of batches over every example of a source, each example once."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data.blocks import example_spec, skips, too_many_bad
from widenet_jax.data.contract import DataInfo, Source
from widenet_jax.data.foreign import try_source
from widenet_jax.data.labelled import LabelledImages, with_classes
from widenet_jax.data.sources import build_source, build_transforms, stream_info
from widenet_jax.errors import BadInputError, raise_first, refuse_value
from widenet_jax.evaluation import total
from widenet_jax.experiment import build_task, evaluate_batch
from widenet_jax.inference.pretrained import other_tokens
from widenet_jax.run.stopping import Stop, say
from widenet_jax.run.summary import routing_means, unbeaten
from widenet_jax.sharding import BATCH, build_mesh
from widenet_jax.specs import resolve, task_spec
from widenet_jax.task import Evaluation
from widenet_jax.trained import Trained
from widenet_jax.typing import Array, PyTree

BAD = "bad_examples"
QUIET_SECONDS = 10.0  # before the progress bar appears: most evaluations are over by then
# (params, batch) -> what the task's `evaluate` returns, or the like
Evaluate = Callable[[PyTree, Mapping[str, Array]], Evaluation]


def totals_over_source(
    trained: Trained,
    evaluate: Evaluate,
    source: Source,
    transform: Any,
    *,
    limit: float | None = None,
) -> Evaluation:
    """Adds up the sums of `evaluate` over a source, and joins its rows.

    Batches are the same as in the run's evaluation, so that the results are equal, up to rounding
    where the run measured its attention and took a kernel. Parameters are
    replicated. A progress bar on stderr counts batches after QUIET_SECONDS.

    Args:
      trained: the model; its config has the batch size and the workers.
      evaluate: a pure function, compiled here.
      source, transform: as `open_source` returns them.
      limit: of the share of unreadable examples; `config.data.max_bad_fraction` by default.

    Raises:
      BadInputError: too large a share of the examples is unreadable.
    """

    def counted(params: PyTree, batch: Mapping[str, Array]) -> Evaluation:
        found = evaluate(params, batch)
        return found.replace(sums={**found.sums, BAD: batch["bad"].sum()})

    config = trained.config
    group, size = trained.model.examples_per_group, config.evaluation.batch_size
    problem = f"must be 1 or a multiple of {group}: so many examples are routed together"
    refuse_value(f"--config.evaluation.batch_size={size}", (size > 1 and size % group, problem))
    devices = jax.local_devices()
    # As many devices as divide the token groups of a batch evenly.
    devices = devices[: math.gcd(size // group, len(devices))]
    mesh = build_mesh({"fsdp": 1, "expert": 1}, devices)
    replicated = NamedSharding(mesh, P())
    with jax.set_mesh(mesh):
        params = jax.device_put(trained.params, replicated)
        places = Evaluation(replicated, replicated, replicated, NamedSharding(mesh, BATCH))
        step = partial(jax.jit(counted, out_shardings=places), params)
        count = math.ceil(len(source) / config.evaluation.batch_size)
        bar = tqdm.tqdm(desc="evaluation", total=count, unit="batch", delay=QUIET_SECONDS)
        hooks = {"stop": Stop(), "beat": lambda what: bar.update(), "note": say}
        with bar:
            run = {"task": trained.task, "config": config, "mesh": mesh}
            found = total(step, source, transform, **run, **hooks)
    bad, size = int(found.sums.pop(BAD)), len(source)
    limit = config.data.max_bad_fraction if limit is None else limit
    split = {"num_examples": size, "limit": limit}
    if problem := too_many_bad(bad, size, what=f"evaluation {trained.task.unit}", **split):
        raise BadInputError(problem)
    return found


def bad_examples(source: Source, read: int) -> dict[str, int]:
    """Returns the number of examples that could not be read, by the name it has in results."""
    return {BAD: len(source) - read} if read < len(source) else {}


def sums_over_source(
    trained: Trained,
    batch_sums: Callable[[PyTree, Mapping[str, Array]], tuple[PyTree, Mapping[str, Array]]],
) -> dict[str, np.ndarray]:
    """Adds up statistics over the evaluation split of `config.data`, in float64.

    Args:
      trained: the model.
      batch_sums: maps parameters and a batch to the model's outputs, the next carry among them, and
        the statistics' sums.

    Raises:
      BadInputError: as `open_source` and `totals_over_source`.
    """

    def evaluate(params: PyTree, batch: Mapping[str, Array]) -> Evaluation:
        outputs, sums = batch_sums(params, batch)
        carry = {name: outputs[name] for name in trained.task.eval_carry_spec(1)}
        return Evaluation(sums, {}, carry=carry)

    return totals_over_source(trained, evaluate, *open_source(trained)).sums


def real_token_mask(
    batch: Mapping[str, Array], inputs: Mapping[str, Array], shape: tuple[int, int]
) -> Array:
    """Returns which tokens of an evaluation batch are real: bool of `shape` (B, T).

    `inputs` may have a mask, by example or by token; otherwise the batch has one, by example.
    """
    mask = inputs["mask"] if "mask" in inputs else batch["mask"]
    return jnp.broadcast_to(mask.reshape(shape[0], -1), shape)


def evaluated(
    trained: Trained, opened: tuple[Source, Any] | None = None
) -> tuple[dict[str, float], Evaluation, Source]:
    """Evaluates the task over a source; returns its metrics, the totals and the source.

    Args and errors: as of `metrics_over_source`.
    """
    source, transform = opened or open_source(trained)
    evaluate = partial(evaluate_batch, trained.model, trained.task)
    totals = totals_over_source(trained, evaluate, source, transform)
    return trained.task.summarize(totals.sums, totals.rows, source), totals, source


def metrics_over_source(
    trained: Trained, opened: tuple[Source, Any] | None = None
) -> tuple[dict[str, float], dict[str, Any], dict[str, np.ndarray], Source]:
    """Evaluates the task over a source. Warns of metrics that do not beat its baseline, on stderr.

    Args:
      trained: the model.
      opened: the source and its transform; the evaluation split by default.

    Returns:
      The task's metrics; "baseline" and "remarks" of this set, "drop_rate" and "expert_load" as a
      run's result has them, "bad_examples" above 0; the rows of the examples; and the source.

    Raises:
      BadInputError: as `open_source` and `totals_over_source`.
    """
    metrics, totals, source = evaluated(trained, opened)
    info, stream = {**trained.info, **source.info}, stream_info(source, source)
    example = resolve(task_spec(trained.config.task.name).example)(trained.config, trained.params)
    data_info = DataInfo(0, example, info, stream)
    task = build_task(trained.config, data_info)  # with this set's baseline
    if message := unbeaten(task, metrics):
        say(f"warning: {message}")
    others = {"baseline": task.baseline._asdict()} if task.baseline else {}
    others |= {"remarks": dict(task.remarks)} if task.remarks else {}
    others |= bad_examples(source, metrics[task.unit])
    others |= routing_means(trained.model.summarize(totals.layer_sums))
    return metrics, others, totals.rows, source


def open_source(trained: Trained) -> tuple[Source, Any]:
    """Opens the evaluation split with the model's labels and tokenizer, and the transform.

    Raises:
      BadInputError: the source cannot be opened, has classes that the model does not know, arrays
        of other shapes, tokens of another tokenizer, or single texts for pairs.
    """
    config, info = trained.config, trained.info
    source = build_source(config.data, config.data.eval_split, info)
    try_source(source, f"split {config.data.eval_split}", config)
    if isinstance(source, LabelledImages):
        source = with_classes(source, trained.class_names, place=trained.place)
    _, transform = build_transforms(config, info)
    raise_first(other_examples(trained, source, transform))
    return source, transform


def other_examples(trained: Trained, source: Source, transform: Any) -> Iterator[str]:
    """Yields why the model cannot read a set: other tokens, pairs, or shapes of arrays."""
    config, wanted, place = trained.config, trained.task.batch_spec(1), trained.place
    known, here = trained.tokenizer, source.info.get("tokenizer")
    if "vocab_size" in trained.info and bool(known) != bool(here):
        kinds = ("word pieces", "bytes") if known else ("bytes", "word pieces")
        flag = f"prepare it with {f'--tokenizer={place}' if known else 'no --tokenizer'}"
        yield f"{place} is a model of {kinds[0]}, and the set is of {kinds[1]}; {flag}"
    elif known:
        yield from other_tokens(known, Tokenizer(here), place)
    paired = trained.info.get("pairs", False)
    if paired != source.info.get("pairs", False):
        kinds = ("pairs of texts", "single texts")[:: 1 if paired else -1]
        yield f"{place} was trained on {kinds[0]}, and the set is of {kinds[1]}: give another"
    spec = example_spec(source, transform, skip=skips(config.data.on_bad_example))
    for name in spec.keys() & wanted.keys():
        shape, found = wanted[name].shape[1:], spec[name].shape
        if shape != found:
            yield (
                f"config.data.source={config.data.source} gives {name} of shape {list(found)}, "
                f"and {place} was trained on {list(shape)}"
            )
