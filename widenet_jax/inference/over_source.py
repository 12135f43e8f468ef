"""A function of batches over every example of a source, each example once."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.corpus.tokenizer import Tokenizer
from widenet_jax.data import Source
from widenet_jax.data.chunks import example_spec
from widenet_jax.data.contract import DataInfo
from widenet_jax.data.labelled import Relabelled
from widenet_jax.data.sources import TRANSFORMS, build_source, stream_info
from widenet_jax.errors import BadInputError
from widenet_jax.evaluation import first_carry, placed_batches, total
from widenet_jax.experiment import build_task
from widenet_jax.inference.pretrained import check_same_tokens
from widenet_jax.inference.trained import Trained
from widenet_jax.run.stopping import Stop, say
from widenet_jax.run.summary import routing_means, unbeaten
from widenet_jax.sharding import BATCH, build_mesh
from widenet_jax.step import forward
from widenet_jax.task import Evaluation
from widenet_jax.text.data.squad import Squad
from widenet_jax.text.data.tables import Table
from widenet_jax.text.span import check_questions
from widenet_jax.typing import Array, PyTree
from widenet_jax.vision.data.transforms import build_transforms

QUIET_SECONDS = 10.0  # before the progress bar appears: most evaluations are over by then
# (params, batch) -> what the task's `evaluate` returns, or the like
Evaluate = Callable[[PyTree, Mapping[str, Array]], Evaluation]


def totals_over_source(
    trained: Trained, evaluate: Evaluate, source: Source, transform: Any
) -> Evaluation:
    """Adds up the sums of `evaluate` over a source, and joins its rows.

    The batches are those of the run's evaluation, so that the results are equal. Parameters are
    replicated. A progress bar on stderr counts batches after QUIET_SECONDS.

    Args:
      trained: the model; its config has the batch size and the workers.
      evaluate: a pure function, compiled here.
      source, transform: as `open_source` returns them.
    """
    config = trained.config
    group = trained.model.examples_per_group
    devices = jax.local_devices()
    # As many devices as divide the token groups of a batch evenly.
    devices = devices[: math.gcd(config.evaluation.batch_size // group, len(devices))]
    mesh = build_mesh({"fsdp": 1, "expert": 1}, devices)
    replicated = NamedSharding(mesh, P())
    with jax.set_mesh(mesh):
        params = jax.device_put(trained.params, replicated)
        places = Evaluation(
            sums=replicated,
            layer_sums=replicated,
            rows=replicated,
            carry=NamedSharding(mesh, BATCH),
        )
        step = jax.jit(evaluate, out_shardings=places)
        carry = first_carry(trained.task, config.evaluation.batch_size, mesh)
        batches = placed_batches(
            config,
            mesh,
            source,
            transform,
            stop=Stop(),
            beat=lambda what: None,
            note=partial(print, file=sys.stderr),
        )
        count = math.ceil(len(source) / config.evaluation.batch_size)
        read = tqdm.tqdm(
            batches,
            desc="evaluation",
            total=count,
            unit="batch",
            file=sys.stderr,
            mininterval=1,
            delay=QUIET_SECONDS,
        )
        totals = total(partial(step, params), read, carry)
    rows = {name: values[: len(source)] for name, values in totals.rows.items()}
    return totals.replace(rows=rows)


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
      BadInputError: the source cannot be opened or does not fit the model.
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


def metrics_over_source(
    trained: Trained, opened: tuple[Source, Any] | None = None
) -> tuple[dict[str, float], dict[str, Any], dict[str, np.ndarray], Source]:
    """Evaluates the task over a source. Warns of metrics that do not beat its baseline, on stderr.

    Args:
      trained: the model.
      opened: the source and its transform; the evaluation split by default.

    Returns:
      The task's metrics; "baseline" of this set, "drop_rate" and "expert_load" as a run's result
      has them; the rows of the examples; and the source.

    Raises:
      BadInputError: as `open_source`.
    """
    source, transform = opened or open_source(trained)

    def evaluate(params: PyTree, batch: Mapping[str, Array]) -> Evaluation:
        return trained.task.evaluate(partial(forward, trained.model, params), batch)

    totals = totals_over_source(trained, evaluate, source, transform)
    metrics = trained.task.summarize(totals.sums, totals.rows, source)
    info, stream = {**trained.info, **source.info}, stream_info(source, source)
    known = DataInfo(0, {}, info, stream)
    task = build_task(trained.config, known)
    if message := unbeaten(task, metrics):
        say(f"warning: {message}")
    facts = {"baseline": task.baseline._asdict()} if task.baseline else {}
    facts |= routing_means(trained.model.summarize(totals.layer_sums))
    return metrics, facts, totals.rows, source


def open_source(trained: Trained) -> tuple[Source, Any]:
    """Opens the evaluation split with the model's labels and tokenizer, and the transform.

    Raises:
      BadInputError: the source cannot be opened, has classes that the model does not know, images
        with another number of channels, tokens of another tokenizer, or questions without an answer
        where the model always gives one.
    """
    config = trained.config
    data, split = config.data, config.data.eval_split
    if config.task.name == "classification":
        return open_images(trained)
    if config.task.name == "text_classification":
        names = trained.class_names
        source = Table(data, split, class_names=names, tokenizer=trained.tokenizer)
    elif config.task.name == "span":
        source = Squad(data, split, tokenizer=trained.tokenizer)
        check_questions(config, source.info)
    else:
        source = build_source(data, split)
        check_tokens(trained, source.info)
    return source, TRANSFORMS[config.task.name](config, trained.info)[1]


def check_tokens(trained: Trained, info: Mapping[str, Any]) -> None:
    """Raises BadInputError where the tokens of a set are not those of the model."""
    known, here = trained.tokenizer, info.get("tokenizer")
    if bool(known) != bool(here):
        kinds = ("word pieces", "bytes") if known else ("bytes", "word pieces")
        told = f"--tokenizer={trained.place}" if known else "no --tokenizer"
        raise BadInputError(
            f"{trained.place} is a model of {kinds[0]}, and the set is of {kinds[1]}; prepare it "
            f"with {told}"
        )
    if known:
        check_same_tokens(known, Tokenizer(here), trained.place)


def open_images(trained: Trained) -> tuple[Source, Any]:
    """Opens the evaluation split of labelled images; see `open_source`."""
    config = trained.config
    source = build_source(config.data, config.data.eval_split)
    _, transform = build_transforms(config.augment, config.data.image_size)
    labels = map_classes(source.class_names, trained.class_names, place=trained.place)
    spec = example_spec(source, transform, on_bad_example=config.data.on_bad_example)
    shape = spec["image"].shape
    if shape != trained.task.image_shape:
        raise BadInputError(
            f"config.data.source={config.data.source} has images of {shape[2]} channels, and "
            f"{trained.place} was trained on {trained.task.image_shape[2]}"
        )
    return Relabelled(source, trained.class_names, labels), transform


def map_classes(theirs: Sequence[str], ours: Sequence[str], *, place: str) -> np.ndarray:
    """Returns, for each label of a source, the model's label of the same name: int32 [classes].

    A source may have fewer classes than the model, in another order.

    Raises:
      BadInputError: the source has a class that the model does not know.
    """
    index = {name: label for label, name in enumerate(ours)}
    if unknown := [name for name in theirs if name not in index]:
        shown = ", ".join(ours[:5]) + (", ..." if len(ours) > 5 else "")
        raise BadInputError(
            f"class {unknown[0]!r} of the data ({len(unknown)} such of {len(theirs)}) is none of "
            f"the {len(ours)} that {place} knows ({shown}); classes are matched by name: rename "
            "them, or finetune on this data"
        )
    return np.asarray([index[name] for name in theirs], np.int32)
