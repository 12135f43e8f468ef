"""Several hosts must run one program: they compare what they are about to do, before they do it."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from widenet_jax.errors import BadInputError

T = TypeVar("T")


def check_agreement(facts: Mapping[str, object]) -> None:
    """Compares `facts` over all hosts; every host calls it with the same names, or finds out.

    Raises:
      BadInputError: they differ; names the fact and the odd hosts. All hosts raise it.
    """
    if jax.process_count() == 1:
        return
    names = sorted(facts)
    compare(["which fields there are"], [digest(names)])
    compare(names, [digest(facts[name]) for name in names])


def on_every_host(begin: Callable[[], T]) -> T:
    """`begin()`, which asks nothing of other hosts; where it fails on one, all of them fail.

    Without this the others would wait for the one that is gone.

    Raises:
      BadInputError: here, or on another host.
    """
    try:
        found, error = begin(), None
    except BadInputError as caught:
        found, error = None, caught
    if jax.process_count() > 1:
        failed = np.asarray(multihost_utils.process_allgather(np.int32(error is not None)))
        if error is None and failed.any():
            odd = ", ".join(map(str, np.flatnonzero(failed)))
            error = BadInputError(f"process {odd} cannot begin, see its own message")
    if error:
        raise error
    return found


def compare(names: list[str], digests: list[int]) -> None:
    table = multihost_utils.process_allgather(np.array(digests, np.uint32))  # [hosts, facts]
    complaint = disagreement(names, np.asarray(table).reshape(-1, len(names)))
    if complaint:
        raise BadInputError(complaint)


def disagreement(names: list[str], table: np.ndarray) -> str | None:
    """What the first fact is that hosts differ in, and which hosts are odd; None if they agree.

    Args:
      names: of the facts.
      table: uint32 [hosts, facts], a digest each. Where as many hosts say one thing as another,
        those that differ from host 0 are the odd ones.
    """
    for name, column in zip(names, table.T, strict=True):
        values, counts = np.unique(column, return_counts=True)
        if len(values) == 1:
            continue
        at_zero = counts[values == column[0]][0]
        usual = column[0] if at_zero == counts.max() else values[counts.argmax()]
        odd = np.flatnonzero(column != usual)
        listed = ", ".join(map(str, odd[:8])) + (", ..." if len(odd) > 8 else "")
        return (
            f"hosts do not agree on {name}: process {listed} of {len(column)} differs from the "
            "others; start the same command with the same code on every host"
        )
    return None


def digest(fact: object) -> int:
    """32 bits of a fact's text."""
    return int(hashlib.sha256(repr(fact).encode()).hexdigest()[:8], 16)


def code_sha256() -> str:
    """Of this package's source files."""
    package = Path(__file__).parents[1]
    sha = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sha.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()
