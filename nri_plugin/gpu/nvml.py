"""Queries NVML about this node's GPUs and their processes: the child of nvml_process.py.

`python -m nri_plugin.gpu.nvml` reads lines `NUMBER KIND`, until its input ends. It answers each
with lines of JSON that repeat the number: one line at once, and one for each GPU. A line
`NUMBER KIND ARGUMENTS` asks only the GPUs that ARGUMENTS, a JSON object, has by index. Each GPU has
its own thread, because a call may hang in the driver. NVML stays initialized, for two reasons: a
query then neither starts a process nor wakes a GPU, and the driver reports XID errors to this
process.
The program exits if NVML fails as a whole, because only a new process loads the driver's library
again. nvmlInit attaches no GPU. Each GPU's thread attaches the GPU by getting its first handle.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

import pynvml

from gpuslice.gpu import driver_root, nvml, processes
from nri_plugin.gpu.description import describe
from nri_plugin.gpu.nvml_queries import BOARD, GPUS, LIMITS, LINKS, PROCESSES

_AT_ONCE_MS: Final = 0
_EVENTS_MAX: Final = 1000
"""Maximum number of errors read per query. A failing GPU may report them faster than we read."""


class Asked:
    """A thread that answers queries one after the other. If several equal queries wait, only the
    latest is answered. jobs: kind -> function that returns the answer. answer: writes it."""

    def __init__(
        self,
        index: int,
        jobs: Mapping[str, Callable[..., Mapping[str, Any]]],
        answer: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._index = index
        self._jobs = jobs
        self._answer = answer
        self._waiting: dict[tuple[str, *tuple[str, ...]], int] = {}
        self._lock = threading.Lock()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.idle = True
        threading.Thread(target=self._serve, name=f"GPU {index}", daemon=True).start()

    def ask(self, kind: str, number: int, *argument: str) -> None:
        with self._lock:
            self.idle = False
            self._waiting[kind, *argument] = number
        self._wake.put(True)

    def end(self) -> None:
        self._wake.put(False)

    def _serve(self) -> None:
        while self._wake.get():
            with self._lock:
                asked, self._waiting = self._waiting, {}
            for (kind, *argument), number in asked.items():
                try:
                    result = self._jobs[kind](*argument)
                except pynvml.NVMLError as error:
                    result = {"error": str(error)}
                self._answer({"request": number, "index": self._index, **result})
            with self._lock:
                self.idle = not self._waiting


class OneGpu:
    """One GPU's queries. Only the GPU's own thread calls them, except while this thread is idle."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._events: object | None = None
        self._uuid = ""
        self.incomplete = False
        """Whether values are missing that NVML may return after it is initialized again."""

    def description(self) -> Mapping[str, Any]:
        """Return the GPU's description, and the XID errors since the last call. If NVML does not
        even return a UUID, return NVML's error instead of the description."""
        self.incomplete = True
        xids = self.take_xids()
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
            gpu, self.incomplete = describe(handle)
        except pynvml.NVMLError as error:
            return {"error": str(error), "xids": xids}
        self._uuid = gpu["uuid"]
        self._listen(handle)
        return {"gpu": {**gpu, "index": self._index}, "xids": xids}

    def processes(self) -> Mapping[str, Any]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        return {
            "uuid": pynvml.nvmlDeviceGetUUID(handle),
            "memory": processes.memory(handle),
            "utilization": processes.utilization(handle),
        }

    def limits(self, argument: str) -> Mapping[str, Any]:
        """Set hard limits. argument: JSON of the GPU's UUID, and of the bytes by directory."""
        uuid, wanted = json.loads(argument)
        handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        if pynvml.nvmlDeviceGetUUID(handle) != uuid:
            return {"error": "the GPU was replaced"}
        return {"limits": {group: _limit(handle, group, most) for group, most in wanted.items()}}

    def take_xids(self) -> Sequence[tuple[str, int]]:
        """Return UUID and XID of each error that the driver has queued since the last call."""
        xids: list[tuple[str, int]] = []
        while self._events is not None and len(xids) < _EVENTS_MAX:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, _AT_ONCE_MS)
            except pynvml.NVMLError:  # a timeout: no more errors are queued
                break
            xids.append((self._uuid, event.eventData))
        return xids

    def _listen(self, handle: object) -> None:
        """Subscribe to the GPU's XID errors, once. Some GPUs and drivers do not support this."""
        if self._events is not None:
            return
        try:
            events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError:
            return
        self._events = events


