"""What a step computes has not changed since the last revision with the plain step.

The same checkpoint, batches and settings in two checkouts of this repository, each in a process of
its own: the gradients leaf by leaf, and 20 losses. Needs git and the history:

  python -m pytest tests/test_nothing_changed.py --slow -s
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PLAIN = "eb0650c"  # einsum dispatch, flax's layers, gradients by JAX alone
STEPS = 20

# Runs in either checkout: what both have, but for where a step's parts are and how they are put
# together. Arguments: variant, batch, image side, steps, output.
DRIVER = '''
import sys
import jax, jax.numpy as jnp, numpy as np
from configs.imagenet import get_config
from widenet_jax.models.vit import build_model
from widenet_jax.optim.build import build_optimizer
from widenet_jax import step as steps_of
from widenet_jax.tasks.classification import TASKS
plain = not hasattr(steps_of, "make_gradients")
if plain:
    from widenet_jax.train import make_forward
else:
    from widenet_jax.experiment import make_forward

variant, batch, side, steps, out = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
config = get_config(variant)
config.model.update({"dropout": 0.0, "dtype": "float32"})
if config.model.moe:
    config.model.moe.noise_std = 0.0
config.optimizer.update({"schedule": "constant", "learning_rate": 0.01, "warmup": "0 steps"})
classes = 10
model = build_model(config.model, classes)
rng = np.random.default_rng(0)
batches = [
    {"image": rng.integers(0, 256, (batch, side, side, 3), dtype=np.uint8),
     "label": rng.integers(0, classes, batch, dtype=np.int32),
     "bad": np.zeros(batch, bool)} for _ in range(4)
]
shapes = jax.eval_shape(
    lambda: model.init(jax.random.key(0), jnp.zeros((1, side, side, 3)), train=False)["params"]
)
def draw(path, leaf):
    """The checkpoint: the usual sizes, whatever draws initial weights in a checkout."""
    last = jax.tree_util.keystr(path, simple=True, separator="/").rsplit("/", 1)[-1]
    normal = rng.normal(size=leaf.shape).astype(np.float32)
    if last == "scale":
        return 1 + 0.1 * normal
    return normal * (0.02 if leaf.ndim < 2 else (2 / (leaf.shape[-1] + leaf.shape[-2])) ** 0.5)
params = jax.tree.map_with_path(draw, shapes)
task = TASKS["classification"](num_classes=classes, label_smoothing=0.1, mixup_alpha=0.0,
                               mixup_group_size=batch)
forward = make_forward(model)
def loss(params, batch):
    streams = dict.fromkeys(("dropout", "router", "mixup"), jax.random.key(0))
    return task.loss(lambda *a: forward(params, *a), batch, streams)[0]
grads = jax.jit(jax.grad(loss))(params, batches[0])
names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(grads)]
saved = {f"gradient {n}": g for n, g in zip(names, jax.tree.leaves(grads))}
tx, schedule = build_optimizer(config.optimizer, params_or_shapes=shapes, total_steps=steps,
                               batch_size=batch, num_examples=4 * batch)
settings = dict(forward=forward, task=task, seed=0, accumulation_steps=1, group_size=batch)
if plain:
    step = steps_of.make_train_step(tx=tx, schedule=schedule, **settings)
    state = steps_of.TrainState(step=jnp.int32(0), params=params, opt_state=tx.init(params))
else:
    gradients = steps_of.make_gradients(**settings)
    step = steps_of.make_train_step(gradients=gradients, tx=tx, schedule=schedule,
                                    max_skipped_updates=0)
    state = steps_of.new_state(params, tx)
step = jax.jit(step)
losses = []
for i in range(steps):
    state, metrics = step(state, batches[i % 4])
    losses.append(float(metrics["loss"]))
np.savez(out, losses=losses, **saved)
'''


def run(checkout: Path, variant: str, batch: int, side: int, out: Path) -> dict[str, np.ndarray]:
    environment = os.environ | {"PYTHONPATH": str(checkout), "XLA_FLAGS": ""}
    arguments = [variant, str(batch), str(side), str(STEPS), str(out)]
    command = [sys.executable, "-c", DRIVER, *arguments]
    subprocess.run(command, check=True, env=environment, cwd=checkout)
    return dict(np.load(out))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The old revision's files."""
    checkout = tmp_path_factory.mktemp("plain")
    archive = subprocess.run(["git", "archive", PLAIN], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"revision {PLAIN} is not in this copy's history")
    subprocess.run(["tar", "-x", "-C", checkout], input=archive.stdout, check=True)
    return checkout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "batch", "side"),
    [
        ("widenet_s,images_per_group=4", 8, 32),
        ("vit_b,depth=2", 4, 64),
        ("widenet_b,images_per_group=4", 4, 224),
    ],
)
def test_gradients_and_twenty_losses(
    variant: str, batch: int, side: int, plain: Path, tmp_path: Path
):
    """To 1e-3: each gradient in norm (relative to its own), each loss relative."""
    before = run(plain, variant, batch, side, tmp_path / "before.npz")
    after = run(ROOT, variant, batch, side, tmp_path / "after.npz")
    assert before.keys() == after.keys()
    largest = max(np.linalg.norm(g) for name, g in before.items() if name != "losses")
    errors = {}
    for name, gradient in before.items():
        if name != "losses":
            # The keys' bias has a gradient that is zero but for rounding: softmax does not see it.
            own = largest if "['key']['bias']" in name else np.linalg.norm(gradient)
            errors[name] = np.linalg.norm(after[name] - gradient) / own
    worst = max(errors, key=errors.get)
    drift = np.abs(after["losses"] / before["losses"] - 1)
    print(f"{variant}: worst leaf {worst} {errors[worst]:.1e}; losses {before['losses'][0]:.4f} to "
          f"{before['losses'][-1]:.4f}, largest relative difference {drift.max():.1e}")  # fmt: skip
    # NaN fails both.
    assert all(error <= 1e-3 for error in errors.values())
    assert drift.max() <= 1e-3
