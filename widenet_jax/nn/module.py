"""Layers with settings, and how they are built."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from widenet_jax.extensions import guarded_part
from widenet_jax.nn.initializers import KernelInit
from widenet_jax.nn.settings import Settings
from widenet_jax.nn.stack_settings import UserPart
from widenet_jax.specs import resolve

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
HELD = ("settings", "stack")  # the fields that hold settings


class Module(nn.Module):
    """A layer with settings, or with their fields: `Mlp(MlpSettings(64))` is `Mlp(64)`.

    The fields of the settings are attributes of the layer, too, and `clone` takes them.
    """

    def __init_subclass__(cls, **how: Any):
        super().__init_subclass__(**how)
        fields = {field.name: field.type for field in dataclasses.fields(cls)}
        for held in [name for name in HELD if name in fields]:
            cls.__init__ = taking_fields(cls, held, fields[held])

    @nn.nowrap
    def __getattr__(self, name: str) -> Any:
        held = next((vars(self)[one] for one in HELD if one in vars(self)), None)
        if not name.startswith("__") and hasattr(held, name):
            return getattr(held, name)
        return super().__getattr__(name)

    @property
    def kernels(self) -> KernelInit:
        """Initialisers of the kernels."""
        return KernelInit(self.settings.kernel_init, self.settings.depth)

    @property
    def float_type(self) -> jnp.dtype:
        """Of the computation."""
        return DTYPES[self.dtype]


def taking_fields(module: type, held: str, kind: type) -> Any:
    """Returns the `__init__` of a module that also takes the fields of its settings.

    Args:
      module: the class.
      held: its field for the settings.
      kind: their class.
    """
    initialise, own = module.__init__, {field.name for field in dataclasses.fields(module)}
    names = {field.name for field in dataclasses.fields(kind)} - {held}
    plain = bool | int | float | str | tuple
    usual = {name: getattr(module, name, None) for name in names}
    usual = {name: value for name, value in usual.items() if isinstance(value, plain)}

    @functools.wraps(initialise)
    def init(self: nn.Module, *args: Any, **given: Any):
        if args and isinstance(args[0], kind):
            given[held], *args = args
        changes = {name: given[name] for name in names & given.keys()}
        if held not in given:
            given[held] = kind(*args, **usual | changes)
        elif changes:
            given[held] = dataclasses.replace(given[held], **changes)
        initialise(self, **{k: v for k, v in given.items() if k in own or k not in changes})

    return init


def module_of(settings: Settings | UserPart) -> type[nn.Module]:
    """Returns the class of a layer."""
    return settings.kind if isinstance(settings, UserPart) else resolve(settings.module)


def build(settings: Settings | UserPart, **place: Any) -> nn.Module:
    """Builds a layer; `place` is its parent and its name."""
    if not isinstance(settings, UserPart):
        return resolve(settings.module)(settings, **place)
    fields, kind = dict(settings.fields), guarded_part(settings.kind, settings.place)
    if issubclass(kind, Module):
        return kind(**fields, **place)
    known = {field.name for field in dataclasses.fields(kind)}
    fields["kernel_init"] = KernelInit(fields.get("kernel_init", ""), fields.pop("depth"))
    dtype = fields.get("dtype", "float32")
    fields["dtype"] = DTYPES.get(dtype, dtype)  # a section of a user's may have another
    return kind(**{k: v for k, v in fields.items() if k in known}, **place)