class Gpus:
    """Initialized NVML, with a thread for each GPU. Raises pynvml.NVMLError and
    driver_root.NotFoundError."""

    def __init__(self, write: Callable[[str], object]) -> None:
        nvml.start()
        self._write = write
        self._lock = threading.Lock()
        self._xids: list[tuple[str, int]] = []
        self._find()

    def ask(self, kind: str, number: int, arguments: Mapping[str, Any] | None = None) -> None:
        """Write the answer for NVML as a whole. Make each GPU's thread write its GPU's answer."""
        if kind == GPUS:
            self._initialize_again()
        head = {
            "request": number,
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "count": len(self._gpus),
            "links": self._links,
            "xids": self._xids,
            "limits": self._has_limits,
        }
        self._xids = []
        self._answer(head)
        if arguments is not None:
            for index, argument in arguments.items():
                if int(index) < len(self._threads):
                    self._threads[int(index)].ask(kind, number, json.dumps(argument))
            return
        for asked in [self._board] if kind == LINKS else self._threads:
            asked.ask(kind, number)

    def _answer(self, answer: Mapping[str, Any]) -> None:
        """Write an answer as one line. May be called from any thread."""
        with self._lock:
            self._write(json.dumps(answer) + "\n")

    def _find(self) -> None:
        self._links: Sequence[str] | None = None
        self._has_limits = hasattr(pynvml.nvmlLib, "nvmlDeviceSetMemoryLimits_v1")
        self._gpus = [OneGpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        self._threads = [
            Asked(
                index,
                {GPUS: gpu.description, PROCESSES: gpu.processes, LIMITS: gpu.limits},
                self._answer,
            )
            for index, gpu in enumerate(self._gpus)
        ]
        self._board = Asked(BOARD, {LINKS: self._find_links}, self._answer)

    def _initialize_again(self) -> None:
        """Initialize NVML again if a GPU's values are missing. Otherwise NVML would not find a GPU
        that reappeared. Not done while a thread is busy, because it may be calling the driver."""
        all_asked = [*self._threads, self._board]
        if not any(gpu.incomplete for gpu in self._gpus) or not all(a.idle for a in all_asked):
            return
        for gpu in self._gpus:
            self._xids += gpu.take_xids()
        for asked in all_asked:
            asked.end()
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        self._find()

    def _find_links(self) -> Mapping[str, Any]:
        handles = [_handle(index) for index in range(len(self._gpus))]
        self._links = links(len(handles), _linked(handles))
        return {"links": self._links}


def _limit(handle: object, group: str, most: int) -> tuple[int, int] | str:
    """Set a control group's hard limit, without a soft one. Return the limit before and after, or
    why it was not set. Setting it again has no effect. A read may return an ancestor's limit."""
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(group.encode(), 0, most)
    now = pynvml.c_nvmlGetMemoryLimits_v1_t(group.encode())
    try:
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, now)
        was = now.hardLimit
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, now)
    except pynvml.NVMLError as error:
        return str(error)
    return was, now.hardLimit


def links(gpus: int, linked: Iterable[tuple[int, int]]) -> Sequence[str]:
    """Return each GPU's group name, "" without NVLink. GPUs that NVLink connects, directly or
    through other GPUs, form a group. gpus: number of GPUs. linked: the indexes of each connected
    pair."""
    group = list(range(gpus))
    for one, other in linked:
        old, new = max(group[one], group[other]), min(group[one], group[other])
        group = [new if each == old else each for each in group]
    return [f"nvlink-{each}" if group.count(each) > 1 else "" for each in group]


def _linked(handles: Sequence[object]) -> Sequence[tuple[int, int]]:
    pairs = combinations(range(len(handles)), 2)
    return [(one, other) for one, other in pairs if _by_nvlink(handles[one], handles[other])]


def _handle(index: int) -> object | None:
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)  # type: ignore[no-any-return]
    except pynvml.NVMLError:  # the GPU fell off the bus
        return None


def _by_nvlink(one: object | None, other: object | None) -> bool:
    if one is None or other is None:
        return False
    try:
        status = pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:  # older drivers and small GPUs do not support the query
        return False
    return bool(status == pynvml.NVML_P2P_STATUS_OK)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main() -> int:
    """Answer queries until the input ends. On failure the last line on stderr states the cause."""
    try:
        gpus = Gpus(_write)
        for line in sys.stdin:
            number, kind, *rest = line.split(maxsplit=2)
            gpus.ask(kind, int(number), *map(json.loads, rest))
    except (pynvml.NVMLError, driver_root.NotFoundError) as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
