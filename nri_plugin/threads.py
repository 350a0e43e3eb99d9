"""Blocking work in daemon threads. A job that hangs in the kernel neither delays an answer beyond
its deadline nor keeps the process from exiting.

A job runs to its end even after its caller's deadline. A Worker's next job waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from nri_plugin.policy.refusals import Reason, refused

_T = TypeVar("_T")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


async def in_time(what: str, work: Awaitable[_T]) -> _T:
    """Await `work`. Raises Refused on TimeoutError. what: the operation's name in the message."""
    try:
        return await work
    except TimeoutError as error:
        raise refused(Reason.TOO_SLOW, what=what) from error


class Worker:
    """One thread that runs its jobs one after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def run(self, job: Callable[[], _T], deadline_s: float | None) -> _T:
        """Run the job and return its result. Raises TimeoutError after `deadline_s`."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._jobs.put((job, future))
        async with asyncio.timeout(deadline_s):
            return await future

    def post(self, job: Callable[[], None]) -> None:
        self._jobs.put((job, asyncio.get_running_loop().create_future()))

    def _serve(self) -> None:
        while True:
            job, future = self._jobs.get()
            _perform(job, future)


class ThreadPool:
    """Runs each job in its own thread: at most `size` jobs at once, and at most `each` per owner. A
    job that hangs keeps its slot, but the `each` limit leaves slots for other owners' jobs."""

    def __init__(self, name: str, size: int, each: int) -> None:
        self._name = name
        self._each = each
        self._places = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    async def run(self, job: Callable[[], _T], deadline_s: float, owner: str) -> _T:
        """Run the job like Worker.run. Raises TimeoutError at once if no slot is free."""
        if not self._take(owner):
            raise TimeoutError
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def holding_a_place() -> _T:
            try:
                return job()
            finally:
                self._give_back(owner)

        target = partial(_perform, holding_a_place, future)
        try:
            threading.Thread(target=target, name=self._name, daemon=True).start()
        except RuntimeError:  # the process has reached its limit of threads
            self._give_back(owner)
            raise
        async with asyncio.timeout(deadline_s):
            return await future

    def _take(self, owner: str) -> bool:
        with self._lock:
            if self._held[owner] >= self._each or not self._places.acquire(blocking=False):
                return False
            self._held[owner] += 1
            return True

    def _give_back(self, owner: str) -> None:
        with self._lock:
            self._held[owner] -= 1
            if not self._held[owner]:
                del self._held[owner]
        self._places.release()


def _perform(job: Callable[[], Any], future: asyncio.Future[Any]) -> None:
    try:
        settle = partial(future.set_result, job())
    except Exception as error:
        settle = partial(future.set_exception, error)

    def deliver() -> None:
        if not future.done():
            settle()

    # call_soon_threadsafe raises RuntimeError if the loop is closed. Then no task waits.
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(deliver)
