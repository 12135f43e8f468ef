"""Failures of saves: ends the tasks that Orbax 0.12 leaves behind, and bounds TensorStore's tries.

These parts of Orbax are private. Another release may not have them: a failed save then ends with
more lines, or later.
"""

import asyncio
import math
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def finish_all(work: Coroutine) -> Any:
    """Awaits a coroutine, then also the tasks that it leaves behind where one of them fails."""
    try:
        return await work
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)


# Orbax closes its event loop at the first file that cannot be written. The tasks of the other files
# then end in tracebacks that TensorStore and the garbage collector print, at any later time.
with suppress(ImportError, AttributeError):
    from orbax.checkpoint._src import asyncio_utils

    run = asyncio_utils._run_sync_via_new_loop
    asyncio_utils._run_sync_via_new_loop = lambda work: run(finish_all(work))


def bound_tries(seconds: float) -> None:
    """Lets TensorStore try a request on gs:// for so long or longer, from the next save or read on.

    It waits 1, 2, 4, 8 s, then 16 s each time; by default up to 32 s, 32 times.
    """
    waits = {"initial_delay": "1s", "max_delay": "16s"}
    tries = 4 + math.ceil(max(0.0, seconds - 15.0) / 16)
    with suppress(ImportError, AttributeError):
        from orbax.checkpoint._src.serialization import tensorstore_utils

        for context in (
            tensorstore_utils._BASE_TS_CONTEXT,
            tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT,
        ):
            context["gcs_request_retries"] = waits | {"max_retries": tries}
