"""Agreement of the hosts of a run: all start the same program on the same data, or all end."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from ml_collections import ConfigDict
from orbax.checkpoint import multihost

from widenet_jax.data.contract import Data
from widenet_jax.errors import BadInputError, NoAccessError, RunFailedError
from widenet_jax.run.workdir import PACKAGES, shared_fields, version

T = TypeVar("T")


def on_every_host(begin: Callable[..., T], *args: Any, **options: Any) -> T:
    """Returns `begin(...)`, which must not communicate; if it fails on one host, all hosts fail.

    Otherwise the other hosts would wait for the one that has ended.

    Raises:
      BadInputError, RunFailedError: `begin` raised it here or on another host; the former also for
        a NoAccessError.
    """
    kinds = (None, BadInputError, RunFailedError)
    try:
        result, error = begin(*args, **options), None
    except NoAccessError as caught:
        result, error = None, BadInputError(str(caught))
    except kinds[1:] as caught:
        result, error = None, caught
    if jax.process_count() > 1:
        own = 0 if error is None else 1 + isinstance(error, RunFailedError)  # an index of `kinds`
        all_kinds = np.asarray(multihost_utils.process_allgather(np.int32(own)))
        if error is None and all_kinds.any():
            odd = ", ".join(map(str, np.flatnonzero(all_kinds)))
            error = kinds[all_kinds.max()](f"process {odd} cannot begin; its own message says why")
    if error:
        raise error
    return result


def agree_on_start(config: ConfigDict, workdir: epath.Path, **flags: object) -> None:
    """Compares config, flags, versions and code over all hosts, see `check_agreement`."""
    values = {f"config.{name}": value for name, value in shared_fields(config).items()}
    values |= {f"the version of {name}": version(name) for name in PACKAGES}
    values |= {f"--{name}": value for name, value in flags.items()}
    check_agreement(values | {"--workdir": str(workdir), "the code": code_sha256()})


def agree_on_data(data: Data) -> None:
    """Compares the facts and contents of the data over all hosts, see `check_agreement`."""
    info = dict(data.data_info.info)
    contents = info.pop("content_sha256", "")
    middle = len(contents) // 2
    values = {"the training data": contents[:middle], "the evaluation data": contents[middle:]}
    check_agreement(values | {"the data": data.data_info._replace(info=info)})


def check_agreement(values: Mapping[str, object]) -> None:
    """Compares named values over all hosts. Every host calls this at the same place.

    Raises:
      BadInputError: on all hosts, if names or values differ; says which, and on which hosts.
    """
    if jax.process_count() == 1:
        return
    names = sorted(values)
    for named, own in ((["the names of the fields"], [names]), (names, map(values.get, names))):
        digests = np.array([digest(value) for value in own], np.uint32)
        table = np.asarray(multihost_utils.process_allgather(digests))  # [hosts, names]
        if complaint := disagreement(named, table.reshape(-1, len(named))):
            raise BadInputError(complaint)


def disagreement(names: list[str], table: np.ndarray) -> str | None:
    """Describes the first value that hosts differ in and names the odd hosts; None if all agree.

    Args:
      names: names of the values.
      table: uint32 [hosts, names], digests. The odd hosts are the minority; in a tie, those that
        differ from host 0.
    """
    for name, column in zip(names, table.T, strict=True):
        usual, _ = Counter(column.tolist()).most_common(1)[0]  # in a tie the one of host 0
        odd = np.flatnonzero(column != usual)
        if len(odd):
            return (
                f"hosts do not agree on {name}: process {', '.join(map(str, odd))} of "
                f"{len(column)} differs from the others; start the same command with the same "
                "code and data on every host"
            )
    return None


def digest(value: object) -> int:
    """Returns 32 bits of the SHA-256 of a value's repr."""
    return int(hashlib.sha256(repr(value).encode()).hexdigest()[:8], 16)


def code_sha256() -> str:
    """Returns the SHA-256 of this package's source files, names included."""
    package = Path(__file__).parents[1]
    sha = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sha.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()


def is_followed() -> bool:
    """Returns whether this process joined as process 0, whose output people follow.

    On a TPU that is worker 0, whose log launchers show. The first host, which writes the files, may
    be another worker: libtpu numbers `jax.process_index()` by the place in the slice. All hosts
    call this at the same place.
    """
    if not jax.distributed.is_initialized():
        return True
    if not multihost.is_runtime_to_distributed_ids_initialized():
        multihost.initialize_runtime_to_distributed_ids()
    return multihost.runtime_to_distributed_ids()[jax.process_index()] == 0
