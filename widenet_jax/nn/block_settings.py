"""The base of models: a module around a stack of blocks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from widenet_jax.nn import rules
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.module import Module, build, module_of
from widenet_jax.nn.stack_settings import ModelSettings, StackSettings, fitting_rules


class BlockSettings(Module):
    """A model with settings of a stack of blocks, whose fields are its own attributes, too.

    A class attribute or a field of a setting's name has the model's usual value of it: a model that
    predicts after each loop sets `exits = True`.

    Attributes:
      stack: the settings.
    """

    stack: StackSettings

    exits = False

    @property
    def outer_init(self) -> KernelInit:
        """Initialisers of the layers around the stack, which are drawn as for a depth of 1."""
        return KernelInit(self.stack.kernel_init)

    def check(self) -> None:
        """Refuses fields that do not fit each other; a model adds its own to `super().check()`."""
        if isinstance(self.stack, ModelSettings):
            self.check_attention(self.stack.embed_dim)

    def check_attention(self, embed_dim: int) -> None:
        """Refuses an attention that does not fit the model, whose blocks have a width D."""
        rules.check_rules(fitting_rules(self.stack, embed_dim))
        if hasattr(self.stack.attention, "check"):  # a user's
            build(self.stack.attention, parent=None).check(embed_dim)

    def summarize(self, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Turns the sums of a model's aux, added up over batches, into metrics."""
        metrics: dict[str, Any] = {}
        for settings in (self.stack.attention, self.stack.feed_forwards[self.stack.ffn]):
            part = module_of(settings)
            if sums and hasattr(part, "summarize"):
                metrics |= part.summarize(sums)
        return metrics
