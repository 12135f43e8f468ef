"""Ends what Orbax 0.12 leaves running after a save fails: its other files' tasks and threads.

These parts of Orbax are private. Another release may not have them: a failed save then ends later,
and with more lines.
"""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

OTHER_RELEASE = (ImportError, AttributeError)


async def finish_all(work: Coroutine) -> Any:
    """Awaits a coroutine, then also the tasks that it leaves behind where one of them fails."""
    try:
        return await work
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)


# Orbax closes its event loop at the first file that cannot be written. The tasks of the other files
# then end in tracebacks that TensorStore and the garbage collector print, at any later time.
with suppress(OTHER_RELEASE):
    from orbax.checkpoint._src import asyncio_utils

    run_in_new_loop = asyncio_utils._run_sync_via_new_loop
    asyncio_utils._run_sync_via_new_loop = lambda work: run_in_new_loop(finish_all(work))


def operation() -> str:
    """Returns Orbax's name of the save that began last; "" if unknown."""
    with suppress(OTHER_RELEASE):
        from orbax.checkpoint._src.futures.synchronization import OperationIdGenerator

        return OperationIdGenerator.get_current_operation_id()
    return ""


def end_threads(operation: str) -> None:
    """Ends the threads of a failed save, without which the process cannot end.

    They would wait for minutes until its directories are made, which has failed.
    """
    with suppress(OTHER_RELEASE):
        from orbax.checkpoint._src.futures.future import AwaitableSignalsContract, set_signals

        signals = AwaitableSignalsContract.get_awaitable_signals_from_contract(operation)
        set_signals(signals, operation_id=operation)
        for thread in threading.enumerate():
            if getattr(thread, "_operation_id", None) == operation:
                with suppress(Exception):  # the error of this file
                    thread.join()
