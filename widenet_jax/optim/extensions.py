"""Guards of users' own optimizers and decays: they are tried before anything compiles.

`optim.build` puts them on where it resolves a name.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from widenet_jax.config.imports import errors_of_file
from widenet_jax.errors import BadInputError, first_line, raise_first, refuse
from widenet_jax.typing import PyTree


def guarded_optimizer(make: Callable, place: str, params: PyTree) -> Callable:
    """Returns a user's function of an optimizer, whose update it traces without computing it.

    Args:
      make: as `optim.build.OPTIMIZERS` has it. It raises BadInputError where the function fails, or
        returns no optimizer that a step can run.
      place: begins messages.
      params: the parameters or their shapes.
    """
    made_by = make.__init__ if isinstance(make, type) else make
    code = getattr(made_by, "__code__", None)  # a partial, or an object, has none
    file = code.co_filename if code else ""

    def tried(what: str, run: Callable, *args: Any) -> Any:
        with errors_of_file(file, f"{place}: its {what} fails"):
            return run(*args)

    def made_and_tried(*arguments: Any) -> optax.GradientTransformation:
        made = tried("function", make, *arguments)
        found = f"its function returns {type(made).__name__}"
        no_optimizer = not (hasattr(made, "init") and hasattr(made, "update"))
        refuse(place, (no_optimizer, f"{found}; return an optax.GradientTransformation"))
        before = params, tried("init", jax.eval_shape, made.init, params)
        after = tried("update", jax.eval_shape, made.update, params, before[1], params)
        no_pair = not (isinstance(after, tuple) and len(after) == 2)
        refuse(place, (no_pair, "its update must return (updates, state)"))
        for name, old, new in zip(("updates", "state"), before, after, strict=True):
            raise_first(f"{place}: its update {change}" for change in changes(name, old, new))
        return made

    return made_and_tried


def changes(name: str, before: PyTree, after: PyTree) -> Iterator[str]:
    """Yields what an update changes of the shapes of its updates or its state."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        yield f"returns {name} of another structure"
        return
    leaves = map(jax.tree_util.tree_leaves_with_path, (before, after))
    for (path, was), (_, now) in zip(*leaves, strict=True):
        if was.shape != now.shape or (name == "state" and was.dtype != now.dtype):
            yield (
                f"changes {name}{jax.tree_util.keystr(path)} from "
                f"{was.dtype}{list(was.shape)} to {now.dtype}{list(now.shape)}"
            )


def guarded_decay(decay: Callable, place: str) -> Callable:
    """Returns a user's decay; raises BadInputError where it fails or gives no share for a t."""
    try:
        shape = jax.eval_shape(lambda t: 1.0 * decay(t), jnp.float32(0)).shape
    except Exception as error:
        raise BadInputError(
            f"{place}: its function fails on a traced t in [0, 1]: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    array = f"its function returns an array {list(shape)} of one t; return one number"
    refuse(place, (shape, array))
    raise_first(
        f"{place}: its function returns {share:.3g} for a t in [0, 1]; return the share that is "
        "left, 0 or more"
        for share in map(decay, jnp.linspace(0.0, 1.0, 11))
        if not (jnp.isfinite(share) and share > -1e-6)  # -4e-8 is a rounded 0
    )
    return decay
