"""Restarts a long-running task after an exception. A bug stops only one part of the agent, briefly.

Otherwise the exception of such a task would not be logged until the agent exits, because nothing
awaits the task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from gpuslice.kube.log_lines import Line

_LOG: Final = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


async def supervised(
    name: str,
    work: Callable[[], Awaitable[None]],
    *,
    first_pause_s: float = FIRST_PAUSE_S,
    longest_pause_s: float = LONGEST_PAUSE_S,
    now: Callable[[], float] = time.monotonic,
) -> NoReturn:
    """Run `work` again each time it ends, until cancelled. An exception is logged, and a pause
    follows. The pause doubles each time `work` fails again within `longest_pause_s`."""
    pause_s = first_pause_s
    while True:
        since_s = now()
        try:
            await work()
        except Exception:
            if now() - since_s >= longest_pause_s:
                pause_s = first_pause_s
            line = Line("internal error; the task starts again", task=name, again_in_s=pause_s)
            _LOG.exception(line)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_pause_s)
