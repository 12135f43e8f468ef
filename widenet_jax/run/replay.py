"""A step whose loss or gradient was not finite, repeated from the state that was kept for it."""

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from widenet_jax.checkpoint.checkpoints import FAILED, arrays_of
from widenet_jax.checkpoint.manifest import fingerprint
from widenet_jax.checkpoint.series import Series
from widenet_jax.data.contract import Data
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import Experiment
from widenet_jax.nn.settings import NO_ADAPTER
from widenet_jax.optim.build import gradient_norm
from widenet_jax.param_names import ENCODER, named_leaves
from widenet_jax.run.runtime import read_batches, records_of_step
from widenet_jax.run.stopping import Stop
from widenet_jax.run.workdir import check_info
from widenet_jax.sharding import gather_shared, global_batch, to_host
from widenet_jax.step import precision_of
from widenet_jax.typing import Array, Inputs, PyTree

OF_LOOPS = ("loop_logits", "leaves")  # outputs [R, B, ...] after each loop


def replay(experiment: Experiment, data: Data, workdir: epath.Path, stop: Stop) -> dict[str, Any]:
    """Repeats the step whose loss or gradient was not finite, from the state kept for it.

    Parameters, carry and randomness are the same; nothing is changed.

    Returns {step, unit, loss, gradient_norm, first_module, not_finite: {gradients: [parameter],
    examples: [description]}, batch: [description]}. An example counts as not finite if an output of
    the model is, and a module if its output is, without dropout or mixup.

    Raises:
      BadInputError: no step of this run was kept for a replay, or on other data.
    """
    task, target = experiment.task, experiment.state
    items = {name: item for name, item in arrays_of(target).items() if name != "opt_state"}
    with closing(Series(workdir / FAILED, keep=1)) as series:
        kept, _ = series.newest(items, fingerprint=fingerprint(target.params), finite=False)
    if kept is None:
        raise BadInputError(f"--workdir={workdir}: no step of this run was kept for a replay")
    check_info(kept.meta, experiment.data_info.info, workdir=workdir, extend=None)
    params, step = kept.items["params"], kept.meta["step"]
    with read_batches(experiment, data, step, step + 1) as batches:
        batch = global_batch(next(batches), experiment.mesh, experiment.config.batch_size)
    batch |= kept.items.get("carry", {})

    def work(params: PyTree, batch: dict[str, Array], step: Array) -> dict[str, PyTree]:
        grads, metrics = experiment.gradients(params, batch, step)
        outputs, modules = forward_noting(experiment.model, params, task.inputs(batch))
        return {
            "loss": metrics.means["loss"],
            "gradient_norm": gradient_norm(grads),
            "finite_gradients": jax.tree.map(lambda g: jnp.isfinite(g).all(), grads),
            "finite_examples": finite_examples(outputs, experiment.config.batch_size),
            "finite_modules": modules,
        }

    replicated = NamedSharding(experiment.mesh, P())
    result = to_host(jax.jit(work, out_shardings=replicated)(params, batch, jnp.int32(step)))
    places = [data.train.describe(record) for record in records_of_step(experiment, step)]
    named = named_leaves(result["finite_gradients"])
    return {
        "mode": "replay",
        "step": step + 1,
        "unit": task.unit,
        "loss": str(result["loss"]),  # JSON has no number that is not finite
        "gradient_norm": str(result["gradient_norm"]),
        "first_module": first_not_finite(result["finite_modules"]),
        "not_finite": {
            "gradients": [name for name, finite in named if not finite],
            "examples": [places[i] for i in np.flatnonzero(~result["finite_examples"])],
        },
        "batch": places,
    }


def forward_noting(
    model: nn.Module, params: PyTree, inputs: Inputs
) -> tuple[PyTree, dict[str, Array]]:
    """Returns a model's outputs in evaluation, and whether each module's are finite.

    The names, such as "000007 encoder/moe, call 2", sort by the order in which the calls end.
    """
    calls: list[str] = []

    def note(call: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext):
        output = call(*args, **kwargs)
        if context.method_name == "__call__":
            path = "/".join(context.module.path) or "the model"
            again = f", call {calls.count(path) + 1}" if path in calls else ""
            finite = jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(output)]).all()
            context.module.sow("finite", f"{len(calls):06d} {path}{again}", finite)
            calls.append(path)
        return output

    params = gather_shared(params)
    if getattr(model, "adapter", NO_ADAPTER).rank:  # whose blocks run in an apply of their own
        from widenet_jax.nn import adapters  # most models do without

        params = {**params, ENCODER: adapters.merged(model.stack, params[ENCODER])}
        model = model.clone(**adapters.without(model.stack))
    # Linen notes nothing inside a loop or a recomputed block.
    plain = {k: v for k, v in {"unroll": True, "remat": "none"}.items() if hasattr(model, k)}
    apply = partial(model.clone(**plain).apply, train=False, mutable=["finite"])
    with nn.intercept_methods(note), precision_of(model):
        (outputs, _), found = apply({"params": params}, inputs)
    return outputs, {path[-1]: finite for path, (finite,) in flatten_dict(found["finite"]).items()}


def finite_examples(outputs: PyTree, batch_size: int) -> Array:  # [B]
    """Returns whether each example's outputs are finite, without those that no example has alone.

    These are the outputs after each loop, and those with another leading axis than B.
    """
    if isinstance(outputs, Mapping):
        outputs = {name: x for name, x in outputs.items() if name not in OF_LOOPS}
    leaves = [x for x in jax.tree.leaves(outputs) if np.shape(x)[:1] == (batch_size,)]
    return jnp.array([jnp.isfinite(x).all(axis=range(1, x.ndim)) for x in leaves]).all(axis=0)


def first_not_finite(finite: Mapping[str, bool]) -> str:
    """Returns the first module that `forward_noting` names as not finite, or "none"."""
    return next((name.split(" ", 1)[1] for name in sorted(finite) if not finite[name]), "none")
