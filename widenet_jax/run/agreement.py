"""Checks that all hosts are about to run the same program on the same data."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from widenet_jax.errors import BadInputError, RunFailedError

T = TypeVar("T")


def check_agreement(facts: Mapping[str, object]) -> None:
    """Compares `facts` over all hosts. Every host calls this at the same place.

    Raises:
      BadInputError: on all hosts, if names or values differ; names the fact and the odd hosts.
    """
    if jax.process_count() == 1:
        return
    names = sorted(facts)
    compare(["the names of the fields"], [digest(names)])
    compare(names, [digest(facts[name]) for name in names])


def on_every_host(begin: Callable[[], T]) -> T:
    """Returns `begin()`, which must not communicate; if it fails on one host, all hosts fail.

    Otherwise the other hosts would wait for the one that has ended.

    Raises:
      BadInputError, RunFailedError: `begin` raised it here or on another host.
    """
    kinds = (None, BadInputError, RunFailedError)
    try:
        found, error = begin(), None
    except kinds[1:] as caught:
        found, error = None, caught
    if jax.process_count() > 1:
        own = 0 if error is None else 1 + isinstance(error, RunFailedError)  # an index of `kinds`
        all_kinds = np.asarray(multihost_utils.process_allgather(np.int32(own)))
        if error is None and all_kinds.any():
            odd = ", ".join(map(str, np.flatnonzero(all_kinds)))
            error = kinds[all_kinds.max()](f"process {odd} cannot begin; its own message says why")
    if error:
        raise error
    return found


def compare(names: list[str], digests: list[int]) -> None:
    """Raises BadInputError if hosts have different digests, one for each name."""
    table = multihost_utils.process_allgather(np.array(digests, np.uint32))  # [hosts, facts]
    complaint = disagreement(names, np.asarray(table).reshape(-1, len(names)))
    if complaint:
        raise BadInputError(complaint)


def disagreement(names: list[str], table: np.ndarray) -> str | None:
    """Describes the first fact that hosts differ in and names the odd hosts; None if all agree.

    Args:
      names: names of the facts.
      table: uint32 [hosts, facts], digests. The odd hosts are the minority; in a tie, those that
        differ from host 0.
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
    """Returns 32 bits of the SHA-256 of a fact's repr."""
    return int(hashlib.sha256(repr(fact).encode()).hexdigest()[:8], 16)


def code_sha256() -> str:
    """Returns the SHA-256 of this package's source files, names included."""
    package = Path(__file__).parents[1]
    sha = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sha.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()
