"""Learning-rate schedules: linear warm-up from 0, then one of three decays."""

import math
from collections.abc import Callable

import jax.numpy as jnp
import optax

from widenet_jax.errors import choose

# The remaining share of (peak - end) after the fraction t in [0, 1] of the decay.
DECAYS: dict[str, Callable] = {
    "cosine": lambda t: 0.5 * (1.0 + jnp.cos(math.pi * t)),
    "linear": lambda t: 1.0 - t,
    "constant": lambda t: jnp.ones_like(t),
}


def build_schedule(
    name: str,
    *,
    learning_rate: float,
    end_learning_rate: float,
    warmup_steps: int,
    total_steps: int,
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
      BadInputError: the name is unknown.
    """
    decay = choose(DECAYS, name, field="config.optimizer.schedule")
    # The divisors are at least 1 to avoid 0 / 0; no step lies inside an empty phase.
    decay_steps = max(total_steps - warmup_steps, 1)

    def schedule(step):
        step = jnp.asarray(step, jnp.float32)
        warm = learning_rate * step / max(warmup_steps, 1)
        t = jnp.clip((step - warmup_steps) / decay_steps, 0.0, 1.0)
        left = end_learning_rate + (learning_rate - end_learning_rate) * decay(t)
        return jnp.where(step < warmup_steps, warm, left)

    return schedule
