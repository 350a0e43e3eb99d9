"""`gpuslice host`: keeps the limits of a Docker host's containers, with or without a terminal.

One per machine. At its start, before Docker's, it books every stored grant and makes its files and
spec again. Then it runs the arbiter and the measuring, and makes a pass of reconciler.py every two
seconds, which compares the grants with what Docker lists.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from gpuslice.docker import containers, install, serving
from gpuslice.docker.machine import ERRORS, Machine, MachineError
from gpuslice.docker.reconciler import Reconciler
from gpuslice.gpu import bookings
from gpuslice.gpu.bookings import BookingsError
from gpuslice.kube.log_lines import Formatter, Line
from nri_plugin.gpu.arbiter_process import ArbiterProcess
from nri_plugin.gpu.audit import Audit
from nri_plugin.gpu.measuring import Measuring
from nri_plugin.host.lock import Lock
from nri_plugin.metrics import Metrics
from nri_plugin.policy.notices import Notices
from nri_plugin.supervision import supervised
from nri_plugin.threads import Worker

_LOG: Final = logging.getLogger(__name__)
_PERIOD_S: Final = 2.0
_GRACE_S: Final = 10.0
_LOOK_S: Final = 20.0
"""Docker's start waits for the driver's first answer for at most this time."""
_DESCRIPTION: Final = """\
Keep the limits of this machine's Docker containers: divide the GPUs' time, measure their memory,
free the grants of removed containers, and make grants again after a restart of the machine. Needs
root. `gpuslice host install` makes it a service, which `gpuslice run -d` and --restart need.
"""


def main(arguments: Sequence[str], prog: str) -> int:
    if arguments[:1] == ["install"]:
        return install.main(arguments[1:], f"{prog} host")
    parser = argparse.ArgumentParser(prog=f"{prog} host", description=_DESCRIPTION)
    text = "end when no container of `gpuslice run` is left"
    parser.add_argument("--while-used", action="store_true", help=text)
    chosen = parser.parse_args(arguments)
    try:
        machine = Machine(os.environ)
    except MachineError as error:
        sys.stderr.write(f"gpuslice host: {error}\n")
        return 1
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(machine.settings.log_format))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    # Containers must be able to read our files, and the arbiter opens three per container.
    os.umask(0o022)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return asyncio.run(_Host(machine, while_used=chosen.while_used).run())


class _Host:
    def __init__(self, machine: Machine, *, while_used: bool) -> None:
        self._machine, self._while_used = machine, while_used
        self._bookings = bookings.of_machine(os.environ)
        self._reconciler = Reconciler(machine, self._bookings, containers)
        # Bookings, grants and Docker: one thread, which keeps their order.
        self._worker = Worker("reconciler")
        identity = f"{serving.HOST}{f' {serving.WHILE_USED}' * while_used} pid={os.getpid()}"
        self._lock = Lock(machine.settings.run_dir, identity)
        self._leaving = asyncio.Event()
        self._failure = ""
        self._used_s = time.monotonic()

    async def run(self) -> int:
        """Serve until SIGTERM. Return the exit status."""
        if not self._while_used:
            await self._lock.acquire(self._waiting)
        elif why := self._taken():
            sys.stderr.write(f"{serving.HOST}: {why}\n")
            return 1
        else:
            serving.report_ready()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leaving.set)
        await self._pass(first=True)
        _notify("READY=1")
        tasks = [asyncio.create_task(supervised(*each)) for each in self._services()]
        _LOG.info(Line("serving", while_used=self._while_used))
        while not await self._worker.run(self._is_over, None):
            with suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_S):
                    await self._leaving.wait()
                break
            await self._pass()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self._machine.close()
        self._lock.release()
        return 0

    def _waiting(self, why: str) -> None:
        if self._failure != why:
            _LOG.warning(Line("waiting to be the only one", reason=why))
            _notify("READY=1")  # Docker must not wait for this
        self._failure = why

    def _taken(self) -> str | None:
        try:
            with self._bookings.locked():  # a `gpuslice run` may look for its holder
                return self._lock.try_acquire()
        except BookingsError as error:
            return str(error)

    async def _pass(self, *, first: bool = False) -> None:
        if first or self._reconciler.troubled:
            with suppress(*ERRORS, TimeoutError):  # the inventory has logged it
                async with asyncio.timeout(_LOOK_S):
                    await self._machine.look()
        failure = ""
        try:
            await self._worker.run(partial(self._reconciler.reconcile, first=first), None)
        except Exception as error:
            failure = repr(error)
            if failure != self._failure:
                _LOG.exception(Line("pass failed; it is tried again", error=error))
        self._failure = failure

    def _is_over(self) -> bool:
        """Give up the host's lock with --while-used if there is no grant. That is done under the
        lock of the bookings, because `gpuslice run` books first and then looks for a host."""
        with suppress(BookingsError), self._bookings.locked():
            if not self._while_used or not self._reconciler.is_unused():
                self._used_s = time.monotonic()
            elif time.monotonic() - self._used_s >= _GRACE_S:
                self._lock.release()
                return True
        return False

    def _services(self) -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        chosen, metrics, nvml = self._machine.settings, Metrics(), self._machine.inventory.nvml
        arbiter = ArbiterProcess(chosen.run_dir, chosen.environment, metrics)
        holds = lambda: self._reconciler.holds  # noqa: E731
        notices = Notices()
        audit = Audit(chosen.store_dir, metrics, notices, self._machine.files.plan)
        measuring = Measuring(chosen.run_dir, holds, nvml, metrics, notices, audit=audit)
        return (("arbiter", arbiter.run), ("measuring", measuring.run))


def _notify(state: str) -> None:
    """Report the state to systemd, if it started this process (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
            reports.sendto(state.encode(), address.replace("@", "\0", 1))
