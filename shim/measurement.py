"""Measures what the driver holds for the processes of one grant, and writes it into the grant.

`python -m shim run` uses it. The node agent does the same for containers. The processes measured
are those that have a slot of the region and run in this process's own PID namespace. A separate
thread queries NVML. While the driver does not answer, the last figure stays in force.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pynvml

from gpuslice.contract.overhead import PERIOD_S, WINDOW
from gpuslice.gpu import processes
from gpuslice.gpu.account import Account, Measured, RegionError
from gpuslice.gpu.answers import Usage
from shim import launch, region

_LOG: Final = logging.getLogger(__name__)


class Measurement:
    """Measures the grant in one directory. `ask` returns NVML's current figures."""

    def __init__(self, directory: Path, ask: Callable[[], Usage]) -> None:
        self._directory = directory
        self._account = Account(directory)
        self._ask = ask
        self._measured = Measured()

    def sample(self) -> Mapping[str, int | None]:
        """Take one sample, and return the result of Measured.add.

        Raises OSError, RegionError, RegionDirectoryError, and pynvml.NVMLError if NVML does not
        answer.
        """
        with self._account as account:
            before = account.charged_bytes()
            pids = _pids(self._directory)
            return self._measured.add(account, before, self._ask(), pids)

    def run(self, ended: threading.Event) -> None:
        """Sample once per period until `ended` is set. Log the same failure only once."""
        logged, without_figure = "", 0
        while not ended.wait(PERIOD_S):
            problem = ""
            try:
                without_figure = without_figure + 1 if None in self.sample().values() else 0
                if without_figure >= WINDOW:
                    problem = "NVML has no figure for the program's processes"
            except (region.RegionDirectoryError, RegionError, pynvml.NVMLError, OSError) as error:
                problem = str(error)
            if problem and problem != logged:
                _LOG.warning("the driver's own memory is not measured: %s", problem)
            logged = problem


@contextmanager
def measuring(directory: Path) -> Iterator[None]:
    """Measure in a thread while the block runs."""
    ended = threading.Event()
    measurement = Measurement(directory, processes.query)
    pynvml.nvmlInit()
    thread = launch.start_thread(measurement.run, ended)
    try:
        yield
    finally:
        ended.set()
        thread.join(PERIOD_S)


def _pids(directory: Path) -> Sequence[int]:
    own_namespace = os.stat("/proc/self/ns/pid").st_ino
    return [
        holder.pid
        for holder in region.holders(directory)
        if holder.pid and not holder.ended and holder.pid_namespace == own_namespace
    ]
