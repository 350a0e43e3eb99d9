"""Runs the process that queries NVML (nvml.py), for both the inventory and the measurements.

Each query goes to all GPUs at once, and each GPU answers with a line. A GPU that does not answer
within the deadline is late. Later queries do not wait for a late GPU until it answers again. A new
process's first answers may take long, because without persistence mode the driver attaches each GPU
anew. The process is killed only if no GPU answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from nri_plugin.child import Child, cause, end
from nri_plugin.gpu.nvml_queries import BOARD, GPUS, LINKS
from nri_plugin.policy.refusals import ChildError

COMMAND: Final = (sys.executable, "-m", "nri_plugin.gpu.nvml")
DEADLINE_S: Final = 10.0
FIRST_S: Final = 120.0
_CLOSE_S: Final = 1.0
_PAUSE_S: Final = 5.0

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to one query. head: the line about NVML as a whole. lines: GPUs' answers by
    index. late: why a GPU did not answer. starting: why a GPU's first answer is not due yet."""

    head: Line
    lines: Mapping[int, Line]
    late: Mapping[int, str] = field(default_factory=dict)
    starting: Mapping[int, str] = field(default_factory=dict)


class _Request:
    def __init__(self, kind: str, arguments: Mapping[int, Any] | None) -> None:
        self.kind = kind
        self.arguments = arguments
        self.head: Line | None = None
        self.lines: dict[int, Line] = {}
        self.changed = asyncio.Event()

    def missing(self) -> set[int]:
        """Return the indexes that have not answered. The head must have arrived."""
        assert self.head is not None
        wanted = {BOARD} if self.kind == LINKS else set(range(self.head["count"]))
        if self.arguments is not None:
            wanted &= self.arguments.keys()
        return wanted - self.lines.keys()


class _Running:
    """One process. answered: whether it has ever answered. heard: GPUs that have ever answered.
    heard_s: when any GPU answered last. late: GPUs that missed a deadline and have not answered
    since; no query waits for them. slow: GPUs that missed a deadline and have not answered a GPUS
    query in time since; only a GPUS query waits for them, because it decides about health."""

    def __init__(self, process: Process, now_s: float) -> None:
        self.process = process
        self.began_s = self.heard_s = now_s
        self.answered = False
        self.heard: set[int] = set()
        self.late: set[int] = set()
        self.slow: set[int] = set()
        self.requests: dict[int, _Request] = {}
        self.ended = ""
        self.reading: asyncio.Task[None] | None = None


class _EndedError(ChildError):
    """The process ended before it answered."""


