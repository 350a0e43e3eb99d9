"""Finds the `gpuslice host` that serves this machine, or starts one for as long as it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuslice.docker import install
from gpuslice.gpu.bookings import Bookings
from nri_plugin.child import importing
from nri_plugin.host.lock import Lock
from shim.limits import UsageError

HOST: Final = "gpuslice host"
WHILE_USED: Final = "--while-used"
"""With HOST, the beginning of the identity in its lock."""
_READY: Final = f"{HOST} serves"


def ensure(run_dir: Path, bookings: Bookings, needs_service: str) -> None:
    """Start a host if none serves. It looks for containers with a booking, so this comes after the
    booking. needs_service: an option of `run` that does, or "". Raises UsageError."""
    other = _other(run_dir, bookings)
    if other is not None and HOST not in other:
        raise UsageError(f"run --image: must not be set: {other}")
    is_service = other is not None and WHILE_USED not in other
    if needs_service and not is_service and not install.UNIT.exists():
        raise UsageError(
            f"{needs_service}: must not be set without the service that keeps limits while no"
            f" `gpuslice run` waits: run `{HOST} install`"
        )
    if other is None:
        problem = _start()
        if problem and HOST not in (_other(run_dir, bookings) or ""):  # another run's may serve
            raise UsageError(f"the limit cannot be kept: {problem}")


def _other(run_dir: Path, bookings: Bookings) -> str | None:
    """Return what the lock of the run directory says of its holder; None: it is free."""
    lock = Lock(run_dir, f"{HOST} is looked for")
    with bookings.locked():  # a host with WHILE_USED takes it under this lock, too
        other = lock.try_acquire()
        lock.release()
    return other


def _start() -> str:
    """Start a host, and wait until it serves. It has a session of its own, so that no signal of our
    terminal reaches it. Return why it failed, or ""."""
    process = subprocess.Popen(
        (sys.executable, "-m", *HOST.split(), WHILE_USED),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=importing(os.environ),
        start_new_session=True,
        text=True,
    )
    assert process.stderr
    with process.stderr:
        lines = process.stderr.read().splitlines()
    if lines[-1:] == [_READY]:
        return ""
    return lines[-1] if lines else f"{HOST} ended with status {process.wait()}"


def report_ready() -> None:
    """Tell the `gpuslice run` that started this host that it serves, and log no more: after the end
    of that process nothing reads this host's standard error."""
    with suppress(BrokenPipeError):  # it was killed, and this host frees what it has booked
        sys.stderr.write(f"{_READY}\n")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stderr.fileno())
    os.close(nothing)
