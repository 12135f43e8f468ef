"""A training step of ViT, ours and big_vision's: priced for TPUs, or measured on this machine.

  git clone https://github.com/google-research/big_vision
  python scripts/compare/peer_vit.py big_vision v3-256 v5e-256     # B and L, 16 images a core
  python scripts/compare/peer_vit.py big_vision                    # B, 8 images, float32

No dropout and no mixup; LAMB, gradients clipped to norm 1. big_vision's parameters are on every
device, as in its configs; ours are sharded. Prices need libtpu and no TPU.
"""

import importlib
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from widenet_jax.cli.plan import NOTE
from widenet_jax.config.files import load_config
from widenet_jax.config.parser import exit_code_of
from widenet_jax.errors import BadInputError
from widenet_jax.experiment import build_experiment, train_batch_shapes
from widenet_jax.files import user_cache
from widenet_jax.ops.benchmark.train_step import random_batch
from widenet_jax.ops.plan.compile import TpuCompiler, lower_step, tpu_devices
from widenet_jax.ops.plan.planner import data_info, price_step
from widenet_jax.ops.plan.topology import parse_topology

PLAIN = {"model.dropout": 0.0, "augment.mixup_alpha": 0.0, "task.label_smoothing": 0.0}
LAMB = optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1e-3, weight_decay=0.1))
VARIANTS = {"vit_b": "B/16", "vit_l": "L/16"}


def our_config(row: str, **fields: Any) -> ConfigDict:
    config = load_config(f"configs/imagenet.py:{row}")
    config.update_from_flattened_dict(PLAIN | fields)
    return config


def peer_step(checkout: str, devices: Any, batch: int, **settings: Any) -> tuple[Callable, tuple]:
    """Returns the peer's jitted step of (params, state, images, labels), and their shapes."""
    sys.path.insert(0, checkout)
    # Its `utils`, which a model needs to load a checkpoint, import TensorFlow.
    sys.modules.setdefault("big_vision.utils", MagicMock())
    vit = importlib.import_module("big_vision.models.vit")
    model = vit.Model(1000, pool_type="tok", rep_size=True, **settings)
    mesh = Mesh(np.array(devices), ("data",))

    def placed(tree: Any, spec: P) -> Any:
        place = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)

    def step(params, state, images, labels):
        def loss(params):
            logits = model.apply({"params": params}, images, train=True)[0]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = LAMB.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    images = jax.ShapeDtypeStruct((batch, 224, 224, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    params = jax.eval_shape(lambda x: model.init(jax.random.key(0), x)["params"], images)
    state = jax.eval_shape(LAMB.init, params)
    shapes = placed((params, state), P()), placed((images, labels), P("data"))
    return jax.jit(step, donate_argnums=(0, 1)), (*shapes[0], *shapes[1])


def prices(checkout: str, tpu: str, row: str) -> Iterator[float]:
    """Yields milliseconds of our step and the peer's, without collectives."""
    compiler = TpuCompiler(parse_topology(tpu), cache=user_cache("plan"), note=NOTE)
    batch = 16 * compiler.topology.num_cores
    config = our_config(row, batch_size=batch)
    settings = {"variant": VARIANTS[row], "dtype_mm": "bfloat16"}
    step, shapes = peer_step(checkout, compiler.devices, batch, **settings)
    for compiled in (
        compiler.compile(row, config, data_info(config)),
        compiler.compile_lowered(f"big_vision's {row}", step.lower(*shapes)),
    ):
        yield sum(price.ms for price in price_step(compiled, compiler.topology)[0])


def measure(checkout: str, turns: int = 3, steps: int = 8) -> None:
    """Prints the seconds of both steps, medians of `steps` of each, one after the other."""
    config = our_config("vit_b", **{"model.dtype": "float32", "batch_size": 8})
    experiment = build_experiment(config, data_info(config), jax.devices()[:1])
    ours = lower_step(experiment).compile()
    with jax.set_mesh(experiment.mesh):
        state = experiment.init()
        batch = random_batch(train_batch_shapes(experiment), below={"num_classes": 1000})
    peer, shapes = peer_step(checkout, jax.devices()[:1], 8, variant=VARIANTS["vit_b"])
    *held, images, labels = jax.tree.map(
        lambda x: jnp.full(x.shape, 0.01, x.dtype, device=x.sharding), shapes
    )

    def our_step() -> None:
        nonlocal state
        state, metrics = ours(state, batch)
        jax.block_until_ready(metrics)

    def their_step() -> None:
        *held[:], loss = peer(*held, images, labels)
        loss.block_until_ready()

    both = (our_step, their_step)
    for step in both:
        step()
    for _ in range(turns):
        times = [[timeit.timeit(step, number=1) for step in both] for _ in range(steps)]
        ours_s, theirs_s = map(statistics.median, zip(*times, strict=True))
        print(f"ours {ours_s:.2f} s, big_vision {theirs_s:.2f} s: {ours_s / theirs_s:.2f}")


def main(checkout: str = "", *tpus: str) -> None:
    if checkout == "--help":
        print(__doc__)
        return
    if not Path(checkout, "big_vision/models/vit.py").is_file():
        raise BadInputError(
            f"{checkout or 'CHECKOUT'} is no checkout of big_vision: "
            "git clone https://github.com/google-research/big_vision"
        )
    if not tpus:
        measure(checkout)
        return
    for tpu in tpus:  # before the table begins
        tpu_devices(parse_topology(tpu, field="TPU"))
    print(f"| | {' | '.join(tpus)} |\n|---|{'---|' * len(tpus)}")
    for row in VARIANTS:
        cells = ("{:.1f} and {:.1f}".format(*prices(checkout, tpu, row)) for tpu in tpus)
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(exit_code_of(partial(main, *sys.argv[1:])))