@dataclass(eq=False)
class NvmlProcess:
    """Starts the process, and sends queries to it. deadline_s: of each query. first_s: time for a
    new process's first answers. pause_s: time from a process's failure to the next start. now: a
    monotonic clock in seconds. timeout: asyncio.timeout, except in tests. on_start: called after
    each start of a process."""

    environment: Mapping[str, str]
    deadline_s: float = DEADLINE_S
    first_s: float = FIRST_S
    pause_s: float = _PAUSE_S
    now: Callable[[], float] = time.monotonic
    command: Sequence[str] = COMMAND
    timeout: Callable[[float], AbstractAsyncContextManager[object]] = asyncio.timeout
    on_start: Callable[[], None] = lambda: None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _running: _Running | None = None
    _number: int = 0
    _failed: str = ""

    def __post_init__(self) -> None:
        self.child = Child(self.command, self.environment, self.deadline_s, subject="NVML")
        self.first_s = max(self.first_s, self.deadline_s)
        self._not_before_s = self.now()

    @property
    def silent(self) -> bool:
        """Whether any GPU is slow, as _Running defines it."""
        return self._running is not None and bool(self._running.slow)

    async def ask(self, kind: str, arguments: Mapping[int, Any] | None = None) -> Answers:
        """Return the answers that arrive in time. Raises ChildError if NVML as a whole does not
        answer. arguments: by the index of each GPU to ask; None: ask all."""
        was_running = self._running is not None
        try:
            return await self._ask(kind, arguments)
        except _EndedError:
            if not was_running:
                raise
        return await self._ask(kind, arguments)

    async def close(self) -> None:
        """Close the process's input, which ends the process; kill it if it hangs. A later `ask`
        starts a new process."""
        running, self._running = self._running, None
        process = running.process if running else self.child.lingering
        if process is None:
            return
        try:
            await end(process, _CLOSE_S)
        finally:
            if running is not None:
                self._leave(running)
        if running is not None and running.reading is not None:
            await asyncio.wait({running.reading})
        await self.child.wait_for_exit()

    async def _ask(self, kind: str, arguments: Mapping[int, Any] | None) -> Answers:
        async with self._starting:
            running = self._running or await self._start()
        request = _Request(kind, arguments)
        self._number += 1
        number = self._number
        running.requests[number] = request
        try:
            with contextlib.suppress(TimeoutError):
                async with self.timeout(self.child.deadline_s):
                    await self._answered(running, number, request)
        finally:
            del running.requests[number]
        if running.ended:
            raise _EndedError(running.ended)
        return self._sorted(running, request)

    async def _answered(self, running: _Running, number: int, request: _Request) -> None:
        stdin = running.process.stdin
        assert stdin is not None
        with contextlib.suppress(ConnectionError):  # the process has ended: `_read` reports why
            written = "" if request.arguments is None else f" {json.dumps(request.arguments)}"
            stdin.write(f"{number} {request.kind}{written}\n".encode())
            await stdin.drain()
        while not running.ended:
            passed_over = running.late | (running.slow if request.kind != GPUS else set())
            if request.head is not None and not request.missing() - passed_over:
                return
            request.changed.clear()
            await request.changed.wait()

    def _sorted(self, running: _Running, request: _Request) -> Answers:
        now_s = self.now()
        age_s = now_s - running.began_s
        new = age_s < self.first_s
        if request.head is None and new and not running.answered:
            raise ChildError(
                f"NVML has not answered for {age_s:.0f} s: without persistence mode its first"
                f" answer may take {self.first_s:.0f} s"
            )
        if request.head is None or self._hangs(running, request, now_s):
            late_error = self.child.late()
            self._fail(running, str(late_error))
            raise late_error
        late, starting = {}, {}
        if request.kind == GPUS:
            running.slow -= request.lines.keys()
            running.late |= request.missing()
        running.late |= request.missing() - running.slow
        running.slow |= request.missing()
        for index in request.missing():
            if new and index not in running.heard:
                starting[index] = f"NVML has not answered for it yet ({age_s:.0f} s)"
            else:
                late[index] = f"NVML did not answer for it in {self.child.deadline_s:g} s"
        return Answers(request.head, request.lines, late, starting)

    def _hangs(self, running: _Running, request: _Request, now_s: float) -> bool:
        """Return whether no GPU has answered for so long that a new process should be tried."""
        missing = request.missing()
        return bool(missing) and not request.lines and now_s - running.heard_s >= self.first_s

    async def _start(self) -> _Running:
        if self.now() < self._not_before_s:
            raise ChildError(self._failed)
        try:
            process = await self.child.start(PIPE)
        except ChildError as error:
            self._pause(str(error))
            raise
        self._running = running = _Running(process, self.now())
        running.reading = asyncio.create_task(self._read(running), name="answers of NVML")
        self.on_start()
        return running

    async def _read(self, running: _Running) -> None:
        """Pass each line to its request until the process ends. Then fail the open requests."""
        process = running.process
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._take(running, line)
            _, stderr = await process.communicate()
            problem = cause(process.returncode or 0, stderr)
        except (OSError, ValueError) as error:
            problem = f"{self.child.subject}: unreadable answer: {error}"
        self._fail(running, problem)

    def _take(self, running: _Running, line: bytes) -> None:
        """Pass one line to its request. Raises ValueError for an invalid line."""
        answer = json.loads(line)
        if not isinstance(answer, dict) or not isinstance(answer.get("request"), int):
            raise ValueError(repr(line[:80]))
        running.answered = True
        request, index = running.requests.get(answer["request"]), answer.get("index")
        if isinstance(index, int):
            running.heard.add(index)
            running.late.discard(index)
            running.heard_s = self.now()
        elif not isinstance(answer.get("count"), int):
            raise ValueError(repr(line[:80]))
        if request is None:
            return  # the request's deadline has passed
        if index is None:
            request.head = answer
        else:
            request.lines[index] = answer
        request.changed.set()

    def _fail(self, running: _Running, problem: str) -> None:
        running.ended = problem
        if self._running is running:
            self._running = None
            if not running.answered:
                self._pause(problem)
        self._leave(running)
        for request in running.requests.values():
            request.changed.set()

    def _pause(self, problem: str) -> None:
        self._failed = problem
        self._not_before_s = self.now() + self.pause_s

    def _leave(self, running: _Running) -> None:
        if running.reading is not None and running.reading is not asyncio.current_task():
            running.reading.cancel()
        self.child.leave(running.process)
