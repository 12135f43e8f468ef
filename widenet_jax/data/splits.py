"""The check that an image set has the split that the config names."""

from collections.abc import Sequence

from widenet_jax.errors import BadInputError


def check_split(split: str, known: Sequence[str], where: str) -> None:
    """Raises BadInputError unless `split` is one of `known`; `where` names the set."""
    if split not in known:
        raise BadInputError(f"{where}: no split {split!r}; there are {', '.join(known) or 'none'}")
