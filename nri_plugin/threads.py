"""Blocking work in daemon threads: a job that hangs in the kernel delays neither an answer beyond
its deadline nor the end of the process.

A caller that stops waiting does not stop the job: it continues, and a worker's order is kept.
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
    """Await `work`; on TimeoutError raise Refused. what: the operation, for the message."""
    try:
        return await work
    except TimeoutError as error:
        raise refused(Reason.TOO_SLOW, what=what) from error


class Worker:
    """One thread, one job after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def run(self, job: Callable[[], _T], deadline_s: float | None) -> _T:
        """Return the job's result or raise its exception; TimeoutError after `deadline_s`."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._jobs.put((job, future))
        async with asyncio.timeout(deadline_s):
            return await future

    def post(self, job: Callable[[], None]) -> None:
        """Enqueue a job without waiting for it."""
        self._jobs.put((job, asyncio.get_running_loop().create_future()))

    def _serve(self) -> None:
        while True:
            job, future = self._jobs.get()
            _perform(job, future)


class ThreadPool:
    """A thread per job, at most `size` at a time and `each` for one owner. A job that hangs keeps
    its thread and its slot, and does not delay other owners' jobs."""

    def __init__(self, name: str, size: int, each: int) -> None:
        self._name = name
        self._each = each
        self._places = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    async def run(self, job: Callable[[], _T], deadline_s: float, owner: str) -> _T:
        """Run as Worker.run does. Raises TimeoutError at once if no slot is free for the owner."""
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

    # On a closed loop no task waits for the result.
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(deliver)
