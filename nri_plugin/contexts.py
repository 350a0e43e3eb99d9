"""What a CUDA context takes of each card by itself: measured here, because a container cannot.

A process's first context has no moment before it in which the driver could be asked, and NVML knows
processes by their numbers on the host. So grants say it. A child makes the card's primary context
and asks NVML what the card has given it; with the child all of it goes. Once for each card: what
is known stays known. What could not be learned is unknown, said once, and tried again later.

No container ever waits for this, nor fails by it. A look takes a context's memory for a moment, so
none is made where less than ROOM_BYTES are free.

Run as `python -m nri_plugin.contexts UUID`, this module is that child: it prints one number.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from contract.log_lines import Line
from nri_plugin.child import Child
from nri_plugin.errors import ChildError

_LOG: Final = logging.getLogger(__name__)

ROOM_BYTES: Final = 1 << 30
MOST_BYTES: Final = 1 << 30
"""A figure above it is taken for a mistake: contexts take a few hundred MiB."""

_UUID_BYTES: Final = 16


class Contexts:
    """The sizes, kept; each card is asked at most once in `min_interval_s`, until it has answered.

    now: a monotonic clock in seconds.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        deadline_s: float,
        min_interval_s: float,
        now: Callable[[], float],
        command: Sequence[str] = (sys.executable, "-m", "nri_plugin.contexts"),
    ) -> None:
        self._environment = environment
        self._deadline_s = deadline_s
        self._min_interval_s = min_interval_s
        self._now = now
        self._command = command
        self._sizes: dict[str, int] = {}
        self._children: dict[str, Child] = {}
        self._asked_at: dict[str, float] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._said: dict[str, str] = {}

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes by card, of those that are known."""
        return self._sizes

    def look(self, uuids: Iterable[str]) -> None:
        """Begin to learn what is unknown of these cards; returns at once."""
        self._looks = {uuid: look for uuid, look in self._looks.items() if not look.done()}
        for uuid in uuids:
            asked_at = self._asked_at.get(uuid)
            due = asked_at is None or self._now() - asked_at >= self._min_interval_s
            if uuid in self._sizes or not due or uuid in self._looks:
                continue
            self._asked_at[uuid] = self._now()
            self._looks[uuid] = asyncio.create_task(self._look(uuid), name=f"context of {uuid}")

    async def settled(self) -> None:
        """When the looks under way have ended, each by its deadline."""
        await asyncio.gather(*self._under_way(), return_exceptions=True)

    async def close(self) -> None:
        """End the looks that are under way."""
        for task in self._under_way():
            task.cancel()
        await self.settled()

    def _under_way(self) -> Sequence[asyncio.Task[None]]:
        return [look for look in self._looks.values() if not look.done()]

    async def _look(self, uuid: str) -> None:
        try:
            size_bytes = _decode(await self._child(uuid).ask())
        except ChildError as error:
            if self._said.get(uuid) != str(error):
                self._said[uuid] = str(error)
                _LOG.warning(Line("context size unknown", card=uuid, error=error))
            return
        self._sizes[uuid] = size_bytes
        _LOG.info(Line("context size", card=uuid, bytes=size_bytes))

    def _child(self, uuid: str) -> Child:
        if uuid not in self._children:
            environment = {**self._environment, "CUDA_VISIBLE_DEVICES": uuid}
            self._children[uuid] = Child(
                (*self._command, uuid), environment, deadline_s=self._deadline_s, whom="a context"
            )
        return self._children[uuid]


def _decode(reply: bytes) -> int:
    try:
        size_bytes = int(reply)
    except ValueError as error:
        raise ChildError(f"unreadable answer: {reply[:80]!r}") from error
    if not 0 < size_bytes <= MOST_BYTES:
        raise ChildError(f"NVML says that a context takes {size_bytes} bytes: not believed")
    return size_bytes


class _Unknown(Exception):
    """The size cannot be told; the text says why."""


def measure(uuid: str) -> int:
    """Bytes that this process's context takes of the card, by NVML's list of processes."""
    import pynvml

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    free_bytes = pynvml.nvmlDeviceGetMemoryInfo(card).free
    if free_bytes < ROOM_BYTES:
        raise _Unknown(f"less than {ROOM_BYTES} bytes of the card are free")
    with _context(uuid):
        rows = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        used_bytes = pynvml.nvmlDeviceGetMemoryInfo(card).used
    mine = [row.usedGpuMemory for row in rows if row.pid == os.getpid()]
    if not mine:
        raise _Unknown("NVML does not list this process: its number is not the host's (hostPID)")
    if len(mine) > 1 or not isinstance(mine[0], int):
        raise _Unknown("NVML does not tell the memory of processes")
    if mine[0] > used_bytes:
        raise _Unknown(f"NVML says that a context takes {mine[0]} bytes of {used_bytes} in use")
    return mine[0]


@contextlib.contextmanager
def _context(uuid: str) -> Iterator[None]:
    """The primary context of the card, which must be the only one that CUDA sees."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise _Unknown(str(error)) from error
    device, context, named = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * _UUID_BYTES)()
    for name, *arguments in (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), 0),
        ("cuDeviceGetUuid", named, device),
    ):
        _check(cuda, name, *arguments)
    if bytes(named).hex() != uuid.removeprefix("GPU-").replace("-", ""):
        raise _Unknown(f"CUDA shows GPU-{bytes(named).hex()} in its place")
    _check(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        yield
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def _check(cuda: ctypes.CDLL, name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise _Unknown(f"{name} says {code}")


def main() -> int:
    """The child's whole work; the last line on stderr says why there is no answer."""
    import pynvml

    try:
        size_bytes = measure(sys.argv[1])
    except pynvml.NVMLError as error:
        sys.stderr.write(f"NVML: {error}\n")
        return 1
    except _Unknown as unknown:
        sys.stderr.write(f"{unknown}\n")
        return 1
    sys.stdout.write(f"{size_bytes}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
