"""Ends the tasks that Orbax 0.12 leaves behind where a save fails.

This part of Orbax is private. Another release may not have it: a failed save then ends with more
lines.
"""

import asyncio
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
