"""The arbiter's loop: finds containers, steps each GPU's turns, and sleeps until the next step."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from gpuslice.contract.lease_file import CYCLE_NS
from gpuslice.contract.region_file import Compute
from shim.arbiter.files import Container, directories
from shim.arbiter.member import IDLE_NS, Share
from shim.arbiter.turns import Turns

_SCAN_NS: Final = CYCLE_NS // 2
"""The interval of checks for new or removed containers and changed grants."""
_RESTING_SCAN_NS: Final = 180_000_000
"""The same interval while no GPU has work."""
_EMPTY_SCAN_NS: Final = 2 * CYCLE_NS
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_SHORTAGE_NS: Final = 1_000_000_000
"""The pause before the next listing, if file descriptors did not suffice for all containers."""
_PRIORITY: Final = 10
_TAKE_OVER_S: Final = 0.1


class Arbiter:
    """The turns on all GPUs of the containers below `parent`. `step` gets the time as an argument.
    report: called with a text when file descriptors begin or cease to be too few."""

    def __init__(
        self, parent: Path, prefix: str = "", report: Callable[[str], None] = lambda _: None
    ) -> None:
        self.parent = parent
        self._report = report
        self._short = False
        self._prefix = prefix
        self._containers: dict[Path, Container] = {}
        self._gpus: dict[str, Turns] = {}
        self._due_ns: dict[str, int] = {}
        """When each GPU's turns must be stepped next, by the GPU's UUID."""
        self._members: dict[str, dict[str, tuple[Container, int]]] = {}
        self._scan_ns = 0
        self._changed_ns = self._listed_ns = -1
        self._missing = False
        self._list_ns = 0
        """The earliest time of the next listing, after a shortage of file descriptors."""

    def close(self) -> None:
        for container in self._containers.values():
            container.close()
        self._containers.clear()

    def step(self, now_ns: int) -> int:
        """Do what is due at `now_ns` (CLOCK_MONOTONIC). Return the time of the next call."""
        if now_ns >= self._scan_ns:
            self._scan(now_ns)
            self._scan_ns = now_ns + self._pause_ns(now_ns)
        for uuid, turns in self._gpus.items():
            if now_ns < self._due_ns.get(uuid, 0):
                continue
            members = self._members[uuid]
            again_ns = turns.glance(now_ns, partial(_activity_of, members, now_ns))
            if again_ns:
                self._due_ns[uuid] = again_ns
                continue
            seen = {key: _activity_of(members, now_ns, key) for key in members}
            leases, self._due_ns[uuid] = turns.step(now_ns, seen)
            for key, lease in leases.items():
                container, gpu = members[key]
                container.write(gpu, lease)
        return min([self._scan_ns, *self._due_ns.values()])

    def _pause_ns(self, now_ns: int) -> int:
        if not self._containers:
            return _EMPTY_SCAN_NS
        rest = all(turns.rests(now_ns) for turns in self._gpus.values())
        return _RESTING_SCAN_NS if rest else _SCAN_NS

    def _scan(self, now_ns: int) -> None:
        """Find new and removed containers in the directory, and read changed grants again."""
        changed = False
        before_ns, self._changed_ns = self._changed_ns, self.parent.stat().st_mtime_ns
        if now_ns >= self._list_ns and (self._changed_ns != self._listed_ns or self._missing):
            # Timestamps are coarse, so a later change may have the same one. List again next time.
            self._listed_ns = self._changed_ns if self._changed_ns == before_ns else -1
            changed = self._list(now_ns)
        for container in self._containers.values():
            changed |= container.refresh()
        if changed:
            self._regroup()

    def _list(self, now_ns: int) -> bool:
        short: OSError | None = None
        try:
            there = set(directories(self.parent, self._prefix))
        except OSError as error:
            if error.errno not in _SHORTAGES:
                raise
            short, there = error, set(self._containers)
        gone = {at for at, held in self._containers.items() if not held.is_in(at)}
        new = there - (self._containers.keys() - gone)
        for directory in gone:
            self._containers.pop(directory).close()
        self._missing = short is not None
        for directory in new if short is None else ():
            try:
                self._containers[directory] = Container(directory)
            except (OSError, ValueError) as error:
                # The directory is being made or removed, or an older agent made it.
                self._missing = True
                if isinstance(error, OSError) and error.errno in _SHORTAGES:
                    short = error
                    break
        if short is not None:
            self._list_ns = now_ns + _SHORTAGE_NS
        self._report_shortage(short)
        return bool(gone or new)

    def _report_shortage(self, short: OSError | None) -> None:
        if (short is not None) is self._short:
            return
        self._short = short is not None
        served = f"serves {len(self._containers)} containers"
        others = "the others keep their own part of each cycle"
        self._report(f"{served}, and no more: {short}; {others}" if short else f"{served}: all")

    def _regroup(self) -> None:
        self._members = {}
        shares: dict[str, dict[str, Share]] = {}
        for container in self._containers.values():
            for uuid, (gpu, share) in container.shares().items():
                self._members.setdefault(uuid, {})[container.key] = container, gpu
                shares.setdefault(uuid, {})[container.key] = share
        for uuid in self._gpus.keys() - shares.keys():
            del self._gpus[uuid]
        for uuid, of_gpu in shares.items():
            self._gpus.setdefault(uuid, Turns()).set_shares(of_gpu)
        self._due_ns.clear()
        for container in self._containers.values():
            container.check_launches(
                any(self._gpus[uuid].launches_checked for uuid in container.shares())
            )


def _activity_of(members: Mapping[str, tuple[Container, int]], now_ns: int, key: str) -> Compute:
    container, gpu = members[key]
    try:
        seen = container.activity(gpu, now_ns)
        awaited = seen.busy_until_ns > now_ns or seen.waiting_since_ns
        if awaited and now_ns > seen.launched_ns + IDLE_NS and not container.has_processes():
            # Killed processes have left both values in the region, but their work has ended.
            return seen._replace(busy_until_ns=seen.launched_ns, waiting_since_ns=0)
    except OSError:
        return Compute()
    return seen


def run(
    arbiter: Arbiter, leaving: Callable[[], bool], alive: Callable[[bool], None] = lambda _: None
) -> None:
    """Serve until `leaving()` is true.

    While another arbiter of this user serves the directory, wait to take over. The lock is an
    abstract socket: it leaves no file and ends with the process. Any other program of the network
    namespace can bind the socket's name first. Then all arbiters wait, and containers use their own
    parts of each cycle. Shares are for programs that cooperate (docs/security.md).

    alive: called several times a second. Its argument is whether this arbiter serves the directory.
    """
    there = arbiter.parent.stat()
    name = f"\0gpuslice-arbiter-{os.getuid()}-{there.st_dev}-{there.st_ino}"
    with suppress(OSError):  # only root may raise its priority
        os.setpriority(os.PRIO_PROCESS, 0, -_PRIORITY)
    with socket.socket(socket.AF_UNIX) as lock:
        while not leaving():
            alive(False)
            try:
                lock.bind(name)
            except OSError:
                time.sleep(_TAKE_OVER_S)
            else:
                break
        try:
            while not leaving():
                alive(True)
                again_ns = arbiter.step(time.monotonic_ns())
                pause_ns = again_ns - time.monotonic_ns()
                if pause_ns > 0:
                    time.sleep(pause_ns / 1e9)
        finally:
            arbiter.close()
